"""The VLA a second time, in NumPy and float64: written from the papers, one row and one head at a time, no code shared.

It takes weights by the names of openpi's checkpoints and knows time as openpi does: 1 is noise, 0 is an action.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
Params = Mapping[str, NDArray[Any]]


def small_params(*, kind: str, heads: int, kv_heads: int, seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """Returns random weights in openpi's layout: two blocks, width 16, an expert of width 8, images of four patches."""
    numbers = np.random.default_rng(seed)
    layers, width, mlp, head, eyes, words = 2, 16, 24, 4, 12, 32
    shapes: dict[str, tuple[int, ...]] = {"PaliGemma/llm/embedder/input_embedding": (words, width)}
    for suffix, size, hidden in (("", width, mlp), ("_1", 8, 20)):
        place = "PaliGemma/llm/layers"
        if heads == kv_heads:
            shapes[f"{place}/attn/qkv_einsum{suffix}/w"] = (layers, 3, heads, size, head)
        else:
            shapes[f"{place}/attn/q_einsum{suffix}/w"] = (layers, heads, size, head)
            shapes[f"{place}/attn/kv_einsum{suffix}/w"] = (layers, 2, kv_heads, size, head)
        shapes[f"{place}/attn/attn_vec_einsum{suffix}/w"] = (layers, heads, head, size)
        shapes[f"{place}/mlp{suffix}/gating_einsum"] = (layers, 2, size, hidden)
        shapes[f"{place}/mlp{suffix}/linear"] = (layers, hidden, size)
        norms = {f"{place}/pre_attention_norm": (2,), f"{place}/pre_ffw_norm": (2,), "PaliGemma/llm/final_norm": ()}
        for norm, stack in norms.items():
            if suffix and kind == "pi05":
                shapes[f"{norm}_1/Dense_0/kernel"] = (*stack, size, 3 * size)
                shapes[f"{norm}_1/Dense_0/bias"] = (*stack, 3 * size)
            else:
                shapes[f"{norm}{suffix}/scale"] = (*stack, size)

    def dense(name: str, *shape: int) -> None:
        shapes[f"{name}/kernel"], shapes[f"{name}/bias"] = shape, shape[:-2] + shape[-1:]

    dense("action_in_proj", 6, 8)
    dense("action_out_proj", 8, 6)
    if kind == "pi05":
        dense("time_mlp_in", 8, 8)
        dense("time_mlp_out", 8, 8)
    else:
        dense("action_time_mlp_in", 16, 8)
        dense("action_time_mlp_out", 8, 8)
        dense("state_proj", 6, 8)
    block = "PaliGemma/img/Transformer/encoderblock"
    shapes["PaliGemma/img/embedding/kernel"], shapes["PaliGemma/img/embedding/bias"] = (3, 3, 3, eyes), (eyes,)
    shapes["PaliGemma/img/pos_embedding"] = (1, 4, eyes)
    for norm in (f"{block}/LayerNorm_0", f"{block}/LayerNorm_1", "PaliGemma/img/Transformer/encoder_norm"):
        for leaf in ("scale", "bias"):
            shapes[f"{norm}/{leaf}"] = (2, eyes) if "block" in norm else (eyes,)
    for part in ("query", "key", "value"):
        name = f"{block}/MultiHeadDotProductAttention_0/{part}"
        shapes[f"{name}/kernel"], shapes[f"{name}/bias"] = (2, eyes, 3, 4), (2, 3, 4)
    name = f"{block}/MultiHeadDotProductAttention_0/out"
    shapes[f"{name}/kernel"], shapes[f"{name}/bias"] = (2, 3, 4, eyes), (2, eyes)
    dense(f"{block}/MlpBlock_0/Dense_0", 2, eyes, 18)
    dense(f"{block}/MlpBlock_0/Dense_1", 2, 18, eyes)
    dense("PaliGemma/img/head", eyes, width)
    spread = {
        name: 0.3 if name.endswith(("scale", "bias")) else 1 / np.sqrt(shape[-2]) for name, shape in shapes.items()
    }
    return {name: np.asarray(spread[name] * numbers.normal(size=shape), np.float32) for name, shape in shapes.items()}


