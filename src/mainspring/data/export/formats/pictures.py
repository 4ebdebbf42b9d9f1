"""A camera as single pictures, one for each step: as they are where they are pictures, else as PNG, without loss."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mainspring.data.export.run import Work
from mainspring.data.export.survey import EpisodeSeen, ExportSurvey, Look, TrackSeen, part_of
from mainspring.data.export.video import VideoPart, rgb_of, step_packets
from mainspring.data.video.frames import frames_shown
from mainspring.data.video.pictures import PngEncoder

_HUFFMAN = b"\xff\xc4"  # JPEG's tables; packets of some old video files go without, and only video decoders read them.


class PictureForm(str, Enum):
    """How a camera's pictures are written."""

    JPEG = "jpeg"
    COLOUR = "png"
    GRAY = "gray"
    DEPTH = "depth"

    @property
    def channels(self) -> int:
        """Returns how many numbers a pixel has."""
        return 3 if self in (PictureForm.JPEG, PictureForm.COLOUR) else 1


def form_of(survey: ExportSurvey, camera: str) -> PictureForm:
    """Returns how a camera's pictures are written in all episodes.

    Args:
        survey: What goes out.
        camera: The camera.
    """
    looks = survey.looks(camera)
    alone = {Look.JPEG: PictureForm.JPEG, Look.GRAY: PictureForm.GRAY, Look.DEPTH: PictureForm.DEPTH}
    return alone.get(looks.pop(), PictureForm.COLOUR) if len(looks) == 1 else PictureForm.COLOUR


def drawn_again(survey: ExportSurvey, forms: Mapping[str, PictureForm], what: str) -> Iterator[str]:
    """Yields what is lost of cameras of video where each step goes out as a picture.

    Args:
        survey: What goes out.
        forms: Of its cameras.
        what: What a step's picture goes out as.
    """
    for name, form in forms.items():
        if form is PictureForm.COLOUR and Look.VIDEO in survey.looks(name):
            yield f"camera {name}: video; it goes out as {what} of each step"


def short_camera(camera: str) -> str:
    """Returns a camera's name without what says only that it is one.

    Args:
        camera: Its name.
    """
    return camera.removeprefix("observation.").removeprefix("images.").strip("/") or camera


def counts(episode: EpisodeSeen, forms: Mapping[str, PictureForm]) -> dict[str, int]:
    """Returns how many pictures go out as they are, and how many are drawn again.

    Args:
        episode: An episode.
        forms: Of its cameras.
    """
    kept = sum(_as_is(track, forms[track.camera]) for track in episode.tracks)
    steps = episode.row.frames
    return {"copied": kept * steps, "again": (len(episode.tracks) - kept) * steps}


def coded_pictures(work: Work, episode: EpisodeSeen, camera: str, form: PictureForm) -> Iterator[bytes]:
    """Yields a camera's picture at each step, as JPEG or PNG.

    Args:
        work: See `Work`.
        episode: The episode.
        camera: A camera it has.
        form: See `form_of`.

    Raises:
        DamagedData: A picture cannot be decoded.
    """
    part = part_of(work.store, episode, camera, work.fetched, again=False)
    track = episode.track(camera)
    assert track is not None
    if _as_is(track, form) and (coded := _coded(part, form)) is not None:
        yield from coded
        return
    encoder = PngEncoder()
    for image in pixel_pictures(part, form):
        yield encoder.encode(image)


def pixel_pictures(part: VideoPart, form: PictureForm) -> Iterator[NDArray[Any]]:
    """Yields a camera's picture at each step as pixels: [H, W, 3] of 8 bits, or [H, W] of 8 or 16.

    Args:
        part: The episode's frames.
        form: See `form_of`.

    Raises:
        DamagedData: A picture cannot be decoded.
    """
    for frame in frames_shown(part.path, part.index, part.shown):
        if form is PictureForm.DEPTH:
            yield frame.to_ndarray(format="gray16le").astype(np.uint16)
        else:
            yield frame.to_ndarray(format="gray") if form is PictureForm.GRAY else rgb_of(frame)


def _as_is(track: TrackSeen, form: PictureForm) -> bool:
    forms = {
        Look.JPEG: PictureForm.JPEG,
        Look.PNG: PictureForm.COLOUR,
        Look.GRAY: PictureForm.GRAY,
        Look.DEPTH: PictureForm.DEPTH,
    }
    return forms.get(track.look) is form


def _coded(part: VideoPart, form: PictureForm) -> Iterator[bytes] | None:
    """Returns the packets that the steps show; None for JPEG that only decoders of video read."""
    if form is PictureForm.JPEG and _HUFFMAN not in next(step_packets(part)):
        return None
    return step_packets(part)
