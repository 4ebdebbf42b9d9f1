"""Rows of a view as a batch."""

from __future__ import annotations

import numpy as np

from mainspring.data.features import ACTION
from mainspring.data.loader.decoding import IMAGES, Layout, frame_shape
from mainspring.data.loader.order import Integers
from mainspring.data.loader.ring import Batch
from mainspring.data.video.gop import GopDecoder
from mainspring.data.views.view import View


def gather(view: View, rows: Integers, *, horizon: int, history: int = 1, layout: Layout = "rgb") -> Batch:
    """Returns rows of a view as a batch, for a look: each frame costs the decoding of its group up to it.

    Args:
        view: An open view.
        rows: [B] row numbers.
        horizon: See `columns_of`.
        history: See `columns_of`.
        layout: As what frames are decoded: [B, V, H, W, 3], or [B, V, H*3/2, W].
    """
    batch = columns_of(view, rows, horizon=horizon, history=history)
    if not view.has_packets:
        return batch
    shape = frame_shape(view.manifest.recipe.image_size, layout)
    images = np.empty((len(rows), len(view.cameras), *shape), np.uint8)
    decoder = GopDecoder()
    for place, (row, phase) in enumerate(zip(rows.tolist(), view.phases(rows).tolist(), strict=True)):
        for camera, name in enumerate(view.cameras):
            out = [*[None] * phase, images[place, camera]]
            decoder.decode(view.packets(name, row - phase, phase + 1), out, on=f"{name}, {view.where(row - phase)}")
    return {**batch, IMAGES: images}


def columns_of(view: View, rows: Integers, *, horizon: int, history: int = 1) -> Batch:
    """Returns what need not be decoded of rows of a view, B of them.

    state [B, S] float32, and every other column but the action under its name; with a history of K steps [B, K, S],
    the row's own last, an episode's first one repeated before it. actions [B, H, A] float32, from the row's own on, an
    episode's last one repeated behind it; valid [B, H] bool, whether the action lies inside the episode; images
    [B, V, H, W, 3] uint8 when the view keeps pixels.

    Args:
        view: An open view.
        rows: [B] row numbers.
        horizon: Actions a row.
        history: Steps a row, its own included.
    """
    episodes = view.episode_of(rows)
    ends = view.episode_ends[episodes][:, None]
    ahead = rows[:, None] + np.arange(horizon)
    back = rows
    if history > 1:
        back = np.maximum(rows[:, None] + np.arange(1 - history, 1), view.episode_starts[episodes][:, None])
    names = [column.name for column in view.manifest.features.columns]
    batch = {name: view.take(name, back) for name in names if name != ACTION}
    if ACTION in names:
        batch["actions"] = view.take(ACTION, np.minimum(ahead, ends - 1))
        batch["valid"] = ahead < ends
    if view.has_images:
        batch[IMAGES] = view.take(IMAGES, rows)
    return batch
