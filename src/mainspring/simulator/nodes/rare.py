"""Rare states: what seldom happens and must have happened somewhere, or nothing was proved of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import Enum

from mainspring.domain.answers import Event
from mainspring.domain.wire.events import attempts, jobs, leads


class Rare(str, Enum):
    """One of them, in words."""

    STALE_REFUSED = "a stale controller's write was refused"
    STALE_LEADS = "a stale controller took the lead again"
    TAKEN_OVER = "a server that followed took over"
    PAUSED_REFUSED = "a server that was paused past its lease was refused"
    FOLLOWER_CALLED = "a server that follows answered a call"
    RESIGNED = "a server gave up its lead and ended"
    STORE_BROKE = "the store was lost inside a transaction"
    STORE_SILENT = "the store did not answer a question"
    STORE_FULL = "the store was full at a commit"
    COMMIT_UNANSWERED = "a commit counted and nobody learnt of it"
    ENGINE_LATE = "an engine did not list yet what it had taken"
    ENGINE_STALE = "an engine answered from memory"
    ENGINE_FORGOT = "an engine forgot what it had taken"
    STRANGER = "something ran that no store knew of"
    SETTLED = "somebody ended what no store knew of"
    WENT_BACK = "the store went back in time"
    ADOPTED = "somebody adopted what the store forgot"
    RECALLED = "a lead went on that was named in a time the store forgot"
    OVER_UNHEARD = "an attempt was over, and how it ended was forgotten"
    CALL_LATE = "a launch or stop arrived long after it was given up"
    FROM_AHEAD = "a lead told of what is yet to come, by its node's clock"
    REPORT_LATE = "a late report was refused"
    CALLED_OFF = "fail-over was called off because the lead was heard"
    GIVEN_UP = "an attempt was given up with its cluster"
    ABSENT = "a launch was absent past its bound"
    LEADERLESS = "an attempt lost an agent and no lead was heard"
    EVICTED = "a plan evicted an attempt"
    TAKEN = "a cluster took an attempt back"
    CANCELLED = "somebody cancelled a job that ran"
    RESIZED = "a plan resized an attempt that ran on"
    QUEUED = "an allocation waited in its cluster's queue"
    PROMISE_MOVED = "a promised start was moved"
    WORD_UNKNOWN = "a newer peer said a word that nobody knew"
    SERVER_NEWER = "a newer server answered"
    BOOT_HUNG = "an agent never came to life"
    LEAD_NAMED = "another lead was named"
    LEAD_FENCED = "a lead was fenced"
    LEAD_LOST = "an agent lost its lead"
    MANIFEST_REFUSED = "an older lead was kept from the object store"
    DURABLE_ALREADY = "a step was durable already"
    DAMAGED = "what a generation was to resume from was damaged"
    SAVE_FAILED = "a save failed"
    HUNG = "a rank hung"
    RANK_LEFT = "a rank left its generation by itself"
    AGENT_LOST = "a lead went on without an agent"
    AGENT_LEFT = "an agent left on notice"
    FROM_STORE = "a generation resumed from the object store"
    CAUGHT_UP = "a generation came past what was lost"
    WRONG_TOLD = "a device was told to compute wrongly"
    WRONG_UNKNOWN = "devices differed, and nothing told which was right"
    WRONG_ONCE = "a step came out wrong once, and nobody was named"
    UNCHECKED = "a program did not repeat itself, and was checked no more"
    WITHDRAWN = "a store withdrew what came since all devices had agreed"


_CAUSES = {"evict": Rare.EVICTED, "taken": Rare.TAKEN, "fenced": Rare.GIVEN_UP, "cancel": Rare.CANCELLED}
_KINDS = {
    attempts.AttemptResizedEvent: Rare.RESIZED,
    attempts.AllocationQueuedEvent: Rare.QUEUED,
    attempts.LeadNamedEvent: Rare.LEAD_NAMED,
    leads.CheckpointCorruptEvent: Rare.DAMAGED,
    leads.CheckpointFailedEvent: Rare.SAVE_FAILED,
    leads.HangEvent: Rare.HUNG,
    leads.RankLeftEvent: Rare.RANK_LEFT,
    leads.AgentLostEvent: Rare.AGENT_LOST,
    leads.AgentLeavingEvent: Rare.AGENT_LEFT,
    leads.CaughtUpEvent: Rare.CAUGHT_UP,
    leads.UnknownWordEvent: Rare.WORD_UNKNOWN,
}


def count_told(seen: Counter[Rare], everything: Iterable[Event]) -> None:
    """Counts the rare states that the events of a run tell of."""
    for event in everything:
        told = event.told
        rare = _KINDS.get(type(told))
        match told:
            case attempts.AttemptStoppingEvent(cause=cause, reason=reason):
                rare = _CAUSES.get(cause)
                rare = Rare.ABSENT if "has not seen" in reason else rare
                rare = Rare.OVER_UNHEARD if "when the store went back" in reason else rare
                rare = Rare.LEADERLESS if "no lead was heard" in reason else rare
            case attempts.LeadNamedEvent(reason=reason) if "leads already" in reason:
                rare = Rare.RECALLED
            case jobs.StartPromisedEvent(before_s=before_s) if before_s is not None:
                rare = Rare.PROMISE_MOVED
            case leads.GenerationResumedEvent(source="store"):
                rare = Rare.FROM_STORE
            case leads.DevicesDifferEvent(given_up=True):
                rare = Rare.UNCHECKED
            case leads.DevicesDifferEvent(certain=True):
                rare = Rare.WRONG_TOLD
            case leads.DevicesDifferEvent(again=again):
                rare = Rare.WRONG_ONCE if again else Rare.WRONG_UNKNOWN
            case _:
                pass
        if rare is not None:
            seen[rare] += 1
