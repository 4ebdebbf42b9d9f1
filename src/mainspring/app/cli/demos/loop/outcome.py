"""What the story decides and finds, without a process or a clock: how much is asked of each arm, what a bad release
cost, and whether the show showed what it is to show.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mainspring.app.cli.demos.loop.site import Place, Played
from mainspring.domain.answers import RolloutEvent
from mainspring.domain.answers.policies.rollouts import RolloutEventKind

SHOWN_WANTED = 60  # Of 60 shown episodes and those of the table a policy learned the shelf at 100 of 100 starts.
FAILURES_WANTED = 12  # Sent home beside: enough to look at.
SHELF_MIN, GAIN_MIN, TABLE_LOSS_MAX = 0.9, 0.3, 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceResult:
    """Two releases on the same starts of one place.

    Args:
        before: Success of the first, 0 to 1.
        after: Of the second.
        gain: Their difference, and its interval at 95 % from `low` to `high`.
    """

    before: float
    after: float
    gain: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopReport:
    """What came of the show; seconds by act, and what a person would ask first.

    Args:
        starts: Of each release at each place.
        failures: Episodes at the shelf in which the first release failed.
        clips: What arms sent home by themselves.
        corrections: Episodes among them that the helper had shown.
        fixed_s: From the first failure to the better release on every arm.
        bad_robots: Arms that ran the bad release.
        bad_s: From when the first of them did to when the last ran again what was before.
        lost_s: How long they ran it, all together.
        bad_why: Why it came back.
    """

    home: str
    arms: int
    starts: int
    shelf: PlaceResult
    table: PlaceResult
    failures: int
    clips: int
    corrections: int
    fixed_s: float
    bad_robots: int
    bad_s: float
    lost_s: float
    bad_why: str
    gates_waived: Mapping[str, str] = field(default_factory=dict)
    wall_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def missed(self) -> tuple[str, ...]:
        """Returns what was to be shown and was not, in words."""
        loss = self.table.before - self.table.after
        wanted = {
            f"success at the shelf {self.shelf.after:.2f}, wanted {SHELF_MIN:g}": self.shelf.after >= SHELF_MIN,
            f"its gain at 95 % at least {self.shelf.low:.2f}, wanted over {GAIN_MIN:g}": self.shelf.low > GAIN_MIN,
            f"the table {100 * loss:.3g} points worse, wanted {100 * TABLE_LOSS_MAX:g} at most": (
                self.table.gain >= -TABLE_LOSS_MAX
            ),
        }
        return tuple(words for words, holds in wanted.items() if not holds)


def each_of(wanted: int, arms: int) -> int:
    """Returns how many of something each arm is to bring so that all bring so many."""
    return max(1, math.ceil(wanted / arms))


def failures_at(place: Place, played: Sequence[Played], release: str) -> tuple[Played, ...]:
    """Returns the episodes in which a release failed at a place."""
    return tuple(
        each
        for each in played
        if each.place is place and each.release == release and not each.shown and not each.solved
    )


def committed_s(events: Sequence[RolloutEvent]) -> Mapping[str, float]:
    """Returns when each robot first committed the release of a rollout."""
    found: dict[str, float] = {}
    for event in events:
        if event.kind is RolloutEventKind.COMMITTED:
            found.setdefault(event.robot, event.at_s)
    return found


def ran_s(events: Sequence[RolloutEvent]) -> Mapping[str, float]:
    """Returns how long each robot ran a release that came back: from its commit to when it ran again what it had."""
    begun = committed_s(events)
    ended = {event.robot: event.at_s for event in events if event.kind is RolloutEventKind.RETURNED}
    return {robot: ended[robot] - at_s for robot, at_s in begun.items() if robot in ended}


def span_s(events: Sequence[RolloutEvent]) -> float:
    """Returns the time from the first commit of a release to the last return from it, 0 where there was none."""
    begun = committed_s(events)
    ended = [event.at_s for event in events if event.kind is RolloutEventKind.RETURNED and event.robot in begun]
    return max(ended) - min(begun.values()) if ended else 0.0
