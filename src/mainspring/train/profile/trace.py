"""Reads XLA's own traces: which operations ran on which device, when.

Source: JAX 0.10, `jax.profiler.ProfileData`; the planes, lines and facts that XLA writes for CPUs, GPUs and TPUs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jax

from mainspring.domain.errors import DamagedData

EVENTS_MAX = 5_000_000  # XLA keeps two million of each kind.
COLLECTIVE = re.compile(
    r"(all[-_]reduce|all[-_]gather|reduce[-_]scatter|all[-_]to[-_]all|collective|ppermute|psum|\bsend|\brecv|nccl)",
    re.IGNORECASE,
)
TRANSFER = re.compile(r"(memcpy|memset|copy-start|copy-done|infeed|outfeed|transfer|^copy)", re.IGNORECASE)
_DEVICE = re.compile(r"^/device:(?!CUSTOM)")
_NO_OPERATIONS = re.compile(r"(Steps|Modules|TraceMe|Framework|Source|Scope|Launch Stats|Counters)")
_STEP = "step"  # What the session calls a step's annotation.


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One run of one operation, in seconds since the trace began.

    Args:
        lane: The line of the trace that it is on: a stream, a thread.
        module: The compiled program that it is of, "" where the trace does not say.
        run: Which run of that program, "" where the trace does not say.
    """

    name: str
    lane: str
    begun_s: float
    ended_s: float
    module: str = ""
    run: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSpan:
    """One step as the program's own thread saw it."""

    step: int
    begun_s: float
    ended_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What one rank did over a few steps.

    Args:
        device: The device whose operations these are: the first that did any.
        about: What the session noted beside the trace; see `session.profiling`.
    """

    device: str
    operations: tuple[Operation, ...]
    steps: tuple[StepSpan, ...]
    about: Mapping[str, Any]


def read_trace(xplane: bytes, about: bytes) -> Trace:
    """Returns what a rank left.

    Args:
        xplane: XLA's own file.
        about: The session's.

    Raises:
        DamagedData: They are no trace.
    """
    try:
        facts = json.loads(about)
        planes = list(jax.profiler.ProfileData.from_serialized_xspace(xplane).planes)
    except Exception as error:  # What a parser of foreign bytes raises has no common name.
        raise DamagedData("read a profile", got=f"{type(error).__name__}: {error}"[:300]) from error
    steps: list[StepSpan] = []
    operations: dict[str, list[Operation]] = {}
    left = EVENTS_MAX
    for plane in planes:
        of_device = bool(_DEVICE.match(plane.name))
        for line in plane.lines:
            if _NO_OPERATIONS.search(line.name):
                continue
            for event in line.events:
                left -= 1
                if left < 0:
                    raise DamagedData("read a profile", got=f"over {EVENTS_MAX} events")
                if not event.duration_ns:
                    continue
                facts_of = dict(event.stats)
                if event.name == _STEP and "step_num" in facts_of:
                    begun_s, ended_s = event.start_ns / 1e9, event.end_ns / 1e9
                    steps.append(StepSpan(step=int(facts_of["step_num"]), begun_s=begun_s, ended_s=ended_s))
                elif (of_device or "hlo_op" in facts_of) and not event.name.startswith("end: "):
                    device = plane.name if of_device else f"cpu:{facts_of.get('device_ordinal', 0)}"
                    operations.setdefault(device, []).append(_operation(event, line.name, facts_of))
    device = min(operations, default="")
    own = tuple(sorted(operations.get(device, ()), key=lambda each: each.begun_s))
    steps.sort(key=lambda each: each.begun_s)
    return Trace(device=device, operations=own, steps=tuple(steps), about=facts)


def _operation(event: Any, lane: str, facts: Mapping[str, Any]) -> Operation:
    return Operation(
        name=str(facts.get("hlo_op") or event.name),
        lane=lane,
        begun_s=event.start_ns / 1e9,
        ended_s=event.end_ns / 1e9,
        module=str(facts.get("hlo_module", "")),
        run=str(facts.get("run_id", "")),
    )


def union(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Returns spans of time without overlaps, in order."""
    joined: list[tuple[float, float]] = []
    for begun, ended in sorted(spans):
        if joined and begun <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], ended))
        else:
            joined.append((begun, ended))
    return joined


def length(spans: Iterable[tuple[float, float]]) -> float:
    """Returns how long spans without overlaps are together."""
    return sum(ended - begun for begun, ended in spans)


def shared(first: Iterable[tuple[float, float]], second: Iterable[tuple[float, float]]) -> float:
    """Returns how long two unions of spans are at the same time."""
    one, other = list(first), list(second)
    return length(one) + length(other) - length(union([*one, *other]))


def self_times(operations: Iterable[Operation]) -> list[tuple[Operation, float]]:
    """Returns each operation with its own time: without that of what ran inside it on its lane, as loops have it."""
    found: list[tuple[Operation, float]] = []
    by_lane: dict[str, list[Operation]] = {}
    for each in operations:
        by_lane.setdefault(each.lane, []).append(each)
    for own in by_lane.values():
        open_ones: list[list[Any]] = []  # Of operation and its own seconds, outermost first.
        for each in sorted(own, key=lambda one: (one.begun_s, -one.ended_s)):
            while open_ones and open_ones[-1][0].ended_s <= each.begun_s:
                found.append(tuple(open_ones.pop()))
            if open_ones:
                open_ones[-1][1] -= min(each.ended_s, open_ones[-1][0].ended_s) - each.begun_s
            open_ones.append([each, each.ended_s - each.begun_s])
        found += [(one, seconds) for one, seconds in open_ones]
    return found
