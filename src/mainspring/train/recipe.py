"""Recipes: everything that decides what a training run learns, as nested frozen values made by plain functions.

A recipe is what a researcher edits: copy a function, change a number. It is stored with every checkpoint, and a test
diffs each one's serialised form, so that no default changes silently. What the data decides (dimensions, image sizes)
is not in a recipe but in the `Signature` of the view it meets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from mainspring.domain.codec import from_plain, to_plain
from mainspring.domain.errors import NotFound, nearest
from mainspring.train.lora import AdapterRecipe, LoraRecipe
from mainspring.train.models.shapes import (
    GEMMA_2B,
    SIGLIP_SO400M,
    ActRecipe,
    ComputeRecipe,
    ConvolutionRecipe,
    FloatKind,
    GemmaRecipe,
    ImageRecipe,
    LanguageRecipe,
    Policy,
    PolicyRecipe,
    Remat,
    SiglipRecipe,
    VlaKind,
    VlaRecipe,
    require,
)
from mainspring.train.robots import ONE_ROBOT, DataRecipe

BATCH_SIZE_MAX = 1 << 20
STEPS_MAX = 100_000_000
DEVICES_MAX = 1 << 20


VLA_LORA = LoraRecipe(  # Source: openpi, `gemma.py`, its ranks.
    adapters=(
        AdapterRecipe(stack="language/blocks", rank=16, alpha=16.0),
        AdapterRecipe(stack="expert/blocks", rank=32, alpha=32.0),
    ),
    whole=("(image|action_in|action_out|time_in|time_out|state)/.*",),
    numbers=FloatKind.BFLOAT16,
)
"""Adapters of a VLA; what leads into it and out of it is learned whole."""


class OptimizerKind(str, Enum):
    """Which way a weight moves, times the rate, and what is kept beside it for that.

    `adamw`: mean gradient over the root of the mean squared one; both are kept. Source: Loshchilov and Hutter, 2017.
    `adafactor`: gradient over such a root, which is kept by rows and columns of large arrays, almost nothing; no
    mean, and a rate that does not grow with the weights. Source: Shazeer and Stern, 2018.
    `lion`: the sign of a mean gradient, which is kept; wants a third of AdamW's rate or less, and a `second_beta` of
    0.99. Source: Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023.
    `sgd`: a sum of gradients that forgets a tenth a step, which is kept; Nesterov's.
    `muon`: for products in hidden layers a sum as with `sgd`, made orthogonal and as long as a step of AdamW's, so that
    its rates serve; AdamW for all else. Source: Jordan et al., "Muon", 2024; Liu et al., 2025.
    """

    ADAMW = "adamw"
    ADAFACTOR = "adafactor"
    LION = "lion"
    SGD = "sgd"
    MUON = "muon"


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerRecipe:
    """AdamW (first beta 0.9, epsilon 1e-8), or another, at a learning rate that rises and falls.

    The rate of step n of N, counted from 0, rises on a line from 0 at step 0 to its peak at step `warmup_steps`, then
    falls on half a cosine, which would reach its end at step N; without a warmup step 0 has the peak. In each step a
    weight moves by rate x (mean gradient / root of the mean squared gradient + `weight_decay` x the weight).
    Source: Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2017; "SGDR", 2016 (cosine).

    Args:
        learning_rate: The peak: by how much, about, a weight moves in a step, in the weight's own units.
        warmup_steps: Steps of the rise, at most half of the run.
        weight_decay: The share of a weight that a step takes off it, over the rate. All weights decay, biases, norms
            and embeddings among them.
        gradient_norm_max: Longest gradient, as the root of the sum of squares over all weights; a longer one is scaled
            down to it before anything else is done with it.
        second_beta: Share of the mean squared gradient that a step keeps; of the mean gradient, for `lion`.
        learning_rate_end: Where the fall ends.
        kind: Which way a weight moves.
    """

    learning_rate: float
    warmup_steps: int
    weight_decay: float
    gradient_norm_max: float = 1.0
    second_beta: float = 0.999
    learning_rate_end: float = 0.0
    kind: OptimizerKind = OptimizerKind.ADAMW

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            InvalidInput: A field is out of its range.
        """
        require(
            "optimizer",
            self,
            learning_rate=(0.0, 10.0),
            warmup_steps=(0, STEPS_MAX),
            weight_decay=(0.0, 10.0),
            gradient_norm_max=(1e-12, 1e12),
            second_beta=(0.0, 1.0 - 1e-9),
            learning_rate_end=(0.0, self.learning_rate),
        )


