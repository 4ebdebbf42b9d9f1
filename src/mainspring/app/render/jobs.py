"""The job panel: facts, attempts with their ranks as they are now, ledger, events."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from mainspring.app.render.events import events_table
from mainspring.app.render.goodput import goodput_text
from mainspring.app.render.tables import (
    Listing,
    ago,
    asks,
    colour,
    facts_grid,
    framed,
    gist,
    hold_text,
    start_text,
    states_text,
    where,
)
from mainspring.domain.answers import AttemptView, Event, JobView, Why
from mainspring.domain.life import JobState, ended
from mainspring.domain.wire import AtRisk

ODD_MAX = 4  # Ranks told of by themselves.
SHORT_S = 10.0  # What is at risk for less is told in tenths of a second.


def job_panel(job: JobView, events: Sequence[Event], *, now_s: float) -> RenderableType:
    """Returns everything about one job on a screen.

    Args:
        events: Its events, oldest first.
    """
    code = job.spec.code
    facts: dict[str, str | Text] = {
        "state": Text(
            f"{job.state.value}: {job.reason}" if job.reason else job.state.value, style=colour(job.state.value)
        ),
        "asks": _asks(job),
        "owner": job.owner or "nobody knows",
    }
    if job.hold is not None:
        facts["paused"] = hold_text(job.hold, now_s=now_s)
    if job.state is JobState.QUEUED and job.start_s is not None:
        facts["starts"] = start_text(job.start_s, exact=job.exact, now_s=now_s)
    if job.array is not None:
        facts["array"] = Text.assemble(f"{job.array.index} of {job.array.count}: ", states_text(job))
    if job.step >= 0:
        metrics = ", ".join(f"{name} {value:.4g}" for name, value in sorted(job.metrics.items()))
        facts["step"] = f"{job.step}  {metrics}"
    if job.attempts and not ended(job.state) and job.attempts[-1].ranks:
        facts["ranks"] = ranks_text(job.attempts[-1], spares=sum(role.spares for role in job.spec.roles))
        if job.step >= 0 and job.attempts[-1].at_risk is not None:
            facts["at risk"] = at_risk_text(job.attempts[-1].at_risk)
    if code.tree:
        facts["code"] = f"{code.tree[:19]} ({code.commit[:12] or 'no commit'}{', with changes' if code.dirty else ''})"
    facts |= {
        f"result {name}": f"{value:.4g}" if isinstance(value, float) else str(value)
        for name, value in sorted(job.result.items())
    }
    if job.trace:
        facts["trace"] = job.trace
    if job.goodput is not None:
        facts["goodput"] = goodput_text(job.goodput)
    attempts = [attempts_table(job.attempts, now_s=now_s), ""] if job.attempts else []
    return Group(framed(facts_grid(facts), f"{job.spec.name}  {job.id}"), *attempts, events_table(events))


def verdict_text(job: JobView, why: Why) -> str:
    """Returns how a job fares, in a sentence."""
    newest = job.attempts[-1] if job.attempts else None
    if ended(job.state) or job.state is JobState.STOPPING:
        return f"{job.state.value}: {gist(job.reason)}" if job.reason else job.state.value
    if job.state is JobState.QUEUED or newest is None:
        return f"waits: {why.summary}"
    nodes = f"{len(newest.nodes)} node{'' if len(newest.nodes) == 1 else 's'} of {where(newest)}"
    if job.state is JobState.STARTING:
        return f"starts on {nodes}"
    gone = sum(not rank.alive and (rank.pid != 0 or rank.step >= 0) for rank in newest.ranks)
    step = f"step {job.step:,}" if job.step >= 0 else "no step yet"
    again = f", in generation {newest.generation}" if newest.generation > 1 else ""
    lost = f"; {gone} of its {len(newest.ranks)} ranks {'is' if gone == 1 else 'are'} gone" if gone else ""
    ratio = job.goodput.ratio if job.goodput is not None else None
    share = f"; {ratio:.0%} of its time was productive" if ratio is not None else ""
    return f"runs on {nodes}, {step}{again}{share}{lost}"


def _asks(job: JobView) -> str:
    """Returns what a job asks for now, and what it was submitted with where that is another."""
    now = job.spec.with_overrides(job.overrides)
    asked = f"{asks(now)} ({now.tier.value}, team {now.team})"
    return asked if now is job.spec else f"{asked}; submitted as {asks(job.spec)} ({job.spec.tier.value})"


def ranks_text(attempt: AttemptView, *, spares: int = 0) -> str:
    """Returns the ranks of an attempt as they are now: how many, in which generation, and which are not like the rest.

    Args:
        spares: How many of its places stand by until one is lost.
    """
    alive = [rank for rank in attempt.ranks if rank.alive]
    # A place that never ran stands by, when there are no more of them than the job asks to stand by.
    fresh = [rank for rank in attempt.ranks if not rank.alive and not rank.pid and rank.step < 0]
    waiting = fresh if alive and len(fresh) <= spares else []
    text = f"{len(alive)} of {len(attempt.ranks) - len(waiting)} alive in generation {attempt.generation}"
    text += f", {len(waiting)} standing by" if waiting else ""
    furthest = max((rank.step for rank in alive), default=-1)
    odd = [
        f"rank {rank.rank} on {rank.node} is gone" for rank in attempt.ranks if not rank.alive and rank not in waiting
    ]
    behind = sorted((rank for rank in alive if rank.step < furthest - 1), key=lambda rank: rank.step)
    odd += [f"rank {rank.rank} on {rank.node} is at step {rank.step} of {furthest}" for rank in behind]
    more = f"; and {len(odd) - ODD_MAX} more" if len(odd) > ODD_MAX else ""
    return text + "".join(f"; {words}" for words in odd[:ODD_MAX]) + more


def at_risk_text(risk: AtRisk) -> str:
    """Returns what would be done once more if a rank were lost now, or all nodes."""

    def work(steps: int, seconds: float) -> str:
        took = f" ({f'{seconds:.2g} s' if seconds < SHORT_S else ago(seconds)})" if steps and seconds else ""
        return f"{steps} step{'' if steps == 1 else 's'}{took}"

    lost, all_lost = work(risk.steps, risk.seconds), work(risk.durable_steps, risk.durable_seconds)
    return f"{lost} if a rank dies, {all_lost} if all nodes do"


def attempts_table(attempts: Sequence[AttemptView], *, now_s: float) -> RenderableType:
    """Returns one row an attempt.

    Args:
        attempts: Oldest first.
        now_s: For how long the newest has run.
    """
    made = Listing("ATTEMPT", "STATE", "?>GENERATION", "?>RANKS", "?NODES", "?>RAN", "?>COST", "?WHERE", "~REASON")
    for attempt in attempts:
        ran = (attempt.ended_s if attempt.ended_s is not None else now_s) - attempt.granted_s
        nodes = ", ".join(attempt.hosts.get(node, node) for node in attempt.nodes[:4]) + (
            f" and {len(attempt.nodes) - 4} more" if len(attempt.nodes) > 4 else ""
        )
        ranks = f"{sum(rank.alive for rank in attempt.ranks)}/{len(attempt.ranks)}" if attempt.ranks else "-"
        counts = (str(attempt.generation), ranks, nodes, ago(ran), f"${attempt.dollars:.4f}")
        made.add_row(attempt.id, attempt.state.value, *counts, where(attempt), gist(attempt.reason))
    return made
