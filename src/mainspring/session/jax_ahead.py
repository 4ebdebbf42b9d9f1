"""Compiling ahead: the program that is needed once a rank is lost is compiled while all of them still step.

A program is compiled for a number of ranks. When a role shrinks, those left would wait for their own: most of a
recovery, where the model is large. Here a thread compiles it for as many of the devices there are now, into the folder
of compiled programs, where the smaller world finds it (`jax_distributed` sees to its name). One rank of each node does
it. This decides when, for which devices, and that a generation never ends before it; what is compiled is the program's
to say.

It is not done at a lower priority. XLA compiles in threads it has made before, which keep theirs; and the thread here,
where it was idle, held Python's lock without running: single steps of 30 ms took 2 s.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from typing import final

import jax

from mainspring.domain.errors import MainspringError
from mainspring.session.session import Session

THREAD = "mainspring-ahead"

Lower = Callable[[Sequence[jax.Device]], jax.stages.Lowered]


@final
class Ahead:
    """Programs being compiled, one by one, in a thread of its own, which the interpreter waits for at its end.

    Args:
        devices: What they are compiled for.
        lowers: Each returns one for these devices.
    """

    def __init__(self, devices: Sequence[jax.Device], lowers: Sequence[Lower]) -> None:
        self._unwanted = threading.Event()
        # Its arguments are dropped as it ends, and devices must be by then, or their backend would live on.
        self._thread = threading.Thread(target=self._compile, args=(devices, lowers), name=THREAD)
        self._thread.start()

    def wait(self, limit_s: float | None = None) -> bool:
        """Returns whether it is over, after as long as that takes or `limit_s`."""
        self._thread.join(limit_s)
        return not self._thread.is_alive()

    def end(self) -> None:
        """Ends it; waits for the compiler, which cannot be interrupted."""
        self._unwanted.set()
        self._thread.join()

    def _compile(self, devices: Sequence[jax.Device], lowers: Sequence[Lower]) -> None:
        try:
            for lower in lowers:
                program = None if self._unwanted.is_set() else lower(devices)
                if program is not None and not self._unwanted.is_set():
                    program.compile()
        except (MainspringError, RuntimeError, ValueError) as error:  # Training does not depend on it.
            sys.stderr.write(f"mainspring: nothing compiled ahead: {type(error).__name__}: {str(error)[:500]}\n")


_underway: list[Ahead] = []  # At most one: the process serves one generation at a time.


def compile_ahead(session: Session, *lowers: Lower) -> Ahead | None:
    """Begins to compile the programs of a role that has lost a node; None where none is wanted from this rank.

    To be called once a generation, after its first step: until then its own program is the one to wait for. None is
    wanted where the role cannot shrink, where another rank of the node does it, and with other backends than CPU, for
    which it is not yet shown that the smaller world finds it.

    Args:
        session: This rank's session, under `jax_distributed.run`.
        lowers: Each lowers one for a mesh of the devices it is given, from shapes alone (`jax.ShapeDtypeStruct`): just
            as the smaller world will, or its program is not found. Called in another thread, in order.
    """
    size = session.shrunk_size
    if not 0 < size < session.world_size or session.local_rank or jax.default_backend() != "cpu":
        return None
    end_ahead()
    _underway.append(Ahead(devices_of(size), lowers))
    return _underway[-1]


def end_ahead() -> None:
    """Ends what is compiled ahead. `jax_distributed.run` does so at the end of each generation."""
    while _underway:
        _underway.pop().end()


def devices_of(size: int) -> tuple[jax.Device, ...]:
    """Returns the devices of so many of the processes, this one included: which ones makes no difference.

    Args:
        size: How many processes.
    """
    processes = sorted({device.process_index for device in jax.devices()})
    first = min(processes.index(jax.local_devices()[0].process_index), len(processes) - size)
    chosen = processes[first : first + size]
    return tuple(device for device in jax.devices() if device.process_index in chosen)


def compiles_ahead() -> bool:
    """Returns whether the thread that asks is one that compiles ahead."""
    return threading.current_thread().name == THREAD
