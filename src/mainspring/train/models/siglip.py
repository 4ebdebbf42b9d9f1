"""The SigLIP image encoder: a vision transformer without a class token; every patch gives one token.

Source: Zhai et al., "Sigmoid Loss for Language Image Pre-Training", 2023; Dosovitskiy et al., "ViT", 2020.

Legend of shape suffixes:
    B image of a batch   H row   W column   C channel   T patch   D features of a patch
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from mainspring.train.models.arrays import (
    Weights,
    dense,
    fresh_convolution,
    fresh_dense,
    fresh_layer,
    fresh_norm,
    layer_norm,
    over_devices,
)
from mainspring.train.models.attention import Attend, attention
from mainspring.train.models.images import scaled_by, scales
from mainspring.train.models.shapes import ComputeRecipe, SiglipRecipe
from mainspring.train.models.transformer import fresh_multi_head, multi_head, rematerialised

BYTE_HALF = 127.5  # Images enter as -1 to 1.


def fresh_siglip(shape: SiglipRecipe, outputs: int) -> Weights:
    """Returns the encoder's weights to be.

    Args:
        outputs: Features of a token that leaves.
    """
    layers, width, heads = shape.depth, shape.width, shape.heads
    return {
        "patch": fresh_convolution(shape.patch, 3, width),
        "position": fresh_dense(shape.tokens, width, inputs=width),
        "blocks": {
            "attention_norm": fresh_norm(width, layers),
            **fresh_multi_head(width, heads, layers),
            "mlp_norm": fresh_norm(width, layers),
            "widen": fresh_layer(width, shape.mlp, layers),
            "narrow": fresh_layer(shape.mlp, width, layers),
        },
        "norm": fresh_norm(width),
        "head": fresh_layer(width, outputs),
    }


def encode_image(weights: Weights, shape: SiglipRecipe, images_BHWC: jax.Array, compute: ComputeRecipe) -> jax.Array:
    """Returns the tokens of images, [B,T,D].

    Args:
        weights: As `fresh_siglip` says.
        images_BHWC: Brightness, 0 to 255, of any size.
        compute: How it is computed; patches and positions are float32.
    """
    pixels = scaled(images_BHWC.astype(jnp.float32), shape.size) / BYTE_HALF - 1.0
    stride, kernel = (shape.patch, shape.patch), weights["patch"]["kernel"].astype(pixels.dtype)
    x = jax.lax.conv_general_dilated(pixels, kernel, stride, "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    x = x.reshape(len(x), -1, shape.width) + weights["patch"]["bias"] + weights["position"]

    attend = attention(None, compute.attention)

    def layer(x: jax.Array, block: Weights) -> tuple[jax.Array, None]:
        return _block(block, over_devices(x), attend), None

    x, _ = jax.lax.scan(rematerialised(layer, compute.remat), x.astype(compute.numbers.value), weights["blocks"])
    return dense(weights["head"], layer_norm(weights["norm"], x))


def _block(block: Weights, x: jax.Array, attend: Attend) -> jax.Array:
    normed = layer_norm(block["attention_norm"], x)
    x = x + multi_head(block, normed, normed, normed, attend)
    hidden = jax.nn.gelu(dense(block["widen"], layer_norm(block["mlp_norm"], x)))
    return x + over_devices(dense(block["narrow"], over_devices(hidden, tensor_dim=2)))


def scaled(images_BHWC: jax.Array, size: int) -> jax.Array:
    """Returns images of `size` by `size`, in their own proportions, padded with black.

    Args:
        images_BHWC: Brightness, 0 to 255, of any size.
    """
    _, height, width, _ = images_BHWC.shape
    if height == width == size:
        return images_BHWC
    rows_SH, columns_SW = scales((height, width), size)
    return scaled_by(rows_SH, columns_SW, images_BHWC)
