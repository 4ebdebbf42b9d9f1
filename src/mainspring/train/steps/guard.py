"""What is done about a step that went wrong, as a recipe says: gone on, gone back, or ended; told as an event each.

The device has seen to it that the state is what it was (`update`). Steps go on counting whatever is done, so batches
and noise are those of a run without; one that goes back has an older state from then on. Every rank has the same
measures and snapshots of the same steps, and so all decide alike without a word.
"""

from __future__ import annotations

from dataclasses import dataclass

from mainspring.domain.errors import InvalidInput
from mainspring.session import Restored, Session
from mainspring.train.recipe import Answer, GuardRecipe
from mainspring.train.steps.update import NOT_FINITE, Measures


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Upset:
    """A step that went wrong, and is passed over.

    Args:
        back: What to go back to, None to go on as it is.
    """

    step: int
    back: Restored | None = None


class Guard:
    """Judges steps by their measures, in order.

    Args:
        recipe: What to do.
        restored: What the run resumed from, where it did.
    """

    def __init__(self, recipe: GuardRecipe, restored: Restored | None) -> None:
        self._recipe, self._restored = recipe, restored
        self._row = 0

    def judged(self, session: Session, step: int, measures: Measures, again: str = "") -> Upset | None:
        """Returns what went wrong in a step, having told it; None for a good one.

        Args:
            session: Tells it, once for all ranks.
            step: It.
            measures: Its own.
            again: What came of it when it was done again, for people.

        Raises:
            InvalidInput: The run is to end.
        """
        kind = "not_finite" if measures.upset == NOT_FINITE else "spike"
        answer = self._recipe.not_finite if kind == "not_finite" else self._recipe.spike
        if not measures.upset or answer is Answer.IGNORE:
            self._row = 0
            return None
        self._row += 1
        seen = f"loss {measures.loss:.4g}, gradient norm {measures.gradient_norm:.4g}"
        if kind == "spike":
            seen += f", usually {measures.usual:.4g}"
        seen += again
        back = None
        if answer is Answer.ROLL_BACK:
            back = session.newest_snapshot() or self._restored
        why = self._end_of(answer, back)
        if session.rank == 0:
            told = Answer.STOP if why else answer
            session.upset(step, kind=kind, answer=told.value, words=seen, to_step=-1 if back is None else back.step)
        if why:
            raise InvalidInput(
                "go on training",
                on=f"step {step}",
                got=f"{seen}{why}",
                wanted="finite numbers" if kind == "not_finite" else "a gradient of a usual length",
                next_step=f"set guard.{kind} to skip or roll_back, or a smaller optimizer.learning_rate",
            )
        return Upset(step=step, back=back)

    def _end_of(self, answer: Answer, back: Restored | None) -> str:
        """Returns why the run ends, "" when it goes on."""
        if answer is Answer.STOP:
            return "; the recipe says stop"
        if self._row >= self._recipe.most:
            return f"; the {self._row}th such step in a row"
        if answer is Answer.ROLL_BACK and back is None:
            return "; there is no snapshot to go back to"
        return ""
