"""The layout of openpi's parameters, as its Orbax checkpoints hold them under `params`, and that of big_vision's
PaliGemma, which is its part `PaliGemma`.

Adapters (LoRA) that openpi trained are merged into the weights beside which they lie: each head has one of its own, so
they are none of ours, which span all heads.
Source: openpi, `pi0.py`, `gemma.py`, `siglip.py`, `lora.py` at its release of 2025.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mainspring.domain.errors import InvalidInput
from mainspring.train.layouts.rows import Layout, LayoutRow
from mainspring.train.models.shapes import GemmaRecipe, VlaKind, VlaRecipe

PROJECTIONS: Mapping[VlaKind, Mapping[str, str]] = {
    VlaKind.PI0: {
        "action_in": "action_in_proj",
        "action_out": "action_out_proj",
        "state": "state_proj",
        "time_in": "action_time_mlp_in",
        "time_out": "action_time_mlp_out",
    },
    VlaKind.PI05: {
        "action_in": "action_in_proj",
        "action_out": "action_out_proj",
        "time_in": "time_mlp_in",
        "time_out": "time_mlp_out",
    },
}
"""Our names of the layers beside the transformers, and everybody else's."""


ADAPTERS: Mapping[str, str] = {
    "attn/q_einsum{}/lora_{}": "attn/q_einsum{}/w",
    "attn/kv_einsum{}/lora_{}": "attn/kv_einsum{}/w",
    "attn/qkv_einsum{}/lora_{}": "attn/qkv_einsum{}/w",
    "attn/attn_vec_einsum{}/lora_{}": "attn/attn_vec_einsum{}/w",
    "mlp{}/gating_einsum_lora_{}": "mlp{}/gating_einsum",
    "mlp{}/linear_lora_{}": "mlp{}/linear",
}
"""Adapters, a and b, of each stream, and the weights beside which they lie; each of a weight's last two axes."""

ADAPTER_SCALE = 1.0  # Of `gemma_2b_lora` and `gemma_300m_lora`, whose alpha is their rank; the MLP's have none at all.


