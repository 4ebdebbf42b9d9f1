"""Ingest report: what an ingest says of itself, while it runs and afterwards."""

from __future__ import annotations

from dataclasses import dataclass

from mainspring.data.catalog.log import Version

NAMED_MAX = 10_000  # Of what is left out or noted: enough to read through; the rest is counted.


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A recording that is not in the version, and why, for people."""

    source: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted:
    """A recording that is in the version, and what was passed over in it: a lost tail, repeated messages."""

    source: str
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestProgress:
    """Where an ingest stands.

    Args:
        done: Recordings judged, or known from before.
        total: Recordings found.
        source: The one judged last.
        reason: Why it, or an episode of it, is left out; "" when it is sound.
        done_bytes: Bytes of the recordings that are done.
        total_bytes: Bytes of the recordings found.
    """

    done: int
    total: int
    source: str
    reason: str
    done_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestReport:
    """What came of an ingest.

    Args:
        dataset: The dataset.
        version: The version that holds every sound episode; None when there was none to hold.
        episodes: Sound episodes in the source.
        added: How many of them the dataset did not hold before.
        frames: Steps in the sound episodes.
        refused: Episodes and recordings left out.
        left_out: Of these the first `NAMED_MAX`, in name order.
        noted: Sound episodes with something to say, the first `NAMED_MAX`, in name order.
        recordings: Files, or episodes of datasets, that the source holds.
        known: How many of them were known from before, and not read again.
        read_bytes: Bytes of the recordings that were read.
        seconds: How long it took.
    """

    dataset: str
    version: Version | None
    episodes: int
    added: int
    frames: int
    refused: int
    left_out: tuple[LeftOut, ...]
    noted: tuple[Noted, ...]
    recordings: int
    known: int
    read_bytes: int
    seconds: float

    @property
    def recordings_per_s(self) -> float:
        """Returns how many recordings were read in a second."""
        return (self.recordings - self.known) / self.seconds if self.seconds else 0.0

    @property
    def bytes_per_s(self) -> float:
        """Returns how many of their bytes."""
        return self.read_bytes / self.seconds if self.seconds else 0.0
