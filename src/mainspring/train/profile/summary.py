"""What a trace comes to: top operations, shares of time, gaps, memory, place under the roofline, what to try next."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from mainspring.train.plan.chips import CHIPS
from mainspring.train.plan.running import chip_of
from mainspring.train.profile.trace import COLLECTIVE, TRANSFER, Operation, Trace, length, self_times, shared, union

TOP = 15
GAPS = 5
IDLE_MUCH, EXPOSED_MUCH, ONE_MUCH, FULL = 0.2, 0.1, 0.3, 0.92  # Below these, other things come first. Our own choice.
MEMORY_POINTS_MAX = 200  # Of a curve for people.


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationTotal:
    """One operation over the whole trace.

    Args:
        seconds: Its own time, without that of what ran inside it.
        share: Of the own time of all operations, 0 to 1.
    """

    name: str
    kind: str
    module: str
    count: int
    seconds: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A time at which the device did nothing.

    Args:
        at_s: From the trace's first moment.
        before: The operation that ended it.
    """

    at_s: float
    seconds: float
    before: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPoint:
    """What was in use at a moment; 0 for a device that does not say."""

    at_s: float
    device_bytes: int
    host_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """Where the programs of a trace stand, by XLA's own count of their operations and bytes.

    Args:
        flops_per_s: Done, on average over the trace.
        bytes_per_s: As XLA counts what operations read and write; caches may serve some of it.
        intensity: Operations a byte.
        peak_flops_per_s: Of the chip, in bfloat16; None where its figures are not known here.
        ridge: The intensity from which on a chip is bound by its operations; None likewise.
        share: Of the roof at this intensity, 0 to 1; None likewise.
    """

    flops_per_s: float
    bytes_per_s: float
    intensity: float
    peak_flops_per_s: float | None = None
    ridge: float | None = None
    share: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSummary:
    """One rank's profile; shares are of the time of its steps and add up to 1 with `idle`.

    Args:
        busy: Any operation ran.
        compute: An operation ran that is no communication.
        communication: Only communication ran: what no computation hid.
        overlap: The part of all communication that ran beside computation, 0 to 1; None without any.
        top: The operations with the most time of their own.
        advice: What to try next, the most telling first.
    """

    device: str
    device_kind: str
    steps: int
    step_s: tuple[float, ...]
    seconds: float
    compute: float
    communication: float
    idle: float
    overlap: float | None
    top: tuple[OperationTotal, ...]
    gaps: tuple[Gap, ...]
    memory: tuple[MemoryPoint, ...]
    device_bytes_most: int
    host_bytes_most: int
    device_bytes_limit: int
    roofline: Roofline | None
    advice: tuple[str, ...]

    @property
    def mean_step_s(self) -> float:
        """Returns the mean length of a step."""
        return self.seconds / max(1, self.steps)


