"""Recipes: everything that decides what a training run learns, as nested frozen values made by plain functions.

A recipe is what a researcher edits: copy a function, change a number. It is stored with every checkpoint, and a test
diffs each one's serialised form, so that no default changes silently. What the data decides (dimensions, image sizes)
is not in a recipe but in the `Signature` of the view it meets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mainspring.domain.codec import from_plain, to_plain
from mainspring.domain.errors import InvalidInput, NotFound, nearest

BATCH_SIZE_MAX = 1 << 20
STEPS_MAX = 100_000_000
LAYERS_MAX = 256
WIDTH_MAX = 1 << 16


def _require(subject: str, recipe: object, **ranges: tuple[float, float]) -> None:
    """Checks that each of the fields named lies in its range."""
    for name, (low, high) in ranges.items():
        _check(subject, name, getattr(recipe, name), low, high)


def _check(subject: str, field_name: str, got: float, low: float, high: float) -> None:
    if not low <= got <= high:
        raise InvalidInput(
            f"accept a recipe's {subject}", on=f"field {field_name!r}", got=str(got), wanted=f"{low} to {high}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRecipe:
    """A small convolutional encoder, shared by all views.

    Args:
        channels: Channels of each 3x3 convolution; every one halves the image.
        features: Features a view contributes to the trunk.
        shift_pixels: In training, images are moved by up to so many pixels, and each colour is made stronger or
            weaker by `tint`, so that a policy of few episodes learns what is in them and not where each was filmed.
        tint: Deviation of the factor by which a colour's contrast changes in training.
    """

    channels: tuple[int, ...]
    features: int
    shift_pixels: int = 4
    tint: float = 0.2

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            InvalidInput: A field is out of its range.
        """
        _check("image encoder", "channels", len(self.channels), 1, LAYERS_MAX)
        for count in (*self.channels, self.features):
            _check("image encoder", "channels, features", count, 1, WIDTH_MAX)
        _require("image encoder", self, shift_pixels=(0, 1024), tint=(0.0, 1.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRecipe:
    """The policy's shape.

    Args:
        width: Features in the residual trunk.
        blocks: Residual blocks in the trunk.
        horizon: Actions in a chunk.
        time_features: Features that encode the flow time; even.
        flow_steps: Euler steps from noise to actions.
        motion: Whether the policy also sees how the state changed since the control step before; needless where the
            state holds velocities itself.
        relative_actions: Whether the chunk is learned as the difference from the state it starts at; needs a state
            and an action of the same meaning, such as joint positions.
        image: How images are read, None for a policy that looks at the state alone.
    """

    width: int
    blocks: int
    horizon: int
    time_features: int = 32
    flow_steps: int = 10
    motion: bool = False
    relative_actions: bool = False
    image: ImageRecipe | None = None

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            InvalidInput: A field is out of its range.
        """
        _require(
            "policy", self, width=(1, WIDTH_MAX), blocks=(1, LAYERS_MAX), horizon=(1, 1024), time_features=(2, 1024)
        )
        _check("policy", "time_features % 2", self.time_features % 2, 0, 0)
        _require("policy", self, flow_steps=(1, 1000))


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerRecipe:
    """AdamW with a linear warmup and a cosine decay to zero over the run.

    Args:
        learning_rate: Its peak, reached after `warmup_steps`.
        warmup_steps: Steps of the linear warmup; at most half of the run is spent on it.
        weight_decay: Decoupled decay of every weight.
        gradient_norm_max: Gradients with a larger global norm are scaled down to it.
    """

    learning_rate: float
    warmup_steps: int
    weight_decay: float
    gradient_norm_max: float = 1.0

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            InvalidInput: A field is out of its range.
        """
        _require(
            "optimizer",
            self,
            learning_rate=(0.0, 10.0),
            warmup_steps=(0, STEPS_MAX),
            weight_decay=(0.0, 10.0),
            gradient_norm_max=(1e-12, 1e12),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One training run.

    Args:
        name: The function that made it.
        batch_size: Chunks in a step, over all ranks.
        steps: Steps of the whole run; the learning rate reaches zero with the last.
        seed: Of the initial weights, the noise and the order of the data.
    """

    name: str
    policy: PolicyRecipe
    optimizer: OptimizerRecipe
    batch_size: int
    steps: int
    seed: int = 0

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            InvalidInput: A field is out of its range.
        """
        _require("run", self, batch_size=(1, BATCH_SIZE_MAX), steps=(1, STEPS_MAX), seed=(0, 2**31 - 1))


def arm_recipe() -> Recipe:
    """Returns the recipe for the simulated arm: states in, chunks of 8 actions out (0.1 s at 80 Hz)."""
    return Recipe(
        name="arm",
        policy=PolicyRecipe(width=256, blocks=2, horizon=8),
        optimizer=OptimizerRecipe(learning_rate=1e-3, warmup_steps=200, weight_decay=1e-4),
        batch_size=256,
        steps=8_000,
    )


def video_recipe() -> Recipe:
    """Returns the recipe for a robot with cameras and joint positions as actions: chunks of 32 (1.1 s at 30 Hz)."""
    return Recipe(
        name="video",
        policy=PolicyRecipe(
            width=256,
            blocks=2,
            horizon=32,
            motion=True,
            relative_actions=True,
            image=ImageRecipe(channels=(8, 16, 16, 16), features=16),
        ),
        optimizer=OptimizerRecipe(learning_rate=1e-3, warmup_steps=100, weight_decay=0.1),
        batch_size=64,
        steps=1_000,
    )


RECIPES: Mapping[str, Callable[[], Recipe]] = {"arm": arm_recipe, "video": video_recipe}


def recipe_named(name: str) -> Recipe:
    """Returns the recipe of that name.

    Args:
        name: A key of `RECIPES`.

    Raises:
        NotFound: There is no such recipe.
    """
    if name not in RECIPES:
        raise NotFound("find a recipe", got=repr(name), wanted=nearest(name, RECIPES))
    return RECIPES[name]()


def changed(recipe: Recipe, changes: Mapping[str, object]) -> Recipe:
    """Returns `recipe` with some fields replaced.

    Args:
        recipe: The recipe to start from.
        changes: New values as JSON would hold them, nested like the recipe: `{"steps": 10, "policy": {"width": 64}}`.

    Raises:
        InvalidSpec: A field is unknown or has the wrong type.
        InvalidInput: A value is out of its range.
    """
    return from_plain(Recipe, _merged(to_plain(recipe), changes), strict=True)


def _merged(plain: object, changes: object) -> object:
    if isinstance(plain, Mapping) and isinstance(changes, Mapping):
        return {**plain, **{key: _merged(plain.get(key), value) for key, value in changes.items()}}
    return changes
