"""Fault proofs: worlds in which anything may fail and nothing may be wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest

from mainspring.simulator import prove
from mainspring.simulator.nodes.rare import Rare

SEEDS = 3
SEEDS_SOAK = 200
SOAK_PARTS = 20
SEEDS_RARE = 150  # Most show all within forty.


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_control_keeps_its_promises_whatever_fails(seed: int) -> None:
    trace = prove(seed, steps=100)
    assert trace.lines


@pytest.mark.slow
def test_trace_of_a_seed_is_the_same_whatever_the_hash_seed() -> None:
    script = "from mainspring.simulator import prove; print(prove(14, steps=40).digest)"
    digests = {
        subprocess.run(
            [sys.executable, "-c", script],
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(digests) == 1
    assert len(digests.pop().strip()) == 16


@pytest.mark.slow
def test_traces_of_two_seeds_differ() -> None:
    assert prove(103, steps=5).digest != prove(105, steps=5).digest


@pytest.mark.soak
@pytest.mark.parametrize("part", range(SOAK_PARTS))
def test_control_keeps_its_promises_over_many_seeds(part: int) -> None:
    for seed in range(part, SEEDS_SOAK, SOAK_PARTS):
        prove(1_000 + seed, steps=300)


@pytest.mark.soak
def test_every_rare_state_is_reached_by_some_seed() -> None:
    seen: Counter[Rare] = Counter()
    for seed in range(SEEDS_RARE):
        seen.update(prove(5_000 + seed, steps=300).seen)
        if all(seen[rare] for rare in Rare):
            return
    assert not [rare.value for rare in Rare if not seen[rare]]