def velocity(params: Params, kind: str, batch: Mapping[str, NDArray[Any]], noisy: Numbers, time: Numbers) -> Numbers:
    """Returns openpi's velocity, from action to noise, row by row."""
    rows = range(len(noisy))
    return np.stack([_row(params, kind, {k: v[i] for k, v in batch.items()}, noisy[i], float(time[i])) for i in rows])


def _row(params: Params, kind: str, row: Mapping[str, NDArray[Any]], noisy: Numbers, time: float) -> Numbers:
    prefix, seen = [], []
    for image, there in zip(row["images"], row["image_valid"], strict=True):
        tokens = _eyes(params, image / 255 * 2 - 1)
        prefix += list(tokens)
        seen += [bool(there)] * len(tokens)
    table = params["PaliGemma/llm/embedder/input_embedding"]
    prefix += [table[word] * np.sqrt(table.shape[1]) for word in row["prompt"]]
    seen += [bool(there) for there in row["prompt_valid"]]
    periods = [4e-3 * 1000 ** (i / 3) for i in range(4)]
    angles = np.array([2 * np.pi * time / period for period in periods])
    clock = np.concatenate([np.sin(angles), np.cos(angles)])
    actions = [_dense(params, "action_in_proj", action) for action in noisy]
    condition = None
    if kind == "pi05":
        expert = actions
        condition = _swish(_dense(params, "time_mlp_out", _swish(_dense(params, "time_mlp_in", clock))))
    else:
        mixed = [_swish(_dense(params, "action_time_mlp_in", np.concatenate([action, clock]))) for action in actions]
        expert = [_dense(params, "state_proj", row["state"])] + [
            _dense(params, "action_time_mlp_out", x) for x in mixed
        ]
    # Blocks of tokens that see each other and what came before: the prefix, the state if it is a token, the actions.
    blocks = [0] * len(prefix) + [1] * (len(expert) - len(actions)) + [2] * len(actions)
    seen += [True] * len(expert)
    out = _decode(params, [*prefix, *expert], blocks, seen, len(prefix), condition)
    return np.stack([_dense(params, "action_out_proj", x) for x in out[-len(actions) :]])


def next_words(params: Params, words: NDArray[Any]) -> Numbers:
    """Returns for each word of a row the logits of the one after it, by the language model alone."""
    table = np.asarray(params["PaliGemma/llm/embedder/input_embedding"], np.float64)
    tokens = [table[word] * np.sqrt(table.shape[1]) for word in words]
    count = len(tokens)
    return np.stack(_decode(params, tokens, list(range(count)), [True] * count, count, None)) @ table.T


def _decode(
    params: Params, tokens: list[Numbers], blocks: list[int], seen: list[bool], prefix: int, condition: Numbers | None
) -> list[Numbers]:
    place = "PaliGemma/llm/layers"
    suffixes = [""] * prefix + ["_1"] * (len(tokens) - prefix)
    places = np.cumsum(seen) - 1
    for layer in range(2):
        here = {name: array[layer] for name, array in params.items() if name.startswith(place)}
        normed = [
            _rms(here, f"{place}/pre_attention_norm", s, x, condition) for s, x in zip(suffixes, tokens, strict=True)
        ]
        heads = [_heads(here, s, x, int(at)) for s, (x, _), at in zip(suffixes, normed, places, strict=True)]
        after = []
        for i, (suffix, x) in enumerate(zip(suffixes, tokens, strict=True)):
            allowed = [seen[i] and seen[j] and blocks[j] <= blocks[i] for j in range(len(tokens))]
            mixed = np.zeros_like(x, np.float64)
            if any(allowed):  # What padding attends to is nobody's concern.
                for number, query in enumerate(heads[i]["query"]):
                    shared = number * len(heads[i]["key"]) // len(heads[i]["query"])
                    scores = np.array([query @ heads[j]["key"][shared] / 2 for j in range(len(tokens)) if allowed[j]])
                    shares = np.exp(scores - scores.max())
                    values = [heads[j]["value"][shared] for j in range(len(tokens)) if allowed[j]]
                    found = (shares / shares.sum()) @ np.stack(values)
                    mixed = mixed + found @ here[f"{place}/attn/attn_vec_einsum{suffix}/w"][number]
            x = x + normed[i][1] * mixed
            inner, gate = _rms(here, f"{place}/pre_ffw_norm", suffix, x, condition)
            up = here[f"{place}/mlp{suffix}/gating_einsum"]
            after.append(x + gate * ((_gelu(inner @ up[0]) * (inner @ up[1])) @ here[f"{place}/mlp{suffix}/linear"]))
        tokens = after
    return [_rms(params, "PaliGemma/llm/final_norm", s, x, condition)[0] for s, x in zip(suffixes, tokens, strict=True)]


