"""Hang detection: when silence is a hang and which ranks are odd, learned from the attempt's pace and ranks' stacks.

Whoever waits in a collective looks the same everywhere, so a rank that stands elsewhere than most is the likely cause.
Some signs are certain (a process that is stopped or gone); others may be a long pause that the program means to make,
and are acted on only after a far longer silence.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

from mainspring.domain.ids import RoleName
from mainspring.domain.wire import StacksDumped
from mainspring.node.lead.watch.stacks import StackLook

HANG_S_MIN = 10.0  # Garbage collections, page faults and saves of healthy programs stay below this.
GAP_PARTS = 8.0  # So many times the silence that one report in a hundred has seen.
PAUSE_PARTS = 3.0  # So many times the longest silence seen: a pause that came once, such as an evaluation, comes again.
LIKELY_S_MIN = 120.0  # Before a rank is ended only because it stands elsewhere: rank 0 may be writing a file.
LIKELY_PARTS = 4.0
ANYHOW_S = 1_800.0  # Nothing tells the ranks apart, and none has moved for as long as PyTorch's longest default.
STARTUP_S = 1_200.0  # Until the first step where one is known to come: the slowest compilations of large models.
STARTUP_S_MIN = 60.0
STARTUP_PARTS = 4.0
GAPS_KEPT = 1_024  # Enough for a percentile; at two reports a second, nine minutes.
GAPS_MIN = 8  # Fewer say nothing about the next: the first steps of a program differ most.
PATIENCE_MAX = 64.0
DUMP_LIMIT_S = 3.0  # Dumping stacks takes milliseconds; a process that cannot answer in seconds is odd itself.
EVIDENCE_RANKS_MAX = 16  # Named in an event; a thousand odd ranks are one fact, not a thousand.
_STOPPED = ("T", "t")  # proc(5): stopped by a signal, or by a tracer.


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPosition:
    """Where one rank is, as far as the lead knows.

    Args:
        step: Its newest step.
        ended: Whether its process has ended.
    """

    step: int
    ended: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Oddness:
    """Which ranks are odd.

    Args:
        ranks: Their places, none when nothing tells them apart.
        certain: Whether it cannot be a pause the program means to make.
        evidence: What tells, for people.
    """

    ranks: tuple[int, ...]
    certain: bool
    evidence: str


def odd_ones(standings: Mapping[int, RankPosition], stacks: Mapping[int, StacksDumped]) -> Oddness:
    """Returns the ranks that stand elsewhere than the others.

    Args:
        standings: Every rank of a role, by place.
        stacks: What agents found of those that live.
    """
    living = [rank for rank, standing in sorted(standings.items()) if not standing.ended]
    states = {rank: stacks[rank].process_state for rank in living if rank in stacks}
    stopped = [rank for rank in states if states[rank] in _STOPPED or not states[rank]]
    if stopped:
        return _found(stopped, {rank: f"state {states[rank] or 'gone'}" for rank in stopped}, certain=True)
    blocked = [rank for rank in states if states[rank] == "D"]
    if blocked and len(blocked) < len(living):
        return _found(blocked, dict.fromkeys(blocked, "state D: waits for the kernel"))
    ended = [rank for rank, standing in sorted(standings.items()) if standing.ended]
    if ended and living:
        return _found(ended, dict.fromkeys(ended, "ended while others wait"))
    silent = [rank for rank in living if rank not in stacks]
    if silent and len(silent) < len(living):
        return _found(silent, dict.fromkeys(silent, "its agent does not say where it is"))
    tops = {rank: stacks[rank].top for rank in living if rank in stacks and stacks[rank].top}
    usual = Counter(tops.values()).most_common(1)
    if usual and usual[0][1] * 2 > len(tops):
        apart = [rank for rank in tops if tops[rank] != usual[0][0]]
        if apart:
            return _found(apart, {rank: f"at {tops[rank]}, most at {usual[0][0]}" for rank in apart})
    furthest = max((standings[rank].step for rank in living), default=-1)
    behind = [rank for rank in living if standings[rank].step < furthest]
    return _found(behind, {rank: f"at step {standings[rank].step}, others at {furthest}" for rank in behind})


def _found(ranks: list[int], evidence: Mapping[int, str], *, certain: bool = False) -> Oddness:
    words = "; ".join(f"rank {rank} {evidence[rank]}" for rank in ranks[:EVIDENCE_RANKS_MAX])
    return Oddness(ranks=tuple(ranks), certain=certain, evidence=words)


@final
class _Silence:
    """How long one role may be silent."""

    def __init__(self, *, stepped_before: bool) -> None:
        self.first_s: float | None = None
        self.last_s = 0.0
        self.stepping = False
        self._stepped_before = stepped_before
        self._gaps: deque[float] = deque(maxlen=GAPS_KEPT)
        self._longest_s = 0.0
        self._startup_s = 0.0
        self._rank = -1
        self._rank_s = 0.0
        self._bound_s: float | None = None

    def begin(self, now_s: float) -> None:
        self.first_s, self.last_s, self.stepping, self._rank = now_s, now_s, False, -1

    def progressed(self, rank: int, now_s: float) -> None:
        if not self.stepping and self.first_s is not None:
            self._startup_s = max(self._startup_s, now_s - self.first_s)
            self._stepped_before = self.stepping = True
        if rank == self._rank:
            self._gaps.append(now_s - self._rank_s)
            self._longest_s = max(self._longest_s, now_s - self._rank_s)
            self._bound_s = None
        if rank <= self._rank or self._rank < 0:
            self._rank, self._rank_s = rank, now_s
        self.last_s = now_s

    def bound_s(self, *, from_store: bool) -> float | None:
        """Returns how long it may be silent now, None while nothing is known."""
        if not self.stepping:
            known = self._startup_s > 0 and not from_store
            learned_s = max(STARTUP_S_MIN, STARTUP_PARTS * self._startup_s) if known else STARTUP_S
            return learned_s if self._stepped_before else None
        if len(self._gaps) < GAPS_MIN:
            return max(STARTUP_S_MIN, STARTUP_PARTS * max(self._startup_s, self._longest_s))
        if self._bound_s is None:
            usual_s = sorted(self._gaps)[int(0.99 * (len(self._gaps) - 1))]
            self._bound_s = max(HANG_S_MIN, GAP_PARTS * usual_s, PAUSE_PARTS * self._longest_s)
        return self._bound_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicion:
    """A role that has been silent for too long.

    Args:
        stage: What may be acted on: 0 certain signs, 1 likely ones, 2 none needed.
    """

    role: RoleName
    silent_s: float
    stage: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AskStacks:
    """Agents shall say where their ranks stand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """A hang to act on.

    Args:
        suspicion: Which role is silent, and for how long.
        odd: Which of its ranks are the likely cause.
    """

    suspicion: Suspicion
    odd: Oddness


