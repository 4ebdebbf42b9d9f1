"""How pages are drawn: templates in which everything is text unless a template itself wrote it as markup."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from mainspring.app.base.calls import PAGES
from mainspring.app.render.tables import ago, gist
from mainspring.app.render.terminal import CONTROL
from mainspring.app.web.tables import Cell, Grid, data_path, dollars_text, iso, job_path
from mainspring.domain.release import RELEASE

_HERE = Path(__file__).parent
_BROUGHT = _HERE / "npm" / "node_modules"
_ENDS = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
_FILES: Mapping[str, Path] = {
    "htmx.js": _BROUGHT / "htmx.org" / "dist" / "htmx.min.js",
    "echarts.js": _BROUGHT / "echarts" / "dist" / "echarts.min.js",
}  # By what pages call them; `make install` brings them, and pages work without.
_COLOURS = re.compile("\x1b\\[[0-9;:]*m")  # Of a terminal.
_LONG = 160  # Letters of a cell, beyond which it is cut and says all of it where one points at it.
_JOB_ID = re.compile(r"\bjob-[a-z0-9]{12}\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A page that is to be drawn.

    Args:
        template: Its file, without the ending.
        title: Of the window.
        words: What the template is given.
        grids: Its tables, by name.
        follow: The API's path of the events after which it is drawn anew, "" for none.
        since: The last event that was known before anything on it was read.
        every_s: How often it is drawn anew without any event, 0 for never.
        status: HTTP's.
    """

    template: str
    title: str
    words: Mapping[str, Any] = field(default_factory=dict)
    grids: Mapping[str, Grid] = field(default_factory=dict)
    follow: str = ""
    since: int = 0
    every_s: int = 0
    status: int = 200


def asset(name: str) -> tuple[Path, str] | None:
    """Returns a file that pages load, and its type; None where there is none of that name here."""
    own = {path.name: path for path in (_HERE / "static").iterdir()}
    path = {**own, **_FILES}.get(name)
    kind = _ENDS.get(name.rpartition(".")[2], "")
    return (path, kind) if path is not None and kind and path.is_file() else None


def has_charts() -> bool:
    """Returns whether what draws charts is here."""
    return _FILES["echarts.js"].is_file()


def draw(shown: Shown, **given: Any) -> str:
    """Returns a page as HTML."""
    words = {**shown.words, **given, "shown": shown, "grids": shown.grids}
    return _environment().get_template(f"{shown.template}.html").render(words)


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_clean,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "moment": _moment,
        "ago": ago,
        "linked": _linked,
        "dollars": dollars_text,
        "gist": gist,
    }
    made.globals |= {
        "root": PAGES,
        "release": RELEASE,
        "job_path": job_path,
        "data_path": data_path,
        "has_charts": has_charts,
        "has_htmx": _FILES["htmx.js"].is_file,
        "body": table_body,
    }
    return made


def _clean(value: Any) -> Any:
    """Takes out of text its colours, what has no look of its own, and what turns the order of the letters around it."""
    return _plain(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _plain(words: str) -> str:
    if words.isascii() and words.isprintable():  # As most are.
        return words
    return CONTROL.sub("", _COLOURS.sub("", words))


def text(words: object) -> Markup:
    """Returns words as text, whatever is in them, as templates write them."""
    return escape(words if isinstance(words, Markup) else _plain(str(words)))


# ---------------------------------------------------------------- what there are thousands of on a page


def table_body(grid: Grid) -> Markup:
    """Returns the rows of a table: a template would take ten times as long for the thousands of cells of a page."""
    classes = ["right " * head.right + "wide " * head.wide + ("spare" if head.spare else "") for head in grid.headings]
    parts: list[str] = []
    for row in grid.rows:
        parts.append("<tr>")
        for look, cell in zip(classes, row, strict=True):
            value = "" if cell.value is None else f' data-value="{text(cell.value)}"'
            parts.append(f'<td class="{look}"{value}>{_cell(cell)}</td>')
        parts.append("</tr>\n")
    return Markup("".join(parts))


def _cell(one: Cell) -> str:
    words = text(one.text)
    if one.at_s is not None:
        inner: str = _moment(one.at_s)
    elif one.share is not None:
        part = f'<rect class="part" width="{round(100 * one.share, 1)}" height="8"/>'
        bar = f'<rect class="rest" width="100" height="8"/>{part}'
        svg = f'<svg viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">{bar}</svg>'
        inner = f'<span class="share">{svg}{words}</span>'
    elif one.tone:
        inner = f'<span class="badge t-{text(one.tone.replace(" ", "-"))}">{words}</span>'
    elif len(one.text) > _LONG:
        inner = f'<span class="long" title="{words}">{words}</span>'
    else:
        inner = words
    if one.note:
        inner = f"{inner} <small>{text(one.note)}</small>"
    return f'<a href="{text(one.link)}">{inner}</a>' if one.link else inner


def _moment(at_s: float | None, style: str = "clock") -> Markup:
    """Returns a moment, which the reader's browser tells in its own time zone; `style` is "clock" or "ago"."""
    if at_s is None:
        return Markup("-")
    said = iso(at_s)
    words = said.replace("T", " ").replace("Z", " UTC")  # Digits, of which a page has thousands: nothing to escape.
    return Markup(f'<time datetime="{said}" data-at="{at_s:.3f}" data-as="{escape(style)}">{words}</time>')


def _linked(words: object) -> Markup:
    """Returns words in which ids of jobs lead to their pages."""
    said = str(escape(_plain(str(words))))
    return Markup(_JOB_ID.sub(lambda found: f'<a href="{PAGES}/jobs/{found[0]}">{found[0]}</a>', said))
