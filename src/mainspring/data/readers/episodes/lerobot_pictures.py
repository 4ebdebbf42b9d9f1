"""A camera whose pictures lie inside Parquet, or as files of their own: they become packets, nothing of them lost."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

from mainspring.data.episode import VideoFile
from mainspring.data.readers.episodes.lerobot_columns import Kept, LeRobotCamera
from mainspring.data.readers.episodes.lerobot_info import PICTURE_PATHS, camera_fields, filled, inside, not_there
from mainspring.data.readers.episodes.lerobot_parquet import cells_of
from mainspring.data.video.pictures import PictureFile, picture_codec
from mainspring.domain.errors import DamagedData, InvalidInput

PICTURE_BYTES_MAX = 1 << 28
# Of FFmpeg's formats, those that become one of ours without a change of any value.
_AS = {"gray": "gray", "gray16le": "gray16le", "gray16be": "gray16le", "rgb24": "rgb24", "bgr24": "rgb24"}
_AS |= dict.fromkeys(("rgba", "bgra", "argb", "abgr"), "rgba") | dict.fromkeys(
    ("rgb0", "bgr0", "0rgb", "gbrp"), "rgb24"
)


def first_picture(root: Path, key: str, index: int) -> tuple[str, ...]:
    """Returns where the first picture of an episode's camera may be, when pictures are files of their own.

    Args:
        root: The dataset's folder.
        key: The dataset's name of the camera.
        index: The episode's number.
    """
    return tuple(_path(template, key, index, 0) for template in PICTURE_PATHS)


def pictures_of(
    root: Path, part: LeRobotCamera, *, data: Path, rows: int, index: int, shared: bool, path: Path
) -> VideoFile:
    """Returns a camera's frames, one for each row of an episode.

    Args:
        root: The dataset's folder.
        part: The camera.
        data: The file of the episode's rows.
        rows: How many rows it has.
        index: Its number.
        shared: Whether the file holds other episodes' rows too.
        path: Where the packets go.

    Raises:
        DamagedData: A picture is missing, or is none.
        InvalidInput: It is of a kind that cannot be kept as it is.
    """
    if part.kept is Kept.FILES:
        cells: Iterable[Any] = picture_paths(root, part.key, index, rows)
    else:
        cells = cells_of(data, part.key, rows_max=rows, episode=index if shared else None)
    with PictureFile(path, part.name) as file:
        for step, cell in enumerate(cells):
            _add(file, root, cell, f"{part.key}, step {step}")
        return file.finish()


def _add(file: PictureFile, root: Path, cell: Any, on: str) -> None:
    if isinstance(cell, dict):
        cell = cell.get("bytes") or cell.get("path")
    if isinstance(cell, str):
        place = inside(root, cell)
        if reason := not_there(place, cell[:200]):
            raise DamagedData("read a picture", on=on, got=reason)
        if place.stat().st_size > PICTURE_BYTES_MAX:
            raise DamagedData("read a picture", on=on, got=f"{place.stat().st_size:,} bytes")
        cell = place.read_bytes()
    if isinstance(cell, (list, np.ndarray)):
        file.add_pixels(_pixels(cell, on))
    elif not cell:
        raise DamagedData("read a picture", on=on, got="an empty cell", wanted="a picture")
    elif picture_codec(cell):
        file.add_coded(cell)
    else:
        file.add_pixels(_decoded(cell, on))


def _pixels(cell: Any, on: str) -> NDArray[Any]:
    """Returns pixels that are kept as numbers, channels last."""
    try:
        image = np.asarray(cell)
    except ValueError as error:
        raise DamagedData("read a picture", on=on, got="rows of several lengths") from error
    whole = image.dtype.kind in "iu" and image.size and image.min() >= 0 and image.max() < 1 << 16
    if image.ndim not in (2, 3) or not whole:
        raise InvalidInput(
            "keep a picture",
            on=on,
            got=f"{image.dtype} of shape {image.shape}",
            wanted="height x width (x channels) of 8 or 16 bits",
        )
    if image.ndim == 3 and image.shape[0] in (1, 3, 4) and image.shape[2] not in (1, 3, 4):
        image = image.transpose(1, 2, 0)
    deep = image.ndim == 2 or image.shape[2] == 1  # Lists do not tell 8 bits from 16, and pictures must not differ.
    return np.ascontiguousarray(image, np.uint16 if deep else np.uint8)


def _decoded(data: bytes, on: str) -> NDArray[Any]:
    """Returns the pixels of a picture of another kind, such as a TIFF of depth."""
    try:
        with av.open(io.BytesIO(data), "r") as container:
            frame = next(container.decode(video=0))
            kind = frame.format.name
            if kind in _AS:
                return np.asarray(frame.to_ndarray(format=_AS[kind]))
    except (av.FFmpegError, ValueError, OSError, StopIteration, IndexError) as error:
        raise DamagedData(
            "read a picture",
            on=on,
            got=f"{len(data)} bytes that begin {data[:4].hex()}: {str(error)[:100]}",
            wanted="JPEG, PNG, TIFF or BMP",
        ) from error
    raise InvalidInput("keep a picture", on=on, got=f"pixels of {kind}", wanted=f"{', '.join(sorted(set(_AS)))}")


def picture_paths(root: Path, key: str, index: int, rows: int) -> Iterator[str]:
    """Yields where the pictures of an episode's camera are, when they are files of their own.

    Args:
        root: The dataset's folder.
        key: The dataset's name of the camera.
        index: The episode's number.
        rows: How many there are.
    """
    template = next(
        (template for template in PICTURE_PATHS if inside(root, _path(template, key, index, 0)).is_file()),
        PICTURE_PATHS[0],
    )
    for step in range(rows):
        yield _path(template, key, index, step)


def _path(template: str, key: str, index: int, frame: int) -> str:
    return filled(template, {**camera_fields(key), "episode_index": index, "frame_index": frame})
