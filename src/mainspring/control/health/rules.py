"""Rules: what events of one node, within a window of time, say of it. An ordered table of pure predicates.

Every rule starts in shadow: what it finds is told beside what was done without it, and nothing follows. How many times
something has to happen is our own choice where no source is named, to be measured before a rule may act.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from mainspring.control.health.lemons import LEMON_SCORE, LEMON_WINDOW_S, episodes, lemon_score
from mainspring.domain.errors import InvalidInput, nearest
from mainspring.domain.hardware.health import (
    CONDITIONS,
    QUIET,
    STRAGGLER,
    HealthEvent,
    HealthSource,
    HealthState,
    Repair,
    Scope,
    ScopeKind,
    Strategy,
)

HOUR_S, DAY_S = 3_600.0, 86_400.0
RESETS_IN_VAIN = 2  # What a reset does not cure comes back: then hardware is replaced ("Xid Catalog", RESET_GPU).
JOBS_AT_FAULT = 3  # One job's bug follows the job; the same fault under several jobs stays with the device.
LINK_FAULTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Events of one node within a rule's window, none of which says that all is well; in order.

    Args:
        events: All of them.
        standing: Those that nobody has taken back since.
        history: All of them, and those that were before somebody has looked at the node.
    """

    events: tuple[HealthEvent, ...]
    standing: tuple[HealthEvent, ...]
    history: tuple[HealthEvent, ...] = ()

    def to_act_on(self) -> Seen:
        """Returns those of them from which anything may follow."""
        return Seen(
            events=tuple(each for each in self.events if each.strategy is Strategy.ACT),
            standing=tuple(each for each in self.standing if each.strategy is Strategy.ACT),
            history=tuple(each for each in self.history if each.strategy is Strategy.ACT),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What some events mean.

    Args:
        window_s: How far back it looks.
        words: What is so where it holds, for people.
        state: How a node is for which it holds.
        repair: What would help; None for the most that its evidence asks for.
        evidence: Returns the events for which it holds; none where it does not.
    """

    name: str
    window_s: float
    words: str
    state: HealthState
    repair: Repair | None
    evidence: Callable[[Seen], Sequence[HealthEvent]]
    strategy: Strategy = Strategy.SHADOW


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A rule that holds for a node.

    Args:
        words: What is so, and what was said of it last.
        evidence: The events for which it holds, in order.
        strategy: ACT where the rule acts, and holds by what may be acted on alone.
        of_links: Whether all of it is of links, of which the other end may be at fault.
    """

    rule: str
    state: HealthState
    repair: Repair
    words: str
    evidence: tuple[HealthSource, ...]
    strategy: Strategy
    of_links: bool = False


def findings(
    rules: Iterable[Rule],
    events: Sequence[HealthEvent],
    standing: Sequence[HealthEvent],
    history: Sequence[HealthEvent],
    now_s: float,
) -> tuple[Finding, ...]:
    """Returns what rules find in the events of one node, in their order.

    Args:
        events: None that says that all is well; in order, none later than now.
        standing: Those that nobody has taken back since.
        history: See `Seen`.
    """
    found: list[Finding] = []
    for rule in rules:
        since_s = now_s - rule.window_s
        seen = Seen(
            events=tuple(each for each in events if each.at_s > since_s),
            standing=tuple(each for each in standing if each.at_s > since_s),
            history=tuple(each for each in history if each.at_s > since_s),
        )
        sure = tuple(rule.evidence(seen.to_act_on())) if rule.strategy is Strategy.ACT else ()
        evidence = sure or tuple(rule.evidence(seen))
        if evidence:
            found.append(_finding(rule, evidence, Strategy.ACT if sure else Strategy.SHADOW))
    return tuple(found)


def acting(rules: Iterable[Rule], names: Iterable[str]) -> tuple[Rule, ...]:
    """Returns rules of which the named ones act.

    Raises:
        InvalidInput: There is none of a name.
    """
    rules, names = tuple(rules), frozenset(names)
    known = {rule.name for rule in rules}
    for name in sorted(names - known):
        raise InvalidInput("let a rule of health act", on=repr(name)[:80], wanted=nearest(name, sorted(known)))
    return tuple(replace(rule, strategy=Strategy.ACT) if rule.name in names else rule for rule in rules)


def _finding(rule: Rule, evidence: tuple[HealthEvent, ...], strategy: Strategy) -> Finding:
    most = max((each.repair for each in evidence), key=lambda repair: repair.rank)
    last = evidence[-1]
    codes = f" {' '.join(last.codes)}" if last.codes else ""
    where = f" on {last.scope.part}" if last.scope.part else ""
    said = f": {last.message}" if last.message else ""
    return Finding(
        rule=rule.name,
        state=rule.state,
        repair=most if rule.repair is None else rule.repair,
        words=f"{rule.words}: {last.check}{codes}{where}{said}",
        evidence=tuple(each.source for each in evidence),
        strategy=strategy,
        of_links=all(each.scope.kind is ScopeKind.LINK for each in evidence),
    )


# ---------------------------------------------------------------- predicates


def _resets_in_vain(seen: Seen) -> Sequence[HealthEvent]:
    asked = [each for each in seen.events if each.fatal and each.repair is Repair.RESET_DEVICE]
    return _first(own for own in _by_scope(asked) if len(episodes(own)) >= RESETS_IN_VAIN)


def _fatal(seen: Seen) -> Sequence[HealthEvent]:
    return [each for each in seen.standing if each.fatal]


def _faults_of_many_jobs(seen: Seen) -> Sequence[HealthEvent]:
    faults = [each for each in seen.events if each.job and each.repair is Repair.RESTART_RANKS]
    return _first(own for own in _by_scope(faults) if len({each.job for each in own}) >= JOBS_AT_FAULT)


def _flapping_link(seen: Seen) -> Sequence[HealthEvent]:
    return _first(own for own in _by_scope(seen.events, ScopeKind.LINK) if len(own) >= LINK_FAULTS)


def _asks_for_more(seen: Seen) -> Sequence[HealthEvent]:
    return [each for each in seen.standing if not each.fatal and each.repair.rank >= Repair.RESET_DEVICE.rank]


def _lemon(seen: Seen) -> Sequence[HealthEvent]:
    return seen.history if lemon_score(seen.history) >= LEMON_SCORE else ()


def _quiet(seen: Seen) -> Sequence[HealthEvent]:
    return [each for each in seen.standing if each.check == QUIET]


def _slow(seen: Seen) -> Sequence[HealthEvent]:
    return [each for each in seen.standing if each.check == STRAGGLER]


def _condition(seen: Seen) -> Sequence[HealthEvent]:
    told = [each for each in seen.standing if each.source.name == CONDITIONS]
    return [each for each in told if each.repair.rank >= Repair.RESTART_NODE.rank]


def _by_scope(events: Iterable[HealthEvent], kind: ScopeKind | None = None) -> list[list[HealthEvent]]:
    found: dict[Scope, list[HealthEvent]] = defaultdict(list)
    for each in events:
        if kind is None or each.scope.kind is kind:
            found[each.scope].append(each)
    return [found[scope] for scope in sorted(found)]


def _first(found: Iterable[list[HealthEvent]]) -> Sequence[HealthEvent]:
    return next(iter(found), ())


RULES: tuple[Rule, ...] = (
    Rule(
        name="reset-in-vain",
        window_s=7 * DAY_S,
        words="what a reset should have cured came back",
        state=HealthState.FAILED,
        repair=Repair.CALL_PEOPLE,
        evidence=_resets_in_vain,
    ),
    Rule(
        name="fatal",
        window_s=DAY_S,
        words="of no use until something is done",
        state=HealthState.FAILED,
        repair=None,
        evidence=_fatal,
    ),
    Rule(
        name="faults-of-many-jobs",
        window_s=DAY_S,
        words=f"{JOBS_AT_FAULT} jobs or more had the same fault there",
        state=HealthState.SUSPECT,
        repair=Repair.RESET_DEVICE,
        evidence=_faults_of_many_jobs,
    ),
    Rule(
        name="flapping-link",
        window_s=HOUR_S,
        words=f"a link failed {LINK_FAULTS} times or more in an hour",
        state=HealthState.FAILED,
        repair=Repair.CALL_PEOPLE,
        evidence=_flapping_link,
    ),
    Rule(
        name="slow",
        window_s=HOUR_S,
        words="everybody waits for it",
        state=HealthState.FAILED,
        repair=Repair.RESTART_NODE,
        evidence=_slow,
    ),
    Rule(
        name="condition",
        window_s=DAY_S,
        words="others say so through its cluster",
        state=HealthState.FAILED,
        repair=None,
        evidence=_condition,
    ),
    Rule(
        name="quiet",
        window_s=HOUR_S,
        words="not heard of",
        state=HealthState.SUSPECT,
        repair=Repair.RESTART_NODE,
        evidence=_quiet,
    ),
    Rule(
        name="asks-for-more",
        window_s=DAY_S,
        words="more than a restart of programs is asked for",
        state=HealthState.SUSPECT,
        repair=None,
        evidence=_asks_for_more,
    ),
    Rule(
        name="lemon",
        window_s=LEMON_WINDOW_S,
        words="it fails again and again",
        state=HealthState.SUSPECT,
        repair=Repair.CALL_PEOPLE,
        evidence=_lemon,
    ),
)
