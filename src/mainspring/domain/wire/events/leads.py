"""What leads tell of generations, ranks, agents and checkpoints."""

from __future__ import annotations

from typing import TypeAlias, final

from mainspring.domain.life import AttemptState
from mainspring.domain.wire.events.marks import (
    EventFacts,
    EventMarks,
    Renews,
    clause,
    counted,
    event,
    listed,
    step_words,
)
from mainspring.domain.wire.facts import Detail


@final
@event("generation_preparing", accounted=True)
class GenerationPreparingEvent(EventFacts):
    """The lead prepares another generation."""

    generation: int
    cause: str

    def __str__(self) -> str:
        return f"generation {self.generation} is prepared: {self.cause}"


@final
@event("generation_resumed", accounted=True)
class GenerationResumedEvent(EventFacts):
    """A generation begins at `step`, -1 for the start; `source` says where its state comes from."""

    generation: int
    step: int
    source: str
    ranks: int | None = None

    def __str__(self) -> str:
        ranks = "" if self.ranks is None else f", {counted(self.ranks, 'rank')}"
        return f"generation {self.generation} begins at {step_words(self.step)}{clause(', from ', self.source)}{ranks}"


@final
@event("generation_stepping", accounted=True)
class GenerationSteppingEvent(EventFacts):
    """A generation reports its first step."""

    generation: int
    step: int

    def __str__(self) -> str:
        return f"generation {self.generation} makes its first step, {step_words(self.step)}"


@final
@event("caught_up", accounted=True)
class CaughtUpEvent(EventFacts):
    """A generation passed the furthest step before it."""

    generation: int
    step: int

    def __str__(self) -> str:
        return f"has caught up with what was lost, at {step_words(self.step)}"


@final
@event("rank_exited", accounted=True, notable=True)
class RankExitedEvent(EventFacts):
    """A rank's process ended otherwise than well; a negative exit code is a signal's."""

    generation: int
    rank: int
    exit_code: int
    step: int
    last_words: str = ""

    def __str__(self) -> str:
        code = self.exit_code
        how = f"was ended by signal {-code}" if code < 0 else f"exited with {code}"
        return f"rank {self.rank} {how} at {step_words(self.step)}{clause(': ', self.last_words)}"


@final
@event("rank_left", accounted=True, notable=True)
class RankLeftEvent(EventFacts):
    """A rank left its generation, and reconnects in the same process; `words` says what failed, "" for nothing."""

    generation: int
    rank: int
    step: int
    words: str

    def __str__(self) -> str:
        why = clause("after an error: ", self.words) or "as it was asked to"
        return f"rank {self.rank} left at {step_words(self.step)} {why}; its process goes on, and joins again"


@final
@event("rank_slow", notable=True)
class RankSlowEvent(EventFacts):
    """A rank's own share of a step takes `ratio` times as long as the median's."""

    rank: int
    node: str
    ratio: float

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.node} takes {self.ratio:.4g} times as long as the others for its part"


@final
@event("rank_even", notable=True)
class RankEvenEvent(EventFacts):
    """A rank that was slow is as fast as the others again."""

    rank: int
    node: str

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.node} is as fast as the others again"


@final
@event("hang", accounted=True, notable=True)
class HangEvent(EventFacts):
    """No rank got past `step`; `odd` are the ranks that stand elsewhere than the others."""

    generation: int
    step: int
    silent_s: float
    odd: str
    evidence: str

    def __str__(self) -> str:
        evidence = f" ({self.evidence})" if self.evidence else ""
        odd = clause("; the odd ones: ", self.odd)
        return f"no rank got past {step_words(self.step)} for {self.silent_s:.4g} s{odd}{evidence}"


