from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .rig import PROGRAM, Rig


@pytest.fixture
def make_rig(tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    rigs: list[Rig] = []

    def make(*, steps: int = 60, pause_s: float = 0.02, command: tuple[str, ...] = (), **options: Any) -> Rig:
        program = tmp_path / "program.py"
        program.write_text(PROGRAM)
        attempt = options.get("attempt", "attempt-1")
        meeting = tmp_path / f"meeting-{attempt}"
        meeting.mkdir()
        own = (sys.executable, str(program), str(steps), str(pause_s), str(meeting))
        rig = Rig(folder=tmp_path, command=command or own, **options)
        rigs.append(rig)
        rig.start()
        return rig

    yield make
    for rig in rigs:
        rig.close()
