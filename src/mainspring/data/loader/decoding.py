"""Decodes groups of pictures into a ring: here, or in processes of their own that know of nothing else.

A decoder is told where each frame of a group goes; it holds no view, no store and no order, so that one which dies is
replaced and its work given to another, and nobody can tell from the batches.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mainspring.data.loader.order import Integers
from mainspring.data.loader.ring import Field, Ring
from mainspring.data.video.coded import Coded
from mainspring.data.video.gop import GopDecoder, Name
from mainspring.domain.codec import decode, encode
from mainspring.domain.errors import DamagedData, Unavailable

IMAGES = "images"
UNDER_WAY = 2  # Bundles given to a process at once: the next is there when one is done.
REPLACED_MAX = 16  # Deaths of decoders in a stream's life: one is an accident, so many are a machine without memory.
_LOG = logging.getLogger(__name__)

Layout: TypeAlias = Literal["rgb", "yuv"]


def frame_shape(image_size: int, layout: Layout) -> tuple[int, ...]:
    """Returns the shape of a decoded frame: [H, W, 3], or the planes of YUV 4:2:0 one below the other, [H*3/2, W].

    Args:
        image_size: Height and width.
        layout: As what it is decoded.
    """
    return (image_size, image_size, 3) if layout == "rgb" else (image_size * 3 // 2, image_size)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bundle:
    """Groups of pictures that are decoded one after the other.

    Args:
        data: Their packets, one behind the other; each group's first is a key frame.
        frames: [2, F] int64: where each packet ends; and where its frame goes, a place among all frames of the ring, or
            -1 when it is only decoded on the way.
        copies: [2, C] int64: from which such place to which other a frame is copied in the end, because it is shown
            more than once: a sample's history is what others show.
        name: Says what a frame is, by its number.
    """

    data: bytes
    frames: Integers
    copies: Integers
    name: Name


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a process must know before its first bundle."""

    ring: str
    fields: Mapping[str, Field]
    capacity: int
    frame: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """What a process answers to a bundle that cannot be decoded; to any other it answers nothing, in no bytes.

    Args:
        frame: Number of the frame.
        got: What is wrong with it.
    """

    frame: int
    got: str


class Decoders(Protocol):
    """Who decodes. For one thread."""

    def free(self) -> bool:
        """Returns whether another bundle may be given."""

    def give(self, number: int, bundle: Bundle) -> None:
        """Takes a bundle, under a number of the caller's, when `free`."""

    def done(self, timeout_s: float) -> list[int]:
        """Returns the numbers of bundles that are done, waiting a while for one when some are under way.

        Raises:
            DamagedData: Packets cannot be decoded.
            Unavailable: Decoders died too often.
        """

    def close(self) -> None:
        """Ends them."""


class Here:
    """Decodes in the caller's thread.

    Args:
        ring: Where frames go.
        frame: Shape of one.
    """

    def __init__(self, ring: Ring, frame: tuple[int, ...]) -> None:
        self._images = _frames(ring, frame)
        self._decoder = GopDecoder()
        self._done: list[int] = []

    def free(self) -> bool:
        """See `Decoders.free`."""
        return not self._done

    def give(self, number: int, bundle: Bundle) -> None:
        """See `Decoders.give`."""
        decode_bundle(self._decoder, self._images, bundle)
        self._done.append(number)

    def done(self, timeout_s: float) -> list[int]:
        """See `Decoders.done`."""
        done, self._done = self._done, []
        return done

    def close(self) -> None:
        """See `Decoders.close`."""


def _frames(ring: Ring, frame: tuple[int, ...]) -> NDArray[Any]:
    """Returns a ring's images one after the other, [N, *frame]."""
    return ring.arrays[IMAGES].reshape(-1, *frame)


def decode_bundle(decoder: GopDecoder, images: NDArray[Any], bundle: Bundle) -> None:
    """Decodes a bundle's packets into a ring's images.

    Args:
        decoder: Decodes.
        images: The ring's frames.
        bundle: What to decode.

    Raises:
        DamagedData: A packet is not what it should be.
    """
    decoder.decode(
        Coded(data=memoryview(bundle.data), ends=bundle.frames[0]),
        [images[place] if place >= 0 else None for place in bundle.frames[1].tolist()],
        on=bundle.name,
    )
    for source, place in bundle.copies.T.tolist():
        images[place] = images[source]


