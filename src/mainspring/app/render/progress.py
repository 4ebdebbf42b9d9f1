"""Progress of what takes a while, on standard error: bars on a terminal, lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event, RLock, Thread
from typing import TypeAlias

from rich.console import Console
from rich.filesize import decimal
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from mainspring.app.render.tables import ERRORS, ago

LINE_S_MIN, LINE_S, LINE_S_MAX = 1.0, 10.0, 60.0  # Between lines of progress: at a tenth, else, and after ten minutes.


class Lines:
    """Progress as lines, for output that is no screen: one for every tenth that is done, and after every pause.

    Used as rich's `Progress` is, as a context manager.

    Args:
        console: Where the lines go.
        say: Makes a number of what is counted readable.
    """

    def __init__(
        self,
        console: Console,
        *,
        now_s: Callable[[], float] = time.monotonic,
        say: Callable[[float], str] = "{:g}".format,
    ) -> None:
        self.console = console
        self._now_s, self._say = now_s, say
        self._name, self._note = "", ""
        self._done, self._total = 0.0, 0.0
        self._begun_s = self._told_s = now_s()
        self._tenth = 0
        self._told = ""
        self._lock = RLock()
        self._ended = Event()
        self._ticking = Thread(target=self._tick, name="progress", daemon=True)

    def __enter__(self) -> Lines:
        """Begins to tell, also while nothing is reported."""
        self._ticking.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Tells where it ended."""
        self._ended.set()
        self._ticking.join()
        if self._name:
            self._tell()

    def add_task(self, description: str, *, total: float | None = None, note: str = "") -> TaskID:
        """Names what is done, of which there is one at a time."""
        self._name, self._total, self._note = description, total or 0.0, note
        return TaskID(0)

    def update(
        self,
        task: TaskID,
        *,
        completed: float | None = None,
        advance: float = 0.0,
        total: float | None = None,
        note: str | None = None,
    ) -> None:
        """Notes how far it is, and tells when a tenth more is done or a while has passed."""
        assert task == 0
        with self._lock:
            self._done = (self._done if completed is None else completed) + advance
            self._total = self._total if total is None else total
            self._note = self._note if note is None else note
            now_s = self._now_s()
            tenth = int(10 * self._done / self._total) if self._total else 0
            if now_s - self._told_s >= (LINE_S_MIN if tenth > self._tenth else self._pause_s(now_s)):
                self._tenth = tenth
                self._tell()

    def _tick(self) -> None:
        while not self._ended.wait(LINE_S_MIN):
            with self._lock:
                now_s = self._now_s()
                if self._name and now_s - self._told_s >= self._pause_s(now_s):
                    self._tell()

    def _pause_s(self, now_s: float) -> float:
        return min(max(LINE_S, (now_s - self._begun_s) / 10), LINE_S_MAX)

    def _tell(self) -> None:
        """Writes a line, unless it would say what the last one did."""
        self._told_s = self._now_s()
        spent_s = self._told_s - self._begun_s
        words = [f"{spent_s:.0f} s"]
        if self._done or self._total:
            words.insert(0, self._say(self._done))
        if self._total:
            words[0] += f" of {self._say(self._total)} ({int(100 * self._done / self._total)} %)"
        if 0 < self._done < self._total and spent_s > 0:
            words.append(f"{ago(spent_s * (self._total - self._done) / self._done)} left")
        line = f"{self._name}: " + ", ".join([*words, *([self._note] if self._note else ())])
        if line != self._told:
            self._told = line
            self.console.print(line, crop=False, soft_wrap=True)


Bar: TypeAlias = Progress | Lines


def progress_bar() -> Bar:
    """Returns a progress bar on standard error, which leaves standard output to the answer; lines where it is none."""
    if not ERRORS.is_terminal:
        return Lines(ERRORS)
    return Progress(
        TextColumn("{task.description:<10}"),
        BarColumn(bar_width=40),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
        console=ERRORS,
    )


def waiting_bar() -> Bar:
    """Returns what tells on standard error that something goes on of which nothing can be counted."""
    if not ERRORS.is_terminal:
        return Lines(ERRORS)
    columns = (BarColumn(bar_width=40), TimeElapsedColumn())
    return Progress(TextColumn("{task.description}"), *columns, console=ERRORS)


def bytes_bar() -> Bar:
    """Returns a progress bar of bytes on standard error; lines where that is no screen."""
    if not ERRORS.is_terminal:
        return Lines(ERRORS, say=lambda size: decimal(int(size)))
    columns = (BarColumn(bar_width=40), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    return Progress(TextColumn("{task.description:<10}"), *columns, console=ERRORS)
