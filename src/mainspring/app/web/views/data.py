"""Pages of data: datasets, a dataset with what it was made of and became, a version's episodes, an episode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from mainspring.app.base.calls import PAGES
from mainspring.app.render.tables import ago
from mainspring.app.web import tables
from mainspring.app.web.look import Shown
from mainspring.app.web.tables import Cell, Grid, Heading, data_path
from mainspring.app.web.visit import Visit
from mainspring.domain.answers import DatasetDetail, EpisodeCurve, EpisodeView, LineageLink

EPISODES = 100  # Of one page.
DRAWN_MAX = 60  # Boxes of a lineage; its table has all.
DIMS_MAX = 16  # Lines of one chart.
_COLUMN, _ROW, _BOX, _MIDDLE = 240, 44, 200, 16  # Pixels of a lineage: from box to box, how wide one is, its middle.
_STALE_S = 7 * 86_400.0  # Weeks without anything new are worth a look.


async def view_data(visit: Visit) -> Shown:
    """Returns every dataset."""
    found = await visit.lab.list_datasets()
    rows = []
    for one in found:
        age_s = None if one.published_s is None else visit.now_s - one.published_s
        rows.append(
            (
                tables.text(one.name, link=data_path(one.name)),
                tables.text(one.team or "everybody"),
                tables.number(one.number, "d"),
                tables.number(one.episodes, ",d"),
                tables.span(one.seconds),
                tables.size(one.size_bytes),
                _age(age_s),
                tables.text(f"{one.candidates} waits" if one.candidates == 1 else f"{one.candidates} wait", tone="warn")
                if one.candidates
                else tables.text("open", tone="good"),
                Cell(text="; ".join(one.tasks), value=" ".join(one.tasks)),
            )
        )
    headings = (
        Heading(key="dataset", title="Dataset"),
        Heading(key="team", title="Whose", spare=True),
        Heading(key="version", title="Version", right=True),
        Heading(key="episodes", title="Episodes", right=True),
        Heading(key="seconds", title="Time", right=True, spare=True),
        Heading(key="bytes", title="Size", right=True, spare=True),
        Heading(key="age_s", title="Newest is", right=True),
        Heading(key="gates", title="Gates"),
        Heading(key="tasks", title="Tasks", wide=True, spare=True),
    )
    empty = "There is no data yet: ms data ingest FOLDER --dataset NAME takes recordings in."
    grid = Grid(name="datasets", title="Datasets", headings=headings, rows=rows, empty=empty)
    return Shown(template="data", title="Data", words={"total": len(found)}, grids={grid.name: grid}, every_s=60)


async def view_dataset(visit: Visit) -> Shown:
    """Returns one dataset: versions, gates, lineage, freshness."""
    name = visit.request.path_params["dataset"]
    told = await visit.lab.show_dataset(name)
    grids = (_versions(told), _candidates(told), _lineage(told))
    newest = told.versions[0]
    words = {"told": told, "newest": newest, "graph": lineage_graph(newest.name, told.lineage), "ago": ago}
    return Shown(
        template="dataset", title=told.name, words=words, grids={grid.name: grid for grid in grids}, every_s=60
    )


async def view_version(visit: Visit) -> Shown:
    """Returns a version's episodes."""
    dataset, number = visit.request.path_params["dataset"], visit.request.path_params["number"]
    skip = int(visit.asked("skip")) if visit.asked("skip").isdigit() and len(visit.asked("skip")) < 9 else 0
    found = await visit.lab.list_episodes(dataset, number, skip=skip, limit=EPISODES)
    more = f"{data_path(dataset, number)}?skip={skip + EPISODES}" if len(found) == EPISODES else ""
    grid = _episodes(found, dataset, number, more)
    words = {"dataset": dataset, "number": number, "skip": skip}
    return Shown(template="version", title=f"{dataset}@{number}", words=words, grids={grid.name: grid})


async def view_episode(visit: Visit) -> Shown:
    """Returns one episode: its pictures and the curves of its columns."""
    dataset, number, id = (visit.request.path_params[name] for name in ("dataset", "number", "episode"))
    told = await visit.lab.show_episode(dataset, number, id)
    words = {
        "told": told,
        "one": told.episode,
        "dataset": dataset,
        "number": number,
        "curves": [
            {"name": f"curve-{at}", "title": one.name, "data": _curve(one)} for at, one in enumerate(told.curves)
        ],
        "pictures": f"{PAGES}/api/v1/datasets/{_quoted(dataset)}/versions/{_quoted(number)}/episodes/{id}/pictures"
        if told.episode.cameras
        else "",
    }
    return Shown(template="episode", title=f"{told.episode.id[:12]} of {told.version}", words=words)


def _quoted(word: str) -> str:
    return quote(word, safe="")


def _age(age_s: float | None) -> Cell:
    if age_s is None:
        return Cell(text="-", value="")
    return Cell(text=f"{ago(age_s)} old", value=age_s, tone="warn" if age_s > _STALE_S else "")


