"""How images are varied in training, so that a policy of few episodes learns what is in them; small convolutions.

Legend of shape suffixes:
    B batch   V camera view   H row   W column   C channel
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from mainspring.train.models.arrays import Arrays, Weights, fresh_convolution
from mainspring.train.models.shapes import ConvolutionRecipe, ImageRecipe, SiglipRecipe


def varied_images(
    images_BVHWC: jax.Array, image: ConvolutionRecipe | ImageRecipe | SiglipRecipe, keys_B: jax.Array
) -> jax.Array:
    """Returns the images of each row moved and tinted at random, all its views alike.

    Args:
        images_BVHWC: Bytes, 0 to 255.
        image: Says by how much.
        keys_B: Of each row.
    """
    pad = image.shift_pixels

    def varied(views_VHWC: jax.Array, key: jax.Array) -> jax.Array:
        shift_key, tint_key = jax.random.split(key)
        padded = jnp.pad(views_VHWC, ((0, 0), (pad, pad), (pad, pad), (0, 0)), mode="edge")
        down, right = jax.random.randint(shift_key, (2,), 0, 2 * pad + 1)
        moved_VHWC = jax.lax.dynamic_slice(padded, (0, down, right, 0), views_VHWC.shape)
        tint_C = 1.0 + image.tint * jax.random.normal(tint_key, (3,))
        return jnp.clip((moved_VHWC - 127.5) * tint_C + 127.5, 0.0, 255.0)

    return jax.vmap(varied)(images_BVHWC, keys_B)


def with_varied_images(
    batch: Arrays, image: ConvolutionRecipe | ImageRecipe | SiglipRecipe | None, keys_B: jax.Array
) -> Arrays:
    """Returns a batch with its images varied as in training, for a policy that reads them.

    Args:
        batch: `images` [B,V,H,W,C], bytes.
        image: How the policy reads them, None for one that does not.
        keys_B: Of each row's variation.
    """
    return batch if image is None else {**batch, "images": varied_images(batch["images"], image, keys_B)}


def fresh_convolutions(channels: Sequence[int]) -> list[Weights]:
    """Returns 3x3 convolutions to be, the first of which reads colours.

    Args:
        channels: Of each.
    """
    # Each reads what the one before gives.
    return [fresh_convolution(3, before, after) for before, after in zip((3, *channels), channels, strict=False)]


def convolved(layers: Sequence[Weights], images_BVHWC: jax.Array) -> jax.Array:
    """Returns the last map of each view of each row, [B * V, H, W, C]; every layer halves height and width.

    Args:
        layers: As `fresh_convolutions` says.
        images_BVHWC: Brightness, 0 to 255.
    """
    x = images_BVHWC.reshape(-1, *images_BVHWC.shape[2:]).astype(jnp.float32) / 127.5 - 1.0
    for layer in layers:
        kernel = layer["kernel"].astype(x.dtype)
        x = jax.lax.conv_general_dilated(x, kernel, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        x = jax.nn.relu(x + layer["bias"])
    return x
