"""Reads what arrived in the inboxes into their datasets, once: `python -m mainspring take-in`."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path

from mainspring.app.base.system import SystemClock
from mainspring.app.server.arrivals import OUTCOMES, RECIPE, forget_claims, settle
from mainspring.data import (
    Inbox,
    IngestReport,
    Unit,
    ingest_units,
    publish_judged,
    recipe_from_yaml,
    survey_of_units,
    units_in,
)
from mainspring.domain.errors import Conflict, MainspringError
from mainspring.domain.ports import Clock
from mainspring.objects import ObjectStore, open_store

ROUND_UNITS_MAX = 256  # What becomes one version at most; the rest of an inbox follows at once.
ABANDONED_S = 7 * 86_400.0  # A robot that was cut off over a long weekend still goes on where it was.
OUTCOMES_S = 30 * 86_400.0  # Who asks later what became of a recording sends it again, which changes nothing.
_NICE = 10  # The controller of the same machine comes first.


def main() -> int:
    """Reads what is there and prints a JSON line a round; returns the exit code."""
    parser = argparse.ArgumentParser(description="Reads recordings that arrived into their datasets, once.")
    parser.add_argument("--inboxes", type=Path, required=True, help="folder of inboxes, one a dataset")
    parser.add_argument("--objects", required=True, help="URL of the object store")
    words = parser.parse_args()
    os.nice(_NICE)
    failed = False
    with open(words.inboxes / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for inbox in sorted(path for path in words.inboxes.iterdir() if path.is_dir()):
            try:
                for report in take_in(inbox, open_store(words.objects), SystemClock()):
                    version = report.version.name if report.version else ""
                    facts = {"dataset": report.dataset, "version": version, "added": report.added}
                    print(json.dumps({**facts, "refused": report.refused}), flush=True)
            except MainspringError as error:  # Of one dataset; the others go on.
                print(f"arrivals of {inbox.name}: {error}", file=sys.stderr, flush=True)
                failed = True
    return int(failed)


def take_in(inbox: Path, store: ObjectStore, clock: Clock) -> Iterator[IngestReport]:
    """Reads an inbox empty, yielding a report a round.

    Args:
        inbox: The inbox, called like its dataset.

    Raises:
        StorageFull: There is no room; everything not yet read stays in the inbox.
        Unavailable: The store does not answer; likewise.
    """
    _sweep(inbox, clock)
    recipe = recipe_from_yaml(inbox / RECIPE) if (inbox / RECIPE).exists() else None
    while units := list(islice(units_in(inbox, recipe), ROUND_UNITS_MAX)) if _holds_any(inbox) else []:
        reasons: Mapping[str, str]
        try:
            report = ingest_units(
                units,
                survey_of_units(units),
                store,
                inbox.name,
                clock=clock,
                recipe=recipe,
                publish=partial(publish_judged, clock=clock),
                arrived_ns=lambda unit: (inbox / unit.name).stat().st_mtime_ns,  # When its last byte was written.
            )
            reasons = _reasons(units, report)
        except Conflict as error:  # A gate keeps these episodes back: they wait as a candidate, for people.
            report, reasons = None, {unit.name: str(error) for unit in units}
        for unit in units:
            settle(inbox, unit.name, reasons.get(unit.name, ""))
        if report is not None:
            yield report


def _holds_any(inbox: Path) -> bool:
    return any(not entry.name.startswith(".") for entry in os.scandir(inbox))


def _reasons(units: list[Unit], report: IngestReport) -> dict[str, str]:
    """Returns for each unit why something of it was left out; an episode is named by its file, "#", and a number."""
    reasons: dict[str, list[str]] = {}
    for left in report.left_out:
        reasons.setdefault(left.source.partition("#")[0], []).append(left.reason)
    told = {name: "; ".join(dict.fromkeys(found))[:1_000] for name, found in reasons.items()}
    if report.refused > len(report.left_out):  # More than a report names: none of these files may be deleted.
        return {unit.name: told.get(unit.name, f"one of {report.refused} that were left out") for unit in units}
    return told


def _sweep(inbox: Path, clock: Clock) -> None:
    """Forgets what was sent in part and given up, and what became of recordings long ago."""
    Inbox(inbox).sweep(clock, older_s=ABANDONED_S)
    forget_claims(inbox, clock, older_s=ABANDONED_S)
    old_s = clock.now_s() - OUTCOMES_S
    for path in (inbox / OUTCOMES).glob("*.json"):
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime < old_s:
                path.unlink()


if __name__ == "__main__":
    sys.exit(main())
