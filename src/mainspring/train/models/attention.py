"""Attention, whoever computes it: which token sees which, and one door to XLA, cuDNN and the TPU's own kernel.

Splash attention is flash attention for TPUs: never are all logits in memory, and parts of a mask where nobody sees
anything are left out. It knows who sees whom when it is compiled, and of padding by segments, which see themselves.
Source: Dao et al., "FlashAttention", 2022; JAX, `pallas.ops.tpu.splash_attention` (0.10).

Legend of shape suffixes:
    B batch   T query token   S key token   N query head   K key and value head   H features of a head
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from mainspring.domain.errors import InvalidInput
from mainspring.train.models.arrays import over_devices
from mainspring.train.models.shapes import BATCH_AXES, TENSOR, AttentionKind

Attend = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
"""From queries [B,T,N,H], and keys and values [B,S,K,H], to what each query attends to, [B,T,N,H], by float32 softmax.

N is a multiple of K: each key and value head serves N / K query heads.
"""

PLATFORMS = {AttentionKind.CUDNN: "gpu", AttentionKind.SPLASH: "tpu"}  # Where one is at home; XLA is everywhere.
LANES = 128  # Numbers of a TPU's register: tokens are padded to a multiple.
BLOCK_MAX = 512  # Tokens a side: with float32 logits 1 MB of the 16 MB that a TPU core has beside its memory.


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Sight:
    """Which query sees which key: a token sees its own block of tokens and those before it, and no padding.

    Args:
        query_valid_BT: False where a token is padding.
        key_valid_BS: The same of keys.
        query_blocks: The block of each token.
        key_blocks: The same of keys.
    """

    query_valid_BT: Any
    key_valid_BS: Any
    query_blocks: tuple[int, ...] = field(metadata={"static": True})
    key_blocks: tuple[int, ...] = field(metadata={"static": True})

    def of_queries(self, first: int, end: int | None = None) -> Sight:
        """Returns the sight of the queries from one on, up to another, all keys kept."""
        some = slice(first, end)
        return replace(self, query_valid_BT=self.query_valid_BT[:, some], query_blocks=self.query_blocks[some])

    @property
    def block_TS(self) -> NDArray[np.bool_]:
        """Returns which tokens would see which without padding."""
        return np.asarray(self.query_blocks)[:, None] >= np.asarray(self.key_blocks)[None, :]

    @property
    def mask_BTS(self) -> jax.Array:
        """Returns which query sees which key."""
        seen: jax.Array = jnp.asarray(self.block_TS) & self.key_valid_BS[:, None, :] & self.query_valid_BT[:, :, None]
        return seen


def block_causal(valid_BT: jax.Array, starts_T: Sequence[bool]) -> Sight:
    """Returns the sight of tokens that see their own block and those before it.

    Args:
        valid_BT: False where a token is padding.
        starts_T: True where a block begins; what is before the first is a block too.
    """
    blocks = tuple(np.cumsum(np.asarray(starts_T)).tolist())
    return Sight(query_valid_BT=valid_BT, key_valid_BS=valid_BT, query_blocks=blocks, key_blocks=blocks)


def attention(sight: Sight | None, kind: AttentionKind) -> Attend:
    """Returns attention.

    Args:
        sight: Which query sees which key, None where all see all.
        kind: Who computes it.
    """
    if kind is AttentionKind.SPLASH:
        return lambda query, key, value: splash(query, key, value, sight)
    mask_BNTS = None if sight is None else over_devices(sight.mask_BTS)[:, None]
    attend: Attend = lambda query, key, value: jax.nn.dot_product_attention(  # noqa: E731
        query, key, value, mask=mask_BNTS, implementation=kind.value
    )
    return attend


def check_attention(kind: AttentionKind, platform: str, *, sequence: int) -> None:
    """Checks that attention can be computed on devices.

    Args:
        kind: Who computes it.
        platform: What they are, as JAX calls it.
        sequence: How many share tokens.

    Raises:
        InvalidInput: It is at home on others, or does not share tokens.
    """
    if platform != PLATFORMS.get(kind, platform):
        raise InvalidInput(
            "compute attention",
            on=f"devices of kind {platform}",
            got=f"policy.compute.attention {kind.value}",
            wanted=f"{kind.value} on {PLATFORMS[kind]} alone",
            next_step=f"set policy.compute.attention to {AttentionKind.XLA.value}",
        )
    if kind is AttentionKind.SPLASH and sequence > 1:
        raise InvalidInput(
            "compute attention",
            got=f"policy.compute.attention {kind.value} with mesh.sequence {sequence}",
            wanted="mesh.sequence 1: each device would compute all of it",
            next_step="share heads by mesh.tensor, or set policy.compute.attention to xla",
        )


def splash(
    query_BTNH: jax.Array,
    key_BSKH: jax.Array,
    value_BSKH: jax.Array,
    sight: Sight | None,
    *,
    interpret: bool = False,
) -> jax.Array:
    """Returns attention by the TPU's own kernel, each device for its rows and heads; of padding it returns anything.

    Args:
        sight: Which query sees which key, None where all see all.
        interpret: Whether it is computed as JAX would elsewhere, slowly.
    """
    rows, queries, keys = len(query_BTNH), query_BTNH.shape[1], key_BSKH.shape[1]
    if sight is None:
        sight = Sight(
            query_valid_BT=jnp.ones((rows, queries), bool),
            key_valid_BS=jnp.ones((rows, keys), bool),
            query_blocks=(0,) * queries,
            key_blocks=(0,) * keys,
        )

    def local(*arrays: jax.Array) -> jax.Array:
        return _splash(sight.block_TS, *arrays, interpret=interpret)

    mesh = jax.sharding.get_abstract_mesh()
    arrays = (query_BTNH, key_BSKH, value_BSKH, sight.query_valid_BT, sight.key_valid_BS)
    if mesh.empty or mesh.are_all_axes_manual:
        return local(*arrays)
    parts, heads, kv_heads = mesh.shape.get(TENSOR, 1), query_BTNH.shape[2], key_BSKH.shape[2]
    if kv_heads > 1 and kv_heads % parts:  # A part of the queries would need a part of a head's group.
        query, key, value, *valid = arrays
        arrays = (query, *(jnp.repeat(each, heads // kv_heads, axis=2) for each in (key, value)), *valid)
        kv_heads = heads
    spec: Any = jax.sharding.PartitionSpec
    split = spec(BATCH_AXES, None, TENSOR if heads % parts == 0 else None, None)
    kv_split = split if kv_heads % parts == 0 else spec(BATCH_AXES, None, None, None)
    places = (split, kv_split, kv_split, spec(BATCH_AXES), spec(BATCH_AXES))
    over: Callable[..., jax.Array] = jax.shard_map(local, mesh=mesh, in_specs=places, out_specs=split, check_vma=False)
    return over(*arrays)


def _splash(
    block_TS: NDArray[np.bool_],
    query_BTNH: jax.Array,
    key_BSKH: jax.Array,
    value_BSKH: jax.Array,
    query_valid_BT: jax.Array,
    key_valid_BS: jax.Array,
    *,
    interpret: bool,
) -> jax.Array:
    from jax.experimental.pallas.ops.tpu import splash_attention as pallas  # Takes half a second to load.

    queries, keys = block_TS.shape
    more_T, more_S = -queries % LANES, -keys % LANES
    # Less than a block is padded: in each of queries one sees something, and what the others give is finite.
    mask_TS = np.pad(block_TS, ((0, more_T), (0, more_S)))
    query_ids_BT = jnp.pad(query_valid_BT.astype(jnp.int32), ((0, 0), (0, more_T)))
    key_ids_BS = jnp.pad(key_valid_BS.astype(jnp.int32), ((0, 0), (0, more_S)))
    q, kv = _block(queries + more_T), _block(keys + more_S)
    kernel: Any = pallas.make_splash_mha(
        pallas.MultiHeadMask([pallas.NumpyMask(mask_TS)] * query_BTNH.shape[2]),
        block_sizes=pallas.BlockSizes(
            block_q=q, block_kv=kv, block_q_dkv=q, block_kv_dkv=kv, block_q_dq=q, block_kv_dq=kv
        ),
        head_shards=1,
        q_seq_shards=1,
        interpret=interpret,
    )

    def heads_first(x_BTNH: jax.Array, more: int) -> jax.Array:
        return jnp.pad(x_BTNH, ((0, 0), (0, more), (0, 0), (0, 0))).transpose(0, 2, 1, 3)

    scaled_BTNH = query_BTNH / math.sqrt(query_BTNH.shape[-1])
    attended_BNTH = jax.vmap(kernel)(
        heads_first(scaled_BTNH, more_T),
        heads_first(key_BSKH, more_S),
        heads_first(value_BSKH, more_S),
        pallas.SegmentIds(query_ids_BT, key_ids_BS),
    )
    attended: jax.Array = attended_BNTH.transpose(0, 2, 1, 3)[:, :queries]
    return attended


def _block(tokens: int) -> int:
    """Returns the most tokens of a block: a multiple of `LANES` that divides all."""
    return max(size for size in range(LANES, BLOCK_MAX + 1, LANES) if tokens % size == 0)
