"""What processes say is kept within bounds, whoever writes to the same file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mainspring.app.server.output import turn_over

BYTES_MAX, PARTS_MAX, LINES = 1_000, 2, 400
SAYS = f"""
import sys
from mainspring.app.server.output import OutputFile
output = OutputFile(bytes_max={BYTES_MAX}, parts_max={PARTS_MAX})
for number in range({LINES}):
    one = [sys.stdout, sys.stderr][number % 2]
    one.write(sys.argv[1] + " " + str(number) + "\\n")
    one.flush()
    output.look()
"""


@pytest.mark.slow
def test_processes_that_share_a_file_lose_no_line_of_what_is_kept_of_it(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    with path.open("ab") as log:
        both = [subprocess.Popen([sys.executable, "-c", SAYS, name], stdout=log, stderr=log) for name in ("a", "b")]
    assert [one.wait(60) for one in both] == [0, 0]
    parts = [tmp_path / f"server.log.{number}" for number in range(PARTS_MAX, 0, -1)] + [path]
    assert sorted(tmp_path.iterdir()) == sorted(part for part in parts if part.exists())
    assert all(part.stat().st_size < BYTES_MAX + 100 for part in parts if part.exists())
    kept = [line.split() for part in parts if part.exists() for line in part.read_text().splitlines()]
    for name in ("a", "b"):
        own = [int(number) for whose, number in kept if whose == name]
        assert own == list(range(own[0], LINES) if own else [])
    assert len(kept) > BYTES_MAX // 10


def test_output_that_goes_to_no_file_is_left_alone(tmp_path: Path) -> None:
    told = subprocess.run([sys.executable, "-c", SAYS, "a"], capture_output=True, check=True, cwd=tmp_path)
    assert (len(told.stdout.splitlines()), len(told.stderr.splitlines())) == (LINES // 2, LINES // 2)


def test_file_is_turned_over_only_when_it_is_too_long(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    turn_over(path, bytes_max=3)
    for text in ("abc", "abcd"):
        path.write_text(text)
        turn_over(path, bytes_max=3)
    assert [one.read_text() for one in tmp_path.iterdir()] == ["abcd"]
    assert not path.exists()
