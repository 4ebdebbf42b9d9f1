"""Which chips have the memory that an option asks of each, and what is told of those that have not."""

from __future__ import annotations

import numpy as np

from mainspring.domain.fleet import Offer
from mainspring.domain.hardware.chips import known_memory_gib
from mainspring.domain.job import ANY_CHIP, Option
from mainspring.planner.facts.columns import MIB_PER_GIB
from mainspring.planner.facts.snapshot import NONE, UNCOUNTED, Integers, Snapshot


def memory_words(snapshot: Snapshot, cluster: int, option: Option) -> str:
    """Returns how many nodes with an option's chip have the memory it asks for: "; 12 of 40 nodes ...", or "".

    Nodes whose chips nobody knows count as nodes that have it; the words tell of them.

    Args:
        cluster: Index of the cluster.
    """
    if not option.chip_memory_mib:
        return ""
    memory = _memory(snapshot, cluster, option)
    enough, unknown = memory >= option.chip_memory_mib, int((memory == UNCOUNTED).sum())
    chip = "" if option.chip == ANY_CHIP else f" with {option.chip}"
    words = ""
    if not enough.all():
        words = f"; {enough.sum()} of {len(memory)} nodes{chip} have {option.chip_memory_gib:g} GiB a chip"
        words += f", the others {_gib(memory[~enough].max())} at most"
    if unknown:
        words += f"; nobody has said how much a chip of {unknown} of {len(memory)} nodes{chip} has"
    return words


def too_little(snapshot: Snapshot, cluster: int, option: Option) -> str:
    """Returns what a cluster's chips have where all have less memory than an option asks for, else "".

    Args:
        cluster: Index of the cluster.
    """
    most = most_memory_mib(snapshot, cluster, option) if option.chip_memory_mib else NONE
    if most == NONE or most >= option.chip_memory_mib:
        return ""
    chips = "chips" if option.chip == ANY_CHIP else option.chip
    return f"its {chips} have {_gib(most)} a chip at most, and {option.chip_memory_gib:g} GiB are needed"


def most_memory_mib(snapshot: Snapshot, cluster: int, option: Option) -> int:
    """Returns the most that a chip of an option's type has on a cluster, `NONE` where there is none.

    Args:
        cluster: Index of the cluster.
    """
    return int(_memory(snapshot, cluster, option).max(initial=NONE))


def brings(offer: Offer, option: Option) -> bool:
    """Returns whether nodes of an offer have the chips that an option names, with the memory it asks of each."""
    memory_gib = known_memory_gib(offer.chip_memory_gib, offer.chip)
    return option.chip in (offer.chip, ANY_CHIP) and (memory_gib is None or memory_gib >= option.chip_memory_gib)


def _memory(snapshot: Snapshot, cluster: int, option: Option) -> Integers:
    nodes = snapshot.nodes
    there = nodes.cluster == cluster
    if option.chip != ANY_CHIP:
        there &= nodes.chip == (snapshot.chips.index(option.chip) if option.chip in snapshot.chips else NONE)
    found: Integers = nodes.chip_memory_mib[np.flatnonzero(there)]
    return found


def _gib(memory_mib: int) -> str:
    return f"{memory_mib / MIB_PER_GIB:.4g} GiB"
