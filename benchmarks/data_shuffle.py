"""How well the loader's order shuffles: blocks of 10 rows from L lanes, beside a permutation of all rows.

Run as `python -m benchmarks.data_shuffle [--quick]`, on recordings of a humanoid (where they are) and on 50 episodes of
300 steps whose states are a random walk. Over batches of 64:

- `episodes`: different ones in a batch.
- `near`: part of a batch's samples with another of the same batch within 10 rows.
- `repeat`: part of a batch's samples within 10 rows of one of the batch before.
- `spread`: standard deviation of the batches' mean states, by what independent samples would give: 1 is as good as
  independent, and what is over it slows learning like a smaller batch: B / spread^2.
- `echo`: correlation of consecutive batches' mean states.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from mainspring.data.loader.order import Blocks, Order, Runs

HUMANOID = Path(__file__).parents[2] / "shared" / "robots" / "unitree_g1_bottle" / "data"
BATCH, GOP = 64, 10
ORDERS = {
    "one lane": (GOP, 1),
    "24 lanes": (GOP, 24),
    "96 lanes": (GOP, 96),
    "384 lanes": (GOP, 384),
    "global": (1, 96),
}


def made() -> list[NDArray[np.float64]]:
    """Returns the states of 50 episodes."""
    dice = np.random.default_rng(0)
    return [dice.normal(size=14) + np.cumsum(dice.normal(0, 0.05, (300, 14)), axis=0) for _ in range(50)]


def humanoid() -> list[NDArray[np.float64]]:
    paths = sorted(HUMANOID.glob("*/episode_*.parquet"))
    tables = (pq.read_table(path, columns=["observation.state"]) for path in paths)
    return [np.array(table["observation.state"].to_pylist(), np.float64) for table in tables]


def measure(episodes: list[NDArray[np.float64]], size: int, lanes: int, batches: int) -> dict[str, float]:
    lengths = np.array([len(episode) for episode in episodes], np.int64)
    starts = np.cumsum(lengths) - lengths
    runs = Runs(starts=starts, lengths=lengths, phases=np.zeros_like(starts))
    order = Order([Blocks(runs, size)], ["measured"], [1.0], seed=0, lanes=lanes)
    rows = order.samples(np.arange(batches * BATCH)).row.reshape(batches, BATCH)
    values = np.concatenate(episodes)
    values = values[:, values.std(axis=0) > 1e-6]
    values = (values - values.mean(axis=0)) / values.std(axis=0)
    means = values[rows].mean(axis=1)
    owner = np.repeat(np.arange(len(lengths)), lengths)[rows]
    far = 1 << 40  # Rows of two episodes are not near each other.
    place = rows + owner * far
    within = np.abs(place[:, :, None] - place[:, None, :]) < GOP
    before = np.abs(place[1:, :, None] - place[:-1, None, :]) < GOP
    centred = means - means.mean(axis=0)
    echo = (centred[1:] * centred[:-1]).mean(axis=0) / (centred**2).mean(axis=0)
    return {
        "episodes": float(np.mean([len(np.unique(batch)) for batch in owner])),
        "near": float((within.sum(axis=2) > 1).mean()),
        "repeat": float(before.any(axis=2).mean()),
        "spread": float(np.sqrt((centred**2).mean()) * np.sqrt(BATCH)),
        "echo": float(echo.mean()),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    chosen = parser.parse_args()
    sets = {"made": made(), **({"humanoid": humanoid()} if HUMANOID.exists() else {})}
    result: dict[str, dict[str, dict[str, float]]] = {}
    for name, episodes in sets.items():
        rows = sum(map(len, episodes))
        batches = rows // BATCH * (2 if chosen.quick else 10)  # Epochs.
        print(f"{name}: {len(episodes)} episodes, {rows:,} rows, {batches:,} batches of {BATCH}")
        print(f"  {'order':10} {'episodes':>9} {'near':>7} {'repeat':>7} {'spread':>7} {'echo':>7}")
        result[name] = {}
        for title, (size, lanes) in ORDERS.items():
            found = measure(episodes, size, lanes, batches)
            result[name][title] = {key: round(value, 3) for key, value in found.items()}
            line = " ".join(f"{value:7.3f}" for key, value in found.items() if key != "episodes")
            print(f"  {title:10} {found['episodes']:9.1f} {line}", flush=True)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
