"""Damages to small recordings of every kind that is read, and how many of them are noticed.

Run as `python -m benchmarks.data_damage [--quick] [--count N]`. Each of 300 seeded damages (ends cut off, bits and
bytes flipped, holes, blocks removed, doubled and moved) is taken in as any source is. It is refused, or marked with
what is gone, or harmless: every episode has the same values, times, task and decoded frames. Else it is undetected, and
silent if anything objects that is not ours: `mcap`, `rosbags`, SQLite's own check, pyulog, pyarrow, h5py, strict
`ffmpeg`, or a checksum, count, length or statistic of the file.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter, defaultdict

from tests.data.damage.sources import SOURCES
from tests.data.damage.trial import TRIALS, Outcome, trials

QUICK = 60
UNNOTICED = (Outcome.SILENT, Outcome.FAULT, Outcome.UNDETECTED)


def loop_s() -> float:
    """Returns the CPU time of a loop, to compare machines by."""
    started, total = time.process_time(), 0
    for i in range(6_000_000):
        total += i * i % 7
    return time.process_time() - started


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--count", type=int, default=TRIALS)
    chosen = parser.parse_args()
    found: dict[str, Counter[Outcome]] = defaultdict(Counter)
    started = time.process_time()
    for one in trials(0, QUICK if chosen.quick else chosen.count):
        found[one.kind][one.outcome] += 1
        if one.outcome in UNNOTICED:
            print(one)
    cpu_s = time.process_time() - started
    total: Counter[Outcome] = sum(found.values(), Counter())
    print(f"{'':40s}" + "".join(f"{outcome.value:>12s}" for outcome in Outcome))
    for kind, counts in [*sorted(found.items()), ("all", total)]:
        print(f"{kind:40s}" + "".join(f"{counts[outcome]:12d}" for outcome in Outcome))
    harmful = total.total() - total[Outcome.HARMLESS]
    result = {
        "silent": total[Outcome.SILENT],
        "undetected": total[Outcome.UNDETECTED] + total[Outcome.SILENT],
        "detected": round((total[Outcome.REFUSED] + total[Outcome.MARKED]) / max(harmful, 1), 4),
        "refused": total[Outcome.REFUSED],
        "marked": total[Outcome.MARKED],
        "harmless": total[Outcome.HARMLESS],
        "faults": total[Outcome.FAULT],
        "damages": total.total(),
        "undetected_by_format": {
            kind: count
            for kind in sorted(SOURCES)
            if (count := found[kind][Outcome.UNDETECTED] + found[kind][Outcome.SILENT])
        },
        "cpu_s": round(cpu_s, 2),
        "loop_s": round(loop_s(), 4),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
