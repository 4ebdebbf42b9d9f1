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
        frames: [2, F] int64: where each packet ends; and where its frame goes, slot * cameras + camera of the ring, or
            -1 when it is only decoded on the way.
        name: Says what a frame is, by its number.
    """

    data: bytes
    frames: Integers
    name: Name


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a process must know before its first bundle."""

    ring: str
    fields: Mapping[str, Field]
    capacity: int


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
        ...

    def give(self, number: int, bundle: Bundle) -> None:
        """Takes a bundle, under a number of the caller's, when `free`."""
        ...

    def done(self, timeout_s: float) -> list[int]:
        """Returns the numbers of bundles that are done, waiting a while for one when some are under way.

        Raises:
            DamagedData: Packets cannot be decoded.
            Unavailable: Decoders died too often.
        """
        ...

    def close(self) -> None:
        """Ends them."""
        ...


class Here:
    """Decodes in the caller's thread.

    Args:
        ring: Where frames go.
    """

    def __init__(self, ring: Ring) -> None:
        self._images = ring.arrays[IMAGES]
        self._decoder = GopDecoder()
        self._done: list[int] = []

    def free(self) -> bool:
        """See `Decoders.free`."""
        return not self._done

    def give(self, number: int, bundle: Bundle) -> None:
        """See `Decoders.give`."""
        decode_bundle(self._decoder, self._images, bundle.data, bundle.frames, bundle.name)
        self._done.append(number)

    def done(self, timeout_s: float) -> list[int]:
        """See `Decoders.done`."""
        done, self._done = self._done, []
        return done

    def close(self) -> None:
        """See `Decoders.close`."""


def decode_bundle(
    decoder: GopDecoder, images: NDArray[Any], data: bytes | memoryview, frames: Integers, name: Name
) -> None:
    """Decodes a bundle's packets into a ring's images.

    Args:
        decoder: Decodes.
        images: [capacity, V, ...].
        data: See `Bundle`.
        frames: See `Bundle`.
        name: See `Bundle`.

    Raises:
        DamagedData: A packet is not what it should be.
    """
    places = images.reshape(-1, *images.shape[2:])
    out = [places[place] if place >= 0 else None for place in frames[1].tolist()]
    decoder.decode(Coded(data=memoryview(data), ends=frames[0]), out, on=name)


class _Worker:
    """One process, and the bundles it was given that are not done."""

    def __init__(self, setting: Setting) -> None:
        self.connection, theirs = Pipe()
        words = [sys.executable, "-m", "mainspring.data.loader.decoding", str(theirs.fileno())]
        self.process = subprocess.Popen(words, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()
        self.given: deque[tuple[int, Bundle]] = deque()
        self.connection.send_bytes(encode(setting))

    def give(self, number: int, bundle: Bundle) -> None:
        self.given.append((number, bundle))
        with contextlib.suppress(OSError):  # It died: `done` sees that, and gives its work to another.
            self.connection.send_bytes(bundle.frames.data)
            self.connection.send_bytes(bundle.data)

    def close(self) -> None:
        self.connection.close()
        self.process.kill()
        self.process.wait()


class Processes:
    """Decodes in processes.

    Args:
        ring: Where frames go.
        fields: The ring's.
        count: How many processes.
    """

    def __init__(self, ring: Ring, fields: Mapping[str, Field], count: int) -> None:
        self._setting = Setting(ring=ring.place, fields=fields, capacity=ring.capacity)
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
            got = f"{self._replaced} decoders died, the last with status {status}"
            raise Unavailable("decode a view", got=got, wanted="processes that live", next_step="see the memory")
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
        images = Ring(setting.fields, setting.capacity, setting.ring).arrays[IMAGES]
        decoder = GopDecoder()
        while True:
            frames = np.frombuffer(connection.recv_bytes(), np.int64).reshape(2, -1)
            answer = b""
            try:
                decode_bundle(decoder, images, connection.recv_bytes(), frames, str)
            except DamagedData as error:
                answer = encode(Damage(frame=int(error.on), got=error.got))
            connection.send_bytes(answer)


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
