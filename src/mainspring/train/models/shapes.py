"""The shapes of models: nested frozen values that say which arrays a model has and how it is computed.

Nothing here needs JAX. What the data decides (dimensions, camera views) is not in a shape but in the `Signature` of
the view that a model meets.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import ClassVar

from mainspring.domain.errors import InvalidInput

REPLICA, DATA, SEQUENCE, TENSOR = "replica", "data", "sequence", "tensor"  # Axes of a mesh: see `state/sharding.py`.
BATCH_AXES = (REPLICA, DATA)

LAYERS_MAX = 256
WIDTH_MAX = 1 << 16
PROMPT_MAX = 8_192  # Four times what the longest prompts of robot policies take.
VOCABULARY_MAX = 1 << 20
WORDS_AT_ONCE = 64  # Of a sequence, whose logits live at one time: of 4 sequences a device, 250 MiB of 257,152 words.


def require(subject: str, shape: object, **ranges: tuple[float, float]) -> None:
    """Checks that each of the fields named lies in its range.

    Args:
        subject: What the fields belong to, in words.
        shape: What has them.
        ranges: Least and greatest value of each field.

    Raises:
        InvalidInput: A field is out of its range.
    """
    for name, (low, high) in ranges.items():
        require_within(subject, name, getattr(shape, name), low, high)


def require_within(subject: str, field_name: str, got: float, low: float, high: float) -> None:
    """Checks that one value lies in its range.

    Raises:
        InvalidInput: It does not.
    """
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
        require_within("image encoder", "channels", len(self.channels), 1, LAYERS_MAX)
        for count in (*self.channels, self.features):
            require_within("image encoder", "channels, features", count, 1, WIDTH_MAX)
        require("image encoder", self, shift_pixels=(0, 1024), tint=(0.0, 1.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRecipe:
    """The shape of the small flow policy.

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
    quantiles: ClassVar[bool] = False
    tokens: ClassVar[int] = 1

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            InvalidInput: A field is out of its range.
        """
        require(
            "policy", self, width=(1, WIDTH_MAX), blocks=(1, LAYERS_MAX), horizon=(1, 1024), time_features=(2, 1024)
        )
        require_within("policy", "time_features % 2", self.time_features % 2, 0, 0)
        require("policy", self, flow_steps=(1, 1000))


class FloatKind(str, Enum):
    """In which numbers a model is computed; its weights are stored as float32 whatever this says."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class AttentionKind(str, Enum):
    """Who computes attention: XLA anywhere; flash attention by cuDNN on a GPU (bfloat16 only), by splash on a TPU."""

    XLA = "xla"
    CUDNN = "cudnn"
    SPLASH = "splash"


