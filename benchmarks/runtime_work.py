"""What the benchmarks of the runtime train, and how they drive it: `python -m benchmarks.runtime_work WHAT ...`.

The state is a transformer's: 193 arrays of parameters, two moments of Adam for each, and a count, 580 leaves in all.
Each process is one rank; it takes its turns from files in a folder, so that ours and the peer's work interleaved.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from mainspring.domain.ids import JobId
from mainspring.domain.wire import Part
from mainspring.session import Session
from mainspring.session.jax_ahead import compile_ahead
from mainspring.session.jax_distributed import run
from mainspring.session.jax_state import blocks_of, tree_from

ROOT = Path(__file__).parents[1]
SLOTS = 3  # Of the arena: each is made and touched once, by the first snapshots of an attempt.
STEPS = 20  # That a save is judged by: the protocol's.
JOB = JobId("job-1")  # The rig's.
PARTS = {"weights": Part.WEIGHTS, "first": Part.OPTIMIZER, "second": Part.OPTIMIZER}
PEERS: Mapping[str, Mapping[str, Any]] = {
    "orbax_default": {},
    "orbax_plain": {"use_compression": False},
}
struct: Any = jax.ShapeDtypeStruct  # Untyped in JAX.
Tree = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A model: its width, the size of its vocabulary, and its layers of eight arrays each."""

    width: int
    words: int
    layers: int = 24

    def shapes(self) -> dict[str, tuple[int, ...]]:
        wide, tall = (self.width, self.width), (self.width, 4 * self.width)
        layer = {
            "q": wide,
            "k": wide,
            "v": wide,
            "o": wide,
            "up": tall,
            "down": tall[::-1],
            "a": wide[:1],
            "b": wide[:1],
        }
        found = {f"layer-{number:02}/{name}": shape for number in range(self.layers) for name, shape in layer.items()}
        return {**found, "words": (self.words, self.width)}


SIZES = {
    "whole": Size(width=512, words=23_520),  # 1.05 GB with Adam's moments.
    "quick": Size(width=128, words=5_880),  # A sixteenth of it.
    "big": Size(width=576, words=8_064),  # 100 M parameters, 1.2 GB with Adam's moments; all can be cut in 2 and 3.
    "quick-big": Size(width=192, words=2_304),  # 11 M parameters.
    "toy": Size(width=12, words=12, layers=1),
}


class Work:
    """The state of one rank, and its steps."""

    def __init__(self, size: Size, *, split: bool, devices: Sequence[jax.Device] | None = None) -> None:
        mesh = jax.make_mesh((len(devices or jax.devices()),), ("data",), devices=devices)
        self._whole = NamedSharding(mesh, PartitionSpec())  # type: ignore[no-untyped-call]
        self._part = NamedSharding(mesh, PartitionSpec("data")) if split else self._whole  # type: ignore[no-untyped-call]
        weights = {name: struct(shape, np.float32, sharding=self._part) for name, shape in size.shapes().items()}
        count = struct((), np.int32, sharding=self._whole)
        self.like: Tree = {"weights": weights, "first": weights, "second": weights, "count": count}
        self._update = jax.jit(_updated, donate_argnums=0)
        self._sum = jax.jit(lambda tree: sum(leaf.sum() for leaf in jax.tree.leaves(tree)), out_shardings=self._whole)
        self.state: Tree = {}

    @property
    def bytes(self) -> int:
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(self.like))

    def begin(self) -> None:
        """Makes the first state; the weights are noise, so that they compress as badly as real ones."""
        dice = np.random.default_rng(0)

        def leaf(key: Any, like: Any) -> jax.Array:
            noise = key[0].key == "weights"
            whole = 0.02 * dice.standard_normal(like.shape, np.float32) if noise else np.zeros(like.shape, like.dtype)
            return jax.make_array_from_callback(like.shape, like.sharding, lambda index: whole[index])

        self.state = jax.tree_util.tree_map_with_path(leaf, self.like)

    def step(self) -> None:
        self.state = self._update(self.state)
        jax.block_until_ready(self.state["count"])  # type: ignore[no-untyped-call]

    def lower(self) -> jax.stages.Lowered:
        """Returns what `step` runs."""
        return self._update.lower(self.like)

    def steps(self, count: int, each: Callable[[], object] = lambda: None) -> float:
        """Returns how long so many steps take."""
        started_s = time.perf_counter()
        for _ in range(count):
            self.step()
            each()
        jax.block_until_ready(self.state)  # type: ignore[no-untyped-call]
        return time.perf_counter() - started_s

    def use(self) -> float:
        """Reads every byte of the state."""
        return float(self._sum(self.state))