def openpi_arrays(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arrays of an openpi checkpoint by the paths that its table has, adapters merged into their weights.

    Args:
        arrays: By the paths of its Orbax tree, which put all under `params` and, when a training wrote them, each
            under `value`.

    Raises:
        InvalidInput: An adapter does not fit its weight.
    """
    named = {path.removeprefix("params/").removesuffix("/value"): array for path, array in arrays.items()}
    for thin, weight in ADAPTERS.items():
        for stream in ("", "_1"):
            base, *paths = (
                f"{_LAYERS}/{name.format(stream, end)}" for name, end in ((weight, ""), (thin, "a"), (thin, "b"))
            )
            if base in named and all(path in named for path in paths):
                named[base] = _merged(base, *(np.asarray(named[path], np.float32) for path in (base, *paths)))
                named = {path: array for path, array in named.items() if path not in paths}
    return named


def _merged(
    path: str, base: NDArray[np.float32], a: NDArray[np.float32], b: NDArray[np.float32]
) -> NDArray[np.float32]:
    *stack, inputs, outputs = base.shape
    if a.shape != (*stack, inputs, a.shape[-1]) or b.shape != (*stack, a.shape[-1], outputs):
        raise InvalidInput(
            "merge an adapter",
            on=path,
            got=f"shapes {a.shape} and {b.shape} beside {base.shape}",
            wanted="the inputs by a rank, and the rank by the outputs",
        )
    if "/attn_vec_einsum" in path:  # Between a and b it has no heads: what all lead to the rank is added up.
        b = b.sum(axis=-3, keepdims=True)
    both: NDArray[np.float32] = np.matmul(a, b)
    return base + np.float32(ADAPTER_SCALE) * both


_LAYERS = "PaliGemma/llm/layers"


def openpi_layout(policy: VlaRecipe) -> Layout:
    """Returns the table of a policy's arrays.

    Args:
        policy: Its shape.
    """
    adaptive = policy.kind is VlaKind.PI05
    rows = (
        *_paligemma(policy, "PaliGemma"),
        *_stack("PaliGemma", policy.expert, "expert", "_1", adaptive=adaptive),
        *(row for ours, theirs in PROJECTIONS[policy.kind].items() for row in _dense(theirs, ours)),
    )
    return Layout(rows=rows)


def big_vision_layout(policy: VlaRecipe) -> Layout:
    """Returns the table of the arrays in big_vision's PaliGemma, which are the parts of a policy without its expert.

    Args:
        policy: Its shape.
    """
    return Layout(rows=_paligemma(policy, "params"))


def _paligemma(policy: VlaRecipe, root: str) -> tuple[LayoutRow, ...]:
    return (
        *(_siglip(root) if policy.image is not None else ()),
        LayoutRow(theirs=f"{root}/llm/embedder/input_embedding", ours=("language/embedding",)),
        *_stack(root, policy.language, "language", "", adaptive=False),
    )


def _dense(theirs: str, ours: str) -> tuple[LayoutRow, ...]:
    return tuple(LayoutRow(theirs=f"{theirs}/{leaf}", ours=(f"{ours}/{leaf}",)) for leaf in ("kernel", "bias"))


def _norm(theirs: str, ours: str) -> tuple[LayoutRow, ...]:
    return tuple(LayoutRow(theirs=f"{theirs}/{leaf}", ours=(f"{ours}/{leaf}",)) for leaf in ("scale", "bias"))


def _stack(root: str, shape: GemmaRecipe, ours: str, suffix: str, *, adaptive: bool) -> tuple[LayoutRow, ...]:
    """Returns the rows of one stream: the expert's names end in a suffix."""
    theirs, blocks = f"{root}/llm/layers", f"{ours}/blocks"
    attention = f"{theirs}/attn"
    projections: tuple[LayoutRow, ...] = (
        LayoutRow(theirs=f"{attention}/q_einsum{suffix}/w", ours=(f"{blocks}/query",), pattern="L N D H -> L D N H"),
        LayoutRow(
            theirs=f"{attention}/kv_einsum{suffix}/w",
            ours=(f"{blocks}/key", f"{blocks}/value"),
            pattern="L P N D H -> L D N H",
        ),
    )
    if shape.kv_heads == shape.heads:
        each = tuple(f"{blocks}/{name}" for name in ("query", "key", "value"))
        name = f"{attention}/qkv_einsum{suffix}/w"
        projections = (LayoutRow(theirs=name, ours=each, pattern="L P N D H -> L D N H"),)
    norms = {
        f"{theirs}/pre_attention_norm{suffix}": f"{blocks}/attention_norm",
        f"{theirs}/pre_ffw_norm{suffix}": f"{blocks}/mlp_norm",
        f"{root}/llm/final_norm{suffix}": f"{ours}/norm",
    }
    rows = [
        *projections,
        LayoutRow(theirs=f"{attention}/attn_vec_einsum{suffix}/w", ours=(f"{blocks}/out",)),
        LayoutRow(
            theirs=f"{theirs}/mlp{suffix}/gating_einsum",
            ours=(f"{blocks}/gate", f"{blocks}/up"),
            pattern="L P D F -> L D F",
        ),
        LayoutRow(theirs=f"{theirs}/mlp{suffix}/linear", ours=(f"{blocks}/down",)),
    ]
    for their_norm, our_norm in norms.items():
        if adaptive:
            rows += _dense(f"{their_norm}/Dense_0", our_norm)
        else:
            rows.append(LayoutRow(theirs=f"{their_norm}/scale", ours=(f"{our_norm}/scale",)))
    return tuple(rows)


def _siglip(root: str) -> tuple[LayoutRow, ...]:
    theirs, ours = f"{root}/img/Transformer/encoderblock", "image/blocks"
    attention = f"{theirs}/MultiHeadDotProductAttention_0"
    parts = ("query", "key", "value", "out")
    return (
        *_dense(f"{root}/img/embedding", "image/patch"),
        LayoutRow(theirs=f"{root}/img/pos_embedding", ours=("image/position",), pattern="1 T D -> T D"),
        *_norm(f"{theirs}/LayerNorm_0", f"{ours}/attention_norm"),
        *(row for part in parts for row in _dense(f"{attention}/{part}", f"{ours}/{part}")),
        *_norm(f"{theirs}/LayerNorm_1", f"{ours}/mlp_norm"),
        *_dense(f"{theirs}/MlpBlock_0/Dense_0", f"{ours}/widen"),
        *_dense(f"{theirs}/MlpBlock_0/Dense_1", f"{ours}/narrow"),
        *_norm(f"{root}/img/Transformer/encoder_norm", "image/norm"),
        *_dense(f"{root}/img/head", "image/head"),
    )
