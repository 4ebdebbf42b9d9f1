from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.data.video.making import number_of, stamped, write_movie

from mainspring.data.video.frames import frames_in, frames_shown, read_frames
from mainspring.data.video.packets import index_from_parquet, index_of_file
from mainspring.domain.errors import DamagedData

HEIGHT, WIDTH = 48, 64


@pytest.fixture
def movie(tmp_path: Path) -> Path:
    return write_movie(tmp_path / "a.mp4", [stamped(n, height=HEIGHT, width=WIDTH) for n in range(40)])


def numbers(path: Path, shown: list[int]) -> list[int]:
    frames = frames_shown(path, index_of_file(path), np.array(shown, np.int64))
    out = np.zeros((len(shown), 32, 32, 3), np.uint8)
    read_frames(frames, out)
    return [number_of(image) for image in out]


@pytest.mark.parametrize("suffix", ["mp4", "mov", "mkv"])
@pytest.mark.parametrize("reordered", [True, False])
def test_index_of_a_file_finds_each_frame(tmp_path: Path, suffix: str, reordered: bool) -> None:
    images = [stamped(n, height=HEIGHT, width=WIDTH) for n in range(40)]
    path = write_movie(tmp_path / f"a.{suffix}", images, reordered=reordered)
    assert index_of_file(path).frames == 40
    assert numbers(path, list(range(40))) == list(range(40))


@pytest.mark.parametrize("first", [0, 1, 11, 12, 30])
def test_index_cut_anywhere_has_what_its_frames_need(movie: Path, first: int) -> None:
    index = index_from_parquet(index_of_file(movie).cut(first, 9).to_parquet())
    found = [number_of(frame.to_ndarray(format="rgb24")) for frame in frames_in(movie, index)]
    assert found == list(range(first, first + 9))


def test_frames_come_again_or_not_at_all_as_they_are_shown(movie: Path) -> None:
    shown = [3, 3, 3, 4, 9, 9, 30]
    assert numbers(movie, shown) == shown


@pytest.mark.parametrize("shown", [[-1, 0], [39, 40], [5, 4]])
def test_frames_that_are_not_there_or_go_back_are_refused(movie: Path, shown: list[int]) -> None:
    with pytest.raises(DamagedData):
        numbers(movie, shown)


def test_frames_missing_from_the_file_are_told(movie: Path) -> None:
    index = index_of_file(movie)
    data = movie.read_bytes()
    movie.write_bytes(data[: int(index.offset[20])] + b"\0" * (len(data) - int(index.offset[20])))
    with pytest.raises(DamagedData, match="of 40 frames"):
        list(frames_in(movie, index))


def test_file_without_video_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    path.write_bytes(b"\0" * 1000)
    with pytest.raises(DamagedData):
        index_of_file(path)


def test_stream_that_does_not_say_how_far_it_reorders_loses_no_frame(movie: Path) -> None:
    index = index_of_file(movie)
    silent = replace(index, extradata=without_reordering(index.extradata))
    assert silent.extradata != index.extradata
    found = [number_of(frame.to_ndarray(format="rgb24")) for frame in frames_in(movie, silent)]
    assert found == list(range(40))


def without_reordering(extradata: bytes) -> bytes:
    """Returns h264's parameters without the last of them, which say how many frames wait for others.

    Source: ITU-T H.264 (2024), E.1.1: a flag, then bitstream_restriction with six numbers.
    """
    size = int.from_bytes(extradata[6:8])
    bits = "".join(f"{byte:08b}" for byte in extradata[8 : 8 + size].replace(b"\0\0\3", b"\0\0")).rstrip("0")[:-1]
    golomb = r"(?:1|01.|001..|0001...|00001....)"
    kept = re.sub(rf"1111({golomb})\1{golomb}{golomb}$", "0", bits) + "1"
    assert len(kept) < len(bits), "x264 writes both motion vector ranges alike"
    kept += "0" * (-len(kept) % 8)
    made = bytes(int(kept[at : at + 8], 2) for at in range(0, len(kept), 8))
    made = re.sub(rb"\0\0(?=[\0-\3])", b"\0\0\3", made)
    return extradata[:6] + len(made).to_bytes(2) + made + extradata[8 + size :]
