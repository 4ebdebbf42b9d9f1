"""The events of a Slurm simulator as a workload: cores on nodes, true runtimes beside the limits that were asked for.

Source: the submission format of the UB Slurm simulator ("-dt SECONDS -e submit_batch_job | ARGUMENTS OF sbatch").
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import ceil
from pathlib import Path

from mainspring.domain.errors import InvalidInput, MainspringError
from mainspring.domain.ids import JobId, TeamName
from mainspring.domain.job import ANY_CHIP, DURATION_S_MAX, JobSpec, Option, Role
from mainspring.simulator.inputs.files import TABLE_BYTES_MAX, read_text
from mainspring.simulator.inputs.workload import ATTEMPTS_MAX, COMMAND, JOBS_MAX, TraceJob, Workload, slug

_LINE = re.compile(r"-dt\s+(\S+)\s+-e\s+(\w+)\s*(?:\|\s*(.*))?")
_LIMIT = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")
_GIB = {"K": 1 / (1 << 20), "M": 1 / (1 << 10), "": 1 / (1 << 10), "G": 1.0, "T": 1_024.0}


def slurm_events(path: Path) -> Workload:
    """Returns the workload in a Slurm simulator's events: users as teams, jobs of one user that ask for the same alike.

    `--exclusive` and `--constraint` are not kept.

    Raises:
        NotFound: It cannot be read.
        InvalidInput: A line of it cannot be read.
    """
    jobs: list[TraceJob] = []
    left_out: dict[str, int] = {}
    roles: dict[tuple[object, ...], tuple[Role, ...]] = {}
    for number, line in enumerate(read_text(path, "a trace", bytes_max=TABLE_BYTES_MAX).splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        found = _LINE.fullmatch(line.strip())
        where = f"{path}, line {number}"
        if found is None:
            raise InvalidInput("read a trace", on=where, got=repr(line[:80]), wanted="-dt SECONDS -e EVENT | ARGUMENTS")
        if found[2] != "submit_batch_job":
            left_out[found[2]] = left_out.get(found[2], 0) + 1
            continue
        try:
            jobs.append(_job(len(jobs) + 1, found[1], _arguments((found[3] or "").split()), roles))
        except MainspringError as error:
            raise InvalidInput(
                "read a trace", on=f"{where}, {error.on}" if error.on else where, got=error.got, wanted=error.wanted
            ) from error
        if len(jobs) > JOBS_MAX:
            raise InvalidInput("read a trace", on=where, got="more jobs", wanted=f"at most {JOBS_MAX}")
    if not jobs:
        raise InvalidInput("read a trace", on=str(path), got="no jobs", wanted="at least one")
    return Workload(
        name=path.stem, jobs=tuple(sorted(jobs, key=lambda each: (each.submit_s, each.job))), left_out=left_out
    )


def _arguments(words: list[str]) -> Mapping[str, str]:
    """Returns what was said, by option."""
    said: dict[str, str] = {}
    place = 0
    while place < len(words):
        word = words[place]
        place += 1
        if word.startswith("--"):
            name, _, value = word.partition("=")
            said[name] = value
        elif word.startswith("-") and place < len(words):
            said[word] = words[place]
            place += 1
    return said


def _job(
    place: int, submit: str, said: Mapping[str, str], roles: dict[tuple[object, ...], tuple[Role, ...]]
) -> TraceJob:
    nodes = int(_number(said, "-N", "1", least=1, most=100_000))
    cores = ceil(_number(said, "-n", str(nodes), least=1, most=1e6) / nodes)
    chips = _chips(said.get("--gres", ""))
    memory_gib = _memory_gib(said.get("--mem", "0"))
    limit_s = _limit_s(said["-t"]) if "-t" in said else 0.0
    key = (nodes, cores, chips, memory_gib)
    if key not in roles:
        option = Option(chip=ANY_CHIP, chips=chips, cpus=cores, memory_gib=memory_gib, replicas=nodes)
        roles[key] = (Role(command=COMMAND, options=(option,)),)
    return TraceJob(
        job=JobId(f"job-{place:07d}"),
        spec=JobSpec(
            name=slug(f"{nodes}x{cores}-{limit_s / 60:.0f}m-{said.get('-p', '')}"),
            team=TeamName(slug(said.get("--uid") or "lab")),
            roles=roles[key],
            duration_s=limit_s,
            attempts_max=ATTEMPTS_MAX,
        ),
        submit_s=_number({"-dt": submit}, "-dt", "", least=0.0, most=1e12),
        duration_s=_number(said, "-sim-walltime", "", least=0.0, most=DURATION_S_MAX),
    )


def _number(said: Mapping[str, str], option: str, default: str, *, least: float, most: float) -> float:
    text = said.get(option, default)
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        raise InvalidInput("read a trace", on=option, got=repr(text[:80]), wanted=f"a number, {least:g} to {most:g}")
    return value


def _limit_s(text: str) -> float:
    """Returns seconds; as sbatch reads them: minutes, minutes:seconds, hours:minutes:seconds, days-hours and so on."""
    found = _LIMIT.fullmatch(text)
    if found is None:
        raise InvalidInput("read a trace", on="-t", got=repr(text[:80]), wanted="a limit such as 3-00:00:00 or 30")
    days, first, second, third = (None if part is None else int(part) for part in found.groups())
    if days is not None:
        return min(((days * 24 + (first or 0)) * 60 + (second or 0)) * 60.0 + (third or 0), DURATION_S_MAX)
    parts = [part for part in (first, second, third) if part is not None]
    hours, minutes, seconds = {1: (0, parts[0], 0), 2: (0, *parts), 3: tuple(parts)}[len(parts)]
    return min((hours * 60 + minutes) * 60.0 + seconds, DURATION_S_MAX)


def _memory_gib(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)B?", text)
    if found is None:
        raise InvalidInput("read a trace", on="--mem", got=repr(text[:80]), wanted="a size such as 32000M or 62G")
    return round(float(found[1]) * _GIB[found[2]], 3)


def _chips(text: str) -> int:
    found = re.fullmatch(r"(?:gpu(?::[A-Za-z][\w.-]*)?(?::(\d+))?)?", text)
    if found is None:
        raise InvalidInput("read a trace", on="--gres", got=repr(text[:80]), wanted="gpu:2 or gpu:TYPE:2")
    return int(found[1] or 1) if text else 0
