"""Robot data on its way to a policy: recordings -> episodes -> catalog version -> training view -> batches.

Names are loaded when they are first used: a rank that restarts must not pay for video decoders and SQL.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mainspring.data.catalog.versions import (
        Version,
        datasets,
        episode_rows,
        newest_versions,
        query,
        resolve,
        versions,
    )
    from mainspring.data.episode import Camera, EpisodeRow, Features
    from mainspring.data.ingest.intake import IngestProgress, IngestReport, LeftOut, ingest
    from mainspring.data.loader.loader import Batch, BatchStream, Loader, gather
    from mainspring.data.recording import EpisodeWriter
    from mainspring.data.views.build import ViewProgress, build_view
    from mainspring.data.views.moments import Statistics
    from mainspring.data.views.view import Split, View, ViewManifest, ViewRecipe, open_view

_MODULES = {
    "catalog.versions": (
        "Version",
        "datasets",
        "episode_rows",
        "newest_versions",
        "query",
        "resolve",
        "versions",
    ),
    "episode": (
        "Camera",
        "EpisodeRow",
        "Features",
    ),
    "ingest.intake": (
        "IngestProgress",
        "IngestReport",
        "LeftOut",
        "ingest",
    ),
    "loader.loader": (
        "Batch",
        "BatchStream",
        "Loader",
        "gather",
    ),
    "views.moments": ("Statistics",),
    "recording": ("EpisodeWriter",),
    "views.view": (
        "Split",
        "View",
        "ViewManifest",
        "ViewRecipe",
        "open_view",
    ),
    "views.build": (
        "ViewProgress",
        "build_view",
    ),
}
_WHERE = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "Batch",
    "BatchStream",
    "Camera",
    "EpisodeRow",
    "EpisodeWriter",
    "Features",
    "IngestProgress",
    "IngestReport",
    "LeftOut",
    "Loader",
    "Split",
    "Statistics",
    "Version",
    "View",
    "ViewManifest",
    "ViewProgress",
    "ViewRecipe",
    "build_view",
    "datasets",
    "episode_rows",
    "gather",
    "ingest",
    "newest_versions",
    "open_view",
    "query",
    "resolve",
    "versions",
]


def __getattr__(name: str) -> Any:
    """Returns a public name from the module that holds it."""
    if name not in _WHERE:
        raise AttributeError(f"module 'mainspring.data' has no attribute {name!r}")
    return getattr(import_module(f"mainspring.data.{_WHERE[name]}"), name)
