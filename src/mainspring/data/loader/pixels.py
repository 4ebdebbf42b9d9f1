"""Planes of YUV 4:2:0 as colours: where a batch is used, so that half the bytes travel there."""

from __future__ import annotations

from typing import Any

# Of BT.601 in the range 16 to 235, which views are encoded in. Source: ITU-R BT.601-7, 2.5.
_LUMA = 255 / 219
_CHROMA = 255 / 112
_RED, _BLUE = 0.701, 0.886
_GREEN_OF_RED, _GREEN_OF_BLUE = 0.299 / 0.587, 0.114 / 0.587


def yuv_to_rgb(images: Any) -> Any:
    """Returns float32 [..., H, W, 3] from 0 to 255 of a loader's "yuv" images, uint8 [..., H*3/2, W].

    Args:
        images: An array of NumPy, JAX (also while it is traced), or another that has `__array_namespace__`.
    """
    names = images.__array_namespace__()
    *lead, lines, width = images.shape
    height = lines * 2 // 3
    planes = images.astype(names.float32)
    luma = (planes[..., :height, :] - 16.0) * _LUMA
    chroma = planes[..., height:, :].reshape(*lead, 2, height // 2, width // 2) - 128.0
    chroma = names.repeat(names.repeat(chroma, 2, axis=-1), 2, axis=-2) * _CHROMA
    blue, red = _BLUE * chroma[..., 0, :, :], _RED * chroma[..., 1, :, :]
    colours = [luma + red, luma - _GREEN_OF_RED * red - _GREEN_OF_BLUE * blue, luma + blue]
    return names.clip(names.stack(colours, axis=-1), 0.0, 255.0)
