"""A breaker for each cluster: when much is to be closed at once, the watcher is the likelier one to be wrong.

It fails static: once it is open nothing more is closed, and nothing that is closed is let open, until somebody has
looked and resets it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from mainspring.domain.fleet import NodeRef
from mainspring.domain.hardware.care import USUAL_LIMITS, BreakerLimits

WINDOW_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Closing:
    """A node that is to be closed.

    Args:
        leaf: The narrowest domain that it is in, "" where none is known.
        cluster_nodes: How many nodes its cluster has.
        leaf_nodes: How many that domain has; of no matter where none is known.
        limits: How many of both may be closed at once.
    """

    at: NodeRef
    at_s: float
    leaf: str = ""
    cluster_nodes: int
    leaf_nodes: int = 0
    limits: BreakerLimits = USUAL_LIMITS


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What a breaker says.

    Args:
        breaker: As it is from now on.
        granted: Whether the node may be closed.
    """

    breaker: Breaker
    granted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Breaker:
    """The breaker of one cluster.

    Args:
        recent: What it let be closed lately, oldest first, each node once.
        opened_s: When it opened, None while it is shut.
        words: Why it opened, for people.
    """

    recent: tuple[Closing, ...] = ()
    opened_s: float | None = None
    words: str = ""

    @property
    def is_open(self) -> bool:
        """Returns whether everything stays as it is."""
        return self.opened_s is not None

    def ask(self, closing: Closing) -> Answered:
        """Returns whether a node may be closed now; what is too much opens the breaker, and is not done.

        A node that was let be closed within the window may be again, and counts once.

        Args:
            closing: Not before what was asked last.
        """
        if self.is_open:
            return Answered(breaker=self, granted=False)
        recent = tuple(each for each in self.recent if each.at_s > closing.at_s - WINDOW_S)
        if any(each.at == closing.at for each in recent):
            return Answered(breaker=replace(self, recent=recent), granted=True)
        if words := _too_much((*recent, closing), closing):
            opened = replace(self, recent=recent, opened_s=closing.at_s, words=words)
            return Answered(breaker=opened, granted=False)
        return Answered(breaker=replace(self, recent=(*recent, closing)), granted=True)

    def reset(self) -> Breaker:
        """Returns it shut again, with everything it let through forgotten. Only people reset it."""
        return Breaker()


def _too_much(closed: tuple[Closing, ...], last: Closing) -> str:
    """Returns why so much at once is too much, "" where it is not."""
    most = last.limits.most(last.cluster_nodes)
    window = f"in {WINDOW_S / 60:g} minutes"
    if len(closed) > most:
        return f"{len(closed)} of {last.cluster_nodes} nodes {window}; at most {most} are closed so"
    own = [each for each in closed if last.leaf and each.leaf == last.leaf]
    most = last.limits.most_of_leaf(last.leaf_nodes)
    if len(own) > most:
        return f"{len(own)} of {last.leaf_nodes} nodes of {last.leaf} {window}; at most {most} are closed so"
    return ""