@final
@event("stacks_seen")
class StacksSeenEvent(EventFacts):
    """Where `count` ranks stood when somebody asked; `stacks` are those of the first of them.

    Args:
        process_state: As /proc gives it where that tells something: "D" waits for the kernel, "T" is stopped.
        top: The innermost frame of its main thread.
    """

    generation: int
    ranks: str
    count: int
    process_state: str
    top: str
    stacks: str = ""

    def __str__(self) -> str:
        state = f", in state {self.process_state}" if self.process_state else ""
        return f"rank{'' if self.count == 1 else 's'} {self.ranks}: {self.top or 'nobody knows where'}{state}"


@final
@event("replicas_differ", notable=True)
class ReplicasDifferEvent(EventFacts):
    """What `ranks` ranks have in common was not the same on all of them at `step`; `odd` are those that stand alone."""

    generation: int
    step: int
    ranks: int
    odd: str
    nodes: str

    def __str__(self) -> str:
        odd = (
            f": those of rank {self.odd} on {self.nodes} stand alone"
            if self.odd
            else ", and nothing tells which are right"
        )
        return f"the replicas of {counted(self.ranks, 'rank')} are not equal at {step_words(self.step)}{odd}"


@final
@event("devices_differ", notable=True)
class DevicesDifferEvent(EventFacts):
    """Devices did the same work of `step` and did not come to the same.

    Args:
        ranks: Whose devices are at fault, or may be; "" where nobody knows.
        device: What people call it.
        certain: Whether they stand alone, each against two that agree: the attempt goes on without them, from a state
            that came before what was done since `agreed_step` (-1 for not known).
        again: Whether it was the same devices that did it twice.
        given_up: Whether no more is checked: the program does not repeat itself.
    """

    generation: int
    step: int
    ranks: str
    nodes: str
    device: str = ""
    certain: bool = False
    again: bool = False
    agreed_step: int = -1
    given_up: bool = False

    def __str__(self) -> str:
        if self.given_up:
            return (
                f"devices are not checked after {step_words(self.step)} any more, for the program does not repeat "
                "itself: set XLA_FLAGS=--xla_gpu_deterministic_ops=true where it runs, or guard.check_every=0"
            )
        who = self.device or (f"rank {self.ranks}" if self.ranks else "a device, nobody knows which,")
        where = f"{who} on {self.nodes}" if self.nodes else who
        if self.certain:
            since = (
                f"; what was made since {step_words(self.agreed_step)} is not trusted" if self.agreed_step >= 0 else ""
            )
            return f"{where} computes otherwise than two that agree at {step_words(self.step)}{since}"
        if self.again:
            return f"{where} did not come to the same when {step_words(self.step)} was done again"
        return f"{where}: devices do not agree on {step_words(self.step)}, and nothing tells which are right"


@final
@event("profile_kept")
class ProfileKeptEvent(EventFacts):
    """A rank's profile is kept with the job; or (`failure`) there is none."""

    id: str
    rank: int
    size_bytes: int = 0
    failure: str = ""

    def __str__(self) -> str:
        if self.failure:
            return f"rank {self.rank} has no profile {self.id}: {self.failure}"
        return f"rank {self.rank} left profile {self.id}, {self.size_bytes} bytes"


@final
@event("step_upset", notable=True)
class StepUpsetEvent(EventFacts):
    """A step of a training run was no good, and `answer` (skip, roll_back, stop) was done about it."""

    step: int
    upset: str
    answer: str
    seen: str = ""
    to_step: int = -1

    def __str__(self) -> str:
        what = {"not_finite": "is no number", "spike": "is a spike"}.get(self.upset, f"went wrong ({self.upset})")
        did = {
            "skip": "it is passed over",
            "roll_back": f"the state goes back to that of {step_words(self.to_step)}",
            "stop": "the run ends",
        }.get(self.answer, self.answer)
        return f"{step_words(self.step)} {what}{clause(': ', self.seen)}; {did}"


@final
@event("agent_lost", notable=True)
class AgentLostEvent(EventFacts):
    """An agent is not heard of any more."""

    agent: int
    node: str

    def __str__(self) -> str:
        return f"agent {self.agent} on {self.node} is lost"


