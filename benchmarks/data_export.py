"""Exporting a version of humanoid episodes to LeRobot v3.0, beside having taken it in; no video is encoded again.

Run as `python -m benchmarks.data_export [--quick]`, with the recordings of `../shared/robots` there. Each run takes the
source into a fresh store, then exports the version to a fresh folder, in one process; both are CPU time of the process
and its children. A picture's statistics are the source's own. Quick takes four of the episodes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from mainspring.data.export.export import ExportTo, prepare_export, write_export
from mainspring.data.export.run import ExportReport
from mainspring.data.export.survey import ExportRequest
from mainspring.data.intake.ingest import ingest
from mainspring.objects import open_store
from mainspring.testing.time_and_chance import FakeClock

RUNS = 3
LOOP_TURNS = 6_000_000
QUICK_EPISODES = 4
SOURCE = Path(__file__).parents[2] / "shared" / "robots" / "unitree_g1_bottle"


def cpu_s() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def loop_s() -> float:
    """Returns the CPU time of a loop that tells how fast this machine is just now."""
    begun, total = time.process_time(), 0
    for i in range(LOOP_TURNS):
        total += i * i % 7
    return time.process_time() - begun


def first_episodes(source: Path, root: Path, count: int) -> Path:
    """Copies the first episodes of a LeRobot v2.1 dataset."""
    info = json.loads((source / "meta" / "info.json").read_text())
    (root / "meta").mkdir(parents=True)
    (root / "meta" / "info.json").write_text(json.dumps({**info, "total_episodes": count}))
    (root / "meta" / "tasks.jsonl").write_bytes((source / "meta" / "tasks.jsonl").read_bytes())
    for name in ("episodes.jsonl", "episodes_stats.jsonl"):
        lines = (source / "meta" / name).read_text().splitlines()[:count]
        (root / "meta" / name).write_text("\n".join(lines))
    for path in sorted(source.rglob("episode_*")):
        if int(path.stem.rpartition("_")[2]) < count:
            place = root / path.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, place)
    return root


def once(source: Path, folder: Path) -> tuple[float, float, ExportReport]:
    """Returns the CPU time of an ingest and of an export, and what the export wrote."""
    store = open_store(str(folder / "store"))
    begun = cpu_s()
    version = ingest(source, store, "g1", clock=FakeClock()).version
    ingest_s = cpu_s() - begun
    assert version is not None
    begun = cpu_s()
    export = prepare_export(store, version, ExportTo.LEROBOT_V3, ExportRequest(), scratch=folder / "scratch")
    report = write_export(store, export, lambda: open_store(str(folder / "out")), scratch=folder / "scratch")
    return ingest_s, cpu_s() - begun, report


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    chosen = parser.parse_args()
    if not SOURCE.is_dir():
        raise SystemExit(f"The recordings are not there: {SOURCE}")
    loops = [loop_s()]
    taken: list[float] = []
    written: list[float] = []
    reports: list[ExportReport] = []
    with tempfile.TemporaryDirectory() as folder:
        source = first_episodes(SOURCE, Path(folder, "source"), QUICK_EPISODES) if chosen.quick else SOURCE
        for run in range(RUNS):
            ingest_s, export_s, made = once(source, Path(folder, str(run)))
            taken.append(ingest_s)
            written.append(export_s)
            reports.append(made)
            shutil.rmtree(Path(folder, str(run)))
            assert (made.copied, made.again) == (made.frames, 0), made
            loops.append(loop_s())
            print(f"taken in {ingest_s:.3f} s of CPU, exported {export_s:.3f} s: {export_s / ingest_s:.3f}")
    report = reports[-1]
    print(f"{report.episodes} episodes, {report.frames} frames copied into {report.files} files")
    result = {
        "ratio": statistics.median(out / into for into, out in zip(taken, written, strict=True)),
        "ingest_cpu_s": statistics.median(taken),
        "export_cpu_s": statistics.median(written),
        "export_mib": report.size_bytes / 2**20,
        "frames": report.frames,
        "loop_s": statistics.median(loops),
    }
    print(json.dumps({name: round(value, 4) for name, value in result.items()}))


if __name__ == "__main__":
    main()
