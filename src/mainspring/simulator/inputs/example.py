"""A small lab to try replays on: three teams, two clusters, three days of jobs, all drawn from a seed."""

from __future__ import annotations

from pathlib import Path

import numpy as np

DAY_S = 86_400.0
JOBS = 500
# Team, its part of the jobs, chips of one job with their odds, and the median of its jobs' durations.
_TEAMS = (
    ("manipulation", 0.5, ((8, 0.55), (16, 0.25), (32, 0.15), (64, 0.05)), 3_000.0),
    ("locomotion", 0.3, ((1, 0.5), (4, 0.3), (8, 0.2)), 5_400.0),
    ("evaluation", 0.2, ((1, 0.8), (2, 0.2)), 2_400.0),
)
_FLEET = """\
# Two clusters. What `ms simulate` may be told of one: docs/simulate.md.
clusters:
  - name: east
    prices: {{h200: 3.5}}
    nodes:
      - {{count: {east}, chip: h200, chips: 8, cpus: 192, memory_gib: 2048, levels: {{rack: 4}}}}
  - name: west
    prices: {{a100: 1.6}}
    nodes:
      - {{count: 8, chip: a100, chips: 8, cpus: 96, memory_gib: 1024, levels: {{rack: 4}}}}
"""
_TEAMS_FILE = """\
# The tenant tree: what each team can always have, and its part of the rest.
- {name: manipulation, guarantee: {h200: 64}, weight: 2}
- {name: locomotion, guarantee: {h200: 32, a100: 32}}
- {name: evaluation, guarantee: {a100: 16}, order: attained}
"""
_POLICY_FILE = """\
# What the lab decides about planning; what is left out keeps its default.
preempt: false
"""


def write_example(folder: Path, *, seed: int) -> tuple[Path, ...]:
    """Writes a trace, two fleets, teams and a policy; returns the files.

    Args:
        folder: Where they go; made when it is not there.
        seed: The jobs are drawn from it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        "trace.csv": _trace(seed),
        "fleet.yaml": _FLEET.format(east=12),
        "fleet-64-more.yaml": _FLEET.format(east=20),
        "teams.yaml": _TEAMS_FILE,
        "no-preemption.yaml": _POLICY_FILE,
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return tuple(folder / name for name in texts)


def _trace(seed: int) -> str:
    dice = np.random.default_rng([seed, 1])
    lines = ["submit_s,duration_s,name,team,tier,chip,chips,replicas,replicas_min,requested_s"]
    for submit_s in np.sort(_times(dice)).tolist():
        team, _, sizes, median_s = _TEAMS[_drawn(dice, [part for _, part, _, _ in _TEAMS])]
        chips = sizes[_drawn(dice, [odds for _, odds in sizes])][0]
        per_node = min(chips, 8)
        replicas = chips // per_node
        elastic = replicas > 1 and dice.random() < 0.3
        duration_s = float(np.clip(median_s * np.exp(1.1 * dice.standard_normal()), 60.0, 2 * DAY_S))
        # Owners ask for more than they need, in round numbers.
        requested_s = 1_800.0 * np.ceil(duration_s * (1.2 + 2.0 * dice.random()) / 1_800.0)
        tier = ("opportunistic", "standard", "critical")[_drawn(dice, [0.25, 0.7, 0.05])]
        chip = "h200" if replicas > 1 else "h200|a100@0.4"
        cells = (f"{submit_s:.0f}", f"{duration_s:.0f}", f"{team[:4]}-{chips}", team, tier, chip, per_node, replicas,
                 max(1, replicas // 2) if elastic else replicas, f"{requested_s:.0f}")  # fmt: skip
        lines.append(",".join(map(str, cells)))
    return "\n".join(lines) + "\n"


def _times(dice: np.random.Generator) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Returns when jobs are submitted: three times as often by day as by night."""
    times: list[float] = []
    while len(times) < JOBS:
        second = float(dice.random() * 3 * DAY_S)
        if dice.random() < 0.67 - 0.33 * np.cos(2 * np.pi * second / DAY_S):
            times.append(second)
    return np.array(times)


def _drawn(dice: np.random.Generator, odds: list[float]) -> int:
    return int(np.searchsorted(np.cumsum(odds) / np.sum(odds), dice.random(), side="right"))
