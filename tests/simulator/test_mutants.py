"""The proof held to account: each known bug, planted in a copy of the product, is found by some seed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.simulator.mutants import FIRST_SEED, MUTANTS, QUICK, SEEDS, Mutant

import mainspring
from mainspring.simulator import prove

SOURCE = Path(mainspring.__file__).parent
STEPS = 150
LIMIT_S = 3_300.0
HUNT = """
import sys
from mainspring.simulator import prove
steps, *seeds = map(int, sys.argv[1:])
for seed in seeds:
    try:
        prove(seed, steps=steps)
    except Exception as error:
        print(seed)
        break
else:
    sys.exit(f"{len(seeds)} seeds found nothing")
"""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_applies_to_the_source_as_it_stands(mutant: Mutant) -> None:
    text = (SOURCE / mutant.file).read_text()
    assert text.count(mutant.before) == 1
    compile(text.replace(mutant.before, mutant.after), mutant.file, "exec")


def test_names_of_mutants_are_unique_and_those_of_the_quick_ones_known() -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert len(names) == len(set(names)) >= 24
    assert set(QUICK) <= set(names)


def _found(mutant: Mutant, folder: Path) -> int:
    """Returns the seed that finds a bug."""
    copy = folder / "mainspring"
    shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("node_modules"))  # What is compiled is, but the mutant.
    path = copy / mutant.file
    path.write_text(path.read_text().replace(mutant.before, mutant.after))
    seeds = dict.fromkeys((mutant.seed, *range(FIRST_SEED, FIRST_SEED + SEEDS)))
    done = subprocess.run(
        [sys.executable, "-c", HUNT, *map(str, (STEPS, *seeds))],
        env=os.environ | {"PYTHONPATH": str(folder), "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, f"{mutant.name}: {done.stderr[-2_000:]}"
    return int(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutant", [one for one in MUTANTS if one.name in QUICK], ids=lambda mutant: mutant.name)
def test_proof_finds_a_bug_that_is_planted(mutant: Mutant, tmp_path: Path) -> None:
    _found(mutant, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("mutant", [one for one in MUTANTS if one.name not in QUICK], ids=lambda mutant: mutant.name)
def test_proof_finds_every_bug_that_is_planted(
    mutant: Mutant, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    seed = _found(mutant, tmp_path)
    record_property("seed", seed)  # For `Mutant.seed`: a hunt that begins at it takes seconds.
    prove(seed, steps=STEPS)  # It is the bug that this seed finds: without it all is well.
