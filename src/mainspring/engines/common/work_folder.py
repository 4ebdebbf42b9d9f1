"""The folder an agent works in, as its engine reads it: output that turns over, and what stays when all is over."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from mainspring.domain.errors import InvalidInput, NotFound
from mainspring.domain.fleet import LogChunk, memory_of
from mainspring.domain.ids import AllocationId

LOG_BYTES_MAX = 1 << 20
_LOOKS_MAX = 8  # A log turns over once in megabytes of output; twice within one look means a disk of wonders.


def read_log(path: Path, *, since: int, limit: int) -> LogChunk | None:
    """Returns a piece of a rank's output; None when its file is not there.

    Args:
        path: The newest part; the one before lies beside it, named after the offset at which it ends.
        since: Offset in all the rank wrote; beyond its end stands for its start.
        limit: How many bytes at most.
    """
    for _ in range(_LOOKS_MAX):
        with suppress(FileNotFoundError), path.open("rb") as newest:
            older = max(path.parent.glob(f"{path.name}.*"), key=_ends_at, default=None)
            if not os.path.samestat(os.fstat(newest.fileno()), path.stat()):
                continue  # It was turned over between the two looks.
            begin = _ends_at(older) if older else 0
            if since > begin + newest.seek(0, os.SEEK_END):
                since = 0
            if older is None or since >= begin:
                newest.seek(since - begin)
                data = newest.read(limit)
                return LogChunk(data=data, next_offset=since + len(data))
            since = max(since, begin - older.stat().st_size)
            with older.open("rb") as file:
                file.seek(since - begin, os.SEEK_END)
                data = file.read(limit)
            return LogChunk(data=data, next_offset=since + len(data))
    return None


def check_piece(allocation: AllocationId, *, since: int, limit: int) -> None:
    """Returns if a piece of output can be asked for.

    Raises:
        InvalidInput: `since` or `limit` is out of its range.
    """
    if since < 0 or limit < 1:
        got = f"since {since}, limit {limit}"
        raise InvalidInput("read a log", on=allocation, got=got, wanted="at least 0 and at least 1")


def read_rank(path: Path | None, allocation: AllocationId, *, rank: int, since: int, limit: int) -> LogChunk:
    """Returns a piece of a rank's output, at most `LOG_BYTES_MAX`; see `Engine.logs`.

    Args:
        path: The newest part; None where there is none.
        rank: The rank's number in its attempt.
        since: Byte to start from.
        limit: How many bytes at most.

    Raises:
        NotFound: That rank wrote nothing yet.
        InvalidInput: `since` or `limit` is out of its range.
    """
    check_piece(allocation, since=since, limit=limit)
    chunk = read_log(path, since=since, limit=min(limit, LOG_BYTES_MAX)) if path else None
    if chunk is None:
        raise NotFound("read a log", on=allocation, got=f"rank {rank}", wanted="a rank that has written something")
    return chunk


def tidy(work: Path) -> None:
    """Deletes what nobody reads once an agent has ended: its token, code, restored state. Output and last words stay.

    What lies in memory for it goes too: the secrets of its ranks.

    Args:
        work: The agent's folder.
    """
    for path in list(work.iterdir()) if work.is_dir() else []:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        elif ".log" not in path.name and path.name != "exit.json":
            path.unlink(missing_ok=True)
    shutil.rmtree(memory_of(str(work)), ignore_errors=True)


def _ends_at(part: Path) -> int:
    return int(part.suffix[1:])
