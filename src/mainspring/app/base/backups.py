"""Who makes copies of a home's store, and where."""

from __future__ import annotations

from importlib.metadata import version

from mainspring.app.base.home import Home
from mainspring.control.store.databases.backups import Backups, Maker, mark_of


def maker_in(home: Home, now_s: float) -> Maker:
    """Returns who makes and restores back-ups in a home."""
    key = home.known_key()
    return Maker(release=version("mainspring"), key=mark_of(key) if key else "", now_s=now_s)


def backups_in(home: Home, now_s: float) -> Backups:
    """Returns what copies a home's store before its tables change."""
    return Backups(folder=home.backups, maker=maker_in(home, now_s))
