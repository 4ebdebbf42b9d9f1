"""Rows of a view as a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mainspring.data.features import ACTION
from mainspring.data.loader.decoding import IMAGES, Layout, frame_shape
from mainspring.data.loader.order import Integers
from mainspring.data.loader.ring import Batch
from mainspring.data.video.gop import GopDecoder
from mainspring.data.views.view import View


def gather(
    view: View,
    rows: Integers,
    *,
    horizon: int,
    history: int = 1,
    image_history: int = 1,
    layout: Layout = "rgb",
    cameras: Sequence[str] | None = None,
) -> Batch:
    """Returns rows of a view as a batch, for a look: each frame costs the decoding of its group up to it.

    Args:
        view: An open view.
        rows: [B] row numbers.
        horizon: See `columns_of`.
        history: See `columns_of`.
        image_history: See `columns_of`.
        layout: As what frames are decoded: [B, V, H, W, 3], or [B, V, H*3/2, W].
        cameras: See `loader.Component`.
    """
    slots = view.cameras if cameras is None else tuple(cameras)
    batch = columns_of(view, rows, horizon=horizon, history=history, image_history=image_history, cameras=slots)
    if not view.has_packets or not slots:
        return batch
    images = np.zeros((len(rows), *images_shape(view, layout, image_history, len(slots))), np.uint8)
    shown = history_rows(view, rows, image_history).ravel()
    places = images.reshape(len(shown), len(slots), *frame_shape(view.manifest.recipe.image_size, layout))
    decoder = GopDecoder()
    for place, (row, phase) in enumerate(zip(shown.tolist(), view.phases(shown).tolist(), strict=True)):
        for camera, name in ((camera, name) for camera, name in enumerate(slots) if name):
            decoder.decode(
                view.packets(name, row - phase, phase + 1),
                [*[None] * phase, places[place, camera]],
                on=f"{name}, {view.where(row - phase)}",
            )
    return {**batch, IMAGES: images}


def images_shape(view: View, layout: Layout, image_history: int, cameras: int) -> tuple[int, ...]:
    """Returns the shape of a sample's images: [V, ...], or [K, V, ...] with a history of K moments.

    Args:
        view: An open view.
        layout: As what frames are decoded.
        image_history: Moments a sample.
        cameras: Images a moment.
    """
    moments = (image_history,) if image_history > 1 else ()
    return (*moments, cameras, *frame_shape(view.manifest.recipe.image_size, layout))


def history_rows(view: View, rows: Integers, history: int) -> Integers:
    """Returns rows with those before them, [B, history], the row's own last; an episode's first for any earlier.

    Args:
        view: An open view.
        rows: [B] row numbers.
        history: How many for each, its own included.
    """
    starts = view.episode_starts[view.episode_of(rows)]
    back: Integers = np.maximum(rows[:, None] + np.arange(1 - history, 1), starts[:, None])
    return back


def columns_of(
    view: View,
    rows: Integers,
    *,
    horizon: int,
    history: int = 1,
    image_history: int = 1,
    cameras: Sequence[str] | None = None,
) -> Batch:
    """Returns what need not be decoded of rows of a view, B of them.

    state [B, S] float32, and every other column but the action under its name; with a history of K steps [B, K, S],
    the row's own last, an episode's first one repeated before it. actions [B, H, A] float32, from the row's own on, an
    episode's last one repeated behind it; valid [B, H] bool, whether the action lies inside the episode; images
    [B, V, H, W, 3] uint8 when the view keeps pixels, [B, K, V, H, W, 3] with an image history of K, padded likewise.

    Args:
        view: An open view.
        rows: [B] row numbers.
        horizon: Actions a row.
        history: Steps a row, its own included.
        image_history: Moments of images a row, its own included.
        cameras: See `loader.Component`.
    """
    ends = view.episode_ends[view.episode_of(rows)][:, None]
    ahead = rows[:, None] + np.arange(horizon)
    back = history_rows(view, rows, history) if history > 1 else rows
    names = [column.name for column in view.manifest.features.columns]
    batch = {name: view.take(name, back) for name in names if name != ACTION}
    if ACTION in names:
        batch["actions"] = view.take(ACTION, np.minimum(ahead, ends - 1))
        batch["valid"] = ahead < ends
    if view.has_images and cameras != ():
        images = view.take(IMAGES, history_rows(view, rows, image_history) if image_history > 1 else rows)
        batch[IMAGES] = images if cameras in (None, view.cameras) else _chosen(images, view.cameras, cameras)
    return batch


def _chosen(images: NDArray[Any], have: Sequence[str], cameras: Sequence[str] | None) -> NDArray[Any]:
    """Returns the images [..., V, H, W, 3] of some cameras, black where there is none."""
    assert cameras is not None
    *lead, _, height, width, colours = images.shape
    chosen = np.zeros((*lead, len(cameras), height, width, colours), images.dtype)
    for place, name in enumerate(cameras):
        if name:
            chosen[..., place, :, :, :] = images[..., have.index(name), :, :, :]
    return chosen
