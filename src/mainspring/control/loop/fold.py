"""Observation fold: what an engine's view of an allocation means for the store's, and for the attempt; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mainspring.control.store.holdings import KEPT, AllocationRecord, ranks_min
from mainspring.domain.fleet import AllocationPhase, AllocationSeen
from mainspring.domain.ids import AllocationId, NodeName, RoleName
from mainspring.domain.job import JobSpec
from mainspring.domain.life import AllocationState
from mainspring.domain.plan import Grant


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What became of an allocation that was meant to go on.

    Args:
        well: Whether its agents ended as they should, only before anybody said so.
        whole: Whether nothing of it is left to go on.
        nodes: Those lost of what is left.
        ended: Those of them that the engine names: there nothing lives.
        taken: Whether its cluster took it back, so that nobody is to blame.
    """

    reason: str
    well: bool = False
    whole: bool = True
    nodes: tuple[NodeName, ...] = ()
    ended: tuple[NodeName, ...] = ()
    taken: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationOutcome:
    """What follows: where the allocation moves, and what of it was lost, None when nothing was."""

    after: AllocationState | None = None
    loss: Loss | None = None


def judge(
    allocation: AllocationRecord, seen: AllocationSeen | None, *, missing_s: float, absent_s: float
) -> AllocationOutcome:
    """Returns what an engine's answer means for one allocation.

    Absence alone proves nothing: a launch may be on its way. Only after the engine took a stop, which also bars every
    launch still to come, does absence mean gone.

    Args:
        allocation: As the store has it.
        seen: As its engine sees it, None when the engine answered without it.
        missing_s: How long ago it was launched, where its engine does not see it.
        absent_s: How long a launched allocation may be missing.
    """
    over = seen is not None and seen.phase is AllocationPhase.ENDED
    match allocation.state:
        case AllocationState.GRANTED | AllocationState.LAUNCHED if seen is not None and over and seen.taken:
            return AllocationOutcome(
                after=AllocationState.GONE, loss=Loss(reason=taken_words(allocation, seen), taken=True)
            )
        case AllocationState.GRANTED | AllocationState.LAUNCHED if seen is not None and over:
            well = seen.exit_code == 0 and not seen.agent_lost
            return AllocationOutcome(
                after=AllocationState.GONE, loss=Loss(reason=_ending(seen), well=well, ended=seen.lost_nodes)
            )
        case AllocationState.GRANTED | AllocationState.LAUNCHED if seen is not None and seen.agent_lost:
            # An engine that cannot tell which node it was has lost one at least.
            lost, reason = seen.lost_nodes or seen.nodes[-1:], f"an agent is gone: {seen.reason}"
            return AllocationOutcome(loss=Loss(reason=reason, whole=False, nodes=lost, ended=seen.lost_nodes))
        case AllocationState.GRANTED:
            return AllocationOutcome(after=AllocationState.LAUNCHED) if seen is not None else AllocationOutcome()
        case AllocationState.LAUNCHED:
            if seen is None and missing_s > absent_s:
                return AllocationOutcome(
                    loss=Loss(reason=f"the engine has not seen {allocation.id} for {missing_s:.0f} s")
                )
            return AllocationOutcome()
        case AllocationState.STOPPING:
            gone = over or (seen is None and allocation.stopped_s is not None)
            return AllocationOutcome(after=AllocationState.GONE) if gone else AllocationOutcome()
        case AllocationState.GONE:
            return AllocationOutcome()


def fatal(
    held: Mapping[AllocationRecord, Grant], losses: Mapping[AllocationId, Loss], spec: JobSpec, *, led: bool
) -> str:
    """Returns why an attempt cannot go on with what is left of it, "" when its lead is to decide.

    Before it is led every part of an attempt is needed. Afterwards it goes on while each role has as many ranks as it
    can run with. Agents that ended well may have been told to by a lead whose word is still on its way, so they alone
    end nothing, unless none is left.

    Args:
        held: Its allocations that were not gone before, with their parts.
        losses: What was lost of them.
        spec: Its job's spec.
        led: Whether it has a lead.
    """
    first = next(iter(losses.values())).reason
    if not led or all(one.id in losses and losses[one.id].whole for one in held if one.state in KEPT):
        return first
    left: dict[RoleName, int] = {}
    needed: dict[RoleName, int] = {}
    roles = {role.name: role for role in spec.roles}
    for one, part in held.items():
        loss = losses.get(one.id)
        needed.setdefault(part.role, ranks_min(roles[part.role], part))
        kept = one.state in KEPT and (loss is None or loss.well or not loss.whole)
        gone = loss.nodes if loss is not None else ()
        alive = sum(ranks for node, ranks in zip(part.nodes, part.ranks, strict=True) if node not in gone)
        left[part.role] = left.get(part.role, 0) + (alive if kept else 0)
    short = [role for role, ranks in left.items() if ranks < needed[role]]
    return "" if not short or all(loss.well for loss in losses.values()) else first


def taken_words(allocation: AllocationRecord, seen: AllocationSeen) -> str:
    """Returns why an allocation is over that its cluster took back.

    Args:
        allocation: As the store has it.
        seen: As its engine sees it.
    """
    return f"cluster {allocation.cluster} took it back{': ' if seen.reason else ''}{seen.reason}"


def _ending(seen: AllocationSeen) -> str:
    code = "an unknown exit code" if seen.exit_code is None else f"exit code {seen.exit_code}"
    return f"its agents ended with {code} before its lead told how{': ' if seen.reason else ''}{seen.reason}"
