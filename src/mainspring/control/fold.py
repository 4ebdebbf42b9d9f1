"""What an engine's view of an allocation means for the store's; pure."""

from __future__ import annotations

from dataclasses import dataclass

from mainspring.control.records import AllocationRecord
from mainspring.domain.fleet import AllocationPhase, AllocationSeen
from mainspring.domain.life import AllocationState


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What follows: where the allocation moves, and why its attempt is lost, "" when it is not."""

    after: AllocationState | None = None
    lost: str = ""


def judge(allocation: AllocationRecord, seen: AllocationSeen | None, *, now_s: float, absent_s: float) -> Judgement:
    """Returns what an engine's answer means for one allocation.

    Absence alone proves nothing: a launch may be on its way. Only after the engine took a stop, which also bars every
    launch still to come, does absence mean gone.

    Args:
        allocation: As the store has it.
        seen: As its engine sees it, None when the engine answered without it.
        now_s: The time.
        absent_s: How long a launched allocation may be missing.
    """
    over = seen is not None and seen.phase is AllocationPhase.ENDED
    match allocation.state:
        case AllocationState.GRANTED | AllocationState.LAUNCHED if seen is not None and over:
            return Judgement(after=AllocationState.GONE, lost=_ending(seen))
        case AllocationState.GRANTED | AllocationState.LAUNCHED if seen is not None and seen.agent_lost:
            return Judgement(lost=f"an agent is gone: {seen.reason}")
        case AllocationState.GRANTED:
            return Judgement(after=AllocationState.LAUNCHED) if seen is not None else Judgement()
        case AllocationState.LAUNCHED:
            missing_s = now_s - (allocation.launched_s or 0.0)
            if seen is None and missing_s > absent_s:
                return Judgement(lost=f"the engine has not seen {allocation.id} for {missing_s:.0f} s")
            return Judgement()
        case AllocationState.STOPPING:
            gone = over or (seen is None and allocation.stopped_s is not None)
            return Judgement(after=AllocationState.GONE) if gone else Judgement()
        case AllocationState.GONE:
            return Judgement()


def _ending(seen: AllocationSeen) -> str:
    code = "an unknown exit code" if seen.exit_code is None else f"exit code {seen.exit_code}"
    return f"its agents ended with {code} before its lead told how{': ' if seen.reason else ''}{seen.reason}"
