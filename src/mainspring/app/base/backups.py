"""Who makes copies of a home's store, where, and when the last one was made."""

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


def note_backup(home: Home, made_s: float) -> None:
    """Remembers in a home that somebody has backed its store up.

    Args:
        made_s: When that was begun.
    """
    home.backed_up.write_text(f"{made_s}\n")


def backed_up_s(home: Home, *, embedded: bool) -> float | None:
    """Returns when a home's store was last backed up, seconds since the Unix epoch.

    Args:
        embedded: Whether the store is in the home; of another that was never backed up from here None is told, as
            its database may have back-ups of its own.

    Raises:
        ValueError: The note is damaged.
    """
    try:
        return float(home.backed_up.read_text())
    except FileNotFoundError:
        return 0.0 if embedded else None
