"""What an allocation stands for that an agent names; a store that went back in time may not know it."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from mainspring.control.store.holdings import AllocationRecord, allocation_by_id
from mainspring.control.store.records import AttemptRecord, attempt_by_id
from mainspring.control.store.restores.lives import current_life
from mainspring.control.store.tokens import Caller
from mainspring.domain.errors import NotFound, Unavailable
from mainspring.domain.ids import AllocationId


@dataclass(frozen=True, slots=True, kw_only=True)
class Posting:
    """An allocation and the attempt it serves, as an agent names them."""

    allocation: AllocationRecord
    attempt: AttemptRecord


def posting(connection: sa.Connection, allocation: AllocationId, caller: Caller) -> Posting:
    """Returns what an allocation id stands for.

    Args:
        caller: Who names it.

    Raises:
        NotFound: No such allocation.
        Unavailable: The same, of a store that went back in time, or does not know the caller's attempt: agents ask
            again until an operator has settled what becomes of them.
    """
    record = allocation_by_id(connection, allocation)
    if record is None:
        attempted, on = "register an agent", f"allocation {allocation[:80]!r}"
        life = current_life(connection)
        forgotten = caller.attempt is not None and attempt_by_id(connection, caller.attempt) is None
        if forgotten or (life is not None and life.began_s):
            got, then = "one that the store does not know", "it is held until an operator settles it: ms restore"
            raise Unavailable(attempted, on=on, got=got, next_step=then)
        raise NotFound(attempted, on=on, wanted="one that was launched")
    attempt = attempt_by_id(connection, record.attempt)
    assert attempt is not None
    return Posting(allocation=record, attempt=attempt)
