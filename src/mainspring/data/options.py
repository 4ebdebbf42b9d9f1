"""Ingest options: what whoever takes a source in says of it, where it is not as one would expect."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from blake3 import blake3

from mainspring.data.loss import LOST_MAX
from mainspring.domain.codec import to_plain
from mainspring.domain.errors import InvalidInput

RATE_HZ_MIN, RATE_HZ_MAX = 0.01, 100_000.0  # As of recipes and views.
FROZEN_PICTURE, FROZEN_STATE, GAP, LAG, RATE = "frozen-picture", "frozen-state", "gap", "lag", "rate"
# Of the doctor, where the owner of a recording may know better.
DOUBTS = (
    FROZEN_PICTURE,
    FROZEN_STATE,
    GAP,
    LAG,
    RATE,
)
NEXT = "next:"  # Before a column: an action that is that column's value at the next step.
_HASH_LETTERS = 16
_NAMES_MAX = 4_096
_READING = 2  # Raised when what is read of the same files, or what is refused, changes.


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestOptions:
    """How a source is read; the default is for sources as their format's own tools write them.

    Args:
        lost_max: Largest share of a recording that may be gone: of a topic's messages, a camera's frames, its rows.
        names: Our name of a column or camera to the source's: {"observation.state": "state"}.
        cameras: Which are taken in, by their names here; None for all.
        without_cameras: Which are not.
        resample_hz: Steps a second that a recording of irregular times is brought to; None keeps its times.
        action: What stands for the action where the source has none: "next:COLUMN"; "" for nothing.
        stale_statistics: Whether statistics beside the numbers may disagree with them: edited sets carry old ones.
        allow: Which of `DOUBTS` are no reason to leave a recording out.
        definitions: Message definitions for logs that hold none: type to text.
        rate_hz: Steps a second of a source that says no times; None leaves it to what the source or its format says.
    """

    lost_max: float = LOST_MAX
    names: Mapping[str, str] = field(default_factory=dict)
    cameras: tuple[str, ...] | None = None
    without_cameras: tuple[str, ...] = ()
    resample_hz: float | None = None
    action: str = ""
    stale_statistics: bool = False
    allow: tuple[str, ...] = ()
    definitions: Mapping[str, str] = field(default_factory=dict)
    rate_hz: float | None = None

    def __post_init__(self) -> None:
        """Checks the ranges.

        Raises:
            InvalidInput: One is out of its range.
        """
        checks = {
            "lost_max 0 to 1": 0.0 <= self.lost_max <= 1.0,
            f"at most {_NAMES_MAX} names, none empty": len(self.names) <= _NAMES_MAX
            and all(self.names)
            and all(self.names.values()),
            f"resample_hz {RATE_HZ_MIN:g} to {RATE_HZ_MAX:g}": self.resample_hz is None
            or RATE_HZ_MIN <= self.resample_hz <= RATE_HZ_MAX,
            f"rate_hz {RATE_HZ_MIN:g} to {RATE_HZ_MAX:g}": self.rate_hz is None
            or RATE_HZ_MIN <= self.rate_hz <= RATE_HZ_MAX,
            f"action {NEXT}COLUMN": not self.action or (self.action.startswith(NEXT) and len(self.action) > len(NEXT)),
            f"allow of {', '.join(DOUBTS)}": set(self.allow) <= set(DOUBTS),
            "cameras either wanted or not": not set(self.cameras or ()) & set(self.without_cameras),
        }
        if broken := [wanted for wanted, holds in checks.items() if not holds]:
            raise InvalidInput("accept options of an ingest", got=str(to_plain(self))[:300], wanted="; ".join(broken))

    @property
    def id(self) -> str:
        """Returns the hash of what they mean, under which an ingest is journaled."""
        plain = json.dumps([_READING, to_plain(self)], sort_keys=True, separators=(",", ":"))
        return blake3(plain.encode()).hexdigest()[:_HASH_LETTERS]

    def takes(self, camera: str) -> bool:
        """Returns whether a camera is taken in.

        Args:
            camera: Its name here.
        """
        return camera not in self.without_cameras and (self.cameras is None or camera in self.cameras)


DEFAULT = IngestOptions()
