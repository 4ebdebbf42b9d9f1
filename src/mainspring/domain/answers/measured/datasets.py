"""What is known of the lab's data: datasets, their versions, what these were made of and became, episodes."""

from __future__ import annotations

from collections.abc import Mapping

from mainspring.domain.codec import message
from mainspring.domain.ids import TeamName


@message("DatasetOwner")
class DatasetOwner:
    """Whose a dataset is.

    Args:
        team: Whose people may read it, with those of the teams above; None for everybody's.
        maker: Who began it, or gave it to them; "" for what was there before.
        made_s: When, 0 for then.
    """

    name: str
    team: TeamName | None = None
    maker: str = ""
    made_s: float = 0.0


@message("NewDatasetTeam")
class NewDatasetTeam:
    """Which team a dataset is to be of, None for everybody's."""

    team: TeamName | None = None


@message("DatasetView")
class DatasetView:
    """A dataset's newest version, and how many there are; `candidates` wait because a gate is closed to them.

    Args:
        team: Whose it is, None for everybody's.
    """

    name: str
    number: int
    episodes: int
    frames: int
    seconds: float
    size_bytes: int
    tasks: tuple[str, ...] = ()
    versions: int = 1
    candidates: int = 0
    published_s: float | None = None
    team: TeamName | None = None


@message("VersionView")
class VersionView:
    """One version: how it came to be, and which gates it passed by somebody's word alone.

    Args:
        lossy: Episodes of recordings that have lost something.
        origin: How it came to be, in words.
        waivers: Gates that it did not pass, each with who let it pass and why.
        published_s: When, by the store's clock.
    """

    name: str
    number: int
    id: str
    episodes: int
    frames: int
    seconds: float
    size_bytes: int
    lossy: int = 0
    parent: str = ""
    origin: str = ""
    inputs: tuple[str, ...] = ()
    waivers: tuple[str, ...] = ()
    published_s: float | None = None


@message("CandidateView")
class CandidateView:
    """What waits to become a version, and what keeps it back."""

    id: str
    origin: str
    findings: tuple[str, ...] = ()


@message("LineageLink")
class LineageLink:
    """One step of a lineage: `of` is the version on the near side, `kind` and `id` say what is on the far one.

    Args:
        depth: Steps from the version that was asked about, from 1; negative towards what it was made of.
    """

    of: str
    kind: str
    id: str
    depth: int


@message("DatasetFreshness")
class DatasetFreshness:
    """Seconds from an episode's arrival until it could be trained on, of those that a version brought."""

    episodes: int
    median_s: float
    late_s: float
    max_s: float


@message("DatasetDetail")
class DatasetDetail:
    """A dataset: its versions, newest first, what waits, and of the newest version where it came from and went.

    Other datasets are named as far as whoever asks may read them.
    """

    name: str
    versions: tuple[VersionView, ...]
    columns: Mapping[str, tuple[str, ...]]
    cameras: tuple[str, ...] = ()
    candidates: tuple[CandidateView, ...] = ()
    lineage: tuple[LineageLink, ...] = ()
    freshness: DatasetFreshness | None = None
    team: TeamName | None = None


@message("EpisodeView")
class EpisodeView:
    """One episode; `success` is None when nobody knows."""

    id: str
    source: str
    task: str
    robot: str
    success: bool | None
    frames: int
    seconds: float
    rate_hz: float
    started_s: float
    arrived_s: float
    cameras: tuple[str, ...] = ()
    metadata: Mapping[str, str] | None = None


@message("EpisodeCurve")
class EpisodeCurve:
    """One column of an episode over time: `values` are points by dimensions, None where there is no number."""

    name: str
    dims: tuple[str, ...]
    times_s: tuple[float, ...]
    values: tuple[tuple[float | None, ...], ...]


@message("EpisodeDetail")
class EpisodeDetail:
    """An episode with the curves of its columns, such as state and action."""

    episode: EpisodeView
    version: str
    curves: tuple[EpisodeCurve, ...]
