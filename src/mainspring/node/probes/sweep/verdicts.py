"""What a sweep says of each node: right or wrong, as fast as its like or not, at fault in groups or not. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mainspring.domain.hardware.health import Repair
from mainspring.node.probes.sightings import Sighting, well
from mainspring.node.probes.sweep.pairing import Isolated, is_slow, usual_rate

HISTORY_MAX = 32  # Rates of one node that are kept, the newest.
CHECK_BITS, CHECK_ALONE, CHECK_GROUP, CHECK_WAY = "sweep-bits", "sweep-alone", "sweep-group", "sweep-way"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """What came of one piece of work.

    Args:
        chip: What it was done on.
        wrong: Local numbers of devices whose results were not right.
        flops: Operations a second of each local device; alone only.
        bytes_s: Bytes a second that each moves from and to its memory; alone only.
        seconds: How long one all-reduce took: over the local devices alone, over the group's in a group; None where
            there is but one device.
    """

    chip: str
    wrong: tuple[int, ...] = ()
    flops: tuple[float, ...] = ()
    bytes_s: tuple[float, ...] = ()
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """How one node did alone.

    Args:
        measure: None where it failed.
        said: Why.
    """

    measure: Measure | None
    said: str = ""


def rates_of(measure: Measure) -> dict[str, float]:
    """Returns the rates of a node, by what it did: those of its slowest device, for that is what others wait for."""
    rates = {"sweep-matmul": min(measure.flops, default=0.0), "sweep-memory": min(measure.bytes_s, default=0.0)}
    if measure.seconds is not None and measure.seconds > 0:
        rates["sweep-loopback"] = 1.0 / measure.seconds
    return {check: rate for check, rate in rates.items() if rate > 0}


def judged(
    alone: Mapping[int, Alone], groups: Isolated, history: Mapping[int, Mapping[str, Sequence[float]]]
) -> dict[int, tuple[Sighting, ...]]:
    """Returns what is said of each node.

    Args:
        alone: How each did alone, by its number.
        groups: What came of those that were right alone.
        history: Rates of each of earlier sweeps, by what it did.
    """
    peers: dict[tuple[str, str], list[float]] = defaultdict(list)
    for each in alone.values():
        if each.measure is not None:
            for check, rate in rates_of(each.measure).items():
                peers[check, each.measure.chip].append(rate)
    most_do = 2 * sum(each.measure is not None for each in alone.values()) > len(alone)
    found: dict[int, tuple[Sighting, ...]] = {}
    for number, each in alone.items():
        if each.measure is None:
            words = f"it failed at work that {'others do' if most_do else 'few nodes did'}: {each.said}"
            failed = Sighting(check=CHECK_ALONE, fatal=most_do, message=words, repair=Repair.CALL_PEOPLE)
            found[number] = (failed,)
            continue
        past = history.get(number, {})
        rates = _rates(each.measure, peers, past)
        found[number] = (well(CHECK_ALONE), _bits(each.measure), *rates, *_grouped(number, groups))
    return found


def _bits(measure: Measure) -> Sighting:
    if not measure.wrong:
        return well(CHECK_BITS)
    return Sighting(
        check=CHECK_BITS,
        codes=tuple(f"device-{index}" for index in measure.wrong[:16]),
        fatal=True,
        message=f"wrong results of {len(measure.wrong)} devices of a {measure.chip}, without an error",
        repair=Repair.CALL_PEOPLE,
    )


def _rates(
    measure: Measure, peers: Mapping[tuple[str, str], Sequence[float]], past: Mapping[str, Sequence[float]]
) -> Iterator[Sighting]:
    for check, rate in rates_of(measure).items():
        others, history = peers[check, measure.chip], past.get(check, ())
        if is_slow(rate, others, history):
            usual = usual_rate(others, history) or 0.0
            words = f"{100 * rate / usual:.0f} % of what is usual on {measure.chip}: {rate:.3g} of {usual:.3g} a second"
            yield Sighting(check=check, message=words, repair=Repair.CALL_PEOPLE)
        else:
            yield well(check)


def _grouped(number: int, groups: Isolated) -> Iterator[Sighting]:
    if number in groups.bad:
        words = "groups fail or are slow that it is in, and only those"
        yield Sighting(check=CHECK_GROUP, fatal=True, message=words, repair=Repair.CALL_PEOPLE)
    elif number in groups.undecided:
        yield Sighting(
            check=CHECK_GROUP, codes=("undecided",), message="it worked with nobody who did well with others"
        )
    elif number in groups.well:
        yield well(CHECK_GROUP)
    way = next((each for each in groups.ways if number in each), None)
    if way is not None:
        ends = ", ".join(str(each) for each in way)
        words = f"ranks {ends} do well with others and not together: the way between them is at fault"
        yield Sighting(
            check=CHECK_WAY, codes=tuple(str(each) for each in way), message=words, repair=Repair.CALL_PEOPLE
        )
    elif number in groups.well:
        yield well(CHECK_WAY)


def merged(passes: Sequence[Mapping[int, Sequence[Sighting]]]) -> dict[int, tuple[Sighting, ...]]:
    """Returns what several sweeps say of each node together: of each thing the worst, which once is enough for."""
    found: dict[int, dict[str, Sighting]] = defaultdict(dict)
    for each in passes:
        for number, sightings in each.items():
            for seen in sightings:
                known = found[number].get(seen.check)
                if known is None or _badness(seen) > _badness(known):
                    found[number][seen.check] = seen
    return {number: tuple(checks.values()) for number, checks in sorted(found.items())}


def _badness(seen: Sighting) -> tuple[bool, bool, int]:
    return not seen.healthy, seen.fatal, seen.repair.rank
