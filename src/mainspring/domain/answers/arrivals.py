"""Recordings on their way to a server."""

from __future__ import annotations

from enum import Enum

from mainspring.domain.codec import message
from mainspring.domain.ids import TeamName


class Standing(str, Enum):
    """How far a recording is that is sent to a dataset."""

    ARRIVING = "arriving"  # Bytes are missing, or it was never heard of.
    ARRIVED = "arrived"  # Whole, and waits to be read.
    TAKEN = "taken"  # Its episodes are in the dataset, or about to be.
    REFUSED = "refused"  # Some or all of it is left out; the file is kept.


@message("RecordingClaim")
class RecordingClaim:
    """Bytes of recordings that are in no dataset yet: who sends them, a person or a robot, and of which team."""

    holder: str
    team: TeamName
    size_bytes: int


@message("ArrivalView")
class ArrivalView:
    """Where a recording stands: how many of its bytes are here, what became of it, and why, for people."""

    standing: Standing
    offset: int
    reason: str = ""