class _Worker:
    """One process, and the bundles it was given that are not done."""

    def __init__(self, setting: Setting) -> None:
        self.connection, theirs = Pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mainspring.data.loader.decoding", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        self.given: deque[tuple[int, Bundle]] = deque()
        self.connection.send_bytes(encode(setting))

    def give(self, number: int, bundle: Bundle) -> None:
        self.given.append((number, bundle))
        with contextlib.suppress(OSError):  # It died: `done` sees that, and gives its work to another.
            for part in (bundle.frames.tobytes(), bundle.copies.tobytes(), bundle.data):
                self.connection.send_bytes(part)

    def close(self) -> None:
        self.connection.close()
        self.process.kill()
        self.process.wait()


class Processes:
    """Decodes in processes.

    Args:
        ring: Where frames go.
        fields: The ring's.
        frame: Shape of a frame.
        count: How many processes.
    """

    def __init__(self, ring: Ring, fields: Mapping[str, Field], frame: tuple[int, ...], count: int) -> None:
        self._setting = Setting(ring=ring.place, fields=fields, capacity=ring.capacity, frame=frame)
        self._workers = [_Worker(self._setting) for _ in range(count)]
        self._replaced = 0

    @property
    def process_ids(self) -> tuple[int, ...]:
        """Returns the processes' ids."""
        return tuple(worker.process.pid for worker in self._workers)

    def free(self) -> bool:
        """See `Decoders.free`."""
        return any(len(worker.given) < UNDER_WAY for worker in self._workers)

    def give(self, number: int, bundle: Bundle) -> None:
        """See `Decoders.give`."""
        min(self._workers, key=lambda worker: len(worker.given)).give(number, bundle)

    def done(self, timeout_s: float) -> list[int]:
        """See `Decoders.done`."""
        busy = {worker.connection: worker for worker in self._workers if worker.given}
        done = []
        for connection in wait(list(busy), timeout_s) if busy else ():
            worker = busy[connection]  # type: ignore[index]
            try:
                answer = worker.connection.recv_bytes()
            except (EOFError, OSError):
                self._replace(worker)
                continue
            of, bundle = worker.given.popleft()
            if answer:
                damage = decode(Damage, answer)
                raise DamagedData("decode a frame", on=bundle.name(damage.frame), got=damage.got)
            done.append(of)
        return done

    def _replace(self, worker: _Worker) -> None:
        worker.close()
        self._replaced += 1
        status = worker.process.returncode
        _LOG.warning("decoder %d of process %d ended with %d; replaced", worker.process.pid, os.getpid(), status)
        if self._replaced > REPLACED_MAX:
            raise Unavailable(
                "decode a view",
                got=f"{self._replaced} decoders died, the last with status {status}",
                wanted="processes that live",
                next_step="see the memory",
            )
        fresh = _Worker(self._setting)
        self._workers[self._workers.index(worker)] = fresh
        for number, bundle in worker.given:
            fresh.give(number, bundle)

    def close(self) -> None:
        """See `Decoders.close`."""
        for worker in self._workers:
            worker.close()


def serve(connection: Connection[Any, Any]) -> None:
    """Decodes what comes over a connection until it ends.

    Args:
        connection: To whoever owns the ring.
    """
    with contextlib.suppress(EOFError, OSError):
        setting = decode(Setting, connection.recv_bytes())
        images = _frames(Ring(setting.fields, setting.capacity, setting.ring), setting.frame)
        decoder = GopDecoder()
        while True:
            frames, copies = (np.frombuffer(connection.recv_bytes(), np.int64).reshape(2, -1) for _ in range(2))
            bundle = Bundle(data=connection.recv_bytes(), frames=frames, copies=copies, name=str)
            answer = b""
            try:
                decode_bundle(decoder, images, bundle)
            except DamagedData as error:
                answer = encode(Damage(frame=int(error.on), got=error.got))
            connection.send_bytes(answer)


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
