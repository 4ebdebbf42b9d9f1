"""Event texts: each in plain words, for people who never saw a list of kinds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from mainspring.app.render.tables import Listing, gist
from mainspring.domain.answers import Event
from mainspring.domain.wire import Detail, EventKind

SHOWN_MAX = 30
NOTED_MAX = 5
# What says how a run fares, shown wherever one asks about a job.
NOTABLE = (
    EventKind.ATTEMPT_RESIZED,
    EventKind.ALLOCATION_TAKEN,
    EventKind.RANK_EXITED,
    EventKind.RANK_LEFT,
    EventKind.RANK_SLOW,
    EventKind.HANG,
    EventKind.AGENT_LOST,
    EventKind.AGENT_LEAVING,
    EventKind.LEAD_NAMED,
    EventKind.CHECKPOINT_FAILED,
    EventKind.CHECKPOINT_CORRUPT,
)
_WORDS_MAX = 300


class _Facts:
    """An event's details as text, whatever they hold; "?" for what is not told."""

    def __init__(self, detail: Detail) -> None:
        self._detail = detail

    def __getitem__(self, name: str) -> str:
        value = self._detail.get(name, "?")
        return f"{value:.4g}" if isinstance(value, float) else gist(str(value))

    def number(self, name: str) -> float:
        """Returns a number, 0 for what is none."""
        value = self._detail.get(name, 0)
        return float(value) if isinstance(value, (int, float)) else 0.0

    def clause(self, name: str, form: str = "{}") -> str:
        """Returns a detail in a form, "" when it is missing or empty."""
        return form.format(self[name]) if self._detail.get(name) not in (None, "") else ""


def _step(facts: _Facts) -> str:
    return f"step {facts['step']}" if facts.number("step") >= 0 else "the start"


def _resized(facts: _Facts) -> str:
    return f"goes on with {facts['replicas']} replicas of {facts['role']}: {facts['reason']}{_for(facts)}"


def _for(facts: _Facts) -> str:
    return facts.clause("for_job", ", for {}")


def _exited(facts: _Facts) -> str:
    code = int(facts.number("exit_code"))
    how = f"was ended by signal {-code}" if code < 0 else f"exited with {code}"
    return f"rank {facts['rank']} {how} at {_step(facts)}{facts.clause('last_words', ': {}')}"


def _left(facts: _Facts) -> str:
    why = facts.clause("words", "after an error: {}") or "as it was asked to"
    return f"rank {facts['rank']} left at {_step(facts)} {why}; its process goes on, and joins again"


def _hang(facts: _Facts) -> str:
    odd = facts.clause("odd", "; the odd ones: {}")
    return f"no rank got past {_step(facts)} for {facts['silent_s']} s{odd}{facts.clause('evidence', ' ({})')}"


def _paced(facts: _Facts) -> str:
    return (
        f"a snapshot every {facts['every']} steps, on the way to the best pace, one in {facts['interval_s']} s: each "
        f"costs {facts['cost_s']} s, and {facts['failures_per_day']} failures a day are expected"
    )


def _named(facts: _Facts) -> str:
    return f"agent {facts['agent']} leads from now on, the {_ordinal(int(facts.number('epoch')))} to: {facts['reason']}"


def _ordinal(number: int) -> str:
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _slow(facts: _Facts) -> str:
    return f"rank {facts['rank']} on {facts['node']} takes {facts['ratio']} times as long as the others for its part"


def _preparing(facts: _Facts) -> str:
    return f"generation {facts['generation']} is prepared: {facts['cause']}"


def _resumed(facts: _Facts) -> str:
    source = facts.clause("source", ", from {}")
    ranks = f", {_counted(facts['ranks'], 'rank')}" if facts.clause("ranks") else ""
    return f"generation {facts['generation']} begins at {_step(facts)}{source}{ranks}"


def _ended(facts: _Facts) -> str:
    return f"its lead ended it at {_step(facts)}: {facts['outcome']}{facts.clause('reason', ', {}')}"


def _counted(number: str, what: str) -> str:
    return f"{number} {what}" if number == "1" else f"{number} {what}s"


def _granted(facts: _Facts) -> str:
    nodes = _counted(facts["nodes"], "node")
    return f"attempt {facts['number']} is granted {nodes} of {facts['cluster']} by plan {facts['plan']}"


