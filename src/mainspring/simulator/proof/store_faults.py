"""A store that is busy, full, or loses its connection: before a statement, inside a transaction, or at its commit."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, final

import sqlalchemy as sa

from mainspring.control import Store
from mainspring.domain.ports import Dice
from mainspring.simulator.nodes.agenda import chance
from mainspring.simulator.nodes.rare import Rare


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreRates:
    """How often statements go wrong.

    Args:
        broken: The connection is lost at a statement: of its transaction nothing stays.
        full: There is no room at a commit.
        unanswered: A commit counts, and nobody learns of it.
    """

    broken: float = 0.0
    full: float = 0.0
    unanswered: float = 0.0


@final
class StoreFaults:
    """Makes a store fail at the rates it is given.

    Args:
        seen: Counts what happened.
    """

    def __init__(self, luck: Dice, seen: Counter[Rare]) -> None:
        self.rates = StoreRates()
        self._luck = luck
        self._seen = seen

    def listen(self, store: Store) -> None:
        """Makes a store fail from now on.

        Args:
            store: The one that controllers use.
        """
        sa.event.listen(store.engine, "before_cursor_execute", self._before)
        sa.event.listen(store.engine, "commit", self._commit)

    def _before(self, connection: sa.Connection, _cursor: object, statement: str, *_rest: object) -> None:
        if chance(self._luck, self.rates.broken):
            writes = connection.get_execution_options().get("writes")
            self._fail(Rare.STORE_BROKE if writes else Rare.STORE_SILENT, statement, "connection lost")

    def _commit(self, connection: sa.Connection) -> None:
        if chance(self._luck, self.rates.full):
            self._fail(Rare.STORE_FULL, "COMMIT", "database or disk is full")
        if chance(self._luck, self.rates.unanswered):
            raw: Any = connection.connection.dbapi_connection
            raw.execute("COMMIT")
            self._fail(Rare.COMMIT_UNANSWERED, "COMMIT", "connection lost")

    def _fail(self, what: Rare, statement: str, words: str) -> None:
        self._seen[what] += 1
        raise sa.exc.OperationalError(statement, None, Exception(words))
