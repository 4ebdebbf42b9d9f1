from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.data.video.kinds import KINDS, written
from tests.data.video.making import planes_of

import mainspring.data
from mainspring.data.video.frames import frames_in
from mainspring.data.video.packets import index_of_file

ROOM = Path(mainspring.data.__file__).parent
_DECODER = re.compile(r'CodecContext\.create\(.*"r"\)')
GUARDED = ("mpeg4", "mpeg4 with B-frames", "mjpeg", "h264", "h264 of 10 bit", "hevc", "vp9", "av1")


def test_packets_are_made_in_one_place() -> None:
    makers = [path for path in sorted(ROOM.rglob("*.py")) if ".Packet(" in path.read_text()]
    assert makers == [ROOM / "video" / "packet.py"]
    decoders = [path for path in sorted(ROOM.rglob("*.py")) if _DECODER.search(path.read_text())]
    assert decoders == [ROOM / "video" / "packet.py"]


@pytest.mark.slow
@pytest.mark.parametrize("name", GUARDED)
def test_packet_at_the_end_of_memory_decodes_to_the_same_in_another_process(tmp_path: Path, name: str) -> None:
    container = "mp4" if "avi" not in KINDS[name].containers else "avi"
    path = written(KINDS[name], tmp_path / f"a.{container}")
    words = [sys.executable, "-m", "tests.data.video.guarded", str(path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-500:]
    assert done.stdout.split() == [planes_of(frame) for frame in frames_in(path, index_of_file(path))]
