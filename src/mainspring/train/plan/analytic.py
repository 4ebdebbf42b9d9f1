"""What one step takes of each device by formulas: exact for what lies between steps, a model of what lives in one.

In a step arrays live in turns, and the largest turn counts: the images as they are made ready; each stack's backward
pass, with the inputs of its blocks and of those before it, the gradients so far, casts of its weights, one block
computed again; and the update with all gradients. Formulas know the recipe, not the compiler's moods: an array that it
keeps twice or never makes is not seen.
Source: Rajbhandari et al., "ZeRO", 2019 (states); Korthikanti et al., "Reducing Activation Recomputation in Large
Transformer Models", 2022 (activations). How many arrays of a kind are alive at once was read from what the compiler of
libtpu 0.0.52 assigned for cut-down policies of other depths, batches and numbers of chips.
"""

from __future__ import annotations

from collections.abc import Iterable

from mainspring.train.models.shapes import DATA, SEQUENCE, TENSOR, WORDS_AT_ONCE, Remat, Signature
from mainspring.train.plan.chips import figures_of
from mainspring.train.plan.figures import FiguresFrom, MemoryNeed, StepFigures
from mainspring.train.plan.formulas.anatomy import Stack, Stream
from mainspring.train.plan.formulas.moments import moment_bytes
from mainspring.train.plan.formulas.sharing import FLOAT32, ArrayShare, DeviceShare
from mainspring.train.plan.formulas.tiles import array_bytes
from mainspring.train.plan.formulas.work import CHANNELS, bytes_by_axis, flops_of, half_way_bytes, memory_traffic
from mainspring.train.plan.targets import Target
from mainspring.train.recipe import Recipe

SCALARS = 4096  # Counters and statistics, each a tile.
# Arrays alive at once while a block is computed again and differentiated: see the module.
SCORES = 3  # In the recipe's numbers, beside one of float32.
HEADS = 8  # Queries, keys, values, what they attended to, and the gradient of each; half of them in float32.
WIDTHS = 8  # Beside attention; beside the MLP two.
HIDDEN = 5  # And one for each array that the MLP itself makes.
CODE_LEAST = 6e6  # Bytes of a program on a core, and what is times parameters to this power; three sizes of policy.
CODE = 0.11e6
CODE_POWER = 0.27
CODE_OF_ROW = 0.25e6  # Rows of images that are not scaled are each moved by instructions of their own.


def analytic_figures(recipe: Recipe, signature: Signature, target: Target) -> StepFigures:
    """Returns what one step takes of each device, by formulas; takes milliseconds and no JAX.

    Args:
        recipe: What to learn, and how.
        signature: What the data decides.
        target: The chips.

    Raises:
        InvalidInput: The mesh does not divide the devices, the batch or an array.
        NotFound: Nothing is known of the chip.
    """
    share = DeviceShare(recipe=recipe, signature=signature, chip=figures_of(target.chip), devices=target.devices)
    return StepFigures(
        said_by=FiguresFrom.ANALYTIC,
        memory=_memory(share),
        flops=flops_of(share),
        bytes_by_axis=bytes_by_axis(share),
        memory_traffic=memory_traffic(share),
    )


def _memory(share: DeviceShare) -> MemoryNeed:
    weights = sum(share.size(array, array.itemsize) for array in share.arrays)
    moments = sum(moment_bytes(share, array) for array in share.arrays if array.learned) + SCALARS
    ema = 0
    if share.recipe.ema_decay is not None:  # With adapters, of what is learned alone.
        ema = weights if share.recipe.lora is None else _gradients(share, share.arrays)
    state = weights + moments + ema
    code = share.chip.cores * (CODE_LEAST + CODE * share.anatomy.parameters**CODE_POWER)
    if share.anatomy.pixels is not None and not share.anatomy.pixels.scaled:
        code += CODE_OF_ROW * share.rows_at_once
    return MemoryNeed(
        parameters=weights,
        optimizer=moments,
        ema=ema,
        batch=share.batch_bytes() + SCALARS,
        outputs=state + SCALARS,
        aliased=state,
        temporaries=int(_temporaries(share)),
        code=int(code) if share.chip.is_tpu else 0,
    )


def _temporaries(share: DeviceShare) -> float:
    """Returns the largest turn of a step."""
    stacks = share.anatomy.stacks
    own = [_gradients(share, share.of_stack(stack)) for stack in stacks]
    other = _gradients(share, share.of_none())
    everything = sum(own) + other
    # Parts of a batch add to a sum of all gradients; where nothing is split, all go in one flat message.
    beside = everything if share.recipe.accumulate > 1 or share.whole else 0
    residuals = [_residuals(share, stack) for stack in stacks]
    casts = [_casts(share, stack) for stack in stacks]
    turns = [_pixels(share), everything + beside]
    if share.anatomy.told:
        turns.append(sum(residuals) + sum(casts) + beside + other + _told(share))
    for number, stack in enumerate(stacks):
        last = number + 1 == len(stacks)
        turns.append(
            beside
            + sum(residuals[: number + 1])
            + sum(casts[: number + 1])
            + sum(own[number:])
            + (0 if last else other)
            + _maps(share)
            + _working(share, stack)
        )
    return max(turns)


def _gradients(share: DeviceShare, arrays: Iterable[ArrayShare]) -> int:
    return sum(share.size(array, FLOAT32) for array in arrays if array.learned)


def _pixels(share: DeviceShare) -> float:
    """Returns what lives while images are moved, tinted and brought to size."""
    pixels, rows = share.anatomy.pixels, share.rows_at_once
    if pixels is None:
        return 0.0
    if not pixels.scaled:
        return share.image_bytes(2 if pixels.patch else FLOAT32, rows) + 2 * share.image_bytes(1, rows)
    # One view after the other; what is tinted goes straight into the product that brings it to size.
    return rows * half_way_bytes(share) + _scaled_bytes(share)


