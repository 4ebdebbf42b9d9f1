"""Traces as workloads: Alibaba's openb, Microsoft's Philly, and a plain CSV; which kind a file is, its start tells.

What a trace cannot say is left open: jobs that name no chip run on any, and owners who gave no limit gave none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from pathlib import Path

from mainspring.domain.errors import InvalidInput, MainspringError
from mainspring.domain.ids import ChipName, JobId, TeamName
from mainspring.domain.job import ANY_CHIP, CHIP_MEMORY_GIB_MAX, DURATION_S_MAX, JobSpec, Option, Role, Tier
from mainspring.simulator.inputs.event_trace import event_log
from mainspring.simulator.inputs.files import Row, Rows, read_start
from mainspring.simulator.inputs.slurm_trace import slurm_events
from mainspring.simulator.inputs.workload import ATTEMPTS_MAX, COMMAND, TraceJob, Workload, slug

PLAIN = (
    "submit_s", "duration_s", "job", "name", "team", "tier", "chip", "chips", "replicas", "replicas_min", "cpus",
    "memory_gib", "chip_memory_gib", "within", "prefer", "requested_s", "inputs", "after",
)  # fmt: skip
_OPENB_POD = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec", "qos", "creation_time")
_PHILLY = ("timestamp", "duration", "num_gpus", "gpu_time", "cluster")
_QOS_TIERS = {"BE": Tier.OPPORTUNISTIC, "Guaranteed": Tier.CRITICAL}  # Latency-sensitive and burstable: standard.


def load(path: Path, *, node_chips: int = 8) -> Workload:
    """Returns the workload in a trace, whatever kind of trace it is.

    Args:
        path: The file: openb's pods, Philly's jobs, a Slurm simulator's events, a plain CSV, or our own event log.
        node_chips: How many chips a job can have on one node, where the trace counts only chips.

    Raises:
        NotFound: It cannot be read.
        InvalidInput: It is of no known kind, or a row of it cannot be read; the line is named.
    """
    start = read_start(path, "a trace").lstrip()
    if start.startswith(("{", "[")):
        return event_log(path)
    if start.startswith("-dt"):
        return slurm_events(path)
    columns = {cell.strip() for cell in start.partition("\n")[0].split(",")}
    if columns >= set(_OPENB_POD):
        return openb(path)
    return philly(path, node_chips=node_chips) if columns >= set(_PHILLY) else plain(path)


def plain(path: Path) -> Workload:
    """Returns the workload in a plain CSV; the columns are those of `PLAIN`, the first two are needed.

    Args:
        path: The file. `chip` may name alternatives with their speed ("h100|a100@0.4"); `inputs` and `after` are lists
            with spaces between; `after` names values of `job`.

    Raises:
        NotFound: It cannot be read.
        InvalidInput: A row of it cannot be read.
    """
    rows = Rows(path, "a trace")
    rows.require(PLAIN, PLAIN[:2])
    roles = _Roles()
    return _workload(path, rows, lambda row, line: _plain_job(row, line, roles))


def _plain_job(row: Row, place: int, roles: _Roles) -> TraceJob:
    job = JobId(slug(row.text("job", f"job-{place:07d}")))
    chips = row.number("chips", 1.0, most=65_536)
    replicas = row.whole("replicas", 1, least=1, most=100_000)
    key = (
        row.text("chip", ANY_CHIP), chips, replicas, row.whole("replicas_min", 0, most=100_000),
        row.number("cpus", 0.0, most=1e6), row.number("memory_gib", 0.0, most=1e7),
        row.number("chip_memory_gib", 0.0, most=CHIP_MEMORY_GIB_MAX),
        row.text("within", ""), row.text("prefer", ""),
    )  # fmt: skip
    tier = row.text("tier", Tier.STANDARD.value)
    if tier not in [each.value for each in Tier]:
        raise row.error("tier", repr(tier), " or ".join(each.value for each in Tier))
    spec = JobSpec(
        name=slug(row.text("name", f"{chips:g}x{replicas}")),
        team=TeamName(slug(row.text("team", "lab"))),
        tier=Tier(tier),
        roles=roles.of(key, lambda: _plain_options(row, *key)),
        inputs=tuple(row.text("inputs", "").split()),
        after=tuple(JobId(slug(name)) for name in row.text("after", "").split()),
        duration_s=row.number("requested_s", 0.0, most=DURATION_S_MAX),
        attempts_max=ATTEMPTS_MAX,
    )
    duration_s = row.number("duration_s", most=DURATION_S_MAX)
    return TraceJob(job=job, spec=spec, submit_s=row.number("submit_s"), duration_s=duration_s)


def _plain_options(
    row: Row,
    chip: str,
    chips: float,
    replicas: int,
    replicas_min: int,
    cpus: float,
    memory_gib: float,
    chip_memory_gib: float,
    within: str,
    prefer: str,
) -> Iterator[Option]:
    for alternative in chip.split("|"):
        name, _, speed = alternative.strip().partition("@")
        try:
            factor = float(speed or 1.0)
        except ValueError:
            raise row.error("chip", repr(alternative[:80]), "CHIP or CHIP@SPEED, with | between") from None
        yield Option(
            chip=ChipName(slug(name)),
            chips=chips,
            cpus=cpus,
            memory_gib=memory_gib,
            chip_memory_gib=chip_memory_gib,
            replicas=replicas,
            replicas_min=replicas_min,
            within=within or None,
            prefer=prefer or None,
            speed=factor,
        )


def philly(path: Path, *, node_chips: int = 8) -> Workload:
    """Returns the workload of Microsoft's Philly trace: virtual clusters as teams, no limit known.

    Source: Jeon et al., ATC'19; as one row a job: timestamp, duration (s), num_gpus, gpu_time, cluster.

    Args:
        node_chips: A job of more chips runs as equal replicas of at most so many, each on one node.

    Raises:
        NotFound: It cannot be read.
        InvalidInput: A row of it cannot be read.
    """
    rows = Rows(path, "a Philly trace")
    roles = _Roles()
    first_s = min((_seconds(row) for row in rows), default=0.0)

    def job(row: Row, place: int) -> TraceJob:
        chips = row.whole("num_gpus", least=1, most=65_536)
        spec = JobSpec(
            name=f"{chips}-chips",
            team=TeamName(slug(row.text("cluster"))),
            roles=roles.of((chips,), lambda: [_whole_nodes(chips, node_chips)]),
            attempts_max=ATTEMPTS_MAX,
        )
        duration_s = row.number("duration", most=DURATION_S_MAX)
        return TraceJob(
            job=JobId(f"job-{place:07d}"), spec=spec, submit_s=_seconds(row) - first_s, duration_s=duration_s
        )

    return _workload(path, rows, job)


def _whole_nodes(chips: int, node_chips: int) -> Option:
    per_node = max(count for count in range(1, min(chips, node_chips) + 1) if chips % count == 0)
    return Option(chip=ANY_CHIP, chips=per_node, replicas=chips // per_node)


def _seconds(row: Row) -> float:
    cell = row.text("timestamp")
    try:
        return (datetime.fromisoformat(cell).replace(tzinfo=None) - datetime(1970, 1, 1)).total_seconds()
    except ValueError:
        raise row.error("timestamp", repr(cell[:80]), "a time such as 2017-10-09 07:01:55") from None


def openb(path: Path) -> Workload:
    """Returns the workload of Alibaba's openb pods: parts of chips, chip types where named, tiers by class of service.

    A pod ran from when it was scheduled (created, where that is not told) until it was deleted; one that never was
    scheduled is left out, for nobody knows how long it would have run.

    Source: alibaba/clusterdata, cluster-trace-gpu-v2023; Weng et al., ATC'23.

    Raises:
        NotFound: It cannot be read.
        InvalidInput: A row of it cannot be read.
    """
    rows = Rows(path, "an openb trace")
    roles = _Roles()

    def job(row: Row, place: int) -> TraceJob | str:
        timed = "deletion_time" in rows.columns
        if timed and "scheduled_time" in rows.columns and not row.text("scheduled_time", ""):
            return "never scheduled"
        created_s = row.number("creation_time")
        chips = row.whole("num_gpu", most=1_024)
        milli = row.whole("gpu_milli", 1_000, most=1_000) if chips == 1 else 1_000
        key = (chips * milli, row.number("cpu_milli"), row.number("memory_mib"), row.text("gpu_spec", ""))
        spec = JobSpec(
            name="pod",
            team=TeamName(slug(row.text("qos", "lab"))),
            tier=_QOS_TIERS.get(row.text("qos", ""), Tier.STANDARD),
            roles=roles.of(key, lambda: _openb_options(*key)),
            attempts_max=ATTEMPTS_MAX,
        )
        began_s = row.number("scheduled_time", created_s) if timed else 0.0
        ended_s = row.number("deletion_time", began_s) if timed else 0.0
        if ended_s < began_s:
            raise row.error("deletion_time", f"{ended_s:g}", f"at least {began_s:g}")
        return TraceJob(job=JobId(f"job-{place:07d}"), spec=spec, submit_s=created_s, duration_s=ended_s - began_s)

    return _workload(path, rows, job)


def _openb_options(chip_milli: int, cpu_milli: float, memory_mib: float, gpu_spec: str) -> Iterator[Option]:
    for chip in gpu_spec.split("|"):
        yield Option(
            chip=ChipName(slug(chip)) if chip else ANY_CHIP,
            chips=chip_milli / 1_000,
            cpus=cpu_milli / 1_000 if chip_milli else max(cpu_milli / 1_000, 0.001),
            memory_gib=memory_mib / 1_024,
        )


class _Roles:
    """Roles made once for all jobs that ask for the same: equal jobs then share one shape."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], tuple[Role, ...]] = {}

    def of(self, key: tuple[object, ...], options: Callable[[], Iterable[Option]]) -> tuple[Role, ...]:
        """Returns one role that asks for these options.

        Args:
            key: What tells them apart.
        """
        if key not in self._known:
            self._known[key] = (Role(command=COMMAND, options=tuple(options())),)
        return self._known[key]


def _workload(path: Path, rows: Rows, job: Callable[[Row, int], TraceJob | str]) -> Workload:
    jobs: list[TraceJob] = []
    left_out: dict[str, int] = {}
    for place, row in enumerate(rows, start=1):
        try:
            found = job(row, place)
        except MainspringError as error:
            raise error if "line" in error.on else row.wrong(error) from error
        if isinstance(found, str):
            left_out[found] = left_out.get(found, 0) + 1
        else:
            jobs.append(found)
    if not jobs:
        raise InvalidInput("read a trace", on=str(path), got="no jobs", wanted="at least one")
    return Workload(
        name=path.stem, jobs=tuple(sorted(jobs, key=lambda each: (each.submit_s, each.job))), left_out=left_out
    )
