"""Looks at a folder of tables and videos, and proposes the recipe by which they could be taken in."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from mainspring.data.features import ACTION, STATE
from mainspring.data.readers.episodes.table.episode import column_kinds
from mainspring.data.readers.episodes.table.recipe import TABLE_KIND, TableCamera, TableRecipe, values_in
from mainspring.domain.codec import from_plain
from mainspring.domain.errors import NotFound

ENTRIES_MAX = 100_000  # Looked at; a folder of more is of one kind throughout.
_TABLES = (".csv", ".parquet", ".pq")
_VIDEOS = (".mp4", ".mkv", ".mov", ".avi", ".webm")
_PICTURES = (".png", ".jpg", ".jpeg")
_TIME = re.compile(r"(time|timestamp|time_?stamp|stamp|t|time_(s|ms|us|ns)|timestamp_(s|ms|us|ns))", re.IGNORECASE)
_ACTION = re.compile(r"(^|[^a-z])(act|actions?|cmd|command|target|goal|leader|master|desired)([^a-z]|$)", re.IGNORECASE)
_COUNTS = re.compile(r"(frame|index|step|row|episode)(_?(index|id|number|count))?|unnamed.*|", re.IGNORECASE)
_FALLBACK_HZ = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TableProposal:
    """What was seen, and how it could be taken in.

    Args:
        episodes: How many tables the recipe finds.
        recipe: The recipe.
        doubts: What a person should decide, a sentence each.
        text: The recipe as YAML with the doubts as comments.
    """

    episodes: int
    recipe: TableRecipe
    doubts: tuple[str, ...]
    text: str


def propose_table(folder: Path) -> TableProposal:
    """Returns a recipe for a folder of tables.

    Args:
        folder: Of CSV or Parquet files, one for each episode, with videos or pictures beside them.

    Raises:
        NotFound: There is no table in it, or none with columns of numbers.
        DamagedData: The first table cannot be read.
    """
    paths = _paths_in(folder)
    tables = [path for path in paths if path.suffix.lower() in _TABLES]
    template, first = _table_of(folder, tables)
    kinds = column_kinds(folder / first, ",")
    numbers = [name for name, kind in kinds.items() if kind == "number"]
    texts = [name for name, kind in kinds.items() if kind == "text"]
    time = next((name for name in kinds if _TIME.fullmatch(name)), "")
    rest = [name for name in numbers if name != time and not _COUNTS.fullmatch(name)]
    actions = [name for name in rest if _ACTION.search(name)]
    states = [name for name in rest if name not in actions]
    if not rest:
        raise NotFound(
            "propose a recipe", on=first, got=f"columns {', '.join(kinds)[:200]}", wanted="columns of numbers"
        )
    doubts = [f"{name} is taken for the times" for name in (time,) if name]
    if not time:
        doubts.append(f"no column is known to say times: rate_hz {_FALLBACK_HZ:g} is a guess")
    if not actions:
        doubts.append("action: no column is known by its name; move them there from the state")
    cameras = _cameras(template, first, paths)
    doubts += [f"camera {name}: without fps or times, each row has its frame" for name in cameras]
    task = next((name for name in texts if re.search(r"task|instruction|language|prompt", name, re.IGNORECASE)), "")
    plain: dict[str, Any] = {"kind": TABLE_KIND, "table": template}
    plain["columns"] = {name: found for name, found in ((STATE, states), (ACTION, actions)) if found}
    plain |= {"time": time} if time else {"rate_hz": _FALLBACK_HZ}
    if cameras:
        plain["cameras"] = {name: {"path": camera.path} for name, camera in sorted(cameras.items())}
    plain["task"] = {"column": task} if task else {"text": ""}
    if not task:
        doubts.append("task: nothing says what the robot was asked to do; write it as the text")
    head = [
        "# How the tables of a folder become episodes. Read it through, change what is wrong, then take it in by it."
    ]
    body = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, default_flow_style=None, width=110)
    recipe = from_plain(TableRecipe, {key: value for key, value in plain.items() if key != "kind"}, strict=True)
    return TableProposal(
        episodes=sum(values_in(template, path.as_posix()) is not None for path in tables),
        recipe=recipe,
        doubts=tuple(doubts),
        text="\n".join([*head, *(f"# ? {doubt}" for doubt in doubts), "", body]),
    )


def _paths_in(folder: Path) -> list[PurePosixPath]:
    found: list[PurePosixPath] = []
    for path in folder.rglob("*"):
        inner = PurePosixPath(path.relative_to(folder).as_posix())
        if path.is_file() and not any(part.startswith(".") for part in inner.parts):
            found.append(inner)
        if len(found) >= ENTRIES_MAX:
            break
    return sorted(found)


def _table_of(folder: Path, tables: Iterable[PurePosixPath]) -> tuple[str, str]:
    """Returns the path of most tables with a placeholder for what differs, and the first of them."""
    templates: dict[str, list[str]] = {}
    for path in tables:
        parts = path.parts
        if len(parts) > 1:
            templates.setdefault("/".join((*parts[:-2], "{episode}", parts[-1])), []).append(path.as_posix())
        templates.setdefault("/".join((*parts[:-1], "{episode}" + path.suffix)), []).append(path.as_posix())
    if not templates:
        raise NotFound("propose a recipe", on=str(folder), got="no table", wanted="CSV or Parquet files")
    template = max(templates, key=lambda one: (len(templates[one]), one.count("/"), one))
    return template, templates[template][0]


def _cameras(template: str, first: str, paths: Iterable[PurePosixPath]) -> dict[str, TableCamera]:
    """Returns the videos, and folders of pictures, whose paths share what stands for the placeholder in the first."""
    episode = (values_in(template, first) or {})["episode"]
    found: dict[str, TableCamera] = {}
    for path in paths:
        parts = path.parts
        suffix = path.suffix.lower()
        if suffix in _VIDEOS and (episode in parts or path.stem.startswith(episode)):
            stem = path.stem.removeprefix(episode).strip("_-.") if path.stem.startswith(episode) else path.stem
            name = stem or (parts[-2] if len(parts) > 1 and parts[-2] != episode else "camera")
            shown = [part.replace(episode, "{episode}", 1) if part.startswith(episode) else part for part in parts]
            found.setdefault(name, TableCamera(path="/".join(shown)))
        elif suffix in _PICTURES and episode in parts[:-1]:
            shown = ["{episode}" if part == episode else part for part in parts[:-1]]
            name = parts[-2] if parts[-2] != episode else "camera"
            found.setdefault(name, TableCamera(path="/".join((*shown, f"*{path.suffix}"))))
    return found
