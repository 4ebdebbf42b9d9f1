"""Releases in one world: nodes that run the next one for a while, and say what others have no word for.

What is said goes through the codec that ships, as the older end reads it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TypeVar, final

from mainspring.domain import wire
from mainspring.domain.codec import MESSAGE_VERSION, decode, encode, unframe
from mainspring.domain.errors import InvalidMessage
from mainspring.domain.ports import Dice
from mainspring.domain.release import RELEASE, is_newer
from mainspring.domain.wire.events.leads import UnknownWordEvent
from mainspring.simulator.nodes.agenda import chance, pick, within
from mainspring.testing import SeededDice

_UPGRADES, _NODES_NEWER = 0.15, 0.7  # Of all worlds, and of the nodes of each.
_WORDS = ("rank_moved", "store_moved", "lead_moved")
_SAYS = 0.1  # Of what an agent says, after so much it says one of them.
_FROM_S_MAX, _FOR_S_MAX = 60.0, 120.0  # An upgrade, and the way back: both within most worlds.
_NEXT = ".".join((RELEASE.split(".")[0], str(int(RELEASE.split(".")[1]) + 1), "0"))
_FACT = {"of_the_next_release": [1, {"word": "more"}]}  # What a field may hold that nobody here knows.
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewerRelease:
    """When a node, or a server, runs the next release.

    Args:
        from_s: On the world's clock.
        until_s: The same; then it goes back.
    """

    from_s: float = 0.0
    until_s: float = 0.0

    def states(self, now_s: float) -> bool:
        """Returns whether it states the next release now."""
        return self.from_s <= now_s < self.until_s


NEVER = NewerRelease()


@final
class Upgrade:
    """Which of one world's servers and nodes run the next release for a while; by dice of its own."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        luck = SeededDice(seed, "upgrade")
        self._comes = chance(luck, _UPGRADES)
        self.server = _draw(luck) if self._comes else NEVER
        """When servers do."""

    def of(self, node: str) -> NewerRelease:
        """Returns when a node does."""
        luck = SeededDice(self._seed, f"release of {node}")
        return _draw(luck) if self._comes and chance(luck, _NODES_NEWER) else NEVER


def _draw(luck: Dice) -> NewerRelease:
    from_s = within(luck, 0.0, _FROM_S_MAX)
    return NewerRelease(from_s=from_s, until_s=from_s + within(luck, 0.0, _FOR_S_MAX))


def word_to_lead(dice: Dice) -> wire.Unknown | None:
    """Returns what a lead of this release hears where a newer agent says what it has no word for; most times None.

    Raises:
        AssertionError: The lead would take it from somebody who is not newer.
    """
    if not chance(dice, _SAYS):
        return None
    said = {"type": _WORDS[pick(dice, len(_WORDS))], "version": MESSAGE_VERSION, "body": None}
    heard = unframe(_json(said | {"release": _NEXT}), wire.AgentToLead)
    assert isinstance(heard, wire.Unknown), f"{said} is read as {heard}"
    try:
        taken = unframe(_json(said | {"release": RELEASE}), wire.AgentToLead)
    except InvalidMessage:
        return heard
    raise AssertionError(f"{taken} is taken from who is not newer")


def as_heard(beat: wire.Heartbeat) -> wire.Heartbeat:
    """Returns what a server of this release reads where a lead of the next one reports.

    What that was told by words which it does not know is an event of a kind that the server does not know.
    """
    said = json.loads(encode(beat)) | _FACT
    for event in said["events"]:
        if event["kind"] == UnknownWordEvent.kind and not event["detail"]["words"]:
            event["kind"], event["detail"] = event["detail"]["word"], {}
    return decode(wire.Heartbeat, _json(said), newer=is_newer(_NEXT, "a lead"))


def as_answered(answer: _Answer) -> _Answer:
    """Returns what an agent of this release reads where a server of the next one answers.

    Raises:
        AssertionError: It is not what was answered.
    """
    read = decode(type(answer), _json(json.loads(encode(answer)) | _FACT))
    assert read == answer, f"{answer} is read as {read}"
    return read


def _json(value: object) -> bytes:
    return json.dumps(value).encode()
