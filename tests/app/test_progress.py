"""Progress where there is no screen: a line says what is known, and nothing else."""

from __future__ import annotations

import io

from rich.console import Console

from mainspring.app.render.progress import Lines


def _told(*, total: float | None, done: float) -> str:
    file, now_s = io.StringIO(), iter((0.0, 0.0, *[47.0] * 20))
    with Lines(Console(file=file, width=200), now_s=lambda: next(now_s)) as lines:
        task = lines.add_task("compiling pi0", total=total, note="for v5p")
        lines.update(task, completed=done)
    return file.getvalue()


def test_line_of_what_cannot_be_counted_tells_the_time_alone() -> None:
    assert set(_told(total=None, done=0.0).splitlines()) == {"compiling pi0: 47 s, for v5p"}


def test_line_of_what_is_counted_tells_how_much_of_it() -> None:
    assert set(_told(total=4.0, done=4.0).splitlines()) == {"compiling pi0: 4 of 4 (100 %), 47 s, for v5p"}
