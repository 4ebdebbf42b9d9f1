"""Events: what stores and peers hold of them never changes, and each reads as plain words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from enum import Enum
from typing import Any, get_args, get_type_hints

import pytest

from mainspring.domain.answers import Event
from mainspring.domain.codec import decode, encode
from mainspring.domain.errors import InvalidMessage
from mainspring.domain.wire import Detail, LeadEvent
from mainspring.domain.wire.events import EVENTS, KIND_LENGTH_MAX, KnownEvent, UnknownEvent, read_event
from mainspring.domain.wire.events.leads import OfLeads, ResultEvent
from mainspring.domain.wire.events.marks import EventMarks

# What stores of 0.1 hold, kind by kind, and what was written of it then; a kind or a fact is never renamed.
WRITTEN: dict[str, Detail] = {
    "job_submitted": {"name": "a", "team": "lab"},
    "job_moved": {"before": "queued", "after": "starting", "reason": "attempt 1 granted on local"},
    "attempt_granted": {"cluster": "local", "nodes": 1, "plan": 3, "number": 1, "step": -1},
    "attempt_resized": {"role": "main", "replicas": 2, "reason": "makes room", "for_job": "job-7"},
    "allocation_queued": {"allocation": "allocation-1", "cluster": "west", "reason": "Priority"},
    "allocation_placed": {"allocation": "allocation-1"},
    "allocation_taken": {"allocation": "allocation-1", "cluster": "west", "reason": "preempted"},
    "attempt_ended": {"outcome": "lost", "reason": "a node was lost"},
    "attempt_stopping": {"cause": "evict", "reason": "makes room"},
    "stop_requested": {"by": "makes room", "for_job": "job-7", "limit": "quota"},
    "move_wanted": {"what": "view", "source": "east", "target": "west", "size_bytes": 7},
    "provision_wanted": {"cluster": "cloud", "offer": "h100x8", "nodes": 2, "reason": "waits for an hour"},
    "nodes_ordered": {"cluster": "cloud", "offer": "h100x8", "nodes": 2, "lead_time_s": 600.0},
    "nodes_refused": {"cluster": "cloud", "offer": "h100x8", "nodes": 2, "reason": "no such machines here"},
    "generation_preparing": {"generation": 1, "cause": "the first"},
    "generation_resumed": {"generation": 1, "step": -1, "source": "", "ranks": 2},
    "generation_stepping": {"generation": 1, "step": 0},
    "caught_up": {"generation": 2, "step": 9},
    "rank_exited": {"generation": 1, "rank": 0, "exit_code": -9, "step": 8, "last_words": ""},
    "rank_left": {"generation": 1, "rank": 0, "step": 8, "words": ""},
    "rank_slow": {"rank": 3, "node": "n1", "ratio": 1.7},
    "rank_even": {"rank": 3, "node": "n1"},
    "agent_quiet": {"agent": 1, "node": "n1"},
    "agent_heard": {"agent": 1, "node": "n1"},
    "hang": {"generation": 1, "step": 8, "silent_s": 12.5, "odd": "2", "evidence": "stopped"},
    "agent_lost": {"agent": 1, "node": "n1"},
    "agent_leaving": {"agent": 1, "node": "n1", "grace_s": 30.0},
    "lead_named": {"epoch": 2, "agent": 1, "reason": "agent 0, which led, has not been heard of for 15 s"},
    "snapshot_pace": {"every": 8, "interval_s": 4.25, "cost_s": 0.1, "failures_per_day": 0.016},
    "checkpoint_durable": {"step": 8, "size_bytes": 1_024},
    "checkpoint_failed": {"step": 8, "reason": "disk full"},
    "checkpoint_corrupt": {"step": 8, "reason": "crc"},
    "result": {"success": 0.97, "note": "fine"},
    "lead_ended": {"outcome": "succeeded", "reason": "every rank ended well", "step": 9, "snapshot_blocked_s": 0.5},
}


@pytest.mark.parametrize("kind", WRITTEN)
def test_an_event_of_a_store_before_is_read_as_its_class_and_written_with_the_same_facts(kind: str) -> None:
    told = Event(sequence=1, time_s=1.0, kind=kind, detail=WRITTEN[kind]).told
    assert not isinstance(told, UnknownEvent)
    assert told.kind == kind
    assert encode(told.detail) == encode(WRITTEN[kind]), "the same facts in the same order"


def test_every_kind_of_before_is_known_still() -> None:
    assert set(WRITTEN) <= {event.kind for event in EVENTS}


def _subclasses(of: type[Any]) -> Iterator[type[Any]]:
    for each in of.__subclasses__():
        yield each
        yield from _subclasses(each)


def test_every_class_of_event_is_in_the_closed_union_under_a_kind_of_its_own() -> None:
    classes = {each.__name__ for each in _subclasses(EventMarks) if hasattr(each, "kind")}
    assert classes == {event.__name__ for event in EVENTS}
    assert len({event.kind for event in EVENTS}) == len(EVENTS)
    assert all(0 < len(event.kind) <= KIND_LENGTH_MAX for event in EVENTS)


def _fact(kind: Any) -> object:
    kind = next((arm for arm in get_args(kind) if arm is not type(None)), kind)
    kind = getattr(kind, "__supertype__", kind)
    return next(iter(kind)) if issubclass(kind, Enum) else {str: "said", int: 7, float: 0.5, bool: True}[kind]


@pytest.mark.parametrize("event", [event for event in EVENTS if event is not ResultEvent], ids=lambda event: event.kind)
def test_every_event_with_all_its_facts_has_words_and_is_read_as_it_was_written(event: type[KnownEvent]) -> None:
    hints = get_type_hints(event)
    made: Any = event
    told: KnownEvent = made(**{each.name: _fact(hints[each.name]) for each in fields(event)})
    assert read_event(told.kind, decode(dict[str, str | int | float | bool], encode(told.detail))) == told
    assert len(str(told)) > 5
    assert type(told).__name__ not in str(told), "words, and no repr"


def test_an_event_of_a_newer_release_is_carried_as_it_came() -> None:
    newer = Event(sequence=1, time_s=1.0, kind="node_cordoned", detail={"node": "n1", "faults": 3})
    assert decode(Event, encode(newer)) == newer
    assert newer.told == UnknownEvent(kind="node_cordoned", detail=newer.detail)
    assert str(newer.told) == "node n1, faults 3"
    assert str(UnknownEvent(kind="node_cordoned", detail={})) == "node cordoned"


def test_facts_that_are_not_those_of_their_kind_are_refused_or_carried_as_they_came() -> None:
    with pytest.raises(InvalidMessage):
        read_event("hang", {"step": "eight"})
    assert Event(sequence=1, time_s=1.0, kind="hang", detail={"step": "eight"}).told.detail == {"step": "eight"}


def test_a_newer_field_of_a_known_kind_is_passed_over() -> None:
    assert str(read_event("agent_lost", {"agent": 1, "node": "n1", "rack": "r7"})) == "agent 1 on n1 is lost"


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.kind)
def test_a_lead_may_tell_what_is_its_to_tell_and_no_more(event: type[KnownEvent]) -> None:
    told = encode({"sequence": 1, "time_s": 1.0, "kind": event.kind, "detail": {}})
    if event in get_args(OfLeads):
        assert decode(LeadEvent, told).kind == event.kind
    else:
        with pytest.raises(InvalidMessage):
            decode(LeadEvent, told)


def test_a_kind_that_nobody_knows_is_shown_of_a_newer_lead_and_refused_of_another() -> None:
    told = decode(LeadEvent, encode({"sequence": 7, "time_s": 1.0, "kind": "x" * 99, "detail": {"step": 3}}))
    shown = told.known(newer=True)
    assert (shown.sequence, shown.kind, shown.detail) == (7, "unknown", {"word": "x" * 64, "words": "step 3"})
    assert shown.known(newer=False) == shown
    with pytest.raises(InvalidMessage, match="xxx"):
        told.known(newer=False)
