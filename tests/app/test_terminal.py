"""What a job writes, raises or reports never steers the terminal of whoever looks at it."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys
import termios
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from mainspring.app.render.tables import Listing, facts_grid, framed
from mainspring.app.render.terminal import SafeConsole, json_text, write_output
from mainspring.app.sdk.lab import Lab, job
from mainspring.domain.life import ended
from tests.app.conftest import until

PROGRAM = f"{os.path.dirname(sys.executable)}/ms"
COLOUR = re.compile("\x1b\\[[0-9;]*m")
STEERS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
EVIL = "\x1b]0;a title\x07\x1b[2J\x1b[31mred\x9b1A\u202eback\x00\x08\x7f"


def _terminal() -> tuple[int, int]:
    ours, theirs = pty.openpty()
    modes = termios.tcgetattr(theirs)
    modes[1] &= ~termios.OPOST  # What is written is read as it is.
    termios.tcsetattr(theirs, termios.TCSANOW, modes)
    return ours, theirs


def _read(ours: int) -> str:
    parts = []
    with suppress(OSError):  # Linux answers so once nobody holds the other end.
        while part := os.read(ours, 65_536):
            parts.append(part)
    os.close(ours)
    return b"".join(parts).decode()


def _on_a_terminal(lab: Lab, *words: str) -> str:
    """Returns what a command prints to a terminal: both its streams."""
    ours, theirs = _terminal()
    environment = {**os.environ, "MAINSPRING_HOME": str(lab.home.path), "TERM": "xterm-256color", "COLUMNS": "200"}
    with subprocess.Popen([PROGRAM, *words], env=environment, stdin=theirs, stdout=theirs, stderr=theirs):
        os.close(theirs)
        return _read(ours)


def test_a_job_that_writes_and_raises_control_characters_shows_none_on_a_terminal(lab: Lab) -> None:
    program = f"print({EVIL!r}); raise SystemExit({EVIL!r})"
    view = lab.run(job("evil", [sys.executable, "-c", program], on=["h100"], attempts_max=1))
    until(lambda: ended(lab.status(view.id).state), "the job to end")
    assert "\x1b[2J" in lab.status(view.id).reason
    for words in (
        ["ps"],
        ["status", "evil"],
        ["why", "evil"],
        ["logs", "evil"],
        ["ps", "--json"],
        ["logs", "evil", "--json"],
    ):
        told = _on_a_terminal(lab, *words)
        assert "red" in told, words
        assert not STEERS.search(COLOUR.sub("", told)), words
    assert "\x1b[31mred" in _on_a_terminal(lab, "logs", "evil")
    environment = {**os.environ, "MAINSPRING_HOME": str(lab.home.path)}
    piped = subprocess.run([PROGRAM, "logs", "evil"], env=environment, capture_output=True, timeout=60)
    assert EVIL in piped.stdout.decode()


def test_an_error_about_control_characters_shows_none(lab: Lab) -> None:
    for words in (["status", EVIL.replace("\x00", "")], ["status", EVIL.replace("\x00", ""), "--json"]):
        told = _on_a_terminal(lab, *words)
        assert "red" in told
        assert not STEERS.search(COLOUR.sub("", told))


@given(st.text())
def test_nothing_that_is_drawn_holds_a_control_character_of_its_texts(text: str) -> None:
    file = io.StringIO()
    console = SafeConsole(stderr=False, width=80)
    console.file = file
    table = Listing("NAME", "~REASON")
    table.add_row(text, Text(text, style="red"))
    for drawn in (text, table, facts_grid({"reason": text}), framed(text, text)):
        console.print(drawn, crop=False)
    assert not STEERS.search(file.getvalue().replace("\n", ""))


@given(st.text())
def test_json_that_is_shown_reads_back_and_holds_no_control_character(text: str) -> None:
    shown = json_text({"reason": text})
    assert json.loads(shown) == {"reason": text}
    assert not STEERS.search(shown)


@pytest.mark.parametrize("size", [1, 2, 3, 1_000])
def test_output_cut_anywhere_reaches_a_terminal_whole_and_a_file_as_it_is(size: int) -> None:
    data = f"80 %\r100 %\nмосква {EVIL} \U0001f916".encode()
    chunks = [data[begin : begin + size] for begin in range(0, len(data), size)]
    ours, theirs = _terminal()
    with os.fdopen(theirs, "w") as stream:
        assert write_output(chunks, stream)
    told = _read(ours)
    assert told.startswith("80 %\r100 %\nмосква ")
    assert told.endswith("\U0001f916")
    assert not STEERS.search(COLOUR.sub("", told))
    file = io.TextIOWrapper(io.BytesIO())
    assert write_output(chunks, file)
    assert file.buffer.getvalue() == data
    assert not write_output([], file)
