"""What a policy is made of, without JAX: its arrays by path, and the stacks of equal blocks that its tokens pass.

The models make their own arrays; these are the same ones said again, so that a plan needs no JAX, and a test compares
the two for every recipe.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from mainspring.train.models.shapes import (
    ActRecipe,
    ComputeRecipe,
    ConvolutionRecipe,
    FloatKind,
    GemmaRecipe,
    LanguageRecipe,
    Policy,
    PolicyRecipe,
    Remat,
    SiglipRecipe,
    Signature,
    VlaKind,
    VlaRecipe,
)

Shape = tuple[int, ...]
Shapes = dict[str, Shape]

PLAIN = ComputeRecipe(numbers=FloatKind.FLOAT32, remat=Remat.NONE)  # How the small flow policy is computed.


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Tokens that pass a stack by weights of their own.

    Args:
        tokens: Of one sample.
        width: Features of a token.
        mlp: Hidden features of its MLP.
        hidden: Arrays of hidden features that an MLP makes: 2 where it is gated.
        asks: Whether its tokens are queries; keys and values it always has.
        condition: Features of what its norms adapt to, 0 for plain norms.
    """

    tokens: int
    width: int
    mlp: int = 0
    hidden: int = 1
    asks: bool = True
    condition: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Equal blocks, one after the other: attention over all streams, then an MLP for each.

    Args:
        where: Paths of its weights begin so.
        layers: Blocks.
        copies: Of the tokens in a sample: camera views.
        heads: Query heads; none where blocks do not attend.
        turned: Whether queries and keys are turned by their token's place, in float32.
    """

    where: tuple[str, ...]
    layers: int
    streams: tuple[Stream, ...]
    copies: int = 1
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    turned: bool = False

    @property
    def asked(self) -> int:
        """Returns the query tokens of a copy."""
        return sum(stream.tokens for stream in self.streams if stream.asks)

    @property
    def seen(self) -> int:
        """Returns the key tokens of a copy."""
        return sum(stream.tokens for stream in self.streams)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pixels:
    """What of a sample's images is made before the first token.

    Args:
        views: Cameras.
        size: Height and width to which images are scaled, 0 where they stay as they are.
        maps: Height, width and channels of what each convolution gives.
        patch: Height and width of a patch, 0 where there are none.
    """

    views: int
    height: int
    width: int
    size: int = 0
    maps: tuple[Shape, ...] = ()
    patch: int = 0

    @property
    def scaled(self) -> bool:
        """Returns whether images are brought to another size."""
        return self.size not in (0, max(self.height, self.width))


@dataclass(frozen=True, slots=True, kw_only=True)
class Anatomy:
    """A policy, as a plan looks at it.

    Args:
        weights: Shapes of its arrays, all float32, by path.
        stacks: In the order of the forward pass.
        uses: How many times a sample's forward pass multiplies by an array that no stack holds, by path: its tokens; 0
            where an array is looked up or added.
        looked_up: Paths of tables of which a sample takes some rows, with how many.
    """

    weights: Mapping[str, Shape]
    stacks: tuple[Stack, ...] = ()
    uses: Mapping[str, int] = field(default_factory=dict)
    looked_up: Mapping[str, int] = field(default_factory=dict)
    pixels: Pixels | None = None
    compute: ComputeRecipe = PLAIN

    @property
    def told(self) -> frozenset[str]:
        """Returns the tables of words that are told, too: each token is set against all of them."""
        return frozenset(self.uses.keys() & self.looked_up)

    @property
    def parameters(self) -> int:
        """Returns how many numbers are learned or could be."""
        return sum(math.prod(shape) for shape in self.weights.values())


@lru_cache(maxsize=64)
def anatomy_of(policy: Policy, signature: Signature) -> Anatomy:
    """Returns what a policy is made of.

    Args:
        policy: Its shape.
        signature: What the data decides.
    """
    match policy:
        case PolicyRecipe():
            return _flow(policy, signature)
        case VlaRecipe():
            return _vla(policy, signature)
        case ActRecipe():
            return _act(policy, signature)
        case LanguageRecipe():
            return _language(policy)


def _layer(where: str, inputs: int, outputs: int, *stack: int) -> Shapes:
    return {f"{where}/bias": (*stack, outputs), f"{where}/kernel": (*stack, inputs, outputs)}


def _norm(where: str, width: int, *stack: int) -> Shapes:
    return {f"{where}/bias": (*stack, width), f"{where}/scale": (*stack, width)}


def _multi_head(where: str, width: int, heads: int, *stack: int) -> Shapes:
    head, shapes = width // heads, dict[str, Shape]()
    for name in ("query", "key", "value"):
        shapes |= {f"{where}{name}/bias": (*stack, heads, head), f"{where}{name}/kernel": (*stack, width, heads, head)}
    return shapes | {f"{where}out/bias": (*stack, width), f"{where}out/kernel": (*stack, heads, head, width)}


def _convolutions(where: str, channels: tuple[int, ...]) -> Shapes:
    shapes: Shapes = {}
    for number, (before, after) in enumerate(zip((3, *channels), channels, strict=False)):
        shapes |= {f"{where}/{number}/bias": (after,), f"{where}/{number}/kernel": (3, 3, before, after)}
    return shapes


def _halved(signature: Signature, channels: tuple[int, ...]) -> tuple[Shape, ...]:
    """Returns the maps of convolutions that each halve an image."""
    height, width, maps = signature.image_height, signature.image_width, []
    for each in channels:
        height, width = -(-height // 2), -(-width // 2)
        maps.append((height, width, each))
    return tuple(maps)


def _pixels(signature: Signature, *, channels: tuple[int, ...] = (), size: int = 0, patch: int = 0) -> Pixels:
    return Pixels(
        views=signature.image_views,
        height=signature.image_height,
        width=signature.image_width,
        size=size,
        maps=_halved(signature, channels),
        patch=patch,
    )


def _flow(policy: PolicyRecipe, signature: Signature) -> Anatomy:
    chunk = policy.horizon * signature.action_dim
    inputs = signature.state_dim * (2 if policy.motion else 1) + chunk + policy.time_features
    weights: Shapes = {}
    pixels, uses = None, dict[str, int]()
    if policy.image is not None:
        pixels = _pixels(signature, channels=policy.image.channels)
        weights |= _convolutions("image/layers", policy.image.channels)
        weights |= _layer("image/leave", math.prod(pixels.maps[-1]), policy.image.features)
        uses |= {f"image/layers/{n}/kernel": h * w * pixels.views for n, (h, w, _) in enumerate(pixels.maps)}
        uses |= {"image/leave/kernel": pixels.views}
        inputs += policy.image.features * signature.image_views
    weights |= _layer("enter", inputs, policy.width) | _layer("leave", policy.width, chunk)
    for block in range(policy.blocks):
        weights |= _layer(f"blocks/{block}/widen", policy.width, policy.width)
        weights |= _layer(f"blocks/{block}/narrow", policy.width, policy.width)
    stack = Stack(
        where=("blocks/",), layers=policy.blocks, streams=(Stream(tokens=1, width=policy.width, mlp=policy.width),)
    )
    return Anatomy(weights=weights, stacks=(stack,), uses={**uses, "enter/kernel": 1, "leave/kernel": 1}, pixels=pixels)


def _gemma_blocks(where: str, shape: GemmaRecipe, condition: int = 0) -> Shapes:
    layers, width, head = shape.depth, shape.width, shape.head_dim

    def norm(name: str, *stack: int) -> Shapes:
        if condition:
            return _layer(f"{where}{name}", condition, 3 * width, *stack)
        return {f"{where}{name}/scale": (*stack, width)}

    inside = {
        "query": (width, shape.heads, head),
        "key": (width, shape.kv_heads, head),
        "value": (width, shape.kv_heads, head),
        "out": (shape.heads, head, width),
        "gate": (width, shape.mlp),
        "up": (width, shape.mlp),
        "down": (shape.mlp, width),
    }
    norms = norm("blocks/attention_norm", layers) | norm("blocks/mlp_norm", layers) | norm("norm")
    return norms | {f"{where}blocks/{name}": (layers, *each) for name, each in inside.items()}


def _siglip(shape: SiglipRecipe, outputs: int) -> Shapes:
    layers, width, blocks = shape.depth, shape.width, "image/blocks/"
    return {
        "image/patch/kernel": (shape.patch, shape.patch, 3, width),
        "image/patch/bias": (width,),
        "image/position": (shape.tokens, width),
        **_norm(f"{blocks}attention_norm", width, layers),
        **_multi_head(blocks, width, shape.heads, layers),
        **_norm(f"{blocks}mlp_norm", width, layers),
        **_layer(f"{blocks}widen", width, shape.mlp, layers),
        **_layer(f"{blocks}narrow", shape.mlp, width, layers),
        **_norm("image/norm", width),
        **_layer("image/head", width, outputs),
    }


def _vla(policy: VlaRecipe, signature: Signature) -> Anatomy:
    width, adaptive, language = policy.expert_width, policy.kind is VlaKind.PI05, policy.language
    weights: Shapes = {"language/embedding": (language.vocabulary, language.width)}
    weights |= _gemma_blocks("language/", language)
    weights |= _gemma_blocks("expert/", policy.expert, width if adaptive else 0)
    weights |= _layer("action_in", policy.action_dim, width) | _layer("action_out", width, policy.action_dim)
    weights |= _layer("time_in", width if adaptive else 2 * width, width) | _layer("time_out", width, width)
    actions, uses, stacks, pixels = policy.horizon, dict[str, int](), [], None
    uses |= dict.fromkeys(("action_in/kernel", "action_out/kernel"), actions)
    uses |= dict.fromkeys(("time_in/kernel", "time_out/kernel"), 1 if adaptive else actions)
    prefix = policy.prompt_length
    if not adaptive:
        weights |= _layer("state", policy.action_dim, width)
        uses["state/kernel"] = 1
    else:
        uses["expert/norm/kernel"] = 1
    if policy.image is not None:
        image, views = policy.image, signature.image_views
        weights |= _siglip(image, language.width)
        uses |= dict.fromkeys(("image/patch/kernel", "image/head/kernel"), views * image.tokens)
        pixels, prefix = _pixels(signature, size=image.size, patch=image.patch), prefix + views * image.tokens
        eyes = Stream(tokens=image.tokens, width=image.width, mlp=image.mlp)
        stacks.append(
            Stack(
                where=("image/blocks/",),
                layers=image.depth,
                streams=(eyes,),
                copies=views,
                heads=image.heads,
                kv_heads=image.heads,
                head_dim=image.width // image.heads,
            )
        )
    expert = Stream(
        tokens=actions + (0 if adaptive else 1),
        width=width,
        mlp=policy.expert_mlp,
        hidden=2,
        condition=width if adaptive else 0,
    )
    stacks.append(
        Stack(
            where=("language/blocks/", "expert/blocks/"),
            layers=language.depth,
            streams=(Stream(tokens=prefix, width=language.width, mlp=language.mlp, hidden=2), expert),
            heads=language.heads,
            kv_heads=language.kv_heads,
            head_dim=language.head_dim,
            turned=True,
        )
    )
    return Anatomy(
        weights=weights,
        stacks=tuple(stacks),
        uses=uses,
        looked_up={"language/embedding": policy.prompt_length},
        pixels=pixels,
        compute=policy.compute,
    )


def _language(policy: LanguageRecipe) -> Anatomy:
    language = policy.language
    stream = Stream(tokens=policy.horizon, width=language.width, mlp=language.mlp, hidden=2)
    stack = Stack(
        where=("blocks/",),
        layers=language.depth,
        streams=(stream,),
        heads=language.heads,
        kv_heads=language.kv_heads,
        head_dim=language.head_dim,
        turned=True,
    )
    return Anatomy(
        weights={"embedding": (language.vocabulary, language.width)} | _gemma_blocks("", language),
        stacks=(stack,),
        uses={"embedding": policy.horizon},  # And looked up: its words are said, too.
        looked_up={"embedding": policy.horizon},
        compute=policy.compute,
    )


def _act(policy: ActRecipe, signature: Signature) -> Anatomy:
    width, image = policy.width, policy.image
    weights: Shapes = {"seen_position": (2, width), "query": (policy.horizon, width), "style_encoder/class": (1, width)}
    weights |= _layer("state", signature.state_dim, width) | _layer("style", policy.style_dim, width)
    weights |= _layer("style_encoder/state", signature.state_dim, width)
    weights |= _layer("style_encoder/action", signature.action_dim, width)
    weights |= _layer("style_encoder/leave", width, 2 * policy.style_dim)
    weights |= _norm("norm", width) | _layer("leave", width, signature.action_dim)
    uses = dict.fromkeys(
        ("state/kernel", "style/kernel", "style_encoder/state/kernel", "style_encoder/leave/kernel"), 1
    )
    uses |= dict.fromkeys(("style_encoder/action/kernel", "leave/kernel"), policy.horizon)
    seen, pixels = 2, None
    if image is not None:
        assert isinstance(image, ConvolutionRecipe)
        pixels = _pixels(signature, channels=image.channels)
        weights |= _convolutions("image", image.channels) | _layer("image_token", image.channels[-1], width)
        uses |= {f"image/{n}/kernel": h * w * pixels.views for n, (h, w, _) in enumerate(pixels.maps)}
        height, wide, _ = pixels.maps[-1]
        uses["image_token/kernel"] = height * wide * pixels.views
        seen += height * wide * pixels.views
    stacks = []
    for where, layers, tokens, attentions in (
        ("style_encoder/blocks", policy.style_layers, policy.horizon + 2, ("attention",)),
        ("encoder", policy.encoder_layers, seen, ("attention",)),
        ("decoder", policy.decoder_layers, policy.horizon, ("attention", "cross")),
    ):
        weights |= _layer(f"{where}/widen", width, policy.mlp, layers) | _norm(f"{where}/mlp_norm", width, layers)
        weights |= _layer(f"{where}/narrow", policy.mlp, width, layers)
        for name in attentions:
            weights |= _multi_head(f"{where}/{name}/", width, policy.heads, layers)
            weights |= _norm(f"{where}/{name}_norm", width, layers)
        streams = [Stream(tokens=tokens, width=width, mlp=policy.mlp)]
        if "cross" in attentions:
            streams.append(Stream(tokens=seen, width=width, hidden=0, asks=False))
        stacks.append(
            Stack(
                where=(f"{where}/",),
                layers=layers,
                streams=tuple(streams),
                heads=policy.heads,
                kv_heads=policy.heads,
                head_dim=width // policy.heads,
            )
        )
    return Anatomy(weights=weights, stacks=tuple(stacks), uses=uses, pixels=pixels, compute=policy.compute)
