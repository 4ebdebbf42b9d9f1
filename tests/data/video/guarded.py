"""Decodes a video whose every packet ends where memory ends: run as a process, which dies if a decoder reads on.

`python -m tests.data.video.guarded VIDEO [--bare]` prints a hash of each frame. `--bare` hands packets to PyAV as they
lie, which is what must not be done; a test of the test.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from pathlib import Path
from typing import Any

import av
from tests.data.video.making import planes_of

from mainspring.data.video.packet import packet_of
from mainspring.data.video.packets import index_of_file

_PAGE = mmap.PAGESIZE
_LIBC = ctypes.CDLL(None, use_errno=True)


class Border:
    """Memory that ends: behind it lies a page that nobody may touch.

    Args:
        size_bytes: How much there must be.
    """

    def __init__(self, size_bytes: int) -> None:
        self._end = -(-size_bytes // _PAGE) * _PAGE
        self._map = mmap.mmap(-1, self._end + _PAGE)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        assert _LIBC.mprotect(ctypes.c_void_p(self._address + self._end), _PAGE, 0) == 0

    def holding(self, data: bytes) -> memoryview:
        """Returns some bytes that end where the memory does."""
        begin = self._end - len(data)
        self._map[begin : self._end] = data
        return memoryview(self._map)[begin : self._end]


def main() -> None:
    path, bare = Path(sys.argv[1]), "--bare" in sys.argv
    index = index_of_file(path)
    data = path.read_bytes()
    context = index.decoder()
    found: dict[int, str] = {}
    for offset, size, number in zip(index.offset, index.size_bytes, index.frame, strict=True):
        view: Any = Border(int(size)).holding(data[offset : offset + size])
        packet: Any = av.Packet(view) if bare else packet_of(view)
        packet.pts = int(number)
        found |= {frame.pts: planes_of(frame) for frame in context.decode(packet)}
    found |= {frame.pts: planes_of(frame) for frame in context.decode(None)}
    sys.stdout.write("\n".join(found[number] for number in sorted(found)))


if __name__ == "__main__":
    main()
