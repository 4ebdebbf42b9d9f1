from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .rig import Rig

PROGRAM = Path(__file__).with_name("program.py")


@pytest.fixture
def make_rig(tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    """Makes attempts; `how` are words for the program, see `program.py`."""
    rigs: list[Rig] = []

    def make(
        *,
        steps: int = 60,
        pause_s: float = 0.02,
        how: tuple[str, ...] = (),
        command: tuple[str, ...] = (),
        **options: Any,
    ) -> Rig:
        meeting = tmp_path / f"meeting-{options.get('attempt', 'attempt-1')}"
        meeting.mkdir()
        own = (sys.executable, str(PROGRAM), str(steps), str(pause_s), str(meeting), *how)
        rig = Rig(folder=tmp_path, command=command or own, **options)
        rigs.append(rig)
        rig.start()
        return rig

    yield make
    for rig in rigs:
        rig.close()
