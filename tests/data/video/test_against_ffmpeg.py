from __future__ import annotations

import subprocess
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from tests.data.intake.making import IMAGE_NS, START_NS, arm, episode_of, recipe, video_message, write_log
from tests.data.video.kinds import (
    FILES,
    FRAMES,
    HEIGHT,
    KINDS,
    WIDTH,
    as_ffmpeg_decodes,
    needs_ffmpeg,
    packets_of,
    written,
)
from tests.data.video.making import plane_bytes

from mainspring.data.video.frames import frames_in
from mainspring.data.video.packets import PacketIndex, index_from_parquet, index_of_file

pytestmark = [needs_ffmpeg, pytest.mark.slow]


def frames_of(path: Path, index: PacketIndex) -> list[bytes]:
    return [plane_bytes(frame) for frame in frames_in(path, index)]


def assert_as_ffmpeg(path: Path) -> None:
    """Every frame, in order and at random, is what the `ffmpeg` command gives, before any conversion."""
    index = index_of_file(path)
    found = frames_of(path, index)
    assert b"".join(found) == as_ffmpeg_decodes(path)
    for first in np.random.default_rng(1).permutation(len(found)).tolist():
        count = min(3, len(found) - first)
        part = index_from_parquet(index.cut(first, count).to_parquet())
        assert frames_of(path, part) == found[first : first + count], f"from frame {first} on"


@pytest.mark.parametrize(("name", "container"), FILES)
def test_file_s_frames_in_order_and_at_random_are_those_of_ffmpeg(tmp_path: Path, name: str, container: str) -> None:
    path = written(KINDS[name], tmp_path / f"a.{container}")
    assert index_of_file(path).frames == FRAMES
    assert_as_ffmpeg(path)


@pytest.mark.parametrize("name", ["h264", "hevc", "vp9", "av1"])
def test_messages_frames_are_those_of_ffmpeg(tmp_path: Path, name: str) -> None:
    kind = KINDS[name]
    more = {"h264": ":bframes=0:repeat-headers=1", "hevc": ":bframes=0:repeat-headers=1"}.get(name, "")
    options = {key: value + more if key.endswith("params") else value for key, value in kind.options.items()}
    stream: Any = av.CodecContext.create(kind.encoder, "w")
    stream.width, stream.height, stream.pix_fmt, stream.time_base = WIDTH, HEIGHT, kind.pixels, Fraction(1, 20)
    stream.options = options
    packets = [bytes(packet) for packet in packets_of(kind, stream)]
    said = {"hevc": "h265"}.get(name, name)
    sent = [video_message(START_NS + number * IMAGE_NS, data, said) for number, data in enumerate(packets)]
    log = write_log(tmp_path / "a.mcap", [*arm(), *sent])
    episode = episode_of(log, recipe(25, camera="/video"), tmp_path / "out")
    (seen,) = episode.videos
    assert seen.index is not None
    whole = as_ffmpeg_decodes(written(replace(kind, options=options), tmp_path / "a.mkv"))
    found = frames_of(seen.path, seen.index)
    assert len(found) > FRAMES // 2
    assert b"".join(found) in whole


ODD: dict[str, tuple[str, str, list[str]]] = {
    "begins inside a group, by an edit list": ("h264", "mp4", ["-ss", "0.35"]),
    "begins inside an open group": ("h264 of open groups", "mp4", ["-ss", "0.35"]),
    "fragmented": ("h264", "mp4", ["-movflags", "frag_keyframe+empty_moov"]),
    "its facts at the end": ("hevc", "mp4", []),
    "an edit list of mpeg4": ("mpeg4 with B-frames", "mp4", ["-ss", "0.35"]),
}


@pytest.mark.parametrize("name", ODD)
def test_oddly_kept_packets_give_the_frames_of_ffmpeg(tmp_path: Path, name: str) -> None:
    kind, container, words = ODD[name]
    whole = written(KINDS[kind], tmp_path / "whole.mp4")
    path = tmp_path / f"a.{container}"
    seek, rest = (words, []) if words[:1] == ["-ss"] else ([], words)
    subprocess.run(["ffmpeg", "-v", "error", *seek, "-i", whole, "-c", "copy", *rest, path], check=True)
    assert_as_ffmpeg(path)


@pytest.mark.parametrize(
    ("words", "container"),
    [
        (["-c:v", "libxvid", "-bf", "2", "-g", "8"], "avi"),  # "Packed": two pictures in one packet, then none.
        (["-c:v", "mpeg4", "-vtag", "XVID", "-bf", "2", "-flags", "+bitexact"], "avi"),  # Imitates another decoder.
        (["-c:v", "h263", "-s", "176x144"], "avi"),  # All its packets flagged as key frames.
        (["-vf", "select=not(eq(mod(n\\,5)\\,2))", "-fps_mode", "vfr", "-c:v", "libx264"], "mkv"),
        (["-c:v", "ffv1"], "mkv"),
        (["-c:v", "mpeg2video", "-bf", "2"], "avi"),
        (["-c:v", "png"], "mov"),
    ],
)
def test_files_of_other_encoders_give_the_frames_of_ffmpeg(tmp_path: Path, words: list[str], container: str) -> None:
    whole = written(KINDS["h264"], tmp_path / "whole.mkv")
    path = tmp_path / f"a.{container}"
    subprocess.run(["ffmpeg", "-v", "error", "-i", whole, *words, path], check=True)
    assert_as_ffmpeg(path)
