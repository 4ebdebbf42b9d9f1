"""A rank that trains on several devices of this machine, in the memory of one of which a bit flips."""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import jax
import numpy as np

from mainspring.data import open_view
from mainspring.domain.errors import Unavailable
from mainspring.objects import open_store
from mainspring.session import Session
from mainspring.train.models.arrays import flattened
from mainspring.train.recipe import Recipe, changed
from mainspring.train.trainer import train
from tests.train.making import small_recipe

STEPS, CHECK_EVERY = 12, 4
COMPILED = "/jax/core/compile/backend_compile_duration"  # JAX tells of it, once a program.


def recipe() -> Recipe:
    return changed(small_recipe(steps=STEPS), {"batch_size": 12, "guard": {"check_every": CHECK_EVERY}})


def flip(device: int) -> None:
    """Flips a bit of a device's copy of the weights, and of no other's."""
    every: list[jax.Array] = jax.live_arrays()  # type: ignore[no-untyped-call]
    wide = [each for each in every if each.ndim == 2 and len(each.sharding.device_set) == jax.device_count()]
    for array in [each for each in wide if each.sharding.is_fully_replicated]:
        with suppress(jax.errors.JaxRuntimeError):  # A step was given it, and has taken it.
            data = array.block_until_ready().addressable_shards[device].data
            memory = (ctypes.c_uint8 * data.nbytes).from_address(data.unsafe_buffer_pointer())
            np.ctypeslib.as_array(memory)[1] ^= 1 << 6


def main(socket: str, folder: Path, view: str, flip_after: int, device: int) -> dict[str, object]:
    compiled, by_step = Counter[str](), dict[int, int]()

    def count(event: str, duration_secs: float, **_: str | int) -> None:
        compiled[event] += 1

    jax.monitoring.register_event_duration_secs_listener(count)
    session = Session(socket, pid=os.getpid(), stopwatch=time.monotonic)
    due = session.snapshot_due

    def snapshot_due(step: int) -> bool:
        """Is asked after each step, all of whose arrays are on the devices then."""
        by_step[step] = compiled[COMPILED]
        if step == flip_after:
            flip(device)
        return due(step)

    session.snapshot_due = snapshot_due  # type: ignore[method-assign]
    opened = open_view(open_store(str(folder / "objects")), view, folder / f"cache-{os.getpid()}", "train")
    try:
        outcome = train(session, recipe(), opened, facts={})
    except Unavailable as error:
        return {"error": str(error)}
    session.left()
    weights = flattened(outcome.state)
    finite = all(bool(np.isfinite(np.asarray(each)).all()) for each in weights.values())
    return {"step": outcome.step, "finite": finite, "compiled": by_step}


if __name__ == "__main__":
    words = sys.argv[1:]
    sys.stdout.write(json.dumps(main(words[0], Path(words[1]), words[2], int(words[3]), int(words[4]))))
