"""One scrape of a large lab: 100,000 jobs that wait, 2,000 attempts on 12,500 nodes of 5 clusters, 40 teams.

Run as `python -m benchmarks.metrics_scrape [--quick]`. One controller with its real store (SQLite), loop and planner in
this process; clusters answer from memory. Once attempts have started it is scraped 20 times while nothing else goes on.
`scrape_s` is the median of `/metrics` as the server makes it (wanted: at most 0.2 s at a `loop_s` of 0.20, the time of
6,000,000 turns of `total += i * i % 7`), `series` how many samples it has (wanted: at most 5,000), `bytes` its length.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from random import Random

from benchmarks.control_submit import loop_s
from benchmarks.fleet_load import spec_of
from benchmarks.planner_scale import CLUSTERS, inventory

from mainspring.app.base.system import SystemClock, SystemDice
from mainspring.control import LAB_ITSELF, AgentAccess, Control, Settings, open_store
from mainspring.control.api_metrics import Metrics
from mainspring.control.store.records import ACTIVE_MAX
from mainspring.domain.answers import BATCH_MAX, Submit, SubmitBatch
from mainspring.domain.ids import TeamName
from mainspring.domain.job import LAB
from mainspring.domain.team import Team, WaitingLimits
from mainspring.testing.fake_engine import FakeEngine

NODES, PENDING, TEAMS, SCRAPES, TICKS = 12_500, 100_000, 40, 20, 4


def filled(folder: Path, nodes: int, pending: int) -> Control:
    """Returns a controller with that many jobs, of which as many as find room have started."""
    clock = SystemClock()
    shown = [inventory(index, nodes // CLUSTERS) for index in range(CLUSTERS)]
    control = Control(
        store=open_store(f"sqlite:///{folder / 'state.db'}"),
        engines={one.cluster: FakeEngine(one, clock) for one in shown},
        clock=clock,
        dice=SystemDice(),
        access=AgentAccess(controller_urls=("http://127.0.0.1:1",), objects_url=f"file://{folder}", key="k" * 32),
        settings=Settings(limits=WaitingLimits(person_jobs=ACTIVE_MAX, team_jobs=ACTIVE_MAX)),
    )
    teams = [TeamName(f"team-{index}") for index in range(TEAMS)]
    for team in (TeamName(LAB), *teams):
        control.people.set_team(Team(name=team))
    dice = Random(1)
    for first in range(0, pending, BATCH_MAX):
        submits = [
            Submit(spec=spec_of(f"job-{index}", dice, dice.choice(teams)), key=f"key-{index}")
            for index in range(first, min(first + BATCH_MAX, pending))
        ]
        control.submit_batch(SubmitBatch(submits=tuple(submits)))
        print(f"\r{first + len(submits):,} of {pending:,} jobs", end="", file=sys.stderr, flush=True)
    loop = control.new_loop()
    for tick in range(TICKS):
        loop.tick()
        print(f"\r{tick + 1} of {TICKS} ticks{' ' * 20}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return control


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of everything")
    part = 10 if parser.parse_args().quick else 1
    with tempfile.TemporaryDirectory() as folder:
        control = filled(Path(folder), NODES // part, PENDING // part)
        metrics, spent_s, told = Metrics(control), [], b""
        for _ in range(SCRAPES):
            begun_s = time.monotonic()
            told, _ = metrics.read(LAB_ITSELF, "text/plain")
            spent_s.append(time.monotonic() - begun_s)
        control.store.close()
    series = sum(not line.startswith(b"#") for line in told.splitlines())
    found = {"scrape_s": statistics.median(spent_s), "worst_s": max(spent_s), "series": series, "bytes": len(told)}
    print(json.dumps({**found, "loop_s": loop_s()}))


if __name__ == "__main__":
    main()
