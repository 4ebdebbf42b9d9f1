"""What the compiler of TPUs is asked for, and how near formulas come to it: memory of pi0 and smaller models.

Run as `python -m benchmarks.train_plan [--quick]`; needs the extra `tpu-plan` and some 20 minutes of two cores. Each
cell is compiled once, in a process of its own, for chips that are not there. Errors are the formulas' peak memory of a
device against the compiler's. `loop_s` is the time of 6,000,000 turns of `total += i * i % 7`. `--quick` leaves all but
`vla_tiny` out.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from benchmarks.control_submit import loop_s
from benchmarks.running import run

from mainspring.domain.errors import MainspringError
from mainspring.train.models.shapes import Signature
from mainspring.train.plan.analytic import analytic_figures
from mainspring.train.plan.compiled import compiled_figures
from mainspring.train.plan.targets import Target, parsed_target
from mainspring.train.recipe import Recipe, changed, recipe_named

MISSING = "" if find_spec("libtpu") else "no compiler for TPUs: python -m pip install 'mainspring[tpu-plan]'"
SIGNATURE = Signature(state_dim=14, action_dim=14, image_views=3, image_height=224, image_width=224)
GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    recipe: str
    chips: str
    rows: int  # Of a device.
    tensor: int = 1

    @property
    def target(self) -> Target:
        return parsed_target(self.chips)

    def build(self) -> Recipe:
        data = self.target.devices // self.tensor
        mesh = {"replica": 1, "data": data, "tensor": self.tensor}
        changes = {"batch_size": self.rows * data, "mesh": mesh, "policy": {"compute": {"remat": "full"}}}
        return changed(recipe_named(self.recipe), changes)


def cells(*, quick: bool) -> Iterator[Cell]:
    if not quick:
        yield Cell(recipe="pi0", chips="v5p:4x4x4", rows=1)
        yield Cell(recipe="pi0", chips="v5p:4x4x4", rows=8)
    for recipe, rows in (("vla_tiny", 64), ("vla_small", 16))[: 1 if quick else 2]:
        for chips in ("v5p:2x2x4", "v6e:4x4"):
            for tensor in (1, 2):
                yield Cell(recipe=recipe, chips=chips, rows=rows, tensor=tensor)
        yield Cell(recipe=recipe, chips="v5p:2x2x4", rows=2 * rows)


def used_s() -> float:
    """Returns the processor time of all processes that have ended here."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime


def read_again_s(cell: Cell, cache: Path) -> float:
    """Returns how long a fresh process takes to the answer that is kept."""
    code = (
        "import sys; from pathlib import Path; from benchmarks.train_plan import Cell, SIGNATURE, compiled_figures; "
        "cell = Cell(recipe=sys.argv[1], chips=sys.argv[2], rows=int(sys.argv[3]), tensor=int(sys.argv[4])); "
        "compiled_figures(cell.build(), SIGNATURE, cell.target, cache=Path(sys.argv[5]), deadline_s=0.5)"
    )
    arguments = [cell.recipe, cell.chips, str(cell.rows), str(cell.tensor), str(cache)]
    took = []
    for _ in range(3):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", code, *arguments], check=True)
        took.append(time.perf_counter() - began)
    return statistics.median(took)


def measured(folder: Path, *, quick: bool) -> Mapping[str, float]:
    errors, first_s, kept_s = [], 0.0, 0.0
    for cell in cells(quick=quick):
        before_s = used_s()
        try:
            said = compiled_figures(cell.build(), SIGNATURE, cell.target, cache=folder / "cache")
        except MainspringError as error:
            print(cell, error, flush=True)
            continue
        cpu_s = used_s() - before_s
        formula = analytic_figures(cell.build(), SIGNATURE, cell.target)
        errors.append(abs(formula.memory.peak / said.memory.peak - 1))
        shares = {
            axis: round(formula.bytes_by_axis.get(axis, 0) / sent, 2) for axis, sent in said.bytes_by_axis.items()
        }
        print(
            f"{cell.recipe:9} {cell.chips} rows {cell.rows:3} tensor {cell.tensor}: "
            f"{said.memory.peak / GIB:.3f} GiB by the compiler, {formula.memory.peak / GIB:.3f} by formulas "
            f"({errors[-1]:.1%}), which have {formula.flops / said.flops:.2f} of its operations and {shares} of what"
            f" it sends; {cpu_s:.0f} s",
            flush=True,
        )
        if not first_s:
            first_s, kept_s = cpu_s, read_again_s(cell, folder / "cache")
    return {
        "cold_cpu_s": first_s,
        "rss_gib": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20,
        "cached_s": kept_s,
        "error_worst": max(errors),
        "error_median": statistics.median(errors),
        "loop_s": loop_s(),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    run("train_plan", MISSING, lambda folder: measured(folder, quick=quick))
