"""What ranks write, said once more on an agent's standard output: where only that is kept, as in a container's log.

Each line bears its rank and its offset in all that the rank wrote: "3@1200 text". One that is not whole after a second,
a prompt or a bar, is said as far as it has come, with "~" in place of the space, and goes on in the next.
"""

from __future__ import annotations

from pathlib import Path
from threading import Event, Thread
from typing import BinaryIO, final

from mainspring.engines.common.work_folder import read_log

LOOK_S = 0.2
_LOOKS_WHOLE = 5  # So many without the end of a line, and what has come of it is said.
_PIECE_BYTES_MAX = 1 << 20


@final
class Echo:
    """A thread that follows the logs of all ranks of an agent.

    Args:
        reports: The folder they are in.
        out: Where they are said; the only one who writes there.
    """

    def __init__(self, reports: Path, out: BinaryIO) -> None:
        self._reports = reports
        self._out = out
        self._said: dict[Path, int] = {}
        self._unended: dict[Path, int] = {}
        self._ended = Event()
        self._thread = Thread(target=self._run, name="echo", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Says what is left; ranks write no more."""
        self._ended.set()
        self._thread.join()
        self._look(whole=True)

    def _run(self) -> None:
        while not self._ended.wait(LOOK_S):
            self._look(whole=False)

    def _look(self, *, whole: bool) -> None:
        for path in sorted(self._reports.glob("rank-*.log")):
            while self._follow(path, whole=whole):
                pass
        self._out.flush()

    def _follow(self, path: Path, *, whole: bool) -> bool:
        """Says what a rank has written since; returns whether there may be more at once."""
        since = self._said.get(path, 0)
        found = read_log(path, since=since, limit=_PIECE_BYTES_MAX)
        if found is None or not found.data:
            return False
        begin = found.next_offset - len(found.data)
        *lines, rest = found.data.split(b"\n")
        self._unended[path] = 0 if lines else self._unended.get(path, 0) + 1
        rank = path.stem.partition("-")[2].encode()
        for line in lines:
            self._out.write(b"%s@%d %s\n" % (rank, begin, line))
            begin += len(line) + 1
        if rest and (whole or self._unended[path] >= _LOOKS_WHOLE or len(rest) == _PIECE_BYTES_MAX):
            self._out.write(b"%s@%d~%s\n" % (rank, begin, rest))
            begin += len(rest)
            self._unended[path] = 0
        self._said[path] = begin
        return bool(lines) and len(found.data) == _PIECE_BYTES_MAX
