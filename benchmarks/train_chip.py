"""What a GPU or TPU at hand shows of a policy of full size: how long a chunk takes, and what a snapshot costs.

Run as `python -m benchmarks.train_chip [--quick] [--recipe NAME]`, without `--recipe` of pi0. Each half is a process of
its own. Weights are random; the shapes are what counts.

`sample_ms` and `sample_p99_ms` are of 200 calls (wanted: at most 25): three pictures and a state lie in host memory,
one row, ten steps of flow, until the chunk lies there, too; weights in bfloat16. `compile_s` is what the first call
waits. A training step is the recipe's own, with its optimizer and batch; `step_s` is the mean of 10. Then a snapshot
of the whole state is taken in mid-run, three times: `stall` is the median of what the five steps from there on take
longer, as a share of one step (wanted: at most 0.01). `handed_s` is how long the training thread was in `snapshot`;
`gb_s` is what a thread brings to the agent's memory beside the steps, `state_gb` how much there is. The first snapshot,
for which the agent's memory is made, does not count. Where there is no GPU or TPU both halves run on the CPU, with a
recipe that fits.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mainspring.domain import codec, wire
from mainspring.domain.ids import AttemptId, JobId, RoleName

CALLS, QUICK_CALLS, WARM_CALLS = 200, 60, 20
STEPS, AFTER, SNAPSHOTS = 10, 5, 3
VIEWS, SIDE, DIMENSIONS = 3, 224, 14
HALF_LIMIT_S = 900.0
ROOT = Path(__file__).parents[1]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_CALLS} calls, one snapshot")
    parser.add_argument("--recipe", default="pi0")
    parser.add_argument("--half", choices=("sample", "snapshot", "agent"), help="be one of its processes")
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    match given.half:
        case "sample":
            sample(given.recipe, QUICK_CALLS if given.quick else CALLS)
        case "snapshot":
            snapshot(given.recipe, given.folder, 1 if given.quick else SNAPSHOTS)
        case "agent":
            answer(given.folder)
        case _:
            with tempfile.TemporaryDirectory(prefix="train-chip-", dir="/dev/shm") as folder:
                words = ("--recipe", given.recipe, "--folder", folder, *(("--quick",) if given.quick else ()))
                figures = {name: figure for half in ("sample", "snapshot") for name, figure in half_of(half, words)}
            print(json.dumps(figures))


def half_of(half: str, words: tuple[str, ...]) -> tuple[tuple[str, float], ...]:
    """Returns the figures of one half; none where it fails, which it says itself."""
    command = (sys.executable, "-m", "benchmarks.train_chip", "--half", half, *words)
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=HALF_LIMIT_S, cwd=ROOT)
    if ended.returncode:
        print(f"{half} ended with {ended.returncode}", file=sys.stderr)
        return ()
    found: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    return tuple(found.items())


# ---------------------------------------------------------------- a chunk


def sample(name: str, calls: int) -> None:
    """Prints how long chunks take."""
    import jax
    import jax.numpy as jnp

    from mainspring.train.models.shapes import PolicyRecipe, Signature
    from mainspring.train.policy import model_of, sample_actions, unit_statistics
    from mainspring.train.recipe import recipe_named

    policy = recipe_named(name).policy
    signature = Signature(
        state_dim=DIMENSIONS, action_dim=DIMENSIONS, image_views=VIEWS, image_height=SIDE, image_width=SIDE
    )
    numbers = jnp.float32 if isinstance(policy, PolicyRecipe) else jnp.dtype(policy.compute.numbers.value)

    def fresh() -> Any:
        weights = model_of(policy).initial_weights(jax.random.key(0), signature)
        return jax.tree.map(lambda array: array.astype(numbers), weights)

    weights, statistics_ = jax.jit(fresh)(), unit_statistics(policy, signature)
    act = jax.jit(lambda weights, batch, key: sample_actions(weights, statistics_, policy, batch, key))
    dice, times_s = np.random.default_rng(0), []
    for call in range(WARM_CALLS + calls):
        batch = {
            "state": dice.normal(size=(1, DIMENSIONS)).astype(np.float32),
            "images": dice.integers(0, 256, (1, VIEWS, SIDE, SIDE, 3), dtype=np.uint8),
        }
        began_s = time.perf_counter()
        chunk = np.asarray(act(weights, batch, jax.random.key(call)))
        times_s.append(time.perf_counter() - began_s)
        assert chunk.shape == (1, policy.horizon, DIMENSIONS)
        assert np.isfinite(chunk).all()
    counted = sorted(times_s[WARM_CALLS:])
    figures = {
        "sample_ms": 1e3 * statistics.median(counted),
        "sample_p99_ms": 1e3 * counted[int(0.99 * len(counted))],
        "compile_s": times_s[0],
    }
    print(jax.devices()[0].device_kind, file=sys.stderr)
    print(json.dumps({name: round(figure, 3) for name, figure in figures.items()}))


# ---------------------------------------------------------------- a snapshot


def snapshot(name: str, folder: Path, count: int) -> None:
    """Prints what a snapshot costs the steps around it."""
    import jax

    from mainspring.session.jax_state import blocks_of
    from mainspring.train.models.shapes import Signature
    from mainspring.train.policy import unit_statistics
    from mainspring.train.recipe import recipe_named
    from mainspring.train.state.sharding import make_mesh, place_batch
    from mainspring.train.steps.state import PARTS, initial_state
    from mainspring.train.steps.update import make_update

    recipe = recipe_named(name)
    signature = Signature(
        state_dim=DIMENSIONS, action_dim=DIMENSIONS, image_views=VIEWS, image_height=SIDE, image_width=SIDE
    )
    mesh = make_mesh(recipe.mesh)
    state = initial_state(recipe, signature, unit_statistics(recipe.policy, signature), mesh)
    update, dice = make_update(recipe, mesh), np.random.default_rng(0)
    rows = (recipe.batch_size, recipe.policy.horizon)
    batch = place_batch(
        mesh,
        {
            "state": dice.normal(size=(rows[0], DIMENSIONS)).astype(np.float32),
            "images": dice.integers(0, 256, (rows[0], VIEWS, SIDE, SIDE, 3), dtype=np.uint8),
            "actions": dice.normal(size=(*rows, DIMENSIONS)).astype(np.float32),
            "valid": np.ones(rows, bool),
        },
    )
    size_bytes = sum(array.nbytes for array in jax.tree.leaves(state))
    session = joined(folder)
    number, under_way = 0, None

    def steps(count: int) -> float:
        """Returns how long steps take. As in the trainer, one is under way while the one before is read."""
        nonlocal state, under_way, number
        began_s = time.perf_counter()
        for _ in range(count):
            state, measures = update(state, batch, np.int32(number))
            number += 1
            if under_way is not None:
                np.asarray(under_way)
            under_way = measures
        return time.perf_counter() - began_s

    def saved() -> float:
        began_s = time.perf_counter()
        assert session.snapshot(number, blocks_of(state, session, PARTS), {"step": number})
        return time.perf_counter() - began_s

    steps(2)  # The first compiles.
    saved()
    session.left()
    step_s = steps(STEPS) / STEPS
    losses_s, handed_s, paces = [], [], []
    for _ in range(count):
        before_s = steps(AFTER)
        began_s = time.perf_counter()
        handed_s.append(saved())
        after_s = steps(AFTER) + handed_s[-1]
        losses_s.append(after_s - before_s)
        session.left()
        paces.append(size_bytes / (time.perf_counter() - began_s) / 1e9)
        assert session_committed(folder) >= number - AFTER
    session.close()
    figures = {
        "step_s": step_s,
        "stall": statistics.median(losses_s) / step_s,
        "handed_s": statistics.median(handed_s),
        "gb_s": statistics.median(paces),
        "state_gb": size_bytes / 1e9,
    }
    print(json.dumps({name: round(figure, 4) for name, figure in figures.items()}))


def joined(folder: Path) -> Any:
    """Returns a session with an agent in a process of its own."""
    from mainspring.session import Session

    command = (sys.executable, "-m", "benchmarks.train_chip", "--half", "agent", "--folder", str(folder))
    subprocess.Popen(command, cwd=ROOT)
    over_s = time.monotonic() + 60.0
    while not (folder / "agent.sock").exists():
        assert time.monotonic() < over_s, "the agent did not start"
        time.sleep(0.01)
    return Session(str(folder / "agent.sock"), pid=os.getpid(), stopwatch=time.monotonic)


def session_committed(folder: Path) -> int:
    """Returns the newest step that the agent was told is whole."""
    return int((folder / "committed").read_text())


def answer(folder: Path) -> None:
    """The agent: welcomes one rank, gives it one slot, answers until it hangs up. Nothing is made durable."""
    arena = folder / "arena"
    arena.touch()
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(str(folder / "agent.sock"))
    server.listen()
    line, _ = server.accept()
    replies: Mapping[type[Any], Callable[[Any], object]] = {
        wire.Hello: lambda _: wire.Welcome(
            job=JobId("job"),
            attempt=AttemptId("attempt"),
            role=RoleName("main"),
            rank=0,
            world_size=1,
            local_rank=0,
            generation=1,
            coordinator="",
            arena_path=str(arena),
        ),
        wire.StepReport: lambda _: wire.StepReply(),
        wire.SnapshotBegin: partial(_slot, arena),
        wire.SnapshotCommit: partial(_committed, folder / "committed"),
    }
    with line, line.makefile("rb") as stream:
        while header := stream.read(codec.FRAME_HEADER_BYTES):
            message = codec.unframe(stream.read(codec.frame_length(header)), wire.Hello | wire.RankRequest)
            line.sendall(codec.frame(replies[type(message)](message)))


def _slot(arena: Path, asked: wire.SnapshotBegin) -> wire.SnapshotSlot:
    if arena.stat().st_size < asked.size_bytes:
        os.truncate(arena, -(-asked.size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE)
    return wire.SnapshotSlot(offset=0)


def _committed(note: Path, told: wire.SnapshotCommit) -> wire.Done:
    note.write_text(str(told.step))
    return wire.Done()


if __name__ == "__main__":
    main()
