"""Which node is at fault, found by working in pairs, in two rounds as a rule and with no history. Pure.

All nodes work in pairs. Of a pair that failed, or was slow, either may be at fault: each works again, with a node whose
pair did well. If that fails too it is this one; if it does well, so is this one, and the fault was the other's, or lay
on the way between the two. Source: DLRover, "Introduction to Check the Node Healthy"; more rounds follow only where
there are more suspects than nodes to measure them by.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import median_high, median_low

ROUNDS_MAX = 4
SLOW_RATIO = 2.0  # Of the usual time of a pair. Source: DLRover, as above.
SLOW_SHARE = 0.8  # Of the usual rate of a node alone; two of one make differ by a few hundredths.
PEERS_MIN = 3  # Fewer do not tell what is usual.
HISTORY_MIN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouped:
    """How a group of nodes did.

    Args:
        members: Numbers of the nodes: two, or three where they are odd.
        seconds: How long the work took; None where it failed, was wrong or did not end.
    """

    members: tuple[int, ...]
    seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolated:
    """What rounds show.

    Args:
        well: Nodes that did well in some group.
        bad: Nodes that failed twice, of these once with others that did well.
        undecided: All others that worked in groups; where that is every node, it is not one node.
        ways: Groups that failed though each of their nodes did well with others: the way between them is at fault.
    """

    well: tuple[int, ...]
    bad: tuple[int, ...]
    undecided: tuple[int, ...]
    ways: tuple[tuple[int, ...], ...]


def next_groups(members: Collection[int], rounds: Sequence[Sequence[Grouped]]) -> tuple[tuple[int, ...], ...]:
    """Returns who is to work with whom next; nothing when all is decided, or another round would decide no more.

    Args:
        members: Numbers of all nodes.
        rounds: What came of the rounds so far.
    """
    if not rounds:
        return _in_twos(sorted(members))
    found = isolated(members, rounds)
    if len(rounds) >= ROUNDS_MAX or not found.undecided or not found.well:
        return ()
    met = {(one, other) for each in rounds for group in each for one in group.members for other in group.members}
    free, groups, left = list(found.well), list[tuple[int, ...]](), list[int]()
    for suspect in found.undecided:
        partner = next((each for each in free if (suspect, each) not in met), None)
        if partner is None:
            left.append(suspect)
        else:
            free.remove(partner)
            groups.append((suspect, partner))
    half = (len(left) + 1) // 2  # Those that were together stand side by side, and are parted so.
    parted = [
        each for pair in zip(left[:half], [*left[half:], None], strict=False) for each in pair if each is not None
    ]
    return (*groups, *_in_twos(parted)) if groups else ()


def _in_twos(members: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Returns them in pairs, the last of an odd number with the pair before it; one alone in none."""
    pairs = [tuple(members[index : index + 2]) for index in range(0, len(members) - 1, 2)]
    if len(members) % 2 and pairs:
        pairs[-1] = (*pairs[-1], members[-1])
    return tuple(pairs)


def isolated(members: Collection[int], rounds: Sequence[Sequence[Grouped]], slow_ratio: float = SLOW_RATIO) -> Isolated:
    """Returns what rounds show of every node.

    Args:
        members: Numbers of all nodes.
        rounds: What came of them; the first says what is usual.
        slow_ratio: How many times the usual is slow.
    """
    times = [group.seconds for group in rounds[0] if group.seconds is not None] if rounds else []
    most_s = slow_ratio * median_low(times) if times else 0.0
    groups = [group for each in rounds for group in each]
    failed = [group for group in groups if group.seconds is None or group.seconds > most_s]
    well = {one for group in groups if group not in failed for one in group.members}
    bad = {one for one in members if one not in well and _is_blamed(one, failed, well)}
    return Isolated(
        well=tuple(sorted(well)),
        bad=tuple(sorted(bad)),
        undecided=tuple(sorted({one for group in groups for one in group.members} - well - bad)),
        ways=tuple(group.members for group in failed if all(one in well for one in group.members)),
    )


def _is_blamed(one: int, failed: Sequence[Grouped], well: Collection[int]) -> bool:
    """Returns whether a node failed twice, and with nobody else who might be at fault at least once."""
    own = [group.members for group in failed if one in group.members]
    return len(own) > 1 and any(all(other in well for other in group if other != one) for group in own)


def usual_rate(peers: Sequence[float], history: Sequence[float]) -> float | None:
    """Returns what rate is usual for a node: that of others of its kind, else its own of before; None where few tell.

    Args:
        peers: Rates of all nodes of its kind in this sweep, itself included.
        history: Its own of earlier sweeps.
    """
    if len(peers) >= PEERS_MIN:
        return median_high(peers)
    return median_high(history) if len(history) >= HISTORY_MIN else None


def is_slow(rate: float, peers: Sequence[float], history: Sequence[float]) -> bool:
    """Returns whether a node's rate is well below what is usual; see `usual_rate`."""
    usual = usual_rate(peers, history)
    return usual is not None and rate < SLOW_SHARE * usual
