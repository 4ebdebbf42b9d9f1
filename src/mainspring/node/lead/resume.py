"""Choice of the checkpoint to resume from: the newest step that is whole, in memory or in the object store."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from mainspring.checkpoint import KEEP_STEPS
from mainspring.domain.ports import Backoff
from mainspring.node.lead.effects import FindDurable, WriteManifest
from mainspring.node.lead.holdings import Holdings, Taken
from mainspring.node.lead.saves import Stored

RESTORE_TRIES_MAX = 3  # Of one step in memory: a peer that does not answer once may be busy; thrice, it is of no use.
STORE_TRIES_MAX = 8  # With the waits below: four minutes of a store that does not answer while state is needed.
AGAIN = Backoff(first_s=1.0, cap_s=60.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeSource:
    """Where a generation's state is.

    Args:
        step: The step, -1 for none of the job's own.
        name: "arena", "store", or "" for none.
        taken: What it is in memory, None where it is not.
        begins_from: The checkpoint of another name that ranks are given in place of a step of the job's own, or "".
    """

    step: int = -1
    name: str = ""
    taken: Taken | None = None
    begins_from: str = ""

    @property
    def words(self) -> str:
        """Returns what it is, for people."""
        return f"{self.begins_from}, from which the job begins," if self.begins_from else f"step {self.step}"


@final
class Resumption:
    """What is known of durable steps, and which steps failed to be restored."""

    def __init__(self) -> None:
        self._durable: list[int] | None = None  # As many as the store keeps.
        self._begins_from = ""
        self._damaged: set[int] = set()
        self._tries: dict[Taken, int] = {}
        self._waits = 0
        self._began: ResumeSource | None = None
        self._agreed = -1  # The newest step on whose state all devices agreed.
        self._withdraws: int | None = None  # Later steps are distrusted, and the store has not withdrawn them yet.
        self._asked: FindDurable | None = None  # What the store has not answered yet.
        self._again_s = -math.inf

    @property
    def known(self) -> bool:
        """Returns whether the store has answered, and holds nothing that is distrusted: before, nobody may start."""
        return self._durable is not None and self._withdraws is None

    @property
    def owes(self) -> bool:
        """Returns whether the store is yet to withdraw what is distrusted; no attempt ends before, within reason."""
        return self._withdraws is not None and self._waits <= STORE_TRIES_MAX

    @property
    def durable(self) -> int:
        """Returns the newest durable step that is neither distrusted nor known to be damaged, -1 for none."""
        steps = set(self._durable or ()) - self._damaged
        return max((step for step in steps if self._withdraws is None or step <= self._withdraws), default=-1)

    def ask(self, monotonic_s: float, *, finding: bool) -> FindDurable | None:
        """Returns what to ask the store; None where nothing is, while it has yet to answer, or shall have a rest.

        Args:
            finding: Whether somebody waits for what it holds.
        """
        if not (finding or self.owes) or self._asked is not None or monotonic_s < self._again_s:
            return None
        self._asked = FindDurable(withdraw_after=self._withdraws)
        return self._asked

    def found(self, steps: Sequence[int] | None, begins_from: str) -> bool:
        """Takes what the store holds; returns whether it has answered.

        What was asked before more was distrusted is asked again, whatever the answer.

        Args:
            steps: Steps with a manifest, None where it does not answer.
            begins_from: The checkpoint to begin from without any, "" to start fresh then.
        """
        asked, self._asked = self._asked, None
        if steps is None:
            return False
        if self._withdraws != (asked.withdraw_after if asked is not None else None):
            return True
        self._durable, self._begins_from, self._waits, self._withdraws = sorted(steps), begins_from, 0, None
        if len(self._durable) > KEEP_STEPS:  # One more is there because a lead before this one trusted it.
            self._agreed = max(self._agreed, self._durable[0])
        return True

    def stepped(self) -> None:
        """Takes note that ranks step: what was waited for is there."""
        self._waits = 0

    def put_off(self) -> float | None:
        """Returns how long to wait before the next try, None when there were too many."""
        self._waits += 1
        return AGAIN.wait_s(self._waits) if self._waits <= STORE_TRIES_MAX else None

    def rest(self, monotonic_s: float) -> None:
        """Puts off what is to be withdrawn, where nobody waits for it."""
        self._again_s = monotonic_s + (self.put_off() or 0.0)

    def stored(self, step: int) -> None:
        """Takes note that a step has become durable."""
        self._damaged.discard(step)
        durable = sorted({*(self._durable or ()), step})
        self._durable = sorted({*durable[-KEEP_STEPS:], *({self._trusted(durable)} - {-1})})

    def agreed(self, step: int) -> None:
        """Takes note of the newest step whose state came of work on which all agreed."""
        self._agreed = max(self._agreed, step)

    def distrust(self, agreed_step: int, *, late: bool) -> int:
        """Trusts no step after one on which all agreed; returns after which none shall be offered.

        The store is to withdraw them, whatever becomes of the attempt. Where nothing as old is durable any more, the
        oldest there is will have to do.

        Args:
            agreed_step: The newest step of which it is known that all agreed, -1 where none is.
            late: Whether that was told of a generation that is over: what others agreed on since says nothing of it.
        """
        oldest = min(set(self._durable or ()) - self._damaged, default=-1)
        after = max(agreed_step, oldest, -1 if late else self._agreed)
        self._withdraws = after if self._withdraws is None else min(after, self._withdraws)
        self._agreed = min(self._agreed, self._withdraws)
        return self._withdraws

    def _trusted(self, durable: Sequence[int]) -> int:
        """Returns the newest durable step on whose state all agreed, -1 for none."""
        return max((step for step in durable if step <= self._agreed and step not in self._damaged), default=-1)

    def began(self, source: ResumeSource) -> None:
        """Takes note of where a generation resumes."""
        self._began = self._began or source
        self._agreed = min(self._agreed, source.step)  # Others may compute anew what came after.

    def manifest(self, stored: Stored) -> WriteManifest:
        """Returns what makes a step durable; its parent is what this lead's first generation found in the store."""
        parent = self._began if self._began is not None and self._began.name == "store" else ResumeSource()
        return WriteManifest(
            step=stored.taken.step,
            generation=stored.taken.generation,
            parent_step=parent.step,
            begins_from=parent.begins_from,
            shares=stored.shares,
            state=stored.state,
            replace=stored.taken.step in self._damaged,
            trusted=self._trusted((*(self._durable or ()), stored.taken.step)),
        )

    def choose(self, holdings: Holdings) -> ResumeSource:
        """Returns where to resume: at the newest whole step there is."""
        taken, stored = holdings.newest(), self.durable
        if taken is not None and taken.step >= stored:
            return ResumeSource(step=taken.step, name="arena", taken=taken)
        if stored < 0 and not self._begins_from:
            return ResumeSource()
        return ResumeSource(step=stored, name="store", begins_from=self._begins_from if stored < 0 else "")

    def failed(self, source: ResumeSource, *, corrupt: bool) -> Taken | None:
        """Takes note that a source could not be restored; returns what memory shall not be asked for any more."""
        if source.taken is None:
            self._damaged |= {source.step} if corrupt else set()
            return None
        tries = self._tries[source.taken] = self._tries.get(source.taken, 0) + 1
        return source.taken if tries >= RESTORE_TRIES_MAX else None
