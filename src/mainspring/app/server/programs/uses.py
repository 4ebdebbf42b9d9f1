"""Lineage of runs: which versions they read."""

from __future__ import annotations

from contextlib import suppress

from mainspring.data import record_use
from mainspring.domain.errors import NotAllowed
from mainspring.domain.ids import JobId
from mainspring.objects import ObjectStore


def noted(store: ObjectStore, version: str, job: JobId) -> None:
    """Records that a run reads a version; where it may only read, its checkpoints say so, by its spec's `inputs`."""
    with suppress(NotAllowed):
        record_use(store, version, "run", job)