@dataclass(slots=True)
class _Dump:
    """A look at where ranks stand: why, until when answers count, and those that came."""

    suspicion: Suspicion
    until_s: float
    stacks: dict[int, StacksDumped] = field(default_factory=dict)


@final
class Hangs:
    """Watches the silence of every role's ranks.

    Args:
        fixed_s: The longest silence between two steps where the job says so, 0 to learn it.
        stepped_before: Whether earlier attempts of the job reported steps.
    """

    def __init__(self, roles: tuple[RoleName, ...], *, fixed_s: float, stepped_before: bool) -> None:
        self._fixed_s = fixed_s
        self._roles = {role: _Silence(stepped_before=stepped_before) for role in roles}
        self._from_store = False
        self._stage = 0
        self._patience = 1.0
        self._hung_at = -1
        self._dump: _Dump | None = None
        self.look = StackLook()
        """Where ranks stand when somebody asks, whether they hang or not."""

    def begin(self, now_s: float, *, from_store: bool) -> None:
        """Takes note that a generation's ranks run.

        Args:
            from_store: Whether they read their state from the object store, which may take long.
        """
        self._from_store, self._stage, self._dump = from_store, 0, None
        for silence in self._roles.values():
            silence.begin(now_s)

    def progressed(self, role: RoleName, rank: int, now_s: float) -> None:
        """Takes note that a rank has come further."""
        self._roles[role].progressed(rank, now_s)
        self._stage = 0

    def suspicion(self, roles: tuple[RoleName, ...], now_s: float) -> Suspicion | None:
        """Returns the role that has been silent for longest past its bound, None when none has."""
        found: Suspicion | None = None
        for role in roles:
            silence = self._roles[role]
            bound_s = silence.bound_s(from_store=self._from_store)
            stage = self._stage
            if self._fixed_s > 0 and silence.stepping:
                bound_s, stage = self._fixed_s, 2
            elif bound_s is not None:
                bound_s *= self._patience
                bound_s = (bound_s, max(LIKELY_S_MIN, LIKELY_PARTS * bound_s), max(ANYHOW_S, 8 * bound_s))[stage]
            silent_s = now_s - silence.last_s
            if bound_s is not None and silent_s > bound_s and (found is None or silent_s > found.silent_s):
                found = Suspicion(role=role, silent_s=silent_s, stage=stage)
        return found

    def spared(self) -> None:
        """Takes note that the signs did not suffice: the next look is after a longer silence, and asks for less."""
        self._stage = min(2, self._stage + 1)

    def declared(self, step: int) -> None:
        """Takes note that a hang was declared; another one at the same step must last twice as long."""
        self._patience = min(2 * self._patience, PATIENCE_MAX) if step == self._hung_at else 1.0
        self._hung_at = step

    def stacks(self, message: StacksDumped) -> None:
        """Takes where a rank stands."""
        self.look.take(message)
        if self._dump is not None:
            self._dump.stacks[message.rank] = message

    def survey(
        self, suspicion: Suspicion | None, positions: Mapping[int, RankPosition], step: int, now_s: float
    ) -> AskStacks | Hang | None:
        """Returns what a suspicion leads to; first asks where ranks stand, and judges when they have said so.

        Args:
            suspicion: The role that is silent, None for none.
            positions: How far every rank of that role is, by place.
        """
        if suspicion is None:
            self._dump = None
        elif self._dump is None or self._dump.suspicion.role != suspicion.role:
            self._dump = _Dump(suspicion=suspicion, until_s=now_s + DUMP_LIMIT_S)
            return AskStacks()
        elif now_s >= self._dump.until_s or all(
            position.ended or rank in self._dump.stacks for rank, position in positions.items()
        ):
            odd = odd_ones(positions, self._dump.stacks)
            self._dump = None
            if odd.certain or suspicion.stage == 2 or (suspicion.stage == 1 and odd.ranks):
                self.declared(step)
                return Hang(suspicion=suspicion, odd=odd)
            self.spared()
        return None
