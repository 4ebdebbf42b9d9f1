"""What training pays beside its step: the trainer with all it does, and the same compiled update in a bare loop.

Run as `python -m benchmarks.train_overhead [--quick]`. The trainer reads 8 samples a step of a view of three cameras of
224 x 224 (h264), reports every measure of every step to an agent in another process, and leaves snapshots there; the
bare loop gives the same update one batch that lies on the device, and reads its measures one step late, too. As beside
an accelerator, the step has one core; all else has the other. The policy's width is the one whose step takes 50 ms.
Within each of five runs of 500 steps the two take turns of 100, since machines grow slower and faster by the minute:
one snapshot falls into each of the trainer's turns, and a run's first steps, which compile, into none. `ratio` is the
median of the trainer's time by that of the bare loop right after it, `ratios` each run's; `data_wait` is the part of
the trainer's time that passed in waiting for batches.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path

CORES = sorted(os.sched_getaffinity(0))
os.sched_setaffinity(0, CORES[:1])  # Before JAX makes its threads, which inherit it.

import jax  # noqa: E402
import numpy as np  # noqa: E402
from benchmarks import data_work  # noqa: E402
from benchmarks.control_submit import loop_s  # noqa: E402
from tests.session.agent import Agent, welcome  # noqa: E402

from mainspring.app.base.system import SystemClock  # noqa: E402
from mainspring.data import View, ViewRecipe, build_view, ingest, open_view  # noqa: E402
from mainspring.domain import wire  # noqa: E402
from mainspring.objects import open_store  # noqa: E402
from mainspring.session import Session  # noqa: E402
from mainspring.train.inputs.fitting import Fitting  # noqa: E402
from mainspring.train.inputs.measured import statistics_of  # noqa: E402
from mainspring.train.inputs.sources import Sources  # noqa: E402
from mainspring.train.recipe import Recipe, changed, recipe_named  # noqa: E402
from mainspring.train.state.sharding import make_mesh, place_batch  # noqa: E402
from mainspring.train.steps.state import initial_state  # noqa: E402
from mainspring.train.steps.update import make_update  # noqa: E402
from mainspring.train.trainer import train  # noqa: E402

CAMERAS = tuple(f"observation.images.{name}" for name in ("high", "left", "right"))
BATCH, SIZE = 8, 224
STEP_S, NEAR_S = 0.05, 0.005
WIDTHS = (64, 4_096)  # Of the policy's trunk: what its step takes grows with it.
TURN = EVERY = 100  # Steps between snapshots: 5 s, as often as leads ask for them where failures are many.
START_LIMIT_S = 60.0


def serve(folder: Path) -> None:
    """The agent, in a process of its own, until its standard input ends."""
    agent = Agent(folder)
    agent.reply = wire.StepReply(snapshot_every=EVERY)
    for _ in range(100):
        agent.welcomes.put(welcome(rank=0, world_size=1, every=EVERY))
    sys.stdin.read()
    agent.hang_up()


def view_of(folder: Path) -> View:
    data_work.CAMERAS = CAMERAS  # type: ignore[assignment]
    store = open_store(str(folder / "store"))
    version = ingest(data_work.write_lerobot(folder / "made", 4, 120), store, "moved", clock=SystemClock()).version
    assert version is not None
    recipe = ViewRecipe(codec="h264", image_size=SIZE, holdout_fraction=0.0)
    manifest = build_view(store, version, recipe, scratch_dir=folder / "scratch")
    return open_view(store, manifest.id, folder / "cache", "train")


def recipe_of(width: int, steps: int) -> Recipe:
    image = {"channels": [4, 8, 8, 8], "features": 16}
    policy = {"width": width, "relative_actions": False, "motion": False, "image": image}
    return changed(recipe_named("video"), {"batch_size": BATCH, "steps": steps, "policy": policy})


class Bare:
    """The compiled update and a batch on the device."""

    def __init__(self, view: View, recipe: Recipe) -> None:
        mesh, sources = make_mesh(), Sources(recipe, view)
        fitting = Fitting(sources)
        with sources.loader(rank=0, world_size=1, fit=fitting).stream(0) as stream:
            self.batch = place_batch(mesh, {name: array.copy() for name, array in next(stream).items()})
        self.state = initial_state(recipe, sources.signature, statistics_of(sources), mesh)
        self.update = make_update(recipe, mesh)
        self.run(3)

    def run(self, steps: int) -> float:
        """Returns the seconds of so many steps."""
        before: jax.Array | None = None
        begun_s = time.perf_counter()
        for step in range(steps):
            self.state, measures = self.update(self.state, self.batch, np.int32(step))
            if before is not None:
                np.asarray(before)
            before = measures
        np.asarray(before)
        return time.perf_counter() - begun_s


def chosen(view: View, steps: int) -> tuple[Recipe, Bare, float]:
    """Returns the recipe whose step takes 50 ms, and what it takes, by halving."""
    low, high = WIDTHS
    while True:
        width = (low + high) // 2 // 8 * 8
        bare = Bare(view, recipe_of(width, steps))
        step_s = statistics.median(bare.run(10) / 10 for _ in range(3))
        print(f"width {width}: {step_s * 1e3:.1f} ms a step", flush=True)
        if abs(step_s - STEP_S) <= NEAR_S or high - low <= 16:
            return recipe_of(width, steps), bare, step_s
        low, high = (low, width) if step_s > STEP_S else (width, high)


class Turns:
    """What a trainer took for its turns beside the bare loop's, which come between its steps."""

    def __init__(self, bare: Bare) -> None:
        self._bare = bare
        self._resumed_s: float | None = None
        self._waited_s = 0.0
        self.changed_at = 0
        self.ratios: list[float] = []
        self.waits: list[float] = []

    def stepped(self, metrics: Mapping[str, float]) -> None:
        """Notes a step, whose measures these are."""
        self._waited_s += metrics.get("data_wait", 0.0) * metrics.get("step_s", 0.0)

    def change(self, step: int) -> None:
        """Ends the trainer's turn, lets the bare loop have its own, and begins the trainer's next."""
        ended_s, self.changed_at = time.perf_counter(), step
        first_s = self._bare.run(1)  # Waits for the trainer's step that is under way on the device: it counts as its.
        each_s = self._bare.run(TURN) / TURN
        if self._resumed_s is not None:
            took_s = ended_s - self._resumed_s + first_s - each_s
            self.ratios.append(took_s / TURN / each_s)
            self.waits.append(self._waited_s / took_s)
            print(f"{each_s * 1e3:.2f} ms bare, {took_s / TURN * 1e3:.2f} ms trained", flush=True)
        self._waited_s = 0.0
        self._resumed_s = time.perf_counter()


