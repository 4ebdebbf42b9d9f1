"""What a run makes of work done again: who is told, and when it cannot go on."""

from __future__ import annotations

from dataclasses import replace
from typing import final

from mainspring.domain.errors import Unavailable
from mainspring.domain.wire import Detail, StepTried
from mainspring.session import Restored, Session
from mainspring.train.steps.again import Batch, Trials
from mainspring.train.steps.state import TrainState
from mainspring.train.steps.verdicts import Again

DEVICE_LENGTH_MAX = 200  # Of their names, for people.
AGREED = "agreed_step"  # A fact of every snapshot: the newest step whose state came of work on which all agreed.


@final
class Checks:
    """Has work done again where it is due, and tells the lead what came of it: once for all ranks.

    Args:
        session: Tells it.
        trials: Do it.
        restored: What the run resumed from, where it did.
    """

    def __init__(self, session: Session, trials: Trials, restored: Restored | None) -> None:
        self._session, self._trials = session, trials
        agreed = -1 if restored is None else restored.state.get(AGREED, -1)
        self._agreed = agreed if isinstance(agreed, int) else -1

    @property
    def facts(self) -> Detail:
        """Returns what is kept with every snapshot."""
        return {AGREED: self._agreed}

    def due(self, step: int) -> bool:
        """Returns whether `check` is to be called before a step."""
        return self._trials.due(step)

    def check(self, state: TrainState, batch: Batch, step: int) -> None:
        """Has devices compute their neighbours' rows too; where one stands alone, the lead ends this generation.

        Args:
            state: Before the step; all steps before it are over.
            batch: The step's.
            step: It.

        Raises:
            Unavailable: One stands alone, and there is no lead that would go on without it.
        """
        found = self._trials.neighbours(state, batch, step)
        if found is None:
            return
        if found.equal:
            self._agreed = step - 1
            self._tell(StepTried(step=step, equal=True, agreed_step=self._agreed))
            return
        devices = found.odd or found.unequal
        names = ", ".join(map(self._trials.name, devices))
        self._tell(
            StepTried(
                step=step,
                equal=False,
                ranks=self._trials.ranks(devices),
                device=names[:DEVICE_LENGTH_MAX],
                certain=bool(found.odd),
                agreed_step=self._agreed,
            )
        )
        if found.odd and not self._session.attempt:
            raise Unavailable(
                "go on training",
                on=f"step {step}",
                got=f"{names} computes otherwise than two that agree",
                wanted="devices that come to the same",
                next_step="train without it, from a checkpoint before the last step on which all agreed",
            )

    def again(self, step: int, again: Again | None) -> str:
        """Returns what is to be said of a step that was done again, having told a suspicion; "" of one that was not."""
        if again is None:
            return ""
        if not again.unsteady and again.upset:
            return "; done again it came to the same"
        devices = again.unsteady or self._trials.all_devices
        ranks = self._trials.ranks(devices)
        names = ", ".join(map(self._trials.name, again.unsteady))
        told = StepTried(step=step, equal=False, again=True, ranks=ranks if again.unsteady or len(ranks) == 1 else ())
        self._tell(told if not names else replace(told, device=names[:DEVICE_LENGTH_MAX]))
        return f"; done again it came to something else{f', on {names}' if names else ''}"

    def _tell(self, told: StepTried) -> None:
        if self._session.rank == 0:
            self._session.tried(told)