def summarise(trace: Trace) -> ProfileSummary:
    """Returns what a trace comes to."""
    about = trace.about
    steps = about.get("steps", [])
    step_s = tuple(after["begun_s"] - before["begun_s"] for before, after in pairwise(steps))
    first = min((span.begun_s for span in trace.steps), default=0.0)
    last = max((span.ended_s for span in trace.steps), default=0.0)
    last = max(last, first + sum(step_s))
    inside = [one for one in trace.operations if one.ended_s > first and one.begun_s < last]
    spans = {kind: union(_clipped(inside, kind, first, last)) for kind in ("compute", "communication", "transfer")}
    computing = union([*spans["compute"], *spans["transfer"]])
    talking = spans["communication"]
    both, seconds = shared(computing, talking), last - first
    busy = union([*computing, *talking])
    memory = tuple(MemoryPoint(**point) for point in about.get("memory", []))
    compute = length(computing) / seconds if seconds else 0.0
    exposed = (length(talking) - both) / seconds if seconds else 0.0
    summary = ProfileSummary(
        device=trace.device,
        device_kind=str(about.get("device_kind", "")),
        steps=len(step_s),
        step_s=step_s,
        seconds=seconds,
        compute=compute,
        communication=exposed,
        idle=max(0.0, 1.0 - compute - exposed),
        overlap=both / length(talking) if talking else None,
        top=_top(inside),
        gaps=_gaps(busy, inside, first, last),
        memory=memory[:: max(1, -(-len(memory) // MEMORY_POINTS_MAX))],
        device_bytes_most=max((point.device_bytes for point in memory), default=0),
        host_bytes_most=max((point.host_bytes for point in memory), default=0),
        device_bytes_limit=int(about.get("device_bytes", 0)),
        roofline=_roofline(trace, inside, seconds),
        advice=(),
    )
    return replace(summary, advice=advice_on(summary))


def kind_of(name: str) -> str:
    """Returns what an operation is for: "compute", "communication" or "transfer"."""
    if COLLECTIVE.search(name):
        return "communication"
    return "transfer" if TRANSFER.search(name) else "compute"


def _clipped(operations: Sequence[Operation], kind: str, first: float, last: float) -> list[tuple[float, float]]:
    own = (one for one in operations if kind_of(one.name) == kind)
    return [(max(one.begun_s, first), min(one.ended_s, last)) for one in own]


def _top(operations: Sequence[Operation]) -> tuple[OperationTotal, ...]:
    seconds: dict[tuple[str, str], float] = defaultdict(float)
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for one, own_s in self_times(operations):
        seconds[one.module, one.name] += own_s
        counts[one.module, one.name] += 1
    whole = sum(seconds.values()) or 1.0
    ordered = sorted(seconds, key=lambda key: (-seconds[key], key))[:TOP]
    return tuple(
        OperationTotal(
            name=name,
            kind=kind_of(name),
            module=module,
            count=counts[module, name],
            seconds=seconds[module, name],
            share=seconds[module, name] / whole,
        )
        for module, name in ordered
    )


def _gaps(
    busy: Sequence[tuple[float, float]], operations: Sequence[Operation], first: float, last: float
) -> tuple[Gap, ...]:
    beginning = {one.begun_s: one.name for one in operations}
    edges = [first, *(edge for span in busy for edge in span), last]
    empty = [(begun, ended) for begun, ended in zip(edges[::2], edges[1::2], strict=True) if ended > begun]
    longest = sorted(empty, key=lambda gap: gap[0] - gap[1])[:GAPS]
    return tuple(
        Gap(at_s=begun - first, seconds=ended - begun, before=beginning.get(ended, "")) for begun, ended in longest
    )


def _roofline(trace: Trace, operations: Sequence[Operation], seconds: float) -> Roofline | None:
    """Returns where the programs stand; None where XLA does not count, or nothing ran."""
    costs: Mapping[str, Mapping[str, float]] = trace.about.get("modules", {})
    runs: dict[str, set[str]] = defaultdict(set)
    for one in operations:
        runs[one.module].add(one.run)
    flops = bytes_ = 0.0
    for module, own in runs.items():
        cost = costs.get(module)
        times = len(own - {""}) or len(trace.steps)  # A trace that does not tell runs apart: once a step.
        if cost is not None:
            flops, bytes_ = flops + times * cost["flops"], bytes_ + times * cost["bytes"]
    if not (flops and bytes_ and seconds):
        return None
    done, intensity = flops / seconds, flops / bytes_
    chip = chip_of(str(trace.about.get("device_kind", "")))
    if chip is None:
        return Roofline(flops_per_s=done, bytes_per_s=bytes_ / seconds, intensity=intensity)
    figures = CHIPS[chip]
    roof = min(figures.flops, intensity * figures.memory_bandwidth)
    return Roofline(
        flops_per_s=done,
        bytes_per_s=bytes_ / seconds,
        intensity=intensity,
        peak_flops_per_s=figures.flops,
        ridge=figures.flops / figures.memory_bandwidth,
        share=done / roof,
    )


def _idle_words(found: ProfileSummary) -> str:
    gap = max(found.gaps, key=lambda each: each.seconds, default=None)
    longest = f"; the longest gap is {1e3 * gap.seconds:.1f} ms, before {gap.before or 'the end'}" if gap else ""
    return (
        f"the device is idle for {found.idle:.0%} of a step{longest}: look at the data wait in `ms status`; "
        "without one, the host is too slow for so small a step: a larger batch"
    )


# What to try, in this order of weight; each where it applies.
_ADVICE: tuple[tuple[Callable[[ProfileSummary], bool], Callable[[ProfileSummary], str]], ...] = (
    (lambda found: found.idle > IDLE_MUCH, _idle_words),
    (
        lambda found: found.communication > EXPOSED_MUCH,
        lambda found: (
            f"communication that nothing hides takes {found.communication:.0%} of a step: a larger batch a chip, or "
            "another layout (`ms recipe plan --layout auto`)"
        ),
    ),
    (
        lambda found: (
            found.roofline is not None
            and found.roofline.ridge is not None
            and found.roofline.intensity < found.roofline.ridge
        ),
        lambda found: (
            f"{found.roofline.intensity:.0f} operations a byte, where the chip's ridge is at "  # type: ignore[union-attr]
            f"{found.roofline.ridge:.0f}: memory binds; narrower numbers, less recomputation, "  # type: ignore[union-attr]
            "a larger batch"
        ),
    ),
    (
        lambda found: bool(found.top) and found.top[0].share > ONE_MUCH,
        lambda found: f"{found.top[0].name} alone takes {found.top[0].share:.0%} of the operations' time: begin there",
    ),
    (
        lambda found: 0 < FULL * found.device_bytes_limit < found.device_bytes_most,
        lambda found: "memory is nearly full: policy.compute.remat, or accumulate, before a larger batch",
    ),
)


def advice_on(found: ProfileSummary) -> tuple[str, ...]:
    """Returns what to try next, the most telling first."""
    words = tuple(say(found) for applies, say in _ADVICE if applies(found))
    return words or ("nothing stands out: the device computes nearly all the time",)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationChange:
    """One operation in two profiles, by the seconds that it takes of a step."""

    name: str
    before_s: float
    after_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileDifference:
    """Two profiles; the operations whose time of a step changed most come first."""

    before: ProfileSummary
    after: ProfileSummary
    operations: tuple[OperationChange, ...]


def difference(before: ProfileSummary, after: ProfileSummary) -> ProfileDifference:
    """Returns how two profiles differ."""
    each = [{one.name: one.seconds / max(1, found.steps) for one in found.top} for found in (before, after)]
    names = sorted({*each[0], *each[1]})
    changes = [
        OperationChange(name=name, before_s=each[0].get(name, 0.0), after_s=each[1].get(name, 0.0)) for name in names
    ]
    changes.sort(key=lambda one: -abs(one.after_s - one.before_s))
    return ProfileDifference(before=before, after=after, operations=tuple(changes))
