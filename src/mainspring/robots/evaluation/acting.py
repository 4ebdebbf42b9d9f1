"""A trained policy as the actor of an environment: refused where they do not fit, before the first step."""

from __future__ import annotations

from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

from mainspring.data.video.frames import SCALING
from mainspring.domain.errors import InvalidInput
from mainspring.robots.environments.port import EnvironmentFacts, FloatArray, Pixels
from mainspring.robots.evaluation.playing import Actor, Seen
from mainspring.train.evaluate import TrainedPolicy, make_actor, normalised_state, tokenizer_of
from mainspring.train.models.shapes import LanguageRecipe


def actor_of(policy: TrainedPolicy, facts: EnvironmentFacts, *, seed: int) -> Actor:
    """Returns the actor that a policy is in an environment.

    Args:
        seed: Of the policy's noise.

    Raises:
        InvalidInput: The policy is of another robot, or of none.
    """
    shape, signature = policy.recipe.policy, policy.signature
    if isinstance(shape, LanguageRecipe):
        raise InvalidInput("evaluate a policy", got="a language model", wanted="a policy")
    dims = (signature.state_dim, signature.action_dim)
    for what, dim, names in zip(("state", "action"), dims, (facts.state_names, facts.action_names), strict=True):
        if len(names) != dim:
            got = f"{len(names)} numbers of {what}: {', '.join(names[:6])}{', ...' if len(names) > 6 else ''}"
            raise InvalidInput("evaluate a policy", on=facts.name, got=got, wanted=f"{dim}, as it was trained")
    if len(facts.cameras) < signature.image_views:
        got = f"{len(facts.cameras)} cameras ({', '.join(facts.cameras) or 'none'})"
        wanted = f"{signature.image_views}, which the policy looks at"
        raise InvalidInput("evaluate a policy", on=facts.name, got=got, wanted=wanted)
    player, tokenizer = make_actor(policy, seed=seed), tokenizer_of(policy)
    size = (signature.image_height, signature.image_width)

    def act(seen: Seen, call: int) -> FloatArray:
        batch: dict[str, NDArray[Any]] = {"state": seen.state}
        if shape.motion:
            batch["before"] = seen.before
        if signature.image_views:
            assert seen.images is not None
            batch["images"] = resized(seen.images[:, : signature.image_views], size)
        if tokenizer is not None:
            prompt = tokenizer.prompts(seen.tasks, normalised_state(policy, seen.state))
            batch |= {"prompt": prompt.tokens, "prompt_valid": prompt.valid}
        return player(batch, call)

    return act


def resized(images: Pixels, size: tuple[int, int]) -> Pixels:
    """Returns pictures [lanes, V, H, W, 3] at another height and width, scaled as views are built."""
    if images.shape[2:4] == size:
        return images
    height, width = size
    made = np.empty((*images.shape[:2], height, width, 3), np.uint8)
    for lane, views in enumerate(images):
        for view, pixels in enumerate(views):
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")
            made[lane, view] = frame.reformat(width=width, height=height, interpolation=SCALING).to_ndarray()
    return made
