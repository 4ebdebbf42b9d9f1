"""How images are varied in training, so that a policy of few episodes learns what is in them; small convolutions.

Legend of shape suffixes:
    B batch   V camera view   H row   W column   C channel   S row or column of an image in the size that is read
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
    """Returns the images of each row moved and tinted at random, all its views alike; in the size that SigLIP reads.

    To be tinted, pixels are floats; where they are scaled too, that is one view after the other, so that few are at
    once, and what moves them is in the products that scale them.

    Args:
        images_BVHWC: Bytes, 0 to 255.
        image: Says by how much.
        keys_B: Of each row.
    """
    pad, shape = image.shift_pixels, images_BVHWC.shape[2:4]
    size = image.size if isinstance(image, SiglipRecipe) and max(shape) != image.size else None

    def varied(views_VHWC: jax.Array, key: jax.Array) -> jax.Array:
        shift_key, tint_key = jax.random.split(key)
        down, right = jax.random.randint(shift_key, (2,), 0, 2 * pad + 1)
        tint_C = 1.0 + image.tint * jax.random.normal(tint_key, (3,))

        def tinted(pixels: jax.Array) -> jax.Array:
            return jnp.clip((pixels - 127.5) * tint_C + 127.5, 0.0, 255.0)

        if size is not None:
            rows_SH, columns_SW = (
                _exact("sl,lm->sm", scale_SL, _moved(scale_SL.shape[1], moved - pad))
                for scale_SL, moved in zip(scales(shape, size), (down, right), strict=True)
            )
            read: jax.Array = jax.lax.map(lambda view: scaled_by(rows_SH, columns_SW, tinted(view)), views_VHWC)
            return read
        padded = jnp.pad(views_VHWC, ((0, 0), (pad, pad), (pad, pad), (0, 0)), mode="edge")
        return tinted(jax.lax.dynamic_slice(padded, (0, down, right, 0), views_VHWC.shape))

    return jax.vmap(varied)(images_BVHWC, keys_B)


def _moved(length: int, shift: jax.Array) -> jax.Array:
    """Returns the matrix that moves a line of pixels, [to,from]; the last one is repeated where none is left."""
    taken = jnp.clip(jnp.arange(length) + shift, 0, length - 1)
    moved: jax.Array = jax.nn.one_hot(taken, length)
    return moved


def scales(shape: Sequence[int], size: int) -> list[jax.Array]:
    """Returns by what rows and columns are multiplied to bring images to size, [S,H] and [S,W]; what is padded is zero.

    Args:
        shape: Height and width.
        size: Of both, S, in which images keep their proportions.
    """
    ratio, found = max(shape) / size, []
    for length in shape:
        inner = int(length / ratio)
        before = (size - inner) // 2
        scale = jax.image.resize(jnp.eye(length), (inner, length), "linear")
        found.append(jnp.pad(scale, ((before, size - inner - before), (0, 0))))
    return found


def _exact(summed: str, left: jax.Array, right: jax.Array) -> jax.Array:
    """Returns a product in float32, also where a chip would take fewer bits."""
    product: jax.Array = jnp.einsum(summed, left, right, precision=jax.lax.Precision.HIGHEST)
    return product


def scaled_by(rows_SH: jax.Array, columns_SW: jax.Array, images: jax.Array) -> jax.Array:
    """Returns images [..,H,W,C] brought to size, [..,S,S,C]."""
    return _exact("...swc,tw->...stc", _exact("sh,...hwc->...swc", rows_SH, images), columns_SW)


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
