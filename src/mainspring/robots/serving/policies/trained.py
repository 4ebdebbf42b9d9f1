"""Policies that `train` left in a checkpoint, of every kind that acts.

What a robot sends is named as in the data that the policy learned from: `state`, `before` (the state a control step
earlier) where it sees motion, `images` where it has eyes. Names of openpi and LeRobot mean the same (`STATE_NAMES`).

Legend of shape suffixes:
    B batch   T step in the chunk   S state   A action   V camera view   H image row   W image column   C channel
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np

from mainspring.checkpoint import durable_steps, load
from mainspring.domain.errors import InvalidInput, NotFound
from mainspring.domain.ids import JobId
from mainspring.domain.wire import Part
from mainspring.objects import ObjectStore
from mainspring.robots.serving.policy import Asked, FloatArray, Guide, PolicyFacts
from mainspring.train.evaluate import TrainedPolicy, make_sampler, normalised_state, policy_from, tokenizer_of
from mainspring.train.models.matching import Guidance
from mainspring.train.models.shapes import VlaKind, VlaRecipe
from mainspring.train.policy import model_of
from mainspring.train.prompts import Tokenizer

STATE_NAMES = ("state", "observation/state", "observation.state")
TASK_NAMES = ("prompt", "task")
_SERVED = (Part.WEIGHTS, Part.OTHER)  # Without the optimizer's, which are two thirds of a checkpoint.
BATCH_MAX = 8  # Four sizes to compile; a small policy takes no longer for 8 than for 1.


@final
class CheckpointPolicy:
    """A trained policy as it is served.

    Args:
        policy: What a checkpoint holds.
        name: Such as `JOB@STEP`.
        tokenizer: A SentencePiece file, for policies that read prompts; None where the recipe's own will do.
        batch_max: Observations at once.
    """

    def __init__(
        self, policy: TrainedPolicy, *, name: str, tokenizer: Path | None = None, batch_max: int = BATCH_MAX
    ) -> None:
        self._policy = policy
        self._sample = make_sampler(policy)
        self._prompts = _prompts_of(policy, tokenizer)
        shape, signature = policy.recipe.policy, policy.signature
        self._horizon = shape.horizon
        self._motion, self._eyes = shape.motion, shape.image is not None
        views = (signature.image_views, signature.image_height, signature.image_width, 3)
        example: dict[str, Any] = {"state": np.zeros(signature.state_dim, np.float32)}
        if self._motion:
            example["before"] = example["state"]
        if self._eyes:
            example["images"] = np.zeros(views, np.uint8)
        if self._prompts is not None:
            example["prompt"] = "wait"
        self._facts = PolicyFacts(
            name=name,
            guided=model_of(shape).guided,
            batch_max=batch_max,
            horizon=shape.horizon,
            action_dim=signature.action_dim,
            metadata={
                "recipe": policy.recipe.name,
                "sees": {key: list(np.shape(each)) for key, each in example.items()},
            },
            examples=(example,),
        )

    @property
    def facts(self) -> PolicyFacts:
        """Returns what it sees and gives."""
        return self._facts

    def infer(self, asked: Sequence[Asked]) -> FloatArray:
        """Returns a chunk for each observation; rows beyond a power of two are computed and dropped.

        Raises:
            InvalidInput: An observation lacks something, or has it in another shape.
        """
        count = len(asked)
        size = min(1 << (count - 1).bit_length(), max(count, self._facts.batch_max))
        padded = [*asked, *[asked[-1]] * (size - count)]  # So that few sizes are ever compiled.
        seen = [self._seen(each.observation) for each in padded]
        batch = {name: np.stack([each[name] for each in seen]) for name in seen[0]}
        seed_B = np.asarray([each.seed for each in padded], np.uint32)
        guides = [each.guide for each in padded]
        return self._sample(batch, seed_B, self._guidance([each for each in guides if each is not None]))[:count]

    def _seen(self, observation: Mapping[str, Any]) -> dict[str, Any]:
        state = _numbers(observation, STATE_NAMES, self._facts.examples[0]["state"].shape)
        seen = {"state": state}
        if self._motion:
            seen["before"] = _numbers(observation, ("before",), state.shape)
        if self._eyes:
            seen["images"] = _images(observation, self._facts.examples[0]["images"].shape)
        if self._prompts is not None:
            task = next((observation[name] for name in TASK_NAMES if name in observation), None)
            if not isinstance(task, str):
                raise InvalidInput("show a policy what it sees", on="prompt", got=type(task).__name__, wanted="a text")
            seen |= self._prompts(task, state)
        return seen

    def _guidance(self, guides: Sequence[Guide]) -> Guidance | None:
        """Returns what chunks are to go on from: weights fall from 1 to 0 between delay and horizon."""
        if not guides or not self._facts.guided:
            return None
        chunk = np.zeros((len(guides), self._horizon, self._facts.action_dim), np.float32)
        weight = np.zeros((len(guides), self._horizon), np.float32)
        for row, guide in enumerate(guides):
            left = guide.left_over_TA[: self._horizon]
            if left.shape[1] != self._facts.action_dim:
                raise InvalidInput(
                    "go on from a chunk",
                    on="prev_chunk_left_over",
                    got=f"actions of {left.shape[1]} numbers",
                    wanted=f"{self._facts.action_dim}",
                )
            chunk[row, : len(left)] = left
            weight[row, : len(left)] = prefix_weights(guide.delay, min(guide.horizon, len(left)), len(left))
        return Guidance(chunk, weight)


def prefix_weights(delay: int, horizon: int, count: int) -> FloatArray:
    """Returns how much each of `count` steps of a chunk is to be like what is left of the one before.

    Args:
        delay: Steps that will be done before the new chunk comes: weight 1.
        horizon: From there on the new chunk is free: weight 0.

    Source: Black et al., "Real-Time Execution of Action Chunking Flow Policies", 2025, equation 5.
    """
    step = np.arange(count, dtype=np.float32)
    along = np.clip((horizon - step) / max(horizon - delay + 1, 1), 0.0, 1.0)
    soft = along * np.expm1(along) / (np.e - 1)
    weights: FloatArray = np.where(step < min(delay, horizon), 1.0, np.where(step < horizon, soft, 0.0)).astype(
        np.float32
    )
    return weights


def load_policy(
    store: ObjectStore,
    job: JobId,
    step: int | None,
    *,
    tokenizer: Path | None,
    batch_max: int,
    rest: Callable[[], object] | None = None,
) -> CheckpointPolicy:
    """Returns the policy of a job's checkpoint.

    Args:
        step: None for the newest that is whole.
        rest: See `Checkpoint`; for one that is read while another serves.

    Raises:
        NotFound: There is none.
        InvalidInput: It is damaged, or holds no policy that acts.
    """
    checkpoint = load(store, job, step, _SERVED, rest=rest)
    policy = policy_from(checkpoint.state, checkpoint.arrays)
    return CheckpointPolicy(policy, name=f"{job}@{checkpoint.step}", tokenizer=tokenizer, batch_max=batch_max)


def newest_step(store: ObjectStore, job: JobId) -> int:
    """Returns the newest step of a job that is durable.

    Raises:
        NotFound: There is none.
    """
    steps = durable_steps(store, job)
    if not steps:
        raise NotFound("find a checkpoint", on=str(job), got="none", next_step="wait until the job has saved one")
    return steps[0]


def _prompts_of(policy: TrainedPolicy, tokenizer: Path | None) -> Callable[[str, FloatArray], dict[str, Any]] | None:
    """Returns what makes a prompt of a task and a state, None where the recipe's own serves."""
    shape = policy.recipe.policy
    if tokenizer is None:
        words = tokenizer_of(policy)
    elif isinstance(shape, VlaRecipe):
        words = Tokenizer(tokenizer, shape)
    else:
        raise InvalidInput("serve a policy", got="a tokenizer for a policy that reads no words")
    if words is None:
        if isinstance(shape, VlaRecipe) and shape.kind is VlaKind.PI05:
            raise InvalidInput(
                "serve a policy",
                got="one that knows its state from the prompt alone, and no tokenizer",
                next_step="give --tokenizer FILE, the SentencePiece file of its language model",
            )
        return None

    def prompt(task: str, state: FloatArray) -> dict[str, Any]:
        made = words.prompt(task, normalised_state(policy, state[None])[0])
        return {"prompt": made.tokens, "prompt_valid": made.valid}

    return prompt


