"""Tables as values: drawn by a template, and taken out as CSV or JSON, from the same rows."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import quote

from mainspring.app.base.calls import PAGES
from mainspring.app.render.tables import ago, size_text

_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # A spreadsheet takes what begins so for one. Source: OWASP, CSV injection.


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One cell.

    Args:
        text: For people.
        value: What it is sorted by and taken out as; None for its text.
        link: Where it leads, "" for nowhere.
        tone: How it is to look: a state, or what a state means ("good", "bad", "warn", "dim"); "" for plain.
        at_s: The moment it tells, seconds since the Unix epoch: drawn in the reader's own time zone.
        share: Drawn as a bar, 0 to 1.
        note: Said beside it, smaller.
    """

    text: str
    value: str | float | None = None
    link: str = ""
    tone: str = ""
    at_s: float | None = None
    share: float | None = None
    note: str = ""

    @property
    def raw(self) -> str | float:
        """Returns what it is taken out as."""
        return self.text if self.value is None else self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """One column.

    Args:
        key: Its name in JSON and CSV.
        title: For people.
        right: Whether it holds numbers.
        wide: Whether its cells wrap.
        spare: Whether a narrow screen leaves it out.
    """

    key: str
    title: str
    right: bool = False
    wide: bool = False
    spare: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """One table.

    Args:
        name: In addresses.
        title: Read out by a screen reader, and shown.
        empty: Said in place of rows where there are none.
        more: Address of the next rows, "" where these are all.
    """

    name: str
    title: str
    headings: tuple[Heading, ...]
    rows: Sequence[tuple[Cell, ...]]
    empty: str = "Nothing yet."
    more: str = ""

    def __post_init__(self) -> None:
        """Checks that rows are as wide as the head."""
        assert all(len(row) == len(self.headings) for row in self.rows), self.name

    @property
    def as_json(self) -> str:
        """Returns its rows as JSON."""
        rows = [
            dict(zip((each.key for each in self.headings), (cell.raw for cell in row), strict=True))
            for row in self.rows
        ]
        return json.dumps(rows, indent=1, ensure_ascii=False)

    @property
    def as_csv(self) -> str:
        """Returns its rows as CSV (RFC 4180); what a spreadsheet would compute is made text."""
        file = io.StringIO()
        writer = csv.writer(file)
        writer.writerow(each.key for each in self.headings)
        writer.writerows([_plain(cell.raw) for cell in row] for row in self.rows)
        return file.getvalue()


def _plain(value: str | float) -> str | float:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def text(words: str, *, tone: str = "", link: str = "") -> Cell:
    """Returns words."""
    return Cell(text=words, tone=tone, link=link)


def moment(at_s: float | None, *, none: str = "-") -> Cell:
    """Returns a moment, in JSON as ISO 8601."""
    return Cell(text=none, value="") if at_s is None else Cell(text=iso(at_s), value=iso(at_s), at_s=at_s)


def span(seconds: float | None) -> Cell:
    """Returns a duration, taken out in seconds."""
    return Cell(text="-", value="") if seconds is None else Cell(text=ago(seconds), value=round(seconds, 3))


def number(value: float | None, form: str = ",g") -> Cell:
    """Returns a number."""
    return Cell(text="-", value="") if value is None else Cell(text=f"{value:{form}}", value=value)


def dollars(value: float | None) -> Cell:
    """Returns money."""
    return Cell(text="-", value="") if value is None else Cell(text=dollars_text(value), value=round(value, 6))


def dollars_text(value: float) -> str:
    """Returns money as people say it: cents only where they matter."""
    return f"${value:,.4f}" if 0 < abs(value) < 0.1 else f"${value:,.2f}" if abs(value) < 1_000 else f"${value:,.0f}"


def percent(share: float | None) -> Cell:
    """Returns a share with its bar."""
    return Cell(text="-", value="") if share is None else Cell(text=f"{share:.1%}", value=round(share, 6), share=share)


def size(size_bytes: float) -> Cell:
    """Returns a size in bytes."""
    return Cell(text=size_text(size_bytes), value=size_bytes)


def expected(start_s: float | None, *, exact: bool) -> Cell:
    """Returns when a job is expected to start; `exact` where room is kept for it."""
    if start_s is None:
        return Cell(text="reserved" if exact else "-", value="")
    return Cell(text=iso(start_s), value=iso(start_s), at_s=start_s, note="reserved" if exact else "estimate")


def state(word: str) -> Cell:
    """Returns a state, in its colour and with its sign."""
    return Cell(text=word, tone=word)


def job_link(job: str, words: str = "") -> Cell:
    """Returns the way to a job."""
    return Cell(text=words or job, value=words or job, link=job_path(job) if job else "")


def data_path(dataset: str, number: str | int = "", episode: str = "") -> str:
    """Returns where a dataset, one of its versions, or an episode of one is shown."""
    parts = [dataset, *([str(number)] if number != "" else []), *([episode] if episode else [])]
    return f"{PAGES}/data/" + "/".join(quote(part, safe="") for part in parts)


def job_path(job: str) -> str:
    """Returns the address of a job's page."""
    return f"{PAGES}/jobs/{quote(job, safe='')}"


def iso(at_s: float) -> str:
    """Returns a moment as ISO 8601, in UTC; of what no calendar holds, the number."""
    try:
        return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return f"{at_s:g}"