def _scaled_bytes(share: DeviceShare) -> float:
    """Returns the bytes of images as they are read."""
    pixels = share.anatomy.pixels
    assert pixels is not None
    return share.token_bytes(share.rows_at_once * pixels.views * CHANNELS * pixels.size, pixels.size, FLOAT32)


def _maps(share: DeviceShare) -> float:
    """Returns what of images is kept for the backward pass: of each convolution what it gives, and what is of that."""
    pixels = share.anatomy.pixels
    if pixels is None:
        return 0.0
    if pixels.scaled:
        return _scaled_bytes(share)
    count = share.rows_at_once * pixels.views
    if not pixels.maps:
        return 0.0
    kept = sum(
        share.token_bytes(count * height * width, channels, itemsize)
        for height, width, channels in pixels.maps
        for itemsize in (FLOAT32, share.kept_itemsize)
    )
    return kept + share.image_bytes(FLOAT32, share.rows_at_once)


def _told(share: DeviceShare) -> float:
    """Returns what lives while words are told: some tokens of all who share the words, and logits.

    The gradients of logits take their place.
    """
    found = 0.0
    for path in share.anatomy.told:
        words, width = share.anatomy.weights[path]
        at_once = min(WORDS_AT_ONCE, -(-share.anatomy.uses[path] // share.sizes[SEQUENCE]))
        tokens = share.rows_at_once * share.sizes[DATA] * at_once
        found += share.token_bytes(tokens, -(-words // (share.sizes[DATA] * share.sizes[TENSOR])), FLOAT32)
        found += share.token_bytes(tokens, width, FLOAT32) + share.token_bytes(tokens, width)
    return found


def _residuals(share: DeviceShare, stack: Stack) -> float:
    """Returns what all blocks of a stack keep for the backward pass, most of it for products to take."""
    remat, kept, itemsize = share.anatomy.compute.remat, 0.0, share.kept_itemsize
    for stream in stack.streams:
        tokens = share.tokens(stack, stream)
        width = share.token_bytes(tokens, stream.width, itemsize)
        heads, kv_heads = (
            _heads_bytes(share, stack, stream, count, itemsize) for count in (stack.heads, stack.kv_heads)
        )
        hidden = share.token_bytes(tokens, share.features(stream.mlp), itemsize) if stream.mlp else 0.0
        match remat:
            case Remat.FULL:
                kept += share.token_bytes(tokens, stream.width) if stream.asks else 0.0
            case Remat.DOTS:
                kept += 2 * width + heads + 2 * kv_heads + stream.hidden * hidden
            case Remat.NONE:  # What norms make is float32; an activation is a product of several arrays.
                wide = share.token_bytes(tokens, stream.width, FLOAT32)
                kept += 2 * width + 6 * wide + 2 * heads + 2 * kv_heads + (4 + 2 * stream.hidden) * hidden
    if remat is Remat.NONE:
        kept += _scores(share, stack, itemsize) + _scores(share, stack, FLOAT32)
    return stack.layers * kept


def _heads_bytes(share: DeviceShare, stack: Stack, stream: Stream, heads: int, itemsize: int) -> float:
    """Returns the bytes of one array of a block's heads: laid out so that least is filled up."""
    tokens = -(-stream.tokens // share.sizes[SEQUENCE])
    shape = (share.rows_at_once * stack.copies, tokens, share.features(heads), stack.head_dim)
    return array_bytes(shape, itemsize, tiled=share.chip.is_tpu)


def _casts(share: DeviceShare, stack: Stack) -> int:
    """Returns the shares of a stack's weights in the recipe's numbers: they are cast once, before the first block."""
    others = (array for array in share.of_stack(stack) if array.itemsize != share.itemsize)
    return sum(share.size(array, share.itemsize) for array in others)


def _scores(share: DeviceShare, stack: Stack, itemsize: int) -> float:
    if not stack.heads:
        return 0.0
    count = share.rows_at_once * stack.copies * share.features(stack.heads) * stack.asked
    return share.token_bytes(count / share.sizes[SEQUENCE], stack.seen, itemsize)


def _working(share: DeviceShare, stack: Stack) -> float:
    """Returns what lives while one block is computed again and differentiated: in its attention, or in its MLP."""
    attention = _scores(share, stack, FLOAT32) + SCORES * _scores(share, stack, share.kept_itemsize)
    mlp = 0.0
    block = [array for array in share.of_stack(stack) if DATA in array.over]
    gathered = sum(_block_bytes(share, stack, array) for array in block)
    for stream in stack.streams:
        tokens = share.tokens(stack, stream)
        width = share.token_bytes(tokens, stream.width)
        attention += WIDTHS * width
        attention += HEADS / 2 * _heads_bytes(share, stack, stream, stack.heads, share.itemsize)
        attention += HEADS / 2 * _heads_bytes(share, stack, stream, stack.heads, FLOAT32)
        if not stream.mlp:
            continue
        count = HIDDEN + stream.hidden
        mlp += 2 * width
        hidden = share.token_bytes(tokens, share.features(stream.mlp))
        mlp += count * hidden
    needed = max(attention, mlp) + gathered
    return needed**2 / (needed + share.chip.scratch)  # Of as much as a core's own memory, half would stay there.


def _block_bytes(share: DeviceShare, stack: Stack, array: ArrayShare) -> float:
    """Returns the bytes of one block's array with all shares of `data` together, in the recipe's numbers."""
    return share.itemsize * array.count * share.sizes[DATA] / stack.layers
