"""Checkpoint tables: their steps, what is in them, and how two of them differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.text import Text
from rich.tree import Tree

from mainspring.app.render.tables import Listing, ago, facts_grid, framed, size_text
from mainspring.checkpoint import Manifest
from mainspring.checkpoint.difference import Difference, Numbers
from mainspring.checkpoint.interop import ArraySource, ArraySpec
from mainspring.domain.ids import JobId
from mainspring.domain.wire import Part

TREE_LINES_MAX = 40  # A screen.
_FACTS_SHOWN = 20
_FACT_LENGTH_MAX = 200
_WORDS = {Part.WEIGHTS: "weights", Part.OPTIMIZER: "optimizer", Part.OTHER: "other"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One durable step in a list.

    Args:
        job: The job's id, or an import's name.
        ranks: How many shares it has.
        created_s: When it became durable, seconds since the Unix epoch.
        parent: The checkpoint its attempt began from.
        damage: What is wrong with it, "" for nothing that its manifest shows.
    """

    job: JobId
    step: int
    attempt: str = ""
    ranks: int = 0
    size_bytes: int = 0
    created_s: float = 0.0
    parent: str = ""
    damage: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """What reading all of a step found.

    Args:
        job: The job's id, or an import's name.
        damage: What is wrong with it, "" for nothing.
    """

    job: JobId
    step: int
    size_bytes: int = 0
    damage: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartSize:
    """How much of a checkpoint is for one thing."""

    arrays: int = 0
    elements: int = 0
    size_bytes: int = 0


def row_of(manifest: Manifest) -> Row:
    """Returns a step as a list shows it.

    Args:
        manifest: The step's.
    """
    return Row(
        job=manifest.job,
        step=manifest.step,
        attempt=manifest.attempt,
        ranks=len(manifest.shares),
        size_bytes=manifest.size_bytes,
        created_s=manifest.created_s,
        parent=manifest.lineage.parent,
    )


def rows_table(rows: Sequence[Row], *, now_s: float) -> RenderableType:
    """Returns one row a step."""
    made = Listing("JOB", ">STEP", "?SAVED BY", "?>SHARES", ">SIZE", ">AGE", "?~BEGAN FROM")
    for row in rows:
        sizes = (str(row.ranks), size_text(row.size_bytes), ago(max(0.0, now_s - row.created_s)))
        told = ("damaged", "-", "-", "-") if row.damage else (row.attempt, *sizes)
        made.add_row(row.job, str(row.step), *told, row.parent or "-")
    damaged = [f"{row.job}@{row.step}: {row.damage}" for row in rows if row.damage]
    return Group(made, Text("\n".join(damaged), style="red")) if damaged else made


def verdicts_table(verdicts: Sequence[Agreement]) -> RenderableType:
    """Returns one row a step that was read."""
    return Listing("JOB", ">STEP", ">READ", "~FOUND").add_rows(
        (
            *(each.job, str(each.step), "-" if each.damage else size_text(each.size_bytes)),
            Text(each.damage, style="red") if each.damage else Text("sound", style="green"),
        )
        for each in verdicts
    )


def parts_of(arrays: Sequence[ArraySpec]) -> Mapping[str, PartSize]:
    """Returns how much of a checkpoint is for what, by the name of each part it has."""
    found: dict[str, PartSize] = {}
    for part in Part:
        ours = [array for array in arrays if array.part is part]
        if ours:
            found[_WORDS[part]] = PartSize(
                arrays=len(ours),
                elements=sum(array.elements for array in ours),
                size_bytes=sum(array.size_bytes for array in ours),
            )
    return found


def checkpoint_panel(manifest: Manifest, arrays: Sequence[ArraySpec], *, now_s: float) -> RenderableType:
    """Returns everything about a checkpoint on a screen.

    Args:
        arrays: Its arrays, in order of path.
    """
    lineage = manifest.lineage
    facts: dict[str, str | Text] = {
        "saved": f"{ago(max(0.0, now_s - manifest.created_s))} ago by {manifest.attempt}",
        "size": f"{size_text(manifest.size_bytes)} in {len(manifest.shares)} shares of {lineage.ranks} ranks",
        "began from": lineage.parent or "nothing",
        "code": f"{lineage.code[:19] or 'none'} ({lineage.commit[:12] or 'no commit'})",
        "data": ", ".join(lineage.inputs[:_FACTS_SHOWN]) or "none named",
        "generation": f"{lineage.generation} of attempt {lineage.number}, epoch {lineage.epoch}",
    }
    for name, value in sorted(manifest.state.items())[:_FACTS_SHOWN]:
        text = str(value)[:_FACT_LENGTH_MAX]
        facts[f"state {name}"] = text if text.isprintable() else ascii(text)  # Imports bring what others wrote.
    listed = Listing("PART", ">ARRAYS", ">ELEMENTS", ">SIZE", "~TYPES").add_rows(
        (
            *(name, f"{size.arrays:,}", f"{size.elements:,}", size_text(size.size_bytes)),
            ", ".join(sorted({array.dtype for array in arrays if _WORDS[array.part] == name})),
        )
        for name, size in parts_of(arrays).items()
    )
    return Group(framed(facts_grid(facts), f"{manifest.job}@{manifest.step}"), listed, "", _tree(arrays))


