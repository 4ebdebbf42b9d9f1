"""Compiles one step for TPUs that are not there, and reads what it takes: a program, to be run once for each question.

    python -m mainspring.train.plan.compiler ANSWER FOLDER

reads a `Question` from its input, one line, leaves a `CompilerAnswer` in ANSWER, and dumps XLA's own words to FOLDER.
It ends when its input does, so that it never outlives who asked. libtpu serves one client a process, and reads the
environment as it is loaded: `compiled.py` starts it.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from pathlib import Path
from typing import Any

import jax
from jax.experimental import topologies

from mainspring.domain.codec import decode, encode
from mainspring.domain.errors import InvalidInput, MainspringError
from mainspring.train.feed import shapes_fed
from mainspring.train.plan.buffers import largest_temporaries, memory_traffic
from mainspring.train.plan.compiled import CompilerAnswer, Question, Refusal
from mainspring.train.plan.figures import FiguresFrom, MemoryNeed, StepFigures
from mainspring.train.plan.hlo import flops_of, parsed_program
from mainspring.train.plan.targets import Target
from mainspring.train.plan.traffic import bytes_by_axis
from mainspring.train.state.sharding import batch_sharding, make_mesh
from mainspring.train.steps.state import abstract_state
from mainspring.train.trainer import lowered_update

ONE_CORE_A_CHIP = {"v4": {"chip_config_name": "megacore"}}  # As its jobs see it; the compiler alone would count cores.
FULL = (  # How the compiler says that a device's memory is too small: needed, and there.
    r"required for HLO temporaries \(([\d.]+\w)\) exceeds available HBM \(([\d.]+\w)\)",
    r"Used ([\d.]+\w) of ([\d.]+\w) hbm",
)
OWN = "/mainspring/"  # Of the sources whose lines are named.


def devices_of(target: Target) -> list[jax.Device]:
    """Returns the devices of chips that are not there, slice after slice.

    Args:
        target: TPUs.
    """
    more: dict[str, Any] = dict(ONE_CORE_A_CHIP.get(target.chip, {}))
    if target.slices > 1:
        more["num_slices"] = target.slices
    described = topologies.get_topology_desc(platform="tpu", topology_name=target.name, **more)
    return list(described.devices)


def figures_of(question: Question, folder: Path) -> StepFigures:
    """Returns what one step takes of each device, as the compiler has it.

    Args:
        question: What to compile.
        folder: An empty one, for what XLA writes.

    Raises:
        InvalidInput: The recipe does not fit the devices.
        JaxRuntimeError: The compiler refuses, as where the step does not fit their memory.
    """
    recipe, signature = question.recipe, question.signature
    devices = devices_of(question.target)
    assert len(devices) == question.target.devices, f"{len(devices)} devices for {question.target}"
    batch = shapes_fed(recipe.policy, signature, recipe.batch_size, recipe.data)
    lowered = lowered_update(recipe, signature, batch, devices)
    options: dict[str, str | bool] = {"xla_dump_to": str(folder), "xla_dump_hlo_pass_re": "spmd"}
    compiled = lowered.compile(compiler_options=options)
    mesh = make_mesh(recipe.mesh, devices)
    optimised = _dump(folder, "*.after_optimizations.txt")
    # One device has nothing to share out, and no partitioned program.
    one = _dump(folder, "*.after_*spmd-partitioning.before_*.txt", "*.before_optimizations.txt")
    program = parsed_program(one)
    return StepFigures(
        said_by=FiguresFrom.COMPILED,
        memory=_memory(question, mesh, compiled.memory_analysis()),
        flops=flops_of(program),
        bytes_by_axis=bytes_by_axis(program, dict(mesh.shape)),
        memory_traffic=memory_traffic(parsed_program(optimised)),
        largest=largest_temporaries(_dump(folder, "*.after_optimizations-buffer-assignment.txt"), optimised, own=OWN),
    )


def _memory(question: Question, mesh: jax.sharding.Mesh, said: Any) -> MemoryNeed:
    recipe = question.recipe
    state = abstract_state(recipe, question.signature, mesh)
    rows = batch_sharding(mesh)
    batch = shapes_fed(recipe.policy, question.signature, recipe.batch_size)
    rows_size = sum(_size(like, rows) for like in batch.values())
    parameters, optimizer, ema = (
        sum(_size(leaf, leaf.sharding) for leaf in jax.tree.leaves(part))
        for part in ((state.weights, state.adapters), state.optimizer, state.ema)
    )
    return MemoryNeed(
        parameters=parameters,
        optimizer=optimizer,
        ema=ema,
        # All small arguments with it, and what arrays are padded with where they lie.
        batch=max(rows_size, said.argument_size_in_bytes - parameters - optimizer - ema),
        outputs=said.output_size_in_bytes,
        aliased=said.alias_size_in_bytes,
        temporaries=said.temp_size_in_bytes,
        code=said.generated_code_size_in_bytes,
    )


def _size(like: Any, sharding: jax.sharding.Sharding) -> int:
    count = 1
    for dim in sharding.shard_shape(like.shape):
        count *= dim
    return int(count * like.dtype.itemsize)


def _dump(folder: Path, *patterns: str) -> str:
    """Returns the text of the first pattern that a dump is of."""
    for pattern in patterns:
        for path in sorted(folder.glob(pattern)):
            return path.read_text()
    raise AssertionError(f"XLA left no {patterns[0]} in {sorted(path.name for path in folder.iterdir())}")


def _refused(question: Question, said: str) -> InvalidInput:
    """Returns what the compiler's own error means."""
    full = next(filter(None, (re.search(form, said) for form in FULL)), None)
    if not full:
        return InvalidInput("compile a step", on=question.target.name, got=said[:500], wanted="a program that compiles")
    return InvalidInput(
        "compile a step",
        on=question.target.name,
        got=f"{full[1]} of a device's memory needed at once",
        wanted=f"at most {full[2]}",
        next_step="take more chips, a smaller batch_size, accumulate, or policy.compute.remat=full",
    )


def main(answer: Path, folder: Path) -> None:
    """Answers the question of this process's input.

    Args:
        answer: Where to.
        folder: An empty one, for what XLA writes.
    """
    question = decode(Question, sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_input, daemon=True).start()
    try:
        found = CompilerAnswer(figures=figures_of(question, folder))
    except (MainspringError, jax.errors.JaxRuntimeError) as caught:
        error = caught if isinstance(caught, MainspringError) else _refused(question, str(caught))
        found = CompilerAnswer(
            refusal=Refusal(
                attempted=error.attempted,
                on=error.on,
                got=error.got,
                wanted=error.wanted,
                next_step=error.next_step,
                full=any(re.search(form, str(caught)) for form in FULL),
            )
        )
    unfinished = answer.with_suffix(".part")
    unfinished.write_bytes(encode(found))
    unfinished.rename(answer)


def _end_with_input() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(1)  # Nobody waits for the answer any more; the compiler cannot be interrupted.


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
    os._exit(0)  # libtpu's own threads are in no hurry to end.