def _versions(told: DatasetDetail) -> Grid:
    rows = [
        (
            tables.text(one.name, link=data_path(told.name, one.number)),
            tables.moment(one.published_s),
            tables.number(one.episodes, ",d"),
            tables.number(one.lossy or None, ",d"),
            tables.span(one.seconds),
            tables.size(one.size_bytes),
            tables.text(one.parent or "-"),
            tables.text(one.origin),
            tables.text("; ".join(one.waivers) or "all passed", tone="warn" if one.waivers else "good"),
        )
        for one in told.versions
    ]
    headings = (
        Heading(key="version", title="Version"),
        Heading(key="published", title="Published"),
        Heading(key="episodes", title="Episodes", right=True),
        Heading(key="lossy", title="Lossy", right=True, spare=True),
        Heading(key="seconds", title="Time", right=True, spare=True),
        Heading(key="bytes", title="Size", right=True, spare=True),
        Heading(key="parent", title="Parent", spare=True),
        Heading(key="origin", title="How it came to be", wide=True),
        Heading(key="gates", title="Gates", wide=True),
    )
    return Grid(name="versions", title="Versions", headings=headings, rows=rows)


def _candidates(told: DatasetDetail) -> Grid:
    rows = [
        (tables.text(one.id[:12]), tables.text(one.origin), tables.text("; ".join(one.findings) or "nothing"))
        for one in told.candidates
    ]
    headings = (
        Heading(key="candidate", title="Candidate"),
        Heading(key="origin", title="How it came to be", wide=True),
        Heading(key="findings", title="What keeps it back", wide=True),
    )
    empty = "Every gate is open: nothing is kept back."
    return Grid(name="candidates", title="Kept back", headings=headings, rows=rows, empty=empty)


def _lineage(told: DatasetDetail) -> Grid:
    rows = [
        (
            tables.text("made of" if one.depth < 0 else "became part of"),
            tables.text(one.kind),
            tables.text(one.id, link=_leads(one)),
            tables.text(one.of),
            tables.number(abs(one.depth), "d"),
        )
        for one in told.lineage
    ]
    headings = (
        Heading(key="way", title="Way"),
        Heading(key="kind", title="Kind"),
        Heading(key="id", title="What", wide=True),
        Heading(key="of", title="By way of"),
        Heading(key="steps", title="Steps away", right=True),
    )
    empty = "It was made of recordings alone, and nothing was made of it yet."
    return Grid(name="lineage", title="Lineage", headings=headings, rows=rows, empty=empty)


def _leads(one: LineageLink) -> str:
    if one.kind == "version":
        dataset, _, number = one.id.partition("@")
        return data_path(dataset, number)
    return f"{PAGES}/jobs/{_quoted(one.id)}" if one.kind == "run" else ""


def lineage_graph(name: str, links: Sequence[LineageLink]) -> Mapping[str, Any]:
    """Returns boxes in columns, what it was made of to the left, what it became to the right, and lines between."""
    depth = {name: 0}
    kinds = {name: "version"}
    edges = []
    for one in sorted(links, key=lambda each: (abs(each.depth), each.kind, each.id)):
        if len(depth) >= DRAWN_MAX and one.id not in depth:
            continue
        depth.setdefault(one.id, one.depth)
        kinds.setdefault(one.id, one.kind)
        if one.of in depth:
            edges.append((one.id, one.of) if one.depth < 0 else (one.of, one.id))
    columns = sorted({*depth.values()})
    nodes, place = [], {}
    tallest = 1
    for column, level in enumerate(columns):
        own = [id for id, at in depth.items() if at == level]
        tallest = max(tallest, len(own))
        for row, id in enumerate(own):
            place[id] = (column, row)
            word = id if len(id) <= 24 else f"{id[:23]}…"
            nodes.append(
                {"x": column * _COLUMN, "y": row * _ROW, "word": word, "id": id, "kind": kinds[id], "own": id == name}
            )
    lines = [
        {
            "x1": place[a][0] * _COLUMN + _BOX,
            "y1": place[a][1] * _ROW + _MIDDLE,
            "x2": place[b][0] * _COLUMN,
            "y2": place[b][1] * _ROW + _MIDDLE,
        }
        for a, b in dict.fromkeys(edges)
    ]
    return {
        "nodes": nodes,
        "lines": lines,
        "width": len(columns) * _COLUMN - (_COLUMN - _BOX),
        "height": tallest * _ROW,
    }


def _episodes(found: Sequence[EpisodeView], dataset: str, number: str, more: str) -> Grid:
    words = {True: ("success", "good"), False: ("failure", "bad"), None: ("unknown", "dim")}
    rows = [
        (
            tables.text(one.id[:12], link=data_path(dataset, number, one.id)),
            tables.text(words[one.success][0], tone=words[one.success][1]),
            tables.text(one.task),
            tables.text(one.robot),
            tables.number(one.frames, ",d"),
            tables.span(one.seconds),
            tables.number(float(len(one.cameras)), ".0f"),
            tables.moment(one.started_s or None),
            tables.text(one.source),
        )
        for one in found
    ]
    headings = (
        Heading(key="episode", title="Episode"),
        Heading(key="success", title="Outcome"),
        Heading(key="task", title="Task", wide=True),
        Heading(key="robot", title="Robot", spare=True),
        Heading(key="frames", title="Steps", right=True),
        Heading(key="seconds", title="Time", right=True),
        Heading(key="cameras", title="Cameras", right=True, spare=True),
        Heading(key="started", title="Recorded", spare=True),
        Heading(key="source", title="Source", wide=True, spare=True),
    )
    return Grid(
        name="episodes", title="Episodes", headings=headings, rows=rows, empty="There are no more of them.", more=more
    )


def _curve(one: EpisodeCurve) -> Mapping[str, Any]:
    dims = one.dims[:DIMS_MAX]
    return {
        "names": list(dims),
        "lines": [
            [[at, point[dim] if dim < len(point) else None] for at, point in zip(one.times_s, one.values, strict=True)]
            for dim in range(len(dims))
        ],
    }
