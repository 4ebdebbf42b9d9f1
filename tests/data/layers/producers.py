"""Producers that the tests run, here because worker processes find them by their module's name."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mainspring.data.layers.episode import Recorded
from mainspring.data.layers.producer import Made, producer


def smoothed(values: np.ndarray, window: int) -> np.ndarray:
    return np.stack([np.convolve(column, np.ones(window) / window, "same") for column in values.T], axis=1)


@producer(columns={"speed": ("fast",)}, facts=("top_speed", "moved"), uses=[smoothed])
def motion(episode: Recorded, *, window: int = 3, log: str = "") -> Made:
    """Says how fast it moved, and writes down that it was called."""
    speed = np.linalg.norm(np.diff(smoothed(episode.columns["state"], window), axis=0, prepend=0), axis=1)
    if log:
        with Path(log).open("a") as file:
            file.write(f"{episode.row.id}\n")
    return {"speed": speed, "top_speed": float(speed.max()), "moved": bool(speed.max() > 1)}


@producer(columns={"doubled": ("twice",)})
def doubled(episode: Recorded) -> Made:
    return {"doubled": 2 * episode.columns["speed"]}


@producer(facts=("brightness",))
def brightness(episode: Recorded, *, camera: str = "observation.images.front") -> Made:
    return {"brightness": float(np.mean([frame.mean() for frame in episode.frames(camera)]))}


@producer(facts=("fine",))
def picky(episode: Recorded) -> Made:
    if episode.row.frames > 25:
        raise ValueError("too long for me")
    return {"fine": True}


@producer(columns={"short": ("one",)})
def short(episode: Recorded) -> Made:
    return {"short": np.zeros(3)}