_WORDS: Mapping[EventKind, Callable[[_Facts], str]] = {
    EventKind.JOB_SUBMITTED: lambda facts: f"submitted for team {facts['team']}",
    EventKind.JOB_MOVED: lambda facts: f"{facts['before']} -> {facts['after']}{facts.clause('reason', ': {}')}",
    EventKind.ATTEMPT_GRANTED: _granted,
    EventKind.ATTEMPT_RESIZED: _resized,
    EventKind.ALLOCATION_QUEUED: lambda facts: f"waits in the queue of {facts['cluster']} itself: {facts['reason']}",
    EventKind.ALLOCATION_PLACED: lambda facts: f"{facts['allocation']} has left the queue of its cluster",
    EventKind.ALLOCATION_TAKEN: lambda facts: f"{facts['allocation']} is over: {facts['reason']}",
    EventKind.ATTEMPT_ENDED: lambda facts: f"the attempt is over: {facts['outcome']}{facts.clause('reason', ', {}')}",
    EventKind.ATTEMPT_STOPPING: lambda facts: f"the attempt is asked to end{facts.clause('reason', ': {}')}",
    EventKind.STOP_REQUESTED: lambda facts: f"asked to stop by {facts['by']}{_for(facts)}",
    EventKind.MOVE_WANTED: lambda facts: (
        f"{facts['what']} is to be brought from {facts['source']} to {facts['target']}"
    ),
    EventKind.PROVISION_WANTED: lambda facts: (
        f"{facts['nodes']} nodes of {facts['offer']} on {facts['cluster']} are wanted: {facts['reason']}"
    ),
    EventKind.GENERATION_PREPARING: _preparing,
    EventKind.GENERATION_RESUMED: _resumed,
    EventKind.GENERATION_STEPPING: lambda facts: (
        f"generation {facts['generation']} makes its first step, {_step(facts)}"
    ),
    EventKind.CAUGHT_UP: lambda facts: f"has caught up with what was lost, at {_step(facts)}",
    EventKind.RANK_EXITED: _exited,
    EventKind.RANK_LEFT: _left,
    EventKind.RANK_SLOW: _slow,
    EventKind.HANG: _hang,
    EventKind.AGENT_LOST: lambda facts: f"agent {facts['agent']} on {facts['node']} is lost",
    EventKind.AGENT_LEAVING: lambda facts: (
        f"{facts['node']}, with agent {facts['agent']}, is taken away in {facts['grace_s']} s"
    ),
    EventKind.LEAD_NAMED: _named,
    EventKind.SNAPSHOT_PACE: _paced,
    EventKind.CHECKPOINT_DURABLE: lambda facts: f"{_step(facts)} is durable",
    EventKind.CHECKPOINT_FAILED: lambda facts: f"{_step(facts)} could not be made durable: {facts['reason']}",
    EventKind.CHECKPOINT_CORRUPT: lambda facts: f"the checkpoint of {_step(facts)} is passed over: {facts['reason']}",
    EventKind.LEAD_ENDED: _ended,
}


def event_words(event: Event) -> str:
    """Returns what an event says, in plain words on one line.

    Args:
        event: The event.
    """
    words = _WORDS.get(event.kind)
    if words is None:  # The program's own facts.
        text = ", ".join(f"{name} {value}" for name, value in event.detail.items())
    else:
        text = words(_Facts(event.detail))
    return " ".join(text.split())[:_WORDS_MAX]


def events_table(events: Sequence[Event], *, most: int = SHOWN_MAX) -> Listing:
    """Returns the newest events; of durable checkpoints and paces the newest alone, and each reason once.

    Args:
        events: Oldest first.
        most: How many to show.
    """
    made = Listing(">AT", "EVENT", "~WHAT")
    start_s = events[0].time_s if events else 0.0
    newest = {kind: event for event in events if (kind := event.kind) in _OFTEN}
    shown = [event for event in events if event.kind not in _OFTEN or newest[event.kind] is event]
    for event in _each_reason_once(shown[-most:]):
        made.add_row(f"+{event.time_s - start_s:.1f} s", event.kind.value, event_words(event))
    return made


def _each_reason_once(events: Sequence[Event]) -> Iterator[Event]:
    """Yields events, ends without the reason that an earlier one of the same attempt has told."""
    said: dict[str, None] = {}
    for event in events:
        if event.kind is EventKind.ATTEMPT_GRANTED:
            said = {}
        if event.kind not in _ENDS:
            yield event
            continue
        reason = str(event.detail.get("reason", ""))
        left = "" if reason in said else reason
        for known in said:
            left = left.replace(f" ({known})", "")
        said[reason] = None
        yield replace(event, detail={**event.detail, "reason": left})


def notable(events: Sequence[Event]) -> list[Event]:
    """Returns the newest events that say how a run fares.

    Args:
        events: Oldest first.
    """
    return [event for event in events if event.kind in NOTABLE][-NOTED_MAX:]


_OFTEN = (EventKind.CHECKPOINT_DURABLE, EventKind.SNAPSHOT_PACE)
_ENDS = (EventKind.LEAD_ENDED, EventKind.ATTEMPT_STOPPING, EventKind.ATTEMPT_ENDED, EventKind.JOB_MOVED)
