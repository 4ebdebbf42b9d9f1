"""Interventions that a robot's log tells of become annotations by themselves: who held the robot, from when to when.

The metadata of an episode says them, `intervention.NN` to "BEGIN END WHO", times in nanoseconds as its steps have them.
What is said follows from the episode alone, so the same recording makes the same annotation, however often it comes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress

import pyarrow as pa

from mainspring.data.episode import NANOSECONDS
from mainspring.data.layers.annotations import ANNOTATIONS_MAX, Annotation, put_annotations
from mainspring.domain.errors import InvalidInput
from mainspring.domain.ids import NAME_LENGTH_MAX, EpisodeId
from mainspring.objects import ObjectStore

LABEL = "intervention"
_SAID = re.compile(r"(\d{1,19}) (\d{1,19}) (.+)")


def label_interventions(store: ObjectStore, episodes: pa.Table) -> None:
    """Keeps what the metadata of episodes says of interventions as annotations. May be repeated.

    Args:
        store: Where to.
        episodes: Rows as the catalog keeps them.
    """
    columns = episodes.select(["id", "metadata", "started_ns", "seconds"])
    said: list[Annotation] = []
    for row in columns.to_pylist(maps_as_pydicts="strict"):
        said += _interventions(row["metadata"], EpisodeId(row["id"]), row["started_ns"], row["seconds"])
    for first in range(0, len(said), ANNOTATIONS_MAX):
        put_annotations(store, said[first : first + ANNOTATIONS_MAX])


def _interventions(
    metadata: Mapping[str, str], episode: EpisodeId, started_ns: int, seconds: float
) -> Iterator[Annotation]:
    last_ns = round(seconds * NANOSECONDS)
    for key in sorted(metadata):
        told = _SAID.fullmatch(metadata[key]) if key.startswith(f"{LABEL}.") else None
        if told is None:
            continue
        begin_ns, end_ns = (int(told[at]) - started_ns for at in (1, 2))
        if end_ns < 0 or begin_ns > last_ns:
            continue  # Outside what became of the clip.
        author = re.sub(r"[^a-z0-9._+@-]", "-", told[3].lower())[:NAME_LENGTH_MAX].strip("-._+@") or "somebody"
        with suppress(InvalidInput):  # A robot said nonsense: the episode is no worse for it.
            yield Annotation(
                episode=episode,
                author=author,
                made_ns=int(told[2]),
                label=LABEL,
                begin_ns=max(begin_ns, 0),
                end_ns=min(end_ns, last_ns),
            )
