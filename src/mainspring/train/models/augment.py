"""How images are varied in training, so that a policy of few episodes learns what is in them.

Legend of shape suffixes:
    B batch   V camera view   H row   W column   C channel
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from mainspring.train.models.shapes import ImageRecipe, SiglipRecipe


def varied_images(images_BVHWC: jax.Array, image: ImageRecipe | SiglipRecipe, key: jax.Array) -> jax.Array:
    """Returns the images of each row moved and tinted at random, all its views alike.

    Args:
        images_BVHWC: Bytes, 0 to 255.
        image: Says by how much.
    """
    shift_key, tint_key = jax.random.split(key)
    pad = image.shift_pixels
    padded = jnp.pad(images_BVHWC, ((0, 0), (0, 0), (pad, pad), (pad, pad), (0, 0)), mode="edge")
    shift_B2 = jax.random.randint(shift_key, (len(padded), 2), 0, 2 * pad + 1)
    moved_BVHWC = jax.vmap(
        lambda views, shift: jax.lax.dynamic_slice(views, (0, shift[0], shift[1], 0), images_BVHWC.shape[1:])
    )(padded, shift_B2)
    tint_BVHWC = 1.0 + image.tint * jax.random.normal(tint_key, (len(padded), 1, 1, 1, 3))
    return jnp.clip((moved_BVHWC - 127.5) * tint_BVHWC + 127.5, 0.0, 255.0)