@final
@event("agent_quiet", notable=True)
class AgentQuietEvent(EventFacts):
    """An agent has not been heard of for some seconds: nothing follows yet, it may still be there."""

    agent: int
    node: str

    def __str__(self) -> str:
        return f"agent {self.agent} on {self.node} is quiet"


@final
@event("agent_heard", notable=True)
class AgentHeardEvent(EventFacts):
    """An agent that was quiet is heard of again."""

    agent: int
    node: str

    def __str__(self) -> str:
        return f"agent {self.agent} on {self.node} is heard of again"


@final
@event("agent_leaving", notable=True)
class AgentLeavingEvent(EventFacts):
    """A node is taken away soon."""

    agent: int
    node: str
    grace_s: float

    def __str__(self) -> str:
        return f"{self.node}, with agent {self.agent}, is taken away in {self.grace_s:.4g} s"


@final
@event("snapshot_pace", frequent=True)
class SnapshotPaceEvent(EventFacts):
    """How often snapshots are taken from now on, and why so."""

    every: int
    interval_s: float
    cost_s: float
    failures_per_day: float

    def __str__(self) -> str:
        return (
            f"a snapshot every {self.every} steps, on the way to the best pace, one in {self.interval_s:.4g} s: each "
            f"costs {self.cost_s:.4g} s, and {self.failures_per_day:.4g} failures a day are expected"
        )


@final
@event("checkpoint_durable", renews=Renews.CHECKPOINT, frequent=True)
class CheckpointDurableEvent(EventFacts):
    """A step can be resumed from whatever happens to the nodes."""

    step: int
    size_bytes: int

    def __str__(self) -> str:
        return f"{step_words(self.step)} is durable"


@final
@event("checkpoint_failed", notable=True)
class CheckpointFailedEvent(EventFacts):
    """A step could not be made durable."""

    step: int
    reason: str

    def __str__(self) -> str:
        return f"{step_words(self.step)} could not be made durable: {self.reason}"


@final
@event("checkpoint_corrupt", notable=True)
class CheckpointCorruptEvent(EventFacts):
    """A checkpoint is passed over for an older one."""

    step: int
    reason: str

    def __str__(self) -> str:
        return f"the checkpoint of {step_words(self.step)} is passed over: {self.reason}"


@final
@event("lead_ended", accounted=True, passes_on=True)
class LeadEndedEvent(EventFacts):
    """The lead's last word; of a job that succeeded, a replay tells its work at full size too."""

    outcome: AttemptState
    reason: str
    step: int
    snapshot_blocked_s: float = 0.0
    work_s: float | None = None

    def __str__(self) -> str:
        return f"its lead ended it at {step_words(self.step)}: {self.outcome.value}{clause(', ', self.reason)}"


@final
@event("unknown", notable=True)
class UnknownWordEvent(EventFacts):
    """A peer of a newer release said what this one has no word for: `word`, and with it `words`."""

    word: str
    words: str = ""

    def __str__(self) -> str:
        return f"a newer release says {self.word!r}, which this one does not know{clause(': ', self.words)}"


@final
@event("result")
class ResultEvent(EventMarks):
    """The program's own facts, which its job keeps."""

    detail: Detail

    def __str__(self) -> str:
        return listed(self.detail)


OfLeads: TypeAlias = (
    GenerationPreparingEvent
    | GenerationResumedEvent
    | GenerationSteppingEvent
    | CaughtUpEvent
    | RankExitedEvent
    | RankLeftEvent
    | RankSlowEvent
    | ReplicasDifferEvent
    | DevicesDifferEvent
    | HangEvent
    | StepUpsetEvent
    | StacksSeenEvent
    | RankEvenEvent
    | ProfileKeptEvent
    | AgentLostEvent
    | AgentQuietEvent
    | AgentHeardEvent
    | AgentLeavingEvent
    | SnapshotPaceEvent
    | CheckpointDurableEvent
    | CheckpointFailedEvent
    | CheckpointCorruptEvent
    | LeadEndedEvent
    | UnknownWordEvent
    | ResultEvent
)
