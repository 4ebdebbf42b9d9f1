"""Failure policy: the ladder from restarting in place, over another node, to giving up with a diagnosis."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import final

from mainspring.domain.life import AttemptState

ALIKE_MAX = 3  # What fails the same way three times without a step between will do so again where it runs.
SWAP_AFTER = 2  # One failure may be the program's; two on one node without a step between are likelier the node's.
BLAME_S = 0.25  # A dead rank's agent tells of it in milliseconds; survivors' own errors only say that it is gone.
ODD_TOLD_MAX = 16  # Ranks, agents and nodes named in an event; a thousand odd ones are one fact, not a thousand.
FORGIVEN_S = 3_600.0  # 16,384 GPUs fail every three hours (NUMBERS.md); restarts that count are those of a storm.


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """How a rank failed.

    Args:
        agents: Where that is, or where those are that fail with it; none when that says nothing.
        how: What happened, as a clause: "was killed by signal 9".
        kind: What makes two failures alike: the exit code, or "left", "hang", "devices".
        outside: Whether it came from outside the program: other nodes may do better.
        certain: Whether it is the node's, beyond doubt: it is not tried again where others suffice.
    """

    rank: int
    agents: tuple[int, ...]
    how: str
    kind: int | str
    outside: bool
    words: str = ""
    certain: bool = False


def exited(*, rank: int, agent: int, exit_code: int, words: str) -> Failure:
    """Returns the failure of a rank whose process ended.

    Args:
        exit_code: Negative for a signal, which comes from outside; a code is the program's own word.
        words: Its last words.
    """
    how = f"was killed by signal {-exit_code}" if exit_code < 0 else f"exited with {exit_code}"
    return Failure(rank=rank, agents=(agent,), how=how, kind=exit_code, outside=exit_code < 0, words=words)


def of_devices(ranks: Sequence[int], agents: Sequence[int]) -> Failure:
    """Returns the failure of devices that compute otherwise than two that agree.

    Args:
        ranks: Whose they are, one or more.
        agents: Where those are.
    """
    how = "has a device that computes otherwise than two that agree"
    return Failure(rank=ranks[0], agents=tuple(agents), how=how, kind="devices", outside=True, certain=True)


def _named(agents: Collection[int]) -> str:
    """Returns agents as people read of them."""
    first = ", ".join(map(str, sorted(agents)[:ODD_TOLD_MAX]))
    return f"agent{'s' if len(agents) > 1 else ''} {first}{', ...' if len(agents) > ODD_TOLD_MAX else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureDecision:
    """What to do about a failure.

    Args:
        outcome: How the attempt ends, None to begin another generation.
    """

    outcome: AttemptState | None
    reason: str


@final
class Failures:
    """Counts failures, and knows when another generation is no use.

    Args:
        restarts_max: How many restarts within `FORGIVEN_S` are allowed.
    """

    def __init__(self, *, restarts_max: int) -> None:
        self.suspects: frozenset[int] = frozenset()
        """Agents whose places run only where others do not suffice."""
        self._restarts_max = restarts_max
        self._restarts_s: deque[float] = deque(maxlen=restarts_max + 1)
        self._alike = 0
        self._last: tuple[int | str, int] | None = None
        self._first_words = ""
        self._step = -1
        self._by_agent: dict[int, int] = {}
        self._certain: frozenset[int] = frozenset()
        self._blamed: Failure | None = None
        self._blame_s = 0.0

    def begin(self) -> None:
        """Takes note that a new generation runs: nobody in it is blamed yet."""
        self._blamed = None

    def blame(self, failure: Failure, now_s: float) -> None:
        """Takes a failure that is likely the consequence of another one, which is waited for a little."""
        if self._blamed is None:
            self._blamed, self._blame_s = failure, now_s + BLAME_S

    def unexplained(self, now_s: float) -> Failure | None:
        """Returns a failure that no other one has explained in time, once."""
        due = self._blamed if now_s >= self._blame_s else None
        self._blamed = None if due is not None else self._blamed
        return due

    def another(self, failure: Failure, *, furthest: int, now_s: float) -> FailureDecision:
        """Counts a failure; returns what to do about it."""
        this = (failure.kind, furthest)
        self._alike = self._alike + 1 if this == self._last else 1
        self._last = this
        if furthest > self._step or not self._first_words:
            self._first_words = failure.words
        if furthest > self._step:
            self._by_agent.clear()
        self._step = furthest
        enough = 1 if failure.certain else SWAP_AFTER
        for agent in failure.agents:
            self._by_agent[agent] = self._by_agent.get(agent, 0) + 1
            self.suspects |= {agent} if self._by_agent[agent] >= enough else set()
        while self._restarts_s and now_s - self._restarts_s[0] > FORGIVEN_S:
            self._restarts_s.popleft()
        return self._verdict(failure, furthest, now_s)

    def _verdict(self, failure: Failure, furthest: int, now_s: float) -> FailureDecision:
        how = f"rank {failure.rank} {failure.how}" + (f" at step {furthest}" if furthest >= 0 else "")
        words = f"; it first said: {self._first_words}" if self._first_words else ""
        outcome = AttemptState.LOST if failure.outside else AttemptState.FAILED
        again = self._certain.intersection(failure.agents)
        if failure.certain and again:
            return FailureDecision(outcome=outcome, reason=f"{how}, again on {_named(again)}{words}")
        self._certain |= set(failure.agents) if failure.certain else set()
        if self._alike >= ALIKE_MAX:
            reason = f"{how}, {self._alike} times the same way without a step between{words}"
            return FailureDecision(outcome=outcome, reason=reason)
        if len(self._restarts_s) >= self._restarts_max:
            return FailureDecision(
                outcome=outcome, reason=f"{how}, after {len(self._restarts_s)} restarts in place{words}"
            )
        self._restarts_s.append(now_s)
        last = self.suspects.intersection(failure.agents)
        swapped = f", on {_named(last)} only where others do not suffice" if last else ""
        rung = f"restart {len(self._restarts_s)} of {self._restarts_max}{swapped}"
        return FailureDecision(outcome=None, reason=f"{how} ({rung})")
