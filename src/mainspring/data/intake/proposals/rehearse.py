"""Tries a recipe on the beginning of a log: what would be left out, and why."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from mainspring.data.episode import NANOSECONDS
from mainspring.data.gates.doctor import examined
from mainspring.data.intake.logs.mapping import mapped_episodes
from mainspring.data.intake.logs.recipe import CutBy, MappingRecipe
from mainspring.data.intake.logs.streams import needs_of
from mainspring.data.readers.messages import Log, Messages, Topic
from mainspring.domain.errors import InvalidInput, StorageFull

REHEARSED_S = 30.0  # From when every stream speaks: enough for lost messages and pauses to show, and soon read.
Spans: TypeAlias = Mapping[str, tuple[int, int]]


class _Beginning:
    """A log up to some time; see `Log`."""

    def __init__(self, log: Log, until_ns: int) -> None:
        self._log, self._until_ns = log, until_ns

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def topics(self) -> tuple[Topic, ...]:
        """See `Log.topics`."""
        return self._log.topics()

    def batches(self, wanted: Mapping[str, tuple[str, ...]]) -> Iterator[Messages]:
        """See `Log.batches`; ends once the last batch of every topic was too late."""
        late = 0
        for messages in self._log.batches(wanted):
            early = messages.time_ns <= self._until_ns
            late = 0 if early.any() else late + 1
            if late > len(wanted):
                return
            if early.all():
                yield messages
                continue
            rows = np.flatnonzero(early)
            fields: dict[str, Any] = {
                path: values[rows] if isinstance(values, np.ndarray) else tuple(values[row] for row in rows.tolist())
                for path, values in messages.fields.items()
            }
            yield Messages(topic=messages.topic, time_ns=messages.time_ns[rows], fields=fields)


def why_it_fails(log: Log, recipe: MappingRecipe, spans: Spans, folder: Path) -> str:
    """Returns why nothing of a log's beginning becomes a sound episode by a recipe; "" when something does.

    Args:
        log: The log.
        recipe: What is tried.
        spans: When each topic speaks first and last.
        folder: Where packets of cameras may go; the caller's to remove.

    Raises:
        StorageFull: There is no room in the folder.
    """
    topics = [need.topic for group in needs_of(recipe).values() for need in group if need.topic in spans]
    until_ns = max((spans[name][0] for name in topics), default=0) + round(REHEARSED_S * NANOSECONDS)
    whole = all(last <= until_ns for _, last in spans.values())
    rehearsed: Any = log if whole else _Beginning(log, until_ns)
    reasons: list[str] = []
    place = Path(tempfile.mkdtemp(dir=folder))
    try:
        for mapped in mapped_episodes(rehearsed, recipe, name=log.name, files=(), said={}, folder=place):
            found = (mapped.reason,) if mapped.episode is None else examined(mapped.episode).reasons
            if not found:
                return ""
            reasons += found
    except StorageFull:
        raise
    except InvalidInput as error:
        reasons.append(str(error))
    if not whole and recipe.cut.by in (CutBy.FLAG, CutBy.MARKS):
        return ""  # Whatever begins later was not looked at.
    return "; ".join(reasons[:3])[:600] or "no episode was found"
