"""From a submit to the first instruction of the job's program, on an idle lab of one machine.

Run as `python -m benchmarks.control_latency [--quick]`. One client submits a job to the local engine of a server on
this machine, waits until it has ended and the server is at rest, and submits the next. `median_s`, `p90_s`: from before
the call until the program, `python -I`, reads the clock as the first thing it does. `ours_s`: the median less twice
that of `python -I -c pass` in the same round, for the agent's interpreter and the program's own. Medians of 3 rounds.
`loop_s` is the time of 6,000,000 turns of `total += i * i % 7`, by which bounds scale (0.20 s is the reference).
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.control_submit import loop_s

from mainspring.app.sdk.lab import Lab, job

ROUNDS, JOBS, QUICK_JOBS = 3, 20, 5
REST_S = 1.0  # What the loop has to do after a job's end is not the next one's time.
PROGRAM = "import time; print(time.time())"


def interpreter_s(times: int) -> float:
    found = []
    for _ in range(times):
        begun_s = time.perf_counter()
        subprocess.run([sys.executable, "-I", "-c", "pass"], check=True)
        found.append(time.perf_counter() - begun_s)
    return statistics.median(found)


def latencies_s(lab: Lab, times: int) -> list[float]:
    found = []
    for number in range(times + 1):  # The first one warms up.
        begun_s = time.time()
        made = lab.run(job(f"latency-{number}", [sys.executable, "-I", "-c", PROGRAM]))
        lab.wait(made.id, timeout_s=60)
        found.append(float(b"".join(lab.logs(made.id))) - begun_s)
        time.sleep(REST_S)
    return found[1:]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help=f"one round of {QUICK_JOBS} jobs")
    rounds, times = (1, QUICK_JOBS) if parser.parse_args().quick else (ROUNDS, JOBS)
    every: dict[str, list[float]] = {}
    for _ in range(rounds):
        folder = Path(tempfile.mkdtemp(prefix="control-latency-"))
        lab = Lab(folder / "home")
        lab.up(port=0)
        try:
            taken, bare_s = sorted(latencies_s(lab, times)), interpreter_s(times)
        finally:
            lab.down()
            shutil.rmtree(folder, ignore_errors=True)
        median_s = statistics.median(taken)
        figures = {"loop_s": loop_s(), "median_s": median_s, "p90_s": taken[int(0.9 * (len(taken) - 1))]}
        figures |= {"python_s": bare_s, "ours_s": median_s - 2 * bare_s}
        print(json.dumps({name: round(figure, 3) for name, figure in figures.items()}), flush=True)
        for name, figure in figures.items():
            every.setdefault(name, []).append(figure)
    print(json.dumps({name: round(statistics.median(some), 3) for name, some in every.items()}))


if __name__ == "__main__":
    main()
