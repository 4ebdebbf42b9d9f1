"""What several messages share: small facts, and every kind of event."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

Detail = Mapping[str, str | int | float | bool]

NO_LONGER_HELD = "no longer in the arena"  # Why a share is not stored whose snapshot newer ones have overwritten.
EXIT_PREEMPTED = 75  # EX_TEMPFAIL of sysexits.h: "I was asked to stop and have saved; run me again".


class EventKind(str, Enum):
    """Every kind of event, with the details it carries in parentheses."""

    JOB_SUBMITTED = "job_submitted"  # (name, team)
    JOB_MOVED = "job_moved"  # (before, after, reason)
    ATTEMPT_GRANTED = "attempt_granted"  # (cluster, nodes, plan, number, step): the furthest of earlier attempts
    ATTEMPT_RESIZED = "attempt_resized"  # (role, replicas, reason, for_job): while it goes on
    ALLOCATION_QUEUED = "allocation_queued"  # (allocation, cluster, reason): it waits in its cluster's own queue
    ALLOCATION_PLACED = "allocation_placed"  # (allocation): it has left that queue
    ALLOCATION_TAKEN = "allocation_taken"  # (allocation, cluster, reason): its cluster took it back
    ATTEMPT_ENDED = "attempt_ended"  # (outcome, reason)
    ATTEMPT_STOPPING = "attempt_stopping"  # (cause, reason)
    STOP_REQUESTED = "stop_requested"  # (by, for_job): by a person, or by a plan that needs the room for another job
    MOVE_WANTED = "move_wanted"  # (what, source, target, size_bytes): the job waits until it lies there
    PROVISION_WANTED = "provision_wanted"  # (cluster, offer, nodes, reason): the job waits for nodes one could order
    GENERATION_PREPARING = "generation_preparing"  # (generation, cause)
    GENERATION_RESUMED = "generation_resumed"  # (generation, step, source, ranks): `step` of the job's own
    GENERATION_STEPPING = "generation_stepping"  # (generation, step): its first step report
    CAUGHT_UP = "caught_up"  # (generation, step): passed the furthest step before this generation
    RANK_EXITED = "rank_exited"  # (generation, rank, exit_code, step, last_words)
    RANK_LEFT = "rank_left"  # (generation, rank, step, words): it failed, and reconnects in the same process
    RANK_SLOW = "rank_slow"  # (rank, node, ratio): its own share of a step takes that much longer than the median's
    HANG = "hang"  # (generation, step, silent_s, odd, evidence)
    AGENT_LOST = "agent_lost"  # (agent, node)
    AGENT_LEAVING = "agent_leaving"  # (agent, node, grace_s)
    LEAD_NAMED = "lead_named"  # (epoch, agent, reason)
    SNAPSHOT_PACE = "snapshot_pace"  # (every, interval_s, cost_s, failures_per_day)
    CHECKPOINT_DURABLE = "checkpoint_durable"  # (step, size_bytes)
    CHECKPOINT_FAILED = "checkpoint_failed"  # (step, reason)
    CHECKPOINT_CORRUPT = "checkpoint_corrupt"  # (step, reason): passed over for an older one
    RESULT = "result"  # (the program's own facts)
    LEAD_ENDED = "lead_ended"  # (outcome, reason, step, snapshot_blocked_s)