class LayoutName(str, Enum):
    """Whose names the arrays of a checkpoint have; `mainspring` is what `ms checkpoint export` writes."""

    MAINSPRING = "mainspring"
    OPENPI = "openpi"
    LEROBOT = "lerobot"
    PALIGEMMA = "paligemma"
    BIG_VISION = "big_vision"
    GEMMA = "gemma"


@dataclass(frozen=True, slots=True, kw_only=True)
class InitRecipe:
    """Weights that a run begins with, in place of fresh ones.

    Args:
        path: An Orbax folder, a safetensors file or a folder of them, or an `.npz` file, which every rank reads; or
            JOB@STEP, a checkpoint of ours, adapters merged, which the training program brings.
        layout: Whose names its arrays have; None to see by them.
        keep: Our arrays that stay fresh, whatever the checkpoint holds: regular expressions, each of whole paths, such
            as `(expert|action|time|state).*` for a policy that begins with a PaliGemma.
        statistics: What these weights' states and actions were normalised by, to be normalised by again: openpi's
            `norm_stats.json` or its folder, or LeRobot's `stats.json` or safetensors. None to measure the data.
    """

    path: str
    layout: LayoutName | None = None
    keep: tuple[str, ...] = ()
    statistics: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshRecipe:
    """How many devices share what. One of `replica` and `data` may be 0: whatever devices are left.

    Args:
        replica: Groups of devices that each hold the whole state and take their own rows of a batch.
        data: Devices that share rows of a batch, and every large array of the state (FSDP).
        tensor: Devices that share heads and hidden features.
        sequence: Devices that share tokens; a number that they do not divide is padded.
        whole_bytes_max: Smaller arrays are not split along `data`: to gather them costs more than they take.
    """

    replica: int = 0
    data: int = 1
    tensor: int = 1
    sequence: int = 1
    whole_bytes_max: int = 4 << 20  # Source: openpi, `sharding.py`.

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            InvalidInput: A field is out of its range.
        """
        some, least = (1, DEVICES_MAX), (1 if self.replica == 0 else 0, DEVICES_MAX)
        require("mesh", self, replica=(0, DEVICES_MAX), data=least, tensor=some, sequence=some)
        require("mesh", self, whole_bytes_max=(0, 1 << 40))


class Answer(str, Enum):
    """What is done about a step that went wrong.

    `ignore`: nothing. `skip`: the state stays as it was, and the next batch is taken. `roll_back`: as `skip`, and the
    state is that of the newest snapshot, from which the batches go on that were not seen yet. `stop`: the run ends.
    """

    IGNORE = "ignore"
    SKIP = "skip"
    ROLL_BACK = "roll_back"
    STOP = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardRecipe:
    """What is done about steps that go wrong; each is an event of the job, and is done again first.

    Args:
        not_finite: About a loss or a gradient that is no number.
        spike: About a gradient that is longer than `spike_factor` times what is usual.
        spike_factor: See `spike`. Usual is the mean of some 100 steps before; in the first 100 there are no spikes.
        most: Such steps in a row after which the run ends, whatever is done about one.
        check_every: Steps after which devices that hold the whole state compute their neighbours' rows too, 0 for
            never: two passes more, of the 250 between.
    """

    not_finite: Answer = Answer.STOP
    spike: Answer = Answer.IGNORE
    spike_factor: float = 10.0
    most: int = 10
    check_every: int = 250

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            InvalidInput: A field is out of its range.
        """
        require("guard", self, spike_factor=(1.0, 1e6), most=(1, 10_000), check_every=(0, STEPS_MAX))


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutRecipe:
    """The loss on episodes that nobody learns from, of each source and of each task.

    Args:
        every: Steps between two measurements; the last step is measured too.
        rows: Samples of each task, at most a batch.
    """

    every: int
    rows: int = 64

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            InvalidInput: A field is out of its range.
        """
        require("held_out", self, every=(1, STEPS_MAX), rows=(1, BATCH_SIZE_MAX))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One training run.

    Args:
        name: The function that made it.
        batch_size: Chunks in a step, over all ranks.
        steps: Steps of the whole run, over which the learning rate rises and falls.
        seed: Of the initial weights, the noise and the order of the data.
        init: Weights to begin with, None for fresh ones.
        mesh: How many devices share what.
        accumulate: Parts in which a device works through its share of a batch, one after the other, to need less
            memory; gradients are summed.
        frozen: Weights that are not learned: regular expressions, each of whole paths. They have no gradients and no
            moments.
        ema_decay: Share that a step keeps of the mean weights, which are those in use after training; None for the
            last weights.
        lora: Adapters, which are learned while weights stay as they are; None to learn the weights.
        data: What is learned from, and how a policy gets it.
        guard: What is done about steps that go wrong.
        held_out: When the loss on other episodes is measured, None for never.
    """

    name: str
    policy: Policy
    optimizer: OptimizerRecipe
    batch_size: int
    steps: int
    seed: int = 0
    init: InitRecipe | None = None
    mesh: MeshRecipe = MeshRecipe()
    accumulate: int = 1
    frozen: tuple[str, ...] = ()
    ema_decay: float | None = None
    lora: LoraRecipe | None = None
    data: DataRecipe = ONE_ROBOT
    guard: GuardRecipe = GuardRecipe()
    held_out: HeldOutRecipe | None = None

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            InvalidInput: A field is out of its range.
        """
        require("run", self, batch_size=(1, BATCH_SIZE_MAX), steps=(1, STEPS_MAX), seed=(0, 2**31 - 1))
        require("run", self, accumulate=(1, self.batch_size))
        if self.ema_decay is not None:
            require("run", self, ema_decay=(0.0, 1.0))


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


def act_recipe() -> Recipe:
    """Returns the recipe for ACT in the shape of LeRobot's, with an images' encoder of our own: chunks of 100."""
    return Recipe(
        name="act",
        policy=ActRecipe(
            width=512,
            mlp=3200,
            heads=8,
            encoder_layers=4,
            decoder_layers=1,
            style_layers=4,
            style_dim=32,
            horizon=100,
            image=ConvolutionRecipe(channels=(32, 64, 128, 256, 512)),
            compute=ComputeRecipe(numbers=FloatKind.FLOAT32, remat=Remat.NONE),
        ),
        optimizer=OptimizerRecipe(learning_rate=1e-4, warmup_steps=500, weight_decay=1e-4),
        batch_size=64,
        steps=50_000,
    )


def vla_tiny_recipe() -> Recipe:
    """Returns the recipe for the smallest VLA, which two CPU cores train: cameras and joint positions, as `video`."""
    return Recipe(
        name="vla_tiny",
        policy=VlaRecipe(
            kind=VlaKind.PI0,
            language=GemmaRecipe(width=64, mlp=128, depth=2, heads=4, kv_heads=1, head_dim=16, vocabulary=256),
            expert_width=64,
            expert_mlp=128,
            horizon=16,
            action_dim=32,
            prompt=(1,),
            prompt_length=4,
            relative_actions=True,
            image=SiglipRecipe(size=32, patch=8, width=48, mlp=96, depth=2, heads=4, shift_pixels=2),
            compute=ComputeRecipe(numbers=FloatKind.FLOAT32),
        ),
        optimizer=OptimizerRecipe(learning_rate=1e-3, warmup_steps=100, weight_decay=1e-2),
        batch_size=64,
        steps=1_000,
    )


def vla_small_recipe() -> Recipe:
    """Returns the recipe for a VLA of 110 M parameters, which one GPU trains from nothing."""
    return Recipe(
        name="vla_small",
        policy=VlaRecipe(
            kind=VlaKind.PI0,
            language=GemmaRecipe(width=512, mlp=2048, depth=12, heads=8, kv_heads=1, head_dim=64, vocabulary=32_768),
            expert_width=384,
            expert_mlp=1536,
            horizon=32,
            action_dim=32,
            prompt=(1,),
            prompt_length=48,
            relative_actions=True,
            image=SiglipRecipe(size=224, patch=16, width=384, mlp=1536, depth=12, heads=6),
        ),
        optimizer=OptimizerRecipe(learning_rate=3e-4, warmup_steps=1_000, weight_decay=1e-2),
        batch_size=256,
        steps=50_000,
    )


def pi0_recipe() -> Recipe:
    """Returns the recipe for pi0: PaliGemma 3 B and an action expert of 300 M, with the optimizer of openpi."""
    return Recipe(
        name="pi0",
        policy=VlaRecipe(
            kind=VlaKind.PI0,
            language=GEMMA_2B,
            expert_width=1024,
            expert_mlp=4096,
            horizon=50,
            action_dim=32,
            prompt=(2, 108),  # Begin, and the line end that asks for an answer, in PaliGemma's words.
            prompt_length=48,
            image=SIGLIP_SO400M,
        ),
        optimizer=OptimizerRecipe(
            learning_rate=2.5e-5,
            warmup_steps=1_000,
            weight_decay=1e-10,
            second_beta=0.95,
            learning_rate_end=2.5e-6,
        ),
        batch_size=32,
        steps=30_000,
    )


def pi05_recipe() -> Recipe:
    """Returns the recipe for pi0.5: as pi0, with the state as text in a longer prompt and flow time in the norms.

    Its batches bring `prompt` and `prompt_valid`, which tell the state; without them it is refused.
    """
    pi0 = pi0_recipe()
    assert isinstance(pi0.policy, VlaRecipe)
    return replace(pi0, name="pi05", policy=replace(pi0.policy, kind=VlaKind.PI05, prompt_length=200, quantiles=True))


def pi0_lora_recipe() -> Recipe:
    """Returns the recipe for pi0 with adapters of openpi's ranks; its eyes and projections are learned whole, as there.

    An adapter of attention spans all heads, as in the paper; openpi's has one for each head.
    """
    return replace(pi0_recipe(), name="pi0_lora", lora=VLA_LORA)


def gemma_2b_recipe() -> Recipe:
    """Returns the recipe for Gemma 2 B as a plain language model, with PaliGemma's words: to go on from its weights."""
    return Recipe(
        name="gemma_2b",
        policy=LanguageRecipe(language=GEMMA_2B, horizon=1024),
        optimizer=OptimizerRecipe(
            learning_rate=2.5e-5, warmup_steps=1_000, weight_decay=0.1, second_beta=0.95, learning_rate_end=2.5e-6
        ),
        batch_size=256,
        steps=30_000,
    )


RECIPES: Mapping[str, Callable[[], Recipe]] = {
    "arm": arm_recipe,
    "video": video_recipe,
    "act": act_recipe,
    "vla_tiny": vla_tiny_recipe,
    "vla_small": vla_small_recipe,
    "pi0": pi0_recipe,
    "pi0_lora": pi0_lora_recipe,
    "pi05": pi05_recipe,
    "gemma_2b": gemma_2b_recipe,
}


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
    merged = _merged(to_plain(recipe), changes)
    # Read by itself, so that an error speaks of this kind of policy and not of the last that was tried.
    policy = from_plain(type(recipe.policy), merged["policy"], strict=True, where="policy")
    return from_plain(Recipe, {**merged, "policy": to_plain(policy)}, strict=True)


def _merged(plain: Any, changes: object) -> Any:
    if isinstance(plain, Mapping) and isinstance(changes, Mapping):
        return {**plain, **{key: _merged(plain.get(key), value) for key, value in changes.items()}}
    return changes
