"""What ranks wrote, out of the log of their agent's container, where each piece bears its rank and its offset.

The kubelet keeps the newest megabytes of a container's log: what is older is passed over, which the offsets show.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from mainspring.domain.fleet import LogChunk

# A line of a rank's output, or, with "~", the beginning of one: `node.process.echo` writes them.
_PIECE = re.compile(rb"(\d{1,9})@(\d{1,18})([ ~])(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class OutputPiece:
    """A part of a rank's output.

    Args:
        begin: Its offset in all that the rank wrote.
    """

    begin: int
    data: bytes


def pieces(text: bytes, rank: int) -> Iterator[OutputPiece]:
    """Yields a rank's output as far as a container's log has it, in order.

    Args:
        text: The log.
    """
    for line in text.split(b"\n"):
        found = _PIECE.fullmatch(line)
        if found and int(found[1]) == rank:
            yield OutputPiece(int(found[2]), found[4] + (b"\n" if found[3] == b" " else b""))


def chunk(found: Iterable[OutputPiece], *, since: int, limit: int) -> LogChunk | None:
    """Returns a piece of a rank's output; None where there is none at all.

    Args:
        since: Offset in all the rank wrote; beyond its end stands for its start.
        limit: How many bytes at most.
    """
    kept = list(found)
    if not kept:
        return None
    end = kept[-1].begin + len(kept[-1].data)
    since = max(kept[0].begin, 0 if since > end else since)
    data = b"".join(one.data[max(0, since - one.begin) :] for one in kept if one.begin + len(one.data) > since)[:limit]
    return LogChunk(data=data, next_offset=since + len(data))
