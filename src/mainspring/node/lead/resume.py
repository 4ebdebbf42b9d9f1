"""Choice of the checkpoint to resume from: the newest step that is whole, in memory or in the object store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from mainspring.checkpoint import KEEP_STEPS
from mainspring.domain.ports import Backoff
from mainspring.domain.wire import StepTried
from mainspring.node.lead.effects import WriteManifest
from mainspring.node.lead.holdings import Holdings, Taken
from mainspring.node.lead.saves import Stored
from mainspring.node.lead.watch.failures import Failure

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """Devices that were found to compute otherwise than others.

    Args:
        agreed_step: The newest step whose state came of work on which all agreed, -1 where none is known.
        failure: Of which ranks.
    """

    agreed_step: int
    failure: Failure


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
        self._doubt: Doubt | None = None
        self.withdrawn_after: int | None = None
        """Later steps shall not be durable any more, once the store is asked; None for none."""

    @property
    def known(self) -> bool:
        """Returns whether the store has answered: before, nobody may start fresh."""
        return self._durable is not None

    @property
    def durable(self) -> int:
        """Returns the newest durable step that is not known to be damaged, -1 for none."""
        return max(set(self._durable or ()) - self._damaged, default=-1)

    def found(self, steps: Sequence[int], begins_from: str) -> None:
        """Takes what the store holds.

        Args:
            steps: Steps with a manifest.
            begins_from: The checkpoint to begin from without any, "" to start fresh then.
        """
        self._durable, self._begins_from, self._waits, self.withdrawn_after = sorted(steps), begins_from, 0, None
        if len(self._durable) > KEEP_STEPS:  # One more is there because a lead before this one trusted it.
            self._agreed = max(self._agreed, self._durable[0])

    def stepped(self) -> None:
        """Takes note that ranks step: what was waited for is there."""
        self._waits = 0

    def put_off(self) -> float | None:
        """Returns how long to wait before the next try, None when there were too many."""
        self._waits += 1
        return AGAIN.wait_s(self._waits) if self._waits <= STORE_TRIES_MAX else None

    def stored(self, step: int) -> None:
        """Takes note that a step has become durable."""
        self._damaged.discard(step)
        durable = sorted({*(self._durable or ()), step})
        self._durable = sorted({*durable[-KEEP_STEPS:], *({self._trusted(durable)} - {-1})})

    def tried(self, report: StepTried, failure: Failure | None) -> None:
        """Takes note of work that was done more than once.

        Args:
            report: What came of it.
            failure: Of whom, where that is certain.
        """
        if report.equal:
            self._agreed = max(self._agreed, report.agreed_step)
        elif failure is not None and self._doubt is None:
            self._doubt = Doubt(agreed_step=max(report.agreed_step, self._agreed), failure=failure)

    def doubted(self) -> Doubt | None:
        """Returns the devices that were found to differ, once."""
        doubt, self._doubt = self._doubt, None
        return doubt

    def distrust(self, agreed_step: int) -> int:
        """Trusts no step after one on which all agreed; returns after which none shall be offered.

        Where nothing as old is durable any more, the oldest there is will have to do.

        Args:
            agreed_step: See `Doubt`.
        """
        oldest = min(set(self._durable or ()) - self._damaged, default=-1)
        self._durable, self.withdrawn_after = None, max(agreed_step, oldest)
        return self.withdrawn_after

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