class Remat(str, Enum):
    """What of a block is computed again in the backward pass instead of being kept.

    `none` keeps everything, `dots` keeps the results of products with weights, `full` keeps a block's input alone.
    """

    NONE = "none"
    DOTS = "dots"
    FULL = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeRecipe:
    """How a model is computed, which changes nothing of what it means.

    Args:
        numbers: Of activations and of products with weights; norms, softmax and losses are float32.
        attention: Who computes attention.
        remat: What of a block is computed twice to save memory.
    """

    numbers: FloatKind = FloatKind.BFLOAT16
    attention: AttentionKind = AttentionKind.XLA
    remat: Remat = Remat.FULL


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmaRecipe:
    """A Gemma decoder: grouped-query attention with rotary positions, gated MLP, RMSNorm before each.

    Args:
        width: Features of a token.
        mlp: Hidden features of the gated MLP.
        depth: Blocks.
        heads: Query heads.
        kv_heads: Key and value heads, each shared by `heads / kv_heads` query heads.
        head_dim: Features of a head; even.
        vocabulary: Words.
    """

    width: int
    mlp: int
    depth: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            InvalidInput: A field is out of its range.
        """
        wide, layers = (1, WIDTH_MAX), (1, LAYERS_MAX)
        require("decoder", self, width=wide, mlp=wide, depth=layers, heads=(1, 1024), head_dim=(2, 1024))
        require("decoder", self, kv_heads=(1, self.heads), vocabulary=(1, VOCABULARY_MAX))
        require_within("decoder", "heads % kv_heads", self.heads % self.kv_heads, 0, 0)
        require_within("decoder", "head_dim % 2", self.head_dim % 2, 0, 0)

    def with_size(self, *, width: int, mlp: int) -> GemmaRecipe:
        """Returns a decoder that can attend together with this one: of as many blocks and heads, but of another size.

        Args:
            width: Features of a token.
            mlp: Hidden features of the gated MLP.
        """
        return replace(self, width=width, mlp=mlp)


@dataclass(frozen=True, slots=True, kw_only=True)
class SiglipRecipe:
    """A SigLIP vision transformer; every patch of an image gives one token.

    Args:
        size: Height and width of an image; others are scaled to it, padded with black.
        patch: Height and width of a patch; divides `size`.
        width: Features of a patch.
        mlp: Hidden features of the MLP.
        depth: Blocks.
        heads: Attention heads; divides `width`.
        shift_pixels: As for `ImageRecipe`.
        tint: As for `ImageRecipe`.
    """

    size: int
    patch: int
    width: int
    mlp: int
    depth: int
    heads: int
    shift_pixels: int = 4
    tint: float = 0.2

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            InvalidInput: A field is out of its range.
        """
        wide, layers = (1, WIDTH_MAX), (1, LAYERS_MAX)
        require("vision transformer", self, size=(1, 4096), patch=(1, self.size), width=wide, mlp=wide, depth=layers)
        require("vision transformer", self, heads=(1, self.width), shift_pixels=(0, 1024), tint=(0.0, 1.0))
        require_within("vision transformer", "size % patch", self.size % self.patch, 0, 0)
        require_within("vision transformer", "width % heads", self.width % self.heads, 0, 0)

    @property
    def tokens(self) -> int:
        """Returns how many tokens an image gives."""
        return (self.size // self.patch) ** 2


class VlaKind(str, Enum):
    """How state and flow time reach the action expert.

    `pi0`: the state is a token before the actions, and the time is mixed into each action's token by an MLP.
    `pi05`: the state is text in the prompt, and the time scales, shifts and gates by the expert's norms.
    """

    PI0 = "pi0"
    PI05 = "pi05"


@dataclass(frozen=True, slots=True, kw_only=True)
class VlaRecipe:
    """The shape of a vision-language-action policy: a language model that sees, and an action expert beside it.

    Args:
        kind: How state and flow time reach the expert.
        language: The language model that reads images and prompt.
        expert_width: Features of the expert's tokens.
        expert_mlp: Hidden features of the expert's MLP.
        horizon: Actions in a chunk.
        action_dim: Dimensions of the model's states and actions; a robot of fewer leaves the rest at zero.
        prompt: Tokens of the task, for batches that bring no `prompt` of their own.
        prompt_length: Tokens of a prompt with its padding.
        prompt_noise: In training, how likely each word of a prompt is left out or another stands in its place, each
            half the time: what is learned then hangs on no single wording. Not where prompts tell the state.
        flow_steps: Euler steps from noise to actions.
        relative_actions: As for `PolicyRecipe`.
        quantiles: Whether states and actions are normalised by their 1 % and 99 % quantiles instead of mean and
            deviation.
        image: How images are read, None for a policy without eyes.
        compute: How all of this is computed.
    """

    kind: VlaKind
    language: GemmaRecipe
    expert_width: int
    expert_mlp: int
    horizon: int
    action_dim: int
    prompt: tuple[int, ...]
    prompt_length: int
    prompt_noise: float = 0.0
    flow_steps: int = 10
    relative_actions: bool = False
    quantiles: bool = False
    image: SiglipRecipe | None = None
    compute: ComputeRecipe = ComputeRecipe()
    motion: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            InvalidInput: A field is out of its range.
        """
        wide = (1, WIDTH_MAX)
        require("policy", self, expert_width=(4, WIDTH_MAX), expert_mlp=wide, horizon=(1, 1024), action_dim=(1, 1024))
        require("policy", self, prompt_length=(1, PROMPT_MAX), flow_steps=(1, 1000))
        require("policy", self, prompt_noise=(0.0, 0.0 if self.kind is VlaKind.PI05 else 0.9))
        require_within("policy", "expert_width % 2", self.expert_width % 2, 0, 0)
        require_within("policy", "prompt", len(self.prompt), 1, self.prompt_length)
        for token in self.prompt:
            require_within("policy", "prompt", token, 0, self.language.vocabulary - 1)

    @property
    def tokens(self) -> int:
        """Returns the tokens of the longest stream: the prefix, of one camera."""
        return self.prompt_length + (0 if self.image is None else self.image.tokens)

    @property
    def expert(self) -> GemmaRecipe:
        """Returns the shape of the expert's decoder."""
        return self.language.with_size(width=self.expert_width, mlp=self.expert_mlp)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionRecipe:
    """A convolutional encoder of which every place of the last map gives one token.

    Args:
        channels: Channels of each 3x3 convolution; every one halves the image.
        shift_pixels: As for `ImageRecipe`.
        tint: As for `ImageRecipe`.
    """

    channels: tuple[int, ...]
    shift_pixels: int = 4
    tint: float = 0.2

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            InvalidInput: A field is out of its range.
        """
        require_within("image encoder", "channels", len(self.channels), 1, LAYERS_MAX)
        for count in self.channels:
            require_within("image encoder", "channels", count, 1, WIDTH_MAX)
        require("image encoder", self, shift_pixels=(0, 1024), tint=(0.0, 1.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class ActRecipe:
    """The shape of ACT: a transformer that turns what it sees, and a style, into a chunk of actions at once.

    Args:
        width: Features of a token; a multiple of 4.
        mlp: Hidden features of an MLP.
        heads: Attention heads; divides `width`.
        encoder_layers: Blocks over what is seen.
        decoder_layers: Blocks over the chunk.
        style_layers: Blocks of the encoder that finds a chunk's style, in training alone.
        style_dim: Dimensions of the style.
        style_weight: How much the loss counts a style's distance from unit Gaussian noise.
        horizon: Actions in a chunk.
        relative_actions: As for `PolicyRecipe`.
        image: How images are read, None for a policy without eyes.
        compute: How all of this is computed.
    """

    width: int
    mlp: int
    heads: int
    encoder_layers: int
    decoder_layers: int
    style_layers: int
    style_dim: int
    horizon: int
    style_weight: float = 10.0
    relative_actions: bool = False
    image: ConvolutionRecipe | None = None
    compute: ComputeRecipe = ComputeRecipe()
    motion: ClassVar[bool] = False
    quantiles: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            InvalidInput: A field is out of its range.
        """
        wide, layers = (1, WIDTH_MAX), (1, LAYERS_MAX)
        require("policy", self, width=(4, WIDTH_MAX), mlp=wide, heads=(1, self.width), style_dim=wide)
        require("policy", self, encoder_layers=layers, decoder_layers=layers, style_layers=layers)
        require("policy", self, style_weight=(0.0, 1e6), horizon=(1, 1024))
        require_within("policy", "width % heads", self.width % self.heads, 0, 0)
        require_within("policy", "width % 4", self.width % 4, 0, 0)

    @property
    def tokens(self) -> int:
        """Returns the tokens of the style's encoder: class, state and chunk; an image's may be more."""
        return 2 + self.horizon


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageRecipe:
    """The shape of a plain language model, which learns each word of a sequence from those before it.

    Args:
        language: The decoder.
        horizon: Words of a sequence.
        compute: How all of this is computed.
    """

    language: GemmaRecipe
    horizon: int
    compute: ComputeRecipe = ComputeRecipe()
    motion: ClassVar[bool] = False
    relative_actions: ClassVar[bool] = False
    quantiles: ClassVar[bool] = False
    image: ClassVar[None] = None

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            InvalidInput: A field is out of its range.
        """
        require("policy", self, horizon=(2, PROMPT_MAX))

    @property
    def tokens(self) -> int:
        """Returns the tokens of a sequence."""
        return self.horizon


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """What the data decides about a policy: its inputs' and outputs' dimensions; no views when it reads no images.

    Of a language model it decides nothing: all are 0.
    """

    state_dim: int
    action_dim: int
    image_views: int = 0
    image_height: int = 0
    image_width: int = 0


Policy = PolicyRecipe | VlaRecipe | ActRecipe | LanguageRecipe

SIGLIP_SO400M = SiglipRecipe(size=224, patch=14, width=1152, mlp=4304, depth=27, heads=16)
"""Source: Zhai et al., "Sigmoid Loss for Language Image Pre-Training", 2023; Alabdulmohsin et al., 2023 (So400m)."""

GEMMA_2B = GemmaRecipe(width=2048, mlp=16_384, depth=18, heads=8, kv_heads=1, head_dim=256, vocabulary=257_152)
"""Source: Gemma Team, "Gemma", 2024, table 1; with the vocabulary of Beyer et al., "PaliGemma", 2024."""