def _heads(here: Params, suffix: str, x: Numbers, place: int) -> dict[str, Numbers]:
    attention = "PaliGemma/llm/layers/attn"
    if f"{attention}/qkv_einsum{suffix}/w" in here:
        query, key, value = here[f"{attention}/qkv_einsum{suffix}/w"]
    else:
        query = here[f"{attention}/q_einsum{suffix}/w"]
        key, value = here[f"{attention}/kv_einsum{suffix}/w"]
    turned = {"query": _turned(x @ query, place), "key": _turned(x @ key, place)}
    return {**turned, "value": x @ value}


def _turned(heads: Numbers, place: int) -> Numbers:
    """Returns heads of four features as two complex numbers each, turned by their place."""
    pairs = heads[:, :2] + 1j * heads[:, 2:]
    pairs = pairs * np.exp(1j * place * np.array([1.0, 10_000**-0.5]))
    return np.concatenate([pairs.real, pairs.imag], axis=-1)


def _rms(here: Params, name: str, suffix: str, x: Numbers, condition: Numbers | None) -> tuple[Numbers, Any]:
    normed = x / np.sqrt(np.mean(np.square(x, dtype=np.float64)) + 1e-6)
    if f"{name}{suffix}/scale" in here:
        return normed * (1 + here[f"{name}{suffix}/scale"]), 1.0
    assert condition is not None
    scale, shift, gate = np.split(_dense(here, f"{name}{suffix}/Dense_0", condition), 3)
    return normed * (1 + scale) + shift, gate


def _eyes(params: Params, image: Numbers) -> Numbers:
    kernel, place = params["PaliGemma/img/embedding/kernel"], "PaliGemma/img/Transformer/encoderblock"
    patches = [image[y : y + 3, x : x + 3] for y in (0, 3) for x in (0, 3)]
    tokens = np.stack([np.tensordot(patch, kernel, 3) for patch in patches]) + params["PaliGemma/img/embedding/bias"]
    tokens = tokens + params["PaliGemma/img/pos_embedding"][0]
    for layer in range(2):
        here = {
            name.removeprefix(place + "/"): array[layer] for name, array in params.items() if name.startswith(place)
        }
        inner = _layer_norm(here, "LayerNorm_0", tokens)
        mixed = here["MultiHeadDotProductAttention_0/out/bias"]
        for head in range(3):
            query, key, value = (
                inner @ here[f"MultiHeadDotProductAttention_0/{part}/kernel"][:, head]
                + here[f"MultiHeadDotProductAttention_0/{part}/bias"][head]
                for part in ("query", "key", "value")
            )
            shares = np.exp(query @ key.T / 2)
            found = (shares / shares.sum(axis=1, keepdims=True)) @ value
            mixed = mixed + found @ here["MultiHeadDotProductAttention_0/out/kernel"][head]
        tokens = tokens + mixed
        hidden = _gelu(_dense(here, "MlpBlock_0/Dense_0", _layer_norm(here, "LayerNorm_1", tokens)))
        tokens = tokens + _dense(here, "MlpBlock_0/Dense_1", hidden)
    return _dense(params, "PaliGemma/img/head", _layer_norm(params, "PaliGemma/img/Transformer/encoder_norm", tokens))


def _layer_norm(here: Params, name: str, x: Numbers) -> Numbers:
    spread = np.sqrt(x.var(axis=-1, keepdims=True) + 1e-6)
    return np.asarray((x - x.mean(axis=-1, keepdims=True)) / spread * here[f"{name}/scale"] + here[f"{name}/bias"])


def _dense(here: Params, name: str, x: Numbers) -> Numbers:
    result: Numbers = x @ here[f"{name}/kernel"] + here[f"{name}/bias"]
    return result


def _swish(x: Numbers) -> Numbers:
    return np.asarray(x / (1 + np.exp(-x)))


def _gelu(x: Numbers) -> Numbers:
    """Returns the approximation by tanh, which the published weights were trained with."""
    return np.asarray(x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))))