def trained(folder: Path, view: View, recipe: Recipe, bare: Bare) -> Turns:
    """Returns what a run took."""
    session = Session(str(folder / "agent.sock"), pid=os.getpid(), stopwatch=time.monotonic)
    report, turns = session.report, Turns(bare)

    def noted(step: int, metrics: Mapping[str, float] | None = None) -> bool:
        if metrics is not None:
            turns.stepped(metrics)
        answer = report(step, metrics)
        if step % TURN == TURN // 2 and step > turns.changed_at:  # What is held out is reported apart.
            turns.change(step)
        return answer

    session.report = noted  # type: ignore[method-assign]
    train(session, recipe, view, facts={})
    session.close()
    return turns


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--agent", type=Path)
    options = parser.parse_args()
    if options.agent is not None:
        serve(options.agent)
        return
    if len(CORES) < 2:
        raise SystemExit("two cores are needed: one for the step, one for all else")
    steps, runs = (300, 2) if options.quick else (500, 5)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        jax.config.update("jax_compilation_cache_dir", str(folder / "compiled"))  # type: ignore[no-untyped-call]
        view = view_of(folder)
        recipe, bare, step_s = chosen(view, steps)
        os.sched_setaffinity(0, CORES)  # JAX's own threads stay on the first.
        (folder / "agent").mkdir()
        agent = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.train_overhead", "--agent", str(folder / "agent")], stdin=subprocess.PIPE
        )
        over_s = time.monotonic() + START_LIMIT_S
        while not (folder / "agent" / "agent.sock").exists():
            assert time.monotonic() < over_s, "the agent did not start"
            threading.Event().wait(0.05)
        done = [trained(folder / "agent", view, recipe, bare) for _ in range(runs)]
        assert agent.stdin is not None
        agent.stdin.close()
        agent.wait()
    figures = {
        "ratio": round(statistics.median(ratio for run in done for ratio in run.ratios), 4),
        "ratios": [round(statistics.median(run.ratios), 4) for run in done],
        "data_wait": round(statistics.median(wait for run in done for wait in run.waits), 5),
        "step_ms": round(step_s * 1e3, 1),
        "loop_s": loop_s(),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
