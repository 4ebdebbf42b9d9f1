"""Where evaluations are kept: beside the checkpoint that they are of, and as long as its job has any.

checkpoints/JOB/evaluations/STEP/NAME/report.json      and its tables, plots and films
checkpoints/JOB/comparisons/STEP/OTHER.STEP.NAME.json  of this step, as the first, with another
checkpoints/JOB/gates/STEP/NAME.json
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

from mainspring.checkpoint import job_folder
from mainspring.domain.codec import decode, encode
from mainspring.domain.errors import DamagedData, InvalidMessage, NotAllowed, NotFound
from mainspring.domain.ids import JobId
from mainspring.objects import ObjectStore
from mainspring.objects.port import checked_key
from mainspring.robots.evaluation.report import ComparisonReport, EvaluationReport, GateRecord

REPORT = "report.json"
_OTHERS = re.compile(r"[^A-Za-z0-9_-]+")
Kept = TypeVar("Kept", EvaluationReport, ComparisonReport, GateRecord)


def evaluation_name(environment: str, *, seed: int, starts: int) -> str:
    """Returns the name of an evaluation: "held-out" without an environment."""
    if not environment:
        return "held-out"
    return f"{_OTHERS.sub('-', environment).strip('-') or 'own'}.seed{seed}.starts{starts}"


def evaluation_folder(job: JobId, step: int, name: str) -> str:
    """Returns where an evaluation's objects lie."""
    return f"{job_folder(job)}/evaluations/{step}/{name}"


def keep_evaluation(store: ObjectStore, report: EvaluationReport, files: Mapping[str, bytes]) -> None:
    """Keeps an evaluation, in place of an earlier one of the same name; its report comes last and makes it whole.

    Args:
        files: What its `files` name.

    Raises:
        NotAllowed: The store may not be written to.
        Unavailable: It does not answer.
    """
    assert sorted(files) == sorted(report.files)
    folder = evaluation_folder(report.job, report.step, report.name)
    for name, data in files.items():
        store.put(f"{folder}/{name}", data)
    store.put(f"{folder}/{REPORT}", encode(report))


def keep_if_allowed(store: ObjectStore, report: EvaluationReport, files: Mapping[str, bytes]) -> bool:
    """Keeps an evaluation, and returns whether that was allowed: not with a checkpoint of another team, which may be
    read all the same.

    Args:
        files: As for `keep_evaluation`.

    Raises:
        Unavailable: The store does not answer.
    """
    try:
        keep_evaluation(store, report, files)
    except NotAllowed:
        return False
    return True


def find_evaluation(store: ObjectStore, job: JobId, step: int, name: str) -> EvaluationReport | None:
    """Returns an evaluation, None where there is none.

    Raises:
        DamagedData: Its report cannot be read.
    """
    return _read(store, f"{evaluation_folder(job, step, name)}/{REPORT}", EvaluationReport)


def evaluations(store: ObjectStore, job: JobId) -> tuple[EvaluationReport, ...]:
    """Returns every evaluation of a job's checkpoints, newest step first.

    Raises:
        DamagedData: A report cannot be read.
    """
    return _all(store, f"{job_folder(job)}/evaluations", REPORT, EvaluationReport)


def keep_comparison(store: ObjectStore, job: JobId, step: int, found: ComparisonReport) -> None:
    """Keeps a comparison with the checkpoint that is its first."""
    key = f"{job_folder(job)}/comparisons/{step}/{found.second.replace('@', '.')}.{found.name}.json"
    store.put(key, encode(found))


def comparisons(store: ObjectStore, job: JobId) -> tuple[ComparisonReport, ...]:
    """Returns every comparison whose first is of a job, newest step first."""
    return _all(store, f"{job_folder(job)}/comparisons", ".json", ComparisonReport)


def keep_gate(store: ObjectStore, job: JobId, step: int, gate: GateRecord) -> None:
    """Keeps what a gate says of a checkpoint, in place of what it said before.

    Raises:
        InvalidInput: Its name cannot be one.
    """
    key = f"{job_folder(job)}/gates/{step}/{gate.name}.json"
    store.put(checked_key(key, what="the name of a gate"), encode(gate))


def gates(store: ObjectStore, job: JobId, step: int) -> tuple[GateRecord, ...]:
    """Returns what every gate says of a checkpoint, in order of name."""
    return _all(store, f"{job_folder(job)}/gates/{step}", ".json", GateRecord)


def _all(store: ObjectStore, folder: str, ending: str, kind: type[Kept]) -> tuple[Kept, ...]:
    keys = [seen.key for seen in store.list(folder) if seen.key.endswith(ending)]
    depth = folder.count("/") + 1

    def order(key: str) -> tuple[int, str]:
        step = key.split("/")[depth]
        return (-int(step) if step.isdigit() else 0, key)

    found = (_read(store, key, kind) for key in sorted(keys, key=order))
    return tuple(each for each in found if each is not None)


def _read(store: ObjectStore, key: str, kind: type[Kept]) -> Kept | None:
    try:
        return decode(kind, store.get(key), shown=True)
    except NotFound:
        return None
    except InvalidMessage as error:
        raise DamagedData("read what was kept of an evaluation", on=key, got=str(error)) from error