def _updated(state: Tree) -> Tree:
    """One step of Adam; the gradient is made up, and all devices must have the mean of the count before it."""
    count = state["count"] + 1
    found: Tree = {"weights": {}, "first": {}, "second": {}, "count": count}
    pull = 1e-6 * jnp.mean(state["weights"]["words"][:, 0])  # Every device has a part of it.
    for name, weight in state["weights"].items():
        gradient = 1e-2 * weight + pull
        first = 0.9 * state["first"][name] + 0.1 * gradient
        second = 0.999 * state["second"][name] + 0.001 * gradient * gradient
        found["weights"][name] = weight - 1e-4 * first / (jnp.sqrt(second) + 1e-8)
        found["first"][name], found["second"][name] = first, second
    return found


# ------------------------------------------------------------ turns


def wait_turn(folder: Path, number: int) -> None:
    (folder / "ready").touch()
    while not (folder / f"turn-{number}").exists():
        time.sleep(0.01)


def end_turn(folder: Path, number: int, result: Mapping[str, float]) -> None:
    (folder / "done.new").write_text(json.dumps(result))
    (folder / "done.new").rename(folder / f"done-{number}")


def saves(
    folder: Path, work: Work, save: Callable[[], Callable[[], None]], each: Callable[[], object], first: int = 0
) -> None:
    """Takes turns: 20 quiet steps, then a save and 20 steps. `save` returns how to wait until it is durable."""
    for number in itertools.count(first):
        wait_turn(folder, number)
        quiet_s = work.steps(STEPS, each)
        started_s = time.perf_counter()
        wait = save()
        blocked_s = time.perf_counter() - started_s
        with ThreadPoolExecutor(1) as pool:
            durable = pool.submit(_clocked, wait)
            work.steps(STEPS, each)
            busy_s = time.perf_counter() - started_s
            durable_s = durable.result() - started_s
        lost_s = busy_s - quiet_s
        result = {"quiet_s": quiet_s, "lost_s": lost_s, "blocked_s": blocked_s, "durable_s": durable_s}
        end_turn(folder, number, {**result, "bytes": work.bytes})


def _clocked(wait: Callable[[], None]) -> float:
    wait()
    return time.perf_counter()


def restores(folder: Path, work: Work, restore: Callable[[], Tree]) -> None:
    """Takes one turn: restores, and uses every byte."""
    work.begin()
    work.use()  # Compiled.
    work.state = {}
    wait_turn(folder, 0)
    started_s = time.perf_counter()
    work.state = restore()
    jax.block_until_ready(work.state)  # type: ignore[no-untyped-call]
    read_s = time.perf_counter() - started_s
    work.use()
    end_turn(folder, 0, {"restore_s": time.perf_counter() - started_s, "read_s": read_s})


# ------------------------------------------------------------ ours and the peer's


def ours(folder: Path, size: Size, what: str, session: Session) -> None:
    from mainspring.checkpoint import durable_steps
    from mainspring.objects import open_store

    work = Work(size, split=False)
    if what == "restore":
        restored = session.restore()
        assert restored is not None
        restores(folder, work, lambda: tree_from(restored, work.like))
        return
    step = itertools.count(1)
    store = open_store(f"file://{folder.parent / 'objects'}")

    def save() -> Callable[[], None]:
        at = next(step)
        assert session.snapshot(at, blocks_of(work.state, session, PARTS))

        def wait() -> None:
            while at not in durable_steps(store, JOB):
                time.sleep(0.01)

        return wait

    work.begin()
    work.steps(3)
    if what == "memory":
        wait_turn(folder, 0)
        end_turn(folder, 0, {})
    else:
        for _ in range(SLOTS):
            assert session.snapshot(next(step), blocks_of(work.state, session, PARTS))
    saves(folder, work, save, lambda: session.report(next(step)), first=int(what == "memory"))


