"""Messages of a remote engine and its host on the other machine.

The host greets first: one line of text, which is told apart from whatever a login shell prints before it. Then frames
of `domain.codec`: the opening (which engine to make) and its answer, number 0; then calls (`EngineCall`), and their
answers in any order. Long answers come in parts. While nothing is said the host says `FarAlive`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from mainspring.domain.answers import Problem
from mainspring.domain.codec import MESSAGE_VERSION, message
from mainspring.domain.fleet import AllocationSeen, Inventory, Node
from mainspring.domain.release import RELEASE, Unknown

ALIVE_S = 2.0  # How often the host says that it lives.
OPEN_S = 30.0  # A log-in over a slow network, and a Python that starts from a shared folder nobody has read today.
SILENT_S = 15.0  # Seven such words missed: a machine that swaps or a network that heals needs seconds.
PART_ITEMS_MAX = 1_000  # Nodes or allocations in one message: a node is 30 of the 250,000 items that it may hold.
LOG_BYTES_MAX = 1 << 20  # As much as a local engine gives at once; a message holds eight times that.
_GREETING = re.compile(rb"(?m)^mainspring-engine-host ([0-9]{1,9}) ([^ \r\n]{1,64})\r?\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Greeting:
    """What the other machine has installed: its Mainspring, and the version of its messages."""

    mainspring: str
    messages: int


def greeting() -> bytes:
    """Returns the host's first line."""
    return f"\nmainspring-engine-host {MESSAGE_VERSION} {RELEASE}\n".encode()


def find_greeting(said: bytes) -> tuple[Greeting, bytes] | None:
    """Returns the greeting among what a login shell may print, and what follows it; None if it is not there yet."""
    found = _GREETING.search(said)
    if found is None:
        return None
    return Greeting(mainspring=found[2].decode("ascii", "replace"), messages=int(found[1])), said[found.end() :]


@message("FarPart")
class FarPart:
    """Nodes or allocations of an answer that is still to come."""

    number: int
    nodes: tuple[Node, ...] = ()
    seen: tuple[AllocationSeen, ...] = ()


@message("FarAnswer")
class FarAnswer:
    """How a call ended: with an error, or with what it returns. The inventory's nodes came in parts; logs in base64."""

    number: int
    error: Problem | None = None
    inventory: Inventory | None = None
    log: str = ""
    next_offset: int = 0
    count: int = 0
    attestation: str = ""


@message("FarAlive")
class FarAlive:
    """The host lives, and has nothing to say."""


HostMessage = FarPart | FarAnswer | FarAlive | Unknown
"""What a host may say, once it has greeted."""