@dataclass(slots=True)
class _Branch:
    """A path with what lies below it."""

    arrays: int = 0
    size_bytes: int = 0
    leaf: ArraySpec | None = None


def _tree(arrays: Sequence[ArraySpec]) -> RenderableType:
    """Returns as many levels of the tree as fit on a screen; what does not fit of one level is counted."""
    levels: list[dict[tuple[str, ...], _Branch]] = []
    for array in arrays:
        segments = tuple(array.path.split("/"))
        for depth in range(1, len(segments) + 1):
            if len(levels) < depth:
                levels.append({})
            branch = levels[depth - 1].setdefault(segments[:depth], _Branch())
            branch.arrays += 1
            branch.size_bytes += array.size_bytes
            branch.leaf = array if depth == len(segments) else branch.leaf
    shown, lines = 1, len(levels[0]) if levels else 0
    while shown < len(levels) and lines + len(levels[shown]) <= TREE_LINES_MAX:
        lines += len(levels[shown])
        shown += 1
    root = Tree(Text(f"{len(arrays):,} arrays, {size_text(sum(array.size_bytes for array in arrays))}"))
    nodes: dict[tuple[str, ...], Tree] = {(): root}
    for level in levels[:shown]:
        for path, branch in list(level.items())[:TREE_LINES_MAX]:
            if path[:-1] in nodes:
                nodes[path] = nodes[path[:-1]].add(Text(_branch_text(path[-1], branch)))
        if len(level) > TREE_LINES_MAX:
            root.add(Text(f"and {len(level) - TREE_LINES_MAX:,} more: --json lists every array"))
    return root


def _branch_text(name: str, branch: _Branch) -> str:
    if branch.leaf is not None and branch.arrays == 1:
        return f"{name}  {branch.leaf.dtype} {list(branch.leaf.shape)}"
    return f"{name}  {branch.arrays:,} arrays, {size_text(branch.size_bytes)}"


def differences_table(
    left: ArraySource, right: ArraySource, found: Sequence[Difference], *, limit: int
) -> RenderableType:
    """Returns what differs, the most different first: what only one has, then by relative difference.

    Args:
        left: The first checkpoint.
        right: The second.
        found: How each array differs.
        limit: How many to show.
    """
    changed = [each for each in found if not each.same]
    told = f"{left.name} and {right.name}: {len(found) - len(changed):,} arrays are the same bit for bit"
    if not changed:
        return f"{told}, and there are no others."
    made = Listing("ARRAY", "LEFT", "RIGHT", ">MAX ABS", ">MAX REL", ">NORM OF DIFFERENCE", "?>NORMS", "?>NANS")
    order = sorted(changed, key=lambda each: (each.relative is not None, -(each.relative or 0.0), each.path))
    for each in order[:limit]:
        numbers = (_number(each.absolute), _number(each.relative), _number(each.norm))
        norms = _pair(each, lambda side: f"{side.norm:.4g}")
        nans = _pair(each, lambda side: str(side.nans))
        made.add_row(each.path, _kind(each.left), _kind(each.right), *numbers, norms, nans)
    rest = len(changed) - limit
    more = [f"and {rest:,} more: --limit shows more, --json all"] if rest > 0 else []
    return Group(f"{told}, {len(changed):,} are not.", made, *more)


def _kind(array: ArraySpec | None) -> str:
    return f"{array.dtype} {list(array.shape)}" if array else "none"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _pair(each: Difference, told: Callable[[Numbers], str]) -> str:
    if each.left_numbers is None or each.right_numbers is None:
        return "-"
    return f"{told(each.left_numbers)} {told(each.right_numbers)}"
