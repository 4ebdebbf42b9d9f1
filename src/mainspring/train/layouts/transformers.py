"""The layouts of PyTorch checkpoints with the names of the library `transformers`: LeRobot's pi0, PaliGemma, Gemma.

Source: LeRobot 0.4, `policies/pi0/modeling_pi0.py`; transformers 4.53, `models/{paligemma,gemma,siglip}`; the arrays of
`google/paligemma-3b-pt-224` and `google/gemma-2b` as published.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mainspring.train.layouts.openpi import PROJECTIONS
from mainspring.train.layouts.rows import Layout, LayoutRow
from mainspring.train.models.shapes import VlaKind, VlaRecipe

_ATTENTION = {"query": "q_proj", "key": "k_proj", "value": "v_proj"}


def lerobot_arrays(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arrays of a LeRobot checkpoint by the paths that its table has.

    Args:
        arrays: By the paths of its file, which put all under `model.`; those that were published first do not.
    """
    return {f"model.{path.removeprefix('model.')}": array for path, array in arrays.items()}


def lerobot_layout(policy: VlaRecipe) -> Layout:
    """Returns the table of the arrays in LeRobot's `pi0` and `pi05`; the head of its expert's words serves nothing.

    Args:
        policy: Its shape.
    """
    adaptive = policy.kind is VlaKind.PI05
    root = "model.paligemma_with_expert"
    language = f"{root}.paligemma.model.language_model"
    rows = (
        *_paligemma(policy, f"{root}.paligemma.model", language),
        *_stack(f"{root}.gemma_expert.model", "expert/", adaptive=adaptive),
        *(row for ours, theirs in PROJECTIONS[policy.kind].items() for row in _dense(f"model.{theirs}", ours)),
    )
    return Layout(
        rows=rows,
        instead={f"{root}.paligemma.lm_head.weight": f"{language}.embed_tokens.weight"},
        unused=(f"{root}.gemma_expert.lm_head.weight",),
    )


def paligemma_layout(policy: VlaRecipe) -> Layout:
    """Returns the table of the arrays in a published PaliGemma, which are the parts of a policy without its expert.

    Args:
        policy: Its shape.
    """
    return Layout(rows=_paligemma(policy, "", "language_model.model"))


def gemma_layout() -> Layout:
    """Returns the table of the arrays in a published Gemma, for the language model alone."""
    rows = (LayoutRow(theirs="model.embed_tokens.weight", ours=("embedding",)), *_stack("model", "", adaptive=False))
    return Layout(rows=rows, instead={"lm_head.weight": "model.embed_tokens.weight"})


def _paligemma(policy: VlaRecipe, root: str, language: str) -> tuple[LayoutRow, ...]:
    dotted = f"{root}." if root else ""
    eyes = (
        *_siglip(f"{dotted}vision_tower.vision_model", "image/"),
        *_dense(f"{dotted}multi_modal_projector.linear", "image/head"),
    )
    return (
        *(eyes if policy.image is not None else ()),
        # Published with 64 rows more, drawn at random for a token that stands where images do and is never looked up.
        LayoutRow(theirs=f"{language}.embed_tokens.weight", ours=("language/embedding",), padded=True),
        *_stack(language, "language/", adaptive=False),
    )


def _dense(theirs: str, ours: str) -> tuple[LayoutRow, ...]:
    return (
        LayoutRow(theirs=f"{theirs}.weight", ours=(f"{ours}/kernel",), pattern="E D -> D E"),
        LayoutRow(theirs=f"{theirs}.bias", ours=(f"{ours}/bias",)),
    )


def _each_dense(theirs: str, ours: str) -> tuple[LayoutRow, ...]:
    """Returns the rows of dense layers of which each block has one."""
    return (
        LayoutRow(theirs=f"{theirs}.weight", ours=(f"{ours}/kernel",), pattern="E D -> L D E"),
        LayoutRow(theirs=f"{theirs}.bias", ours=(f"{ours}/bias",), pattern="E -> L E"),
    )


def _stack(theirs: str, ours: str, *, adaptive: bool) -> tuple[LayoutRow, ...]:
    """Returns the rows of one stream of Gemma."""
    layer, blocks = f"{theirs}.layers.{{}}", f"{ours}blocks"

    def row(name: str, own: str, pattern: str) -> LayoutRow:
        return LayoutRow(theirs=f"{layer}.{name}.weight", ours=(f"{blocks}/{own}",), pattern=pattern)

    rows = [row(f"self_attn.{name}", own, "(N H) D -> L D N H") for own, name in _ATTENTION.items()]
    rows += [
        row("self_attn.o_proj", "out", "D (N H) -> L N H D"),
        row("mlp.gate_proj", "gate", "F D -> L D F"),
        row("mlp.up_proj", "up", "F D -> L D F"),
        row("mlp.down_proj", "down", "D F -> L F D"),
    ]
    norms = {"input_layernorm": "attention_norm", "post_attention_layernorm": "mlp_norm"}
    if adaptive:
        rows += [
            each for name, own in norms.items() for each in _each_dense(f"{layer}.{name}.dense", f"{blocks}/{own}")
        ]
        return (*rows, *_dense(f"{theirs}.norm.dense", f"{ours}norm"))
    rows += [row(name, f"{own}/scale", "D -> L D") for name, own in norms.items()]
    return (*rows, LayoutRow(theirs=f"{theirs}.norm.weight", ours=(f"{ours}norm/scale",)))


def _siglip(theirs: str, ours: str) -> tuple[LayoutRow, ...]:
    layer, blocks = f"{theirs}.encoder.layers.{{}}", f"{ours}blocks"
    patch, place = f"{theirs}.embeddings.patch_embedding", f"{theirs}.embeddings.position_embedding.weight"
    rows = [
        LayoutRow(theirs=f"{patch}.weight", ours=(f"{ours}patch/kernel",), pattern="D C H W -> H W C D"),
        LayoutRow(theirs=f"{patch}.bias", ours=(f"{ours}patch/bias",)),
        LayoutRow(theirs=place, ours=(f"{ours}position",)),
        *_each_dense(f"{layer}.mlp.fc1", f"{blocks}/widen"),
        *_each_dense(f"{layer}.mlp.fc2", f"{blocks}/narrow"),
    ]
    heads = {"kernel": "(N H) D -> L D N H", "bias": "(N H) -> L N H"}
    out = {"kernel": "D (N H) -> L N H D", "bias": "D -> L D"}
    for own, name, patterns in (*((own, name, heads) for own, name in _ATTENTION.items()), ("out", "out_proj", out)):
        for leaf, part in (("kernel", "weight"), ("bias", "bias")):
            path = f"{layer}.self_attn.{name}.{part}"
            rows.append(LayoutRow(theirs=path, ours=(f"{blocks}/{own}/{leaf}",), pattern=patterns[leaf]))
    for leaf, part in (("scale", "weight"), ("bias", "bias")):
        for own, name in (("attention_norm", "layer_norm1"), ("mlp_norm", "layer_norm2")):
            path = f"{blocks}/{own}/{leaf}"
            rows.append(LayoutRow(theirs=f"{layer}.{name}.{part}", ours=(path,), pattern="D -> L D"))
        rows.append(LayoutRow(theirs=f"{theirs}.post_layernorm.{part}", ours=(f"{ours}norm/{leaf}",)))
    return tuple(rows)