def orbax(folder: Path, size: Size, kind: str, *, restoring: bool) -> None:
    import orbax.checkpoint as ocp

    work = Work(size, split=False)
    checkpointer = ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler(**PEERS[kind]))
    if restoring:
        arguments = ocp.checkpoint_utils.construct_restore_args(work.like)
        newest = sorted(folder.parent.glob(f"{kind}-saves/*"))[-1]
        restore = partial(checkpointer.restore, newest, args=ocp.args.PyTreeRestore(restore_args=arguments))
        restores(folder, work, restore)
        return

    numbers = itertools.count()

    def save() -> Callable[[], None]:
        path = folder.parent / f"{kind}-saves" / f"{next(numbers):03}"
        checkpointer.save(path, args=ocp.args.PyTreeSave(work.state))

        def wait() -> None:
            checkpointer.wait_until_finished()
            synced(path)
            for old in sorted(path.parent.iterdir())[:-1]:
                shutil.rmtree(old)

        return wait

    work.begin()
    work.steps(3)
    saves(folder, work, save, lambda: None)


def synced(folder: Path) -> None:
    """Makes all files of a folder durable: Orbax leaves that to the system."""
    for path in [*folder.rglob("*"), folder, folder.parent]:
        file = os.open(path, os.O_RDONLY)
        os.fsync(file)
        os.close(file)


# ------------------------------------------------------------ recovery


def stepping(folder: Path, size: Size, *, late: bool, session: Session) -> None:
    """Trains on, and notes when each generation has done its first step, and has compiled ahead unless that is late."""
    (folder / f"started-{os.getpid()}").touch()
    work = Work(size, split=True)
    restored = session.restore()
    if restored is None:
        work.begin()
    else:
        work.state = tree_from(restored, work.like)
    start = restored.step if restored else 0
    ahead = None
    for step in session.steps(start, 1 << 40):
        work.step()
        if step == start + 1:
            note(folder, f"stepped-{session.generation}-{session.rank}")
            if not late:
                ahead = compile_ahead(session, lambda devices: Work(size, split=True, devices=devices).lower())
        if ahead is not None and ahead.wait(0.0):
            note(folder, f"compiled-{session.generation}-{session.rank}")
            ahead = None
        if session.snapshot_due(step):
            session.snapshot(step, blocks_of(work.state, session, PARTS))
        time.sleep(0.02)


def restarting(folder: Path, size: Size, address: str, rank: int, ranks: int, generation: int) -> None:
    """The peer: starts over with all processes, from the newest save of Orbax."""
    import orbax.checkpoint as ocp

    for option, value in (
        ("jax_compilation_cache_dir", str(folder.parent / "compiled")),
        ("jax_persistent_cache_min_compile_time_secs", 0.0),
        ("jax_persistent_cache_min_entry_size_bytes", -1),
    ):
        jax.config.update(option, value)  # type: ignore[no-untyped-call]
    jax.config.update("jax_cpu_collectives_implementation", "gloo")  # type: ignore[no-untyped-call]
    jax.distributed.initialize(address, ranks, rank)
    work = Work(size, split=True)
    checkpointer = ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler(use_compression=False))
    path = folder / "save"
    if path.exists():
        arguments = ocp.checkpoint_utils.construct_restore_args(work.like)
        work.state = checkpointer.restore(path, args=ocp.args.PyTreeRestore(restore_args=arguments))
    else:
        work.begin()
    for step in itertools.count(1):
        work.step()
        if step == 1:
            note(folder, f"stepped-{generation}-{rank}")
        if step == 2 and not path.exists():
            checkpointer.save(path, args=ocp.args.PyTreeSave(work.state))
            checkpointer.wait_until_finished()
            (folder / "saved").touch()
        time.sleep(0.02)


def note(folder: Path, name: str) -> None:
    new = folder / f"new-{os.getpid()}"
    new.write_text(str(time.monotonic()))
    new.rename(folder / name)


def main() -> None:
    what, folder, size, *words = sys.argv[1], Path(sys.argv[2]), SIZES[sys.argv[3]], *sys.argv[4:]
    folder.mkdir(parents=True, exist_ok=True)
    cache = folder.parent / "compiled"
    if what in ("save", "restore", "memory"):
        kind = words[0]
        if kind == "ours":
            run(partial(ours, folder, size, what), standby=False, cache=cache)
        else:
            orbax(folder, size, kind, restoring=what == "restore")
    elif what == "stepping":
        (folder / f"waiting-{os.getpid()}").touch()
        run(lambda session: stepping(folder, size, late="late" in words, session=session), cache=cache)
    else:
        address, rank, ranks, generation = words
        restarting(folder, size, address, int(rank), int(ranks), int(generation))


if __name__ == "__main__":
    main()
