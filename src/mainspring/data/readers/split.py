"""ROS 2 bags that were split into files and lost the `metadata.yaml` that says so."""

from __future__ import annotations

import itertools
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from mcap.exceptions import McapError
from mcap.reader import make_reader

PARTS_MAX = 10_000  # As a bag's metadata may list.
GAP_NS_MAX = 1_000_000_000  # Between two parts: who records goes on at once, who starts anew takes longer.
_NAME = re.compile(r"(.+)_(\d{1,6})(\.mcap|\.db3)")


def split_files(folder: Path) -> tuple[Path, ...]:
    """Returns the parts of a bag in their order: files that rosbag2 named after their folder, each going on where the
    one before ends. Empty when the folder is none.

    Args:
        folder: Any folder.
    """
    found: dict[int, Path] = {}
    try:
        for path in folder.iterdir():
            match = _NAME.fullmatch(path.name)
            if match is None or match.group(1) != folder.name:
                if path.suffix in (".mcap", ".db3"):
                    return ()
                continue
            found[int(match.group(2))] = path
    except OSError:
        return ()
    numbers = sorted(found)
    if not 1 < len(numbers) <= PARTS_MAX or numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        return ()
    paths = tuple(found[number] for number in numbers)
    for before, after in itertools.pairwise([_span(path) for path in paths]):
        if before is None or after is None or not 0 <= after[0] - before[1] <= GAP_NS_MAX:
            return ()
    return paths


def _span(path: Path) -> tuple[int, int] | None:
    """Returns the times of the first and the last message; None when the file does not say."""
    try:
        if path.suffix == ".mcap":
            with open(path, "rb") as file:
                summary = make_reader(file).get_summary()
            told = summary.statistics if summary else None
            return (told.message_start_time, told.message_end_time) if told and told.message_count else None
        address = f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1"
        with closing(sqlite3.connect(address, uri=True)) as database:
            first, last = database.execute("SELECT min(timestamp), max(timestamp) FROM messages").fetchone()
        return (first, last) if isinstance(first, int) and isinstance(last, int) else None
    except (OSError, McapError, sqlite3.Error, ValueError, LookupError, EOFError):
        return None