def _numbers(observation: Mapping[str, Any], names: Sequence[str], shape: tuple[int, ...]) -> FloatArray:
    found = next((observation[name] for name in names if name in observation), None)
    array = np.asarray(found) if isinstance(found, (np.ndarray, list)) else np.zeros(())
    if found is None or array.shape != shape or array.dtype.kind not in "fiu":
        got = "nothing" if found is None else f"{array.dtype} {array.shape}"
        raise InvalidInput("show a policy what it sees", on=names[0], got=got, wanted=f"numbers {shape}")
    if not np.isfinite(array).all():
        raise InvalidInput("show a policy what it sees", on=names[0], got="a number that is not finite")
    return array.astype(np.float32)


def _images(observation: Mapping[str, Any], shape: tuple[int, ...]) -> Any:
    """Returns the pictures of all views, [V,H,W,C]: given so, or one by one, in the order of their names."""
    given = observation.get("images")
    if given is None:
        named = {name: each for name, each in observation.items() if "image" in name}
    else:
        named = dict(given) if isinstance(given, Mapping) else {}
    if named:
        pictures = [_picture(named[name]) for name in sorted(named)]
        given = np.stack(pictures) if len({each.shape for each in pictures}) == 1 else None
    if not isinstance(given, np.ndarray) or given.shape != shape or given.dtype != np.uint8:
        got = f"{given.dtype} {given.shape}" if isinstance(given, np.ndarray) else f"{sorted(named)}"
        raise InvalidInput(
            "show a policy what it sees",
            on="images",
            got=got,
            wanted=f"uint8 {shape}: views in the order of the data, or as many pictures by name",
            next_step="scale pictures as the view of the data has them",
        )
    return given


def _picture(given: Any) -> Any:
    """Returns one picture, [H,W,C]; ALOHA's and LeRobot's have their channels first."""
    array: Any = given if isinstance(given, np.ndarray) else np.zeros(())
    return np.moveaxis(array, 0, -1) if array.ndim == 3 and array.shape[0] == 3 != array.shape[-1] else array
