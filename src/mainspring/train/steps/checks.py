"""What a run makes of work done again: who is told, and when it cannot go on."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import final

from mainspring.domain.errors import Unavailable
from mainspring.domain.wire import Detail, StepTried
from mainspring.domain.wire.events.leads import DevicesDifferEvent
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
            if self._trials.given_up:
                self._tell(StepTried(step=step, equal=False, given_up=True, agreed_step=self._agreed))
            return
        if found.equal:
            self._agreed = step - 1
            self._tell(StepTried(step=step, equal=True, agreed_step=self._agreed))
            return
        names = ", ".join(map(self._trials.name, found.suspects))
        self._tell(
            StepTried(
                step=step,
                equal=False,
                again=found.suspects == found.unsteady and not found.certain,
                ranks=self._trials.ranks(found.suspects),
                device=names[:DEVICE_LENGTH_MAX],
                certain=found.certain,
                agreed_step=self._agreed,
            )
        )
        if found.certain and not self._session.attempt:
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
        if again.upset and not again.unsteady:
            return "; done again it came to the same"
        every, unsteady = self._trials.all_devices, again.unsteady
        if self._trials.is_own_affair(unsteady):
            if again.upset:
                return "; done again it went wrong too"
            unsteady = unsteady if len(every) == 1 else ()
        ranks = self._trials.ranks(unsteady or every)
        names = ", ".join(map(self._trials.name, unsteady))
        told = StepTried(step=step, equal=False, again=True, ranks=ranks if unsteady or len(ranks) == 1 else ())
        self._tell(told if not names else replace(told, device=names[:DEVICE_LENGTH_MAX]))
        return f"; done again it came to something else{f', on {names}' if names else ''}"

    def _tell(self, told: StepTried) -> None:
        if self._session.rank:
            return
        self._session.tried(told)
        if not self._session.attempt and not told.equal:  # There is no lead to say so.
            sys.stderr.write(f"mainspring: {_words(told)}\n")


def _words(told: StepTried) -> str:
    """Returns what the lead's event would say of it."""
    return str(
        DevicesDifferEvent(
            generation=0,
            step=told.step,
            ranks=", ".join(map(str, told.ranks)),
            nodes="",
            device=told.device,
            certain=told.certain,
            again=told.again,
            agreed_step=told.agreed_step,
            given_up=told.given_up,
        )
    )
