"""Clips: what robots cut out of their logs, known to the lab before their bytes come, and asked for."""

from __future__ import annotations

from enum import Enum

from mainspring.domain.codec import message
from mainspring.domain.job import Tier

CLIPS_TOLD_MAX = 1_000  # Of one call.
CLIPS_LISTED_MAX = 1_000


class ClipWay(str, Enum):
    """Where a clip's bytes are."""

    ROBOT = "robot"  # The robot has them, and sends them only when it is asked.
    COMING = "coming"  # It sends them as its budget lets it.
    HERE = "here"  # They have arrived.


@message("ClipEntry")
class ClipEntry:
    """What a robot says of a clip.

    Attributes: `id` is the BLAKE3 of its bytes; `send` whether it comes by itself; times are nanoseconds since the Unix
    epoch, by the robot's clock; `interventions` how often somebody held the robot in it.
    """

    id: str
    name: str
    size_bytes: int
    robot: str
    begun_ns: int
    ended_ns: int
    triggers: tuple[str, ...]
    priority: Tier
    send: bool
    release: str = ""
    ring: str = ""
    task: str = ""
    success: bool | None = None
    interventions: int = 0


@message("ClipCatalog")
class ClipCatalog:
    """Clips that a robot has, and has not sent yet."""

    clips: tuple[ClipEntry, ...]


@message("ClipsAsked")
class ClipsAsked:
    """Ids of those clips of a catalog whose bytes somebody asked for."""

    ids: tuple[str, ...]


@message("ClipView")
class ClipView:
    """A clip that the lab knows of, the dataset it is for, and where its bytes are."""

    dataset: str
    clip: ClipEntry
    way: ClipWay
    sender: str
