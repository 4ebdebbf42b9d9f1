"""How fast a run goes: a step's seconds, those in which it waited for data, tokens a second, what chips are used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from mainspring.train.models.shapes import ActRecipe, LanguageRecipe, PolicyRecipe, Signature, VlaKind, VlaRecipe
from mainspring.train.recipe import Recipe

Item = TypeVar("Item")


def tokens_of(recipe: Recipe, signature: Signature) -> int:
    """Returns how many tokens a step's batch has, all streams together; of a policy without tokens, its actions.

    Args:
        recipe: What is learned.
        signature: The data's dimensions.
    """
    policy, views = recipe.policy, signature.image_views
    match policy:
        case VlaRecipe():
            prefix = policy.prompt_length + views * (0 if policy.image is None else policy.image.tokens)
            return recipe.batch_size * (prefix + policy.horizon + (policy.kind is VlaKind.PI0))
        case ActRecipe():
            edges = (signature.image_height, signature.image_width)
            halvings = 0 if policy.image is None else len(policy.image.channels)
            height, width = (-(-edge // (1 << halvings)) for edge in edges)
            return recipe.batch_size * (2 + views * height * width + policy.horizon + policy.tokens)
        case PolicyRecipe() | LanguageRecipe():
            return recipe.batch_size * policy.horizon


class Pace:
    """Measures a run's steps, from one report to the next. For one thread.

    Args:
        stopwatch: Seconds that never go back.
        tokens: Of a step.
        mfu: From seconds of a step to the part of what the chips can compute that learning needs; None where nobody
            knows what they can.
    """

    def __init__(self, stopwatch: Callable[[], float], *, tokens: int, mfu: Callable[[float], float] | None) -> None:
        self._stopwatch, self._tokens, self._mfu = stopwatch, tokens, mfu
        self._waited_s = 0.0
        self._since_s: float | None = None

    def timed(self, batches: Iterator[Item]) -> Iterator[Item]:
        """Returns the batches; the time in which the run waits for each is counted."""
        while True:
            asked_s = self._stopwatch()
            try:
                batch = next(batches)
            except StopIteration:
                return
            self._waited_s += self._stopwatch() - asked_s
            yield batch

    def measures(self) -> dict[str, float]:
        """Returns what is to be told of the step that has just ended; nothing of the first, which compiles."""
        now_s = self._stopwatch()
        since_s, self._since_s = self._since_s, now_s
        waited_s, self._waited_s = self._waited_s, 0.0
        if since_s is None or now_s <= since_s:
            return {}
        step_s = now_s - since_s
        found = {"step_s": step_s, "tokens_per_s": self._tokens / step_s, "data_wait": min(1.0, waited_s / step_s)}
        return found if self._mfu is None else {**found, "mfu": self._mfu(step_s)}

    def rest(self) -> None:
        """Leaves out of the next step's time what was before: something else was done."""
        self._since_s = None
