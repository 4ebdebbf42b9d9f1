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
from mainspring.app.web.tables import Grid, data_path, dollars_text, iso, job_path
from mainspring.domain.release import RELEASE

_HERE = Path(__file__).parent
_BROUGHT = _HERE / "npm" / "node_modules"
_ENDS = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
_FILES: Mapping[str, Path] = {
    "htmx.js": _BROUGHT / "htmx.org" / "dist" / "htmx.min.js",
    "echarts.js": _BROUGHT / "echarts" / "dist" / "echarts.min.js",
}  # By what pages call them; `make install` brings them, and pages work without.
_COLOURS = re.compile("\x1b\\[[0-9;:]*m")  # Of a terminal.
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
    }
    return made


def _clean(value: Any) -> Any:
    """Takes out of text its colours, what has no look of its own, and what turns the order of the letters around it."""
    return _plain(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _plain(words: str) -> str:
    return CONTROL.sub("", _COLOURS.sub("", words))


def _moment(at_s: float | None, style: str = "clock") -> Markup:
    """Returns a moment, which the reader's browser tells in its own time zone; `style` is "clock" or "ago"."""
    if at_s is None:
        return Markup("-")
    said = iso(at_s)
    return Markup('<time datetime="{}" data-at="{}" data-as="{}">{}</time>').format(
        said, f"{at_s:.3f}", style, said.replace("T", " ").replace("Z", " UTC")
    )


def _linked(words: object) -> Markup:
    """Returns words in which ids of jobs lead to their pages."""
    said = str(escape(_plain(str(words))))
    return Markup(_JOB_ID.sub(lambda found: f'<a href="{PAGES}/jobs/{found[0]}">{found[0]}</a>', said))
