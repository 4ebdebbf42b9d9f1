"""Files read and written past the page cache: at the disk's own speed, where addresses and offsets allow it."""

from __future__ import annotations

import errno
import mmap
import os
from contextlib import suppress
from pathlib import Path

import numpy as np

DIRECT_BYTES = 4096  # Offsets, addresses and lengths of direct input and output; the largest block size of disks sold.
DIRECT_BYTES_MIN = 64 << 10  # Below this the disk's latency counts, and the page cache does no harm.
_HUGE_BYTES = 2 << 20  # A huge page: a disk fills memory of these up to a third faster than small pages.
_WRITE_BYTES = 16 << 20  # One call; 16 MiB came within 5 % of the fastest on the disks measured.


def aligned_buffer(size_bytes: int, *, huge: bool = True) -> memoryview:
    """Returns fresh memory at a page's address, into which a disk can write directly.

    Args:
        size_bytes: Its length.
        huge: Of huge pages where there are such. A disk fills them sooner, but where memory is in pieces the kernel
            moves pages about to make room for one, for up to 60 ms: not for a process that must answer meanwhile.
    """
    if not huge:
        small = mmap.mmap(-1, max(size_bytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(AttributeError, OSError):  # Systems and kernels without huge pages.
            small.madvise(mmap.MADV_NOHUGEPAGE)
        return memoryview(small)[:size_bytes]
    alignment = _HUGE_BYTES if size_bytes >= _HUGE_BYTES else DIRECT_BYTES
    raw = np.empty(size_bytes + alignment, dtype=np.uint8)  # NumPy asks for huge pages from 4 MiB on.
    start = -_address(raw.data) % alignment
    return raw[start : start + size_bytes].data


def is_aligned(data: memoryview) -> bool:
    """Returns whether bytes begin at a page's address.

    Args:
        data: One-dimensional bytes.
    """
    return _address(data) % DIRECT_BYTES == 0


def read_into(path: Path, offset: int, into: memoryview) -> int:
    """Fills `into` from a file, directly as far as alignment allows; returns how many bytes there were.

    Args:
        path: The file.
        offset: Of the first byte.
        into: One-dimensional, writable bytes.

    Raises:
        OSError: The system refuses.
    """
    if len(into) >= DIRECT_BYTES_MIN and offset % DIRECT_BYTES == 0 and is_aligned(into):
        whole = len(into) - len(into) % DIRECT_BYTES
        try:
            done = _read(path, os.O_DIRECT, offset, into[:whole])
            if whole < len(into) and done == whole:
                last = aligned_buffer(DIRECT_BYTES)
                got = min(_read(path, os.O_DIRECT, offset + whole, last), len(into) - whole)
                into[whole : whole + got] = last[:got]
                done += got
            return done
        except OSError as error:
            if error.errno != errno.EINVAL:  # File systems without direct input say so on opening or on reading.
                raise
    return _read(path, 0, offset, into)


def write_direct(path: Path, data: memoryview) -> bool:
    """Writes a whole file past the page cache and makes it durable; returns whether the file system can.

    Args:
        path: The file, which exists and is empty.
        data: One-dimensional bytes at a page's address.

    Raises:
        OSError: The system refuses; the file holds anything then.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_DIRECT)
    except OSError as error:
        if error.errno == errno.EINVAL:
            return False
        raise
    try:
        os.posix_fallocate(descriptor, 0, len(data))  # A full disk says so now, and the file lies in few pieces.
        whole = len(data) - len(data) % DIRECT_BYTES
        _write(descriptor, data[:whole], 0)
        if whole < len(data):
            last = aligned_buffer(DIRECT_BYTES)
            last[: len(data) - whole] = data[whole:]
            _write(descriptor, last, whole)
            os.ftruncate(descriptor, len(data))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return True


def _address(data: memoryview) -> int:
    address: int = np.frombuffer(data, dtype=np.uint8).__array_interface__["data"][0]
    return address


def _read(path: Path, flags: int, offset: int, into: memoryview) -> int:
    descriptor = os.open(path, os.O_RDONLY | flags)
    try:
        done = 0
        while done < len(into):
            count = os.preadv(descriptor, [into[done:]], offset + done)
            done += count
            if count == 0 or (flags and done % DIRECT_BYTES):
                break  # The end of the file; directly, a read cut short there leaves the rest misaligned.
        return done
    finally:
        os.close(descriptor)


def _write(descriptor: int, data: memoryview, offset: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(descriptor, data[done : done + _WRITE_BYTES], offset + done)
