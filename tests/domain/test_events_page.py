"""The page of events follows from their classes: `python -m tests.domain.test_events_page` writes it."""

from __future__ import annotations

from dataclasses import fields
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from mainspring.domain.wire.events import EVENTS
from mainspring.domain.wire.events.attempts import OfAttempts
from mainspring.domain.wire.events.jobs import OfJobs
from mainspring.domain.wire.events.leads import OfLeads, ResultEvent
from mainspring.domain.wire.events.marks import EventMarks
from mainspring.domain.wire.events.nodes import OfNodes

PAGE = Path(__file__).parents[2] / "docs" / "events.md"
HEAD = """# Events

Everything that happens is an event in the store, with a number and a time; `ms events` and `ms events JOB` show them,
`--json` with their facts. A kind and its facts keep their names for good. This page is written from their classes
(`python -m tests.domain.test_events_page`).
"""
PARTS: dict[str, Any] = {
    "Of jobs, teams and clusters": OfJobs,
    "Of attempts, allocations and nodes": OfAttempts,
    "Of the health of nodes": OfNodes,
    "Told by leads": OfLeads,
}


def page() -> str:
    """What the page says."""
    text = HEAD
    for title, union in PARTS.items():
        text += f"\n## {title}\n\n| kind | what happened | facts |\n|---|---|---|\n"
        text += "".join(f"| `{one.kind}` | {_words(one)} | {_facts(one)} |\n" for one in get_args(union))
    return text


def _words(event: type[EventMarks]) -> str:
    told = " ".join((event.__doc__ or "").partition("\n\n")[0].split())
    assert told.endswith("."), event
    return told.replace("|", "\\|")


def _facts(event: type[EventMarks]) -> str:
    if event is ResultEvent:
        return "the program's own"
    hints = get_type_hints(event)
    return ", ".join(f"`{each.name}` {_kind(hints[each.name])}" for each in fields(event))


def _kind(kind: Any) -> str:
    if get_origin(kind) is UnionType or type(None) in get_args(kind):
        (kind,) = (arm for arm in get_args(kind) if arm is not type(None))
        return f"{_kind(kind)}, if any"
    kind = getattr(kind, "__supertype__", kind)
    if issubclass(kind, Enum):
        return "one of " + " ".join(member.value for member in kind)
    return {str: "text", int: "whole number", float: "number", bool: "yes or no"}[kind]


def test_the_page_is_the_one_that_follows_from_the_events() -> None:
    assert PAGE.read_text() == page()


def test_every_kind_is_on_the_page_once() -> None:
    for event in EVENTS:
        assert PAGE.read_text().count(f"| `{event.kind}` |") == 1


if __name__ == "__main__":
    PAGE.write_text(page())
