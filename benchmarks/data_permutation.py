"""The shuffled order of a large dataset: ours, computed from the position, beside NumPy's, held in memory.

Run as `python -m benchmarks.data_permutation [--quick]`. Both give the order of the same positions; NumPy must make the
whole permutation first, which the figure of a first batch shows.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import numpy as np

from mainspring.data.loader.permutation import Permutation

RUNS = 5
HUGE = 10_000_000_000  # Ten billion rows: 80 GB as an array, so only ours runs here.
BATCH = 256


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    count = 1_000_000 if parser.parse_args().quick else 20_000_000
    positions = np.arange(count)
    batch = np.arange(BATCH)
    works: dict[str, Callable[[], object]] = {
        "ours_all": lambda: Permutation(count, "benchmark", 0)(positions),
        "numpy_all": lambda: np.random.default_rng(0).permutation(count),
        "ours_first_batch": lambda: Permutation(count, "benchmark", 0)(batch),
        "numpy_first_batch": lambda: np.random.default_rng(0).permutation(count)[batch],
        "ours_huge_million": lambda: Permutation(HUGE, "benchmark", 0)(positions[:1_000_000]),
    }
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(RUNS):
        for name, work in works.items():
            seconds[name].append(timed(work))
    median = {name: statistics.median(values) for name, values in seconds.items()}
    for name, value in median.items():
        print(f"{name:20} {value * 1e3:10.3f} ms")
    figures = {
        "count": count,
        "ours_million_per_s": count / median["ours_all"] / 1e6,
        "numpy_million_per_s": count / median["numpy_all"] / 1e6,
        "ours_huge_million_per_s": 1.0 / median["ours_huge_million"],
        "ours_first_batch_ms": median["ours_first_batch"] * 1e3,
        "numpy_first_batch_ms": median["numpy_first_batch"] * 1e3,
        "ratio": median["numpy_all"] / median["ours_all"],
    }
    print(json.dumps({name: round(value, 4) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
