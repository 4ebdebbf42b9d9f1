"""Table recipe: how folders of tables and videos become episodes; typed, written by people as YAML."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from blake3 import blake3

from mainspring.data.options import RATE_HZ_MAX, RATE_HZ_MIN
from mainspring.domain.codec import to_plain
from mainspring.domain.errors import InvalidInput

TABLE_KIND = "table"
PARTS_MAX = 8_192
_MEANING = 1  # Raised when the same recipe makes other episodes of the same files.
_HASH_LETTERS = 16
_PLACEHOLDER = re.compile(r"\{([A-Za-z_]\w*)\}")
_UNITS = ("", "s", "ms", "us", "ns")
_DELIMITERS = (",", ";", "\t", " ", "|")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFact:
    """Something that holds for a whole episode, and where it is said; at most one of the three.

    Args:
        text: The fact itself.
        column: A column of the table that says it.
        file: A file that says it; its whole text, or what its `key` holds.
        key: Path inside a JSON file, parts joined by dots.
    """

    text: str = ""
    column: str = ""
    file: str = ""
    key: str = ""

    def __post_init__(self) -> None:
        """Checks that it is said in one place."""
        if sum(map(bool, (self.text, self.column, self.file))) > 1 or (self.key and not self.file):
            raise _refused("a fact", "several of text, column and file, or a key without a file", "one of them")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCamera:
    """A video beside a table, or a folder of pictures.

    Args:
        path: The video's path, with the table's placeholders; with a "*", the pictures of a folder, by number.
        times: A table that says when each frame was taken; its path, with the placeholders.
        time: That table's column; its first where it is empty.
        unit: Of those times: "s", "ms", "us", "ns"; "" leaves it to how they look.
        fps: Frames a second, from the first step on, where no table says the times. Without both, each row of the
            table has its frame.
    """

    path: str
    times: str = ""
    time: str = ""
    unit: str = ""
    fps: float | None = None

    def __post_init__(self) -> None:
        """Checks the rate and the unit."""
        if self.fps is not None and not RATE_HZ_MIN <= self.fps <= RATE_HZ_MAX:
            raise _refused(f"camera {self.path}", f"fps {self.fps:g}", f"{RATE_HZ_MIN:g} to {RATE_HZ_MAX:g}")
        if self.unit not in _UNITS or (self.times and self.fps):
            raise _refused(f"camera {self.path}", f"unit {self.unit!r}, times and fps", "s, ms, us or ns; one of both")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRecipe:
    """Makes an episode of each table of a folder.

    Args:
        table: Path of an episode's table inside the source, CSV or Parquet; `{episode}` and other words in braces
            stand for any name, and mean the same in every other path.
        columns: By name, the table's columns that are joined into one vector, in order; `arm_*` takes all that begin
            so, in the table's order. A policy is trained on "state" and "action".
        time: The column that says when each row was true; "" for none.
        unit: Of the times: "s", "ms", "us", "ns"; "" leaves it to how they look.
        rate_hz: Rows a second, where no column says times.
        delimiter: Between the values of a CSV file.
        cameras: By name.
        task: What the robot was asked to do.
        success: Whether it was done.
        robot: Kind of robot.
        metadata: What else holds for an episode.
    """

    table: str
    columns: Mapping[str, tuple[str, ...]]
    time: str = ""
    unit: str = ""
    rate_hz: float | None = None
    delimiter: str = ","
    cameras: Mapping[str, TableCamera] = field(default_factory=dict)
    task: TableFact = field(default_factory=TableFact)
    success: TableFact = field(default_factory=TableFact)
    robot: TableFact = field(default_factory=TableFact)
    metadata: Mapping[str, TableFact] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Checks the paths, the columns and the rate."""
        for path in self.paths:
            if path.startswith("/") or ".." in path.split("/") or "\0" in path:
                raise _refused("a path", repr(path[:200]), "a path inside the source")
            if unknown := sorted(set(_PLACEHOLDER.findall(path)) - set(_PLACEHOLDER.findall(self.table))):
                raise _refused("a path", f"{{{unknown[0]}}} in {path}"[:200], "placeholders that the table's path has")
        parts = sum(map(len, self.columns.values())) + len(self.cameras)
        if not self.columns or not all(self.columns.values()) or parts > PARTS_MAX:
            raise _refused("columns", f"{len(self.columns)} columns, {parts} parts", f"1 to {PARTS_MAX} parts")
        if bad := [name for name in (*self.columns, *self.cameras) if not name or ":" in name]:
            raise _refused("columns and cameras", repr(bad[0]), "names without a colon")
        if taken := sorted({"time_ns", "frame"} & self.columns.keys()):
            raise _refused("columns", repr(taken[0]), "another name: every episode has that column already")
        if self.unit not in _UNITS or self.delimiter not in _DELIMITERS:
            raise _refused(
                "unit, delimiter", f"{self.unit!r}, {self.delimiter!r}", "s, ms, us or ns; , ; | tab or space"
            )
        if self.rate_hz is not None and not RATE_HZ_MIN <= self.rate_hz <= RATE_HZ_MAX:
            raise _refused("rate_hz", f"{self.rate_hz:g}", f"{RATE_HZ_MIN:g} to {RATE_HZ_MAX:g}")

    @property
    def facts(self) -> Mapping[str, TableFact]:
        """Returns every fact that it tells of, by name."""
        return {**self.metadata, "task": self.task, "success": self.success, "robot": self.robot}

    @property
    def paths(self) -> tuple[str, ...]:
        """Returns every path in it, the table's first."""
        cameras = [path for camera in self.cameras.values() for path in (camera.path, camera.times) if path]
        return (self.table, *cameras, *(fact.file for fact in self.facts.values() if fact.file))

    @property
    def id(self) -> str:
        """Returns the hash of what it means."""
        plain = json.dumps([TABLE_KIND, _MEANING, to_plain(self)], sort_keys=True, separators=(",", ":"))
        return blake3(plain.encode()).hexdigest()[:_HASH_LETTERS]


def filled(template: str, values: Mapping[str, str]) -> str:
    """Returns a path with its placeholders filled.

    Args:
        template: The path.
        values: Placeholder to what stands for it.
    """
    return _PLACEHOLDER.sub(lambda match: values[match.group(1)], template)


def pattern_of(template: str) -> str:
    """Returns a path with a star for each placeholder.

    Args:
        template: The path.
    """
    return _PLACEHOLDER.sub("*", template)


def values_in(template: str, path: str) -> dict[str, str] | None:
    """Returns what stands for each placeholder in a path; None when the path is none of the template.

    Args:
        template: The path with placeholders.
        path: A path without.
    """
    pattern, seen, end = "", set[str](), 0
    for match in _PLACEHOLDER.finditer(template):
        pattern += re.escape(template[end : match.start()])
        name = match.group(1)
        pattern += f"(?P={name})" if name in seen else f"(?P<{name}>[^/]+)"
        seen.add(name)
        end = match.end()
    found = re.fullmatch(pattern + re.escape(template[end:]).replace(r"\*", "[^/]*"), path)
    return found.groupdict() if found else None


def _refused(on: str, got: str, wanted: str) -> InvalidInput:
    return InvalidInput("accept a recipe", on=on, got=got, wanted=wanted)
