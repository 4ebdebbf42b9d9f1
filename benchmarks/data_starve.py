"""Whether training waits for its data: the demo's image policy, fed by the loader and fed from memory.

Run as `python -m benchmarks.data_starve [--quick]`. Policy, view and loop are those of `ms demo --data` on recordings
of a humanoid (made ones where these are absent): h264 of 64x64, the recipe "video". The batch is the largest power of 2
whose step takes under 50 ms. The step has one core and all of the loader another: its thread, and its one decoder.
Loops of 5 s take turns: over the loader's batches, and over some that lie in memory. `wait_fraction` is the part of the
first loop's time that passes in `next(batches)`; `rate_ratio` its steps a second by those of the second.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

CORES = sorted(os.sched_getaffinity(0))
os.sched_setaffinity(0, CORES[:1])  # Before JAX makes its threads, which inherit it.

import jax  # noqa: E402
import numpy as np  # noqa: E402
from benchmarks.data_work import write_lerobot  # noqa: E402

from mainspring.app.base.system import SystemClock  # noqa: E402
from mainspring.data.intake.ingest import ingest  # noqa: E402
from mainspring.data.loader.batches import gather  # noqa: E402
from mainspring.data.loader.loader import Loader, Sampling  # noqa: E402
from mainspring.data.loader.stream import BatchStream  # noqa: E402
from mainspring.data.views.build import build_view  # noqa: E402
from mainspring.data.views.manifest import ViewRecipe  # noqa: E402
from mainspring.data.views.view import View, open_view  # noqa: E402
from mainspring.objects import open_store  # noqa: E402
from mainspring.train.feed import fitted, history_of  # noqa: E402
from mainspring.train.inputs.measured import statistics_of  # noqa: E402
from mainspring.train.inputs.sources import Sources  # noqa: E402
from mainspring.train.policy import signature_of  # noqa: E402
from mainspring.train.recipe import Recipe, recipe_named  # noqa: E402
from mainspring.train.state.sharding import make_mesh, place_batch  # noqa: E402
from mainspring.train.steps.state import initial_state  # noqa: E402
from mainspring.train.steps.update import make_update  # noqa: E402

HUMANOID = Path(__file__).parents[2] / "shared" / "robots" / "unitree_g1_bottle"
STEP_S_MAX = 0.05
BATCH_MIN, BATCH_MAX = 8, 4_096
IN_MEMORY = 16  # Batches that the loop without a loader walks through.
LOOP_S = 5.0
TURNS = 5


class Trainer:
    """The demo's loop, for one batch size."""

    def __init__(self, view: View, batch_size: int) -> None:
        self.recipe: Recipe = replace(recipe_named("video"), batch_size=batch_size)
        self.mesh = make_mesh()
        policy = self.recipe.policy
        first = fitted(gather(view, np.arange(1), horizon=policy.horizon, history=history_of(policy)), policy)
        statistics_ = statistics_of(Sources(self.recipe, view))
        self.state = initial_state(self.recipe, signature_of(first, policy), statistics_, self.mesh)
        self.update = make_update(self.recipe, self.mesh)
        self.loader = Loader(
            view,
            Sampling(batch_size=batch_size, seed=0, horizon=policy.horizon, history=history_of(policy)),
            workers=1,
        )
        with self.stream() as stream:
            self.memory = [{name: array.copy() for name, array in next(stream).items()} for _ in range(IN_MEMORY)]

    def stream(self) -> BatchStream:
        os.sched_setaffinity(0, CORES[-1:])  # What it starts stays on this core.
        try:
            return self.loader.stream(0)
        finally:
            os.sched_setaffinity(0, CORES[:1])

    def loop(self, batches: Iterator[Any], seconds: float) -> tuple[float, float]:
        """Returns seconds a step, and the part of the time that it waited for batches."""
        start = time.perf_counter()
        waited_s, steps = 0.0, 0
        loss: jax.Array | None = None
        while time.perf_counter() - start < seconds or steps < 3:
            asked = time.perf_counter()
            batch = next(batches)
            waited_s += time.perf_counter() - asked
            arrays = place_batch(self.mesh, fitted(batch, self.recipe.policy))
            self.state, newest = self.update(self.state, arrays, np.int32(steps))
            if loss is not None:
                float(loss[0])  # Of the step before, as the trainer reads it.
            loss = newest
            steps += 1
        assert loss is not None
        float(loss[0])
        took_s = time.perf_counter() - start
        return took_s / steps, waited_s / took_s


def view_of(folder: Path) -> View:
    source = HUMANOID if HUMANOID.exists() else write_lerobot(folder / "made", 4, 300)
    store = open_store(str(folder / "store"))
    version = ingest(source, store, "demo", clock=SystemClock()).version
    assert version is not None
    recipe = ViewRecipe(codec="h264", holdout_fraction=0.125)
    manifest = build_view(store, version, recipe, scratch_dir=folder / "scratch")
    return open_view(store, manifest.id, folder / "cache", "train")


def largest(view: View) -> tuple[Trainer, float]:
    """Returns the trainer whose step takes just under the limit, and what it takes."""
    chosen: tuple[Trainer, float] | None = None
    batch_size = BATCH_MIN
    while batch_size <= BATCH_MAX:
        trainer = Trainer(view, batch_size)
        trainer.loop(cycle(trainer.memory), 0.0)  # Compiles.
        step_s = statistics.median(trainer.loop(cycle(trainer.memory), 0.5)[0] for _ in range(3))
        print(f"batch {batch_size}: {step_s * 1e3:.1f} ms a step", flush=True)
        if chosen is not None and step_s >= STEP_S_MAX:
            break
        chosen = (trainer, step_s)
        batch_size *= 2
    assert chosen is not None
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    chosen = parser.parse_args()
    if len(CORES) < 2:
        raise SystemExit("two cores are needed: one for the step, one for the loader")
    with tempfile.TemporaryDirectory() as name:
        trainer, step_s = largest(view_of(Path(name)))
        seconds = LOOP_S / 3 if chosen.quick else LOOP_S
        waits, ratios = [], []
        with trainer.stream() as stream:
            trainer.loop(stream, seconds)  # Its ring is touched, and what it imports is there.
            for turn in range(3 if chosen.quick else TURNS):
                memory_s, _ = trainer.loop(cycle(trainer.memory), seconds)
                loader_s, waited = trainer.loop(stream, seconds)
                waits.append(waited)
                ratios.append(memory_s / loader_s)
                print(f"turn {turn}: waited {waited:.2%}, {memory_s / loader_s:.3f} of the rate", flush=True)
    result = {
        "wait_fraction": round(statistics.median(waits), 5),
        "rate_ratio": round(statistics.median(ratios), 3),
        "batch_size": trainer.recipe.batch_size,
        "step_ms": round(step_s * 1e3, 1),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
