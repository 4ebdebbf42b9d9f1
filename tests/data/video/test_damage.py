from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.data.video.kinds import FILES, FRAMES, KINDS, needs_ffmpeg, written
from tests.data.video.making import planes_of

from mainspring.data.video.damage import StrictDecoding, begins_alone
from mainspring.data.video.frames import frames_in
from mainspring.data.video.packets import PacketIndex, index_of_file

pytestmark = pytest.mark.slow
FLIPS = 30
PRINT = """
import sys
from dataclasses import replace
from pathlib import Path
from tests.data.video.making import planes_of
from mainspring.data.video.frames import frames_in
from mainspring.data.video.packets import index_of_file
path, lost = Path(sys.argv[1]), tuple(map(int, sys.argv[2:]))
junk = [bytes([number % 251]) * 70_000 for number in range(97)][::3]
print(*(planes_of(frame) for frame in frames_in(path, replace(index_of_file(path), lost=lost))))
"""


def damaged(path: Path, index: PacketIndex) -> tuple[int, ...]:
    decoding = StrictDecoding(path, index)
    for _ in decoding.frames():
        pass
    return decoding.damaged


def flipped(path: Path, index: PacketIndex, dice: np.random.Generator) -> Path:
    """Writes a copy with one bit of a packet's payload flipped."""
    data = bytearray(path.read_bytes())
    packet = int(dice.integers(len(index.offset)))
    place = int(index.offset[packet] + dice.integers(8, max(9, int(index.size_bytes[packet]))))
    data[min(place, len(data) - 1)] ^= 1 << int(dice.integers(8))
    copy = path.with_stem("flipped")
    copy.write_bytes(data)
    return copy


@pytest.mark.parametrize(("name", "container"), FILES)
def test_sound_video_has_no_damage_wherever_it_is_cut(tmp_path: Path, name: str, container: str) -> None:
    path = written(KINDS[name], tmp_path / f"a.{container}")
    index = index_of_file(path)
    assert damaged(path, index) == ()
    for first in (3, 9, FRAMES - 5):
        part = index.cut(first, 5)
        part = part if begins_alone(path, part) else index.cut(first, 5, lead=1)
        assert damaged(path, part) == (), f"from frame {first} on"


@pytest.mark.parametrize("name", ["h264", "hevc", "mpeg4", "vp9"])
def test_packet_without_sense_damages_its_frame_and_those_that_lean_on_it(tmp_path: Path, name: str) -> None:
    path = written(KINDS[name], tmp_path / "a.mkv")
    index = index_of_file(path)
    keys = np.flatnonzero(index.key)
    packet = int(keys[1]) + 2
    data = bytearray(path.read_bytes())
    begin = int(index.offset[packet]) + 5
    end = int(index.offset[packet] + index.size_bytes[packet])
    data[begin:end] = np.random.default_rng(0).bytes(end - begin)
    path.write_bytes(data)
    leaning = {int(number) for number in index.frame[packet : int(keys[2])]}
    assert set(damaged(path, index)) == leaning
    assert len(list(frames_in(path, replace(index, lost=tuple(sorted(leaning)))))) == FRAMES


@needs_ffmpeg
@pytest.mark.parametrize("name", ["h264", "mpeg4 with B-frames"])
def test_whatever_the_ffmpeg_command_objects_to_is_found(tmp_path: Path, name: str) -> None:
    path = written(KINDS[name], tmp_path / "a.mp4")
    index, dice = index_of_file(path), np.random.default_rng(3)
    objected = found = 0
    for _ in range(FLIPS):
        copy = flipped(path, index, dice)
        words = ["ffmpeg", "-v", "error", "-err_detect", "explode", "-i", str(copy), "-fps_mode", "passthrough"]
        done = subprocess.run([*words, "-f", "null", "-"], capture_output=True, check=False)
        theirs, ours = bool(done.stderr or done.returncode), bool(damaged(copy, index))
        objected, found = objected + theirs, found + ours
        assert ours or not theirs, done.stderr
    assert found >= objected > 0


@pytest.mark.parametrize("name", ["h264", "h264 of open groups", "mpeg4", "hevc", "mjpeg"])
def test_damaged_frames_that_are_let_in_are_the_same_in_every_process(tmp_path: Path, name: str) -> None:
    path = written(KINDS[name], tmp_path / f"a.{KINDS[name].containers[0]}")
    index, dice = index_of_file(path), np.random.default_rng(5)
    copy = path
    lost: tuple[int, ...] = ()
    for _ in range(40):
        copy = flipped(path, index, dice)
        lost = damaged(copy, index)
        if lost:
            break
    here = [planes_of(frame) for frame in frames_in(copy, replace(index, lost=lost))]
    assert len(here) == FRAMES
    words = [sys.executable, "-c", PRINT, str(copy), *map(str, lost)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.split() == here
