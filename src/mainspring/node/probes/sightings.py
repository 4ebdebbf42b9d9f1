"""What watchers see of a node, and health events made of it: what stands is said when it changes, and now and then.

A watcher looks again and again, and says each time all that it sees. Something that *stands* (a link is down, a disk is
full) becomes an event when it begins, when it is over, and every hour in between; on the first look also where all is
well, which takes back what an earlier life of the watcher said. Something that *happened* is an event each time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, final

from mainspring.domain.hardware.health import (
    CODE_LENGTH_MAX,
    CODES_MAX,
    MESSAGE_LENGTH_MAX,
    PART_LENGTH_MAX,
    HealthEvent,
    HealthSource,
    Repair,
    Scope,
    ScopeKind,
    Strategy,
)
from mainspring.domain.ids import NO_JOB, ClusterName, JobId, NodeName
from mainspring.domain.ports import Dice

SAID_AGAIN_S = 3_600.0  # Rules look back a day at most, and a lab that lost its events hears of what stands soon.
STANDING_MAX = 4_096  # Things of one node that may stand: its links, devices, disks and their checks.

_ADDRESS = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """What a watcher saw at one look.

    Args:
        check: What was looked at.
        part: Which device or link; "" for the node as a whole.
        healthy: Whether all is well.
        stands: Whether it is so until it is seen otherwise; else it happened.
        codes: The maker's words for it.
        fatal: Whether what it is about is of no use until something is done.
        message: For people.
        repair: What would help.
        at_s: When, in seconds since the Unix epoch; None for now.
        record: Under which session and number it is known to everybody who looks; None for a number of our own.
    """

    check: str
    kind: ScopeKind = ScopeKind.NODE
    part: str = ""
    healthy: bool = False
    stands: bool = True
    codes: tuple[str, ...] = ()
    fatal: bool = False
    message: str = ""
    repair: Repair = Repair.NONE
    at_s: float | None = None
    record: tuple[str, int] | None = None


def well(check: str, kind: ScopeKind = ScopeKind.NODE, part: str = "") -> Sighting:
    """Returns that all is well."""
    return Sighting(check=check, kind=kind, part=part, healthy=True)


class Watcher(Protocol):
    """Looks at one side of a node. Looking waits for nothing but the kernel, and raises nothing."""

    name: str
    every_s: float

    def look(self, now_s: float) -> Sequence[Sighting]:
        """Returns all that is seen now.

        Args:
            now_s: Seconds since the Unix epoch.
        """

    def close(self) -> None:
        """Lets go of what it holds open; it may be closed again."""


@dataclass(slots=True)
class _Said:
    healthy: bool
    fatal: bool
    codes: tuple[str, ...]
    at_s: float


@final
class Teller:
    """Makes health events of what watchers see.

    Args:
        dice: Draws the session, anew in each life of the process.
        strategy: Whether rules that act may act on what is told.
        job: What runs there.
    """

    def __init__(
        self,
        cluster: ClusterName,
        node: NodeName,
        dice: Dice,
        *,
        strategy: Strategy = Strategy.ACT,
        job: JobId = NO_JOB,
    ) -> None:
        self._cluster = cluster
        self._node = node
        self._strategy = strategy
        self._job = job
        self._session = f"{dice.bits(64):016x}"
        self._sequence = 0
        self._said: dict[tuple[str, str, str, str], _Said] = {}

    def tell(self, watcher: str, sightings: Iterable[Sighting], now_s: float) -> list[HealthEvent]:
        """Returns what of it is news.

        Args:
            watcher: Its name.
        """
        return [self._event(watcher, each, now_s) for each in sightings if self._is_news(watcher, each, now_s)]

    def _is_news(self, watcher: str, seen: Sighting, now_s: float) -> bool:
        if not seen.stands:
            return True
        key = watcher, seen.check, seen.kind.value, seen.part
        said = self._said.get(key)
        if said is None:
            if len(self._said) >= STANDING_MAX:
                return False
            self._said[key] = _Said(seen.healthy, seen.fatal, seen.codes, now_s)
            return True
        same = said.healthy == seen.healthy and said.fatal == seen.fatal and said.codes == seen.codes
        if same and (seen.healthy or 0 <= now_s - said.at_s < SAID_AGAIN_S):
            return False
        self._said[key] = _Said(seen.healthy, seen.fatal, seen.codes, now_s)
        return True

    def _event(self, watcher: str, seen: Sighting, now_s: float) -> HealthEvent:
        session, sequence = seen.record or (self._session, self._sequence)
        if seen.record is None:
            self._sequence += 1
        return HealthEvent(
            source=HealthSource(name=watcher, session=session, sequence=sequence),
            at_s=now_s if seen.at_s is None else min(max(seen.at_s, 0.0), now_s),
            scope=Scope(
                kind=seen.kind, cluster=self._cluster, node=self._node, part=visible(seen.part, PART_LENGTH_MAX)
            ),
            check=seen.check,
            healthy=seen.healthy,
            codes=tuple(visible(code, CODE_LENGTH_MAX) for code in seen.codes[:CODES_MAX]),
            fatal=seen.fatal,
            message=seen.message[:MESSAGE_LENGTH_MAX],
            repair=seen.repair,
            strategy=self._strategy,
            job=self._job,
        )


def visible(text: str, length_max: int) -> str:
    """Returns a text with every letter that is not visible ASCII as "?", and no more than so many."""
    return "".join(letter if "!" <= letter <= "~" else "?" for letter in text[:length_max])


def bus_address(part: str) -> str:
    """Returns a PCI address in the one form that all watchers use ("0000:cb:00.0"); what is none as it is."""
    found = _ADDRESS.fullmatch(part.lower())
    if found is None:
        return part
    return f"{int(found[1], 16):04x}:{found[2]}:{found[3]}.{found[4] or 0}"
