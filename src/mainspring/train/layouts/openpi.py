"""The layout of openpi's parameters, as its Orbax checkpoints hold them under `params`, and that of big_vision's
PaliGemma, which is its part `PaliGemma`.

Source: openpi, `pi0.py`, `gemma.py`, `siglip.py` at its release of 2025.
"""

from __future__ import annotations

from mainspring.train.layouts.rows import LayoutRow
from mainspring.train.models.shapes import GemmaRecipe, VlaKind, VlaRecipe


def openpi_layout(policy: VlaRecipe) -> tuple[LayoutRow, ...]:
    """Returns the table of a policy's arrays.

    Args:
        policy: Its shape.
    """
    adaptive = policy.kind is VlaKind.PI05
    names = {"action_in": "action_in_proj", "action_out": "action_out_proj"}
    match policy.kind:
        case VlaKind.PI05:
            names |= {"time_in": "time_mlp_in", "time_out": "time_mlp_out"}
        case VlaKind.PI0:
            names |= {"time_in": "action_time_mlp_in", "time_out": "action_time_mlp_out", "state": "state_proj"}
    return (
        *(_SIGLIP if policy.image is not None else ()),
        LayoutRow(theirs="PaliGemma/llm/embedder/input_embedding", ours=("language/embedding",)),
        *_stack(policy.language, "language", "", adaptive=False),
        *_stack(policy.expert, "expert", "_1", adaptive=adaptive),
        *(row for ours, theirs in names.items() for row in _dense(theirs, ours)),
    )


def _dense(theirs: str, ours: str) -> tuple[LayoutRow, ...]:
    return tuple(LayoutRow(theirs=f"{theirs}/{leaf}", ours=(f"{ours}/{leaf}",)) for leaf in ("kernel", "bias"))


def _norm(theirs: str, ours: str) -> tuple[LayoutRow, ...]:
    return tuple(LayoutRow(theirs=f"{theirs}/{leaf}", ours=(f"{ours}/{leaf}",)) for leaf in ("scale", "bias"))


def _stack(shape: GemmaRecipe, ours: str, suffix: str, *, adaptive: bool) -> tuple[LayoutRow, ...]:
    """Returns the rows of one stream: the expert's names end in a suffix."""
    theirs, blocks = "PaliGemma/llm/layers", f"{ours}/blocks"
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
        f"PaliGemma/llm/final_norm{suffix}": f"{ours}/norm",
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


_BLOCK, _OUR_BLOCK = "PaliGemma/img/Transformer/encoderblock", "image/blocks"
_SIGLIP = (
    *_dense("PaliGemma/img/embedding", "image/patch"),
    LayoutRow(theirs="PaliGemma/img/pos_embedding", ours=("image/position",), pattern="1 T D -> T D"),
    *_norm(f"{_BLOCK}/LayerNorm_0", f"{_OUR_BLOCK}/attention_norm"),
    *(
        row
        for part in ("query", "key", "value", "out")
        for row in _dense(f"{_BLOCK}/MultiHeadDotProductAttention_0/{part}", f"{_OUR_BLOCK}/{part}")
    ),
    *_norm(f"{_BLOCK}/LayerNorm_1", f"{_OUR_BLOCK}/mlp_norm"),
    *_dense(f"{_BLOCK}/MlpBlock_0/Dense_0", f"{_OUR_BLOCK}/widen"),
    *_dense(f"{_BLOCK}/MlpBlock_0/Dense_1", f"{_OUR_BLOCK}/narrow"),
    *_norm("PaliGemma/img/Transformer/encoder_norm", "image/norm"),
    *_dense("PaliGemma/img/head", "image/head"),
)
