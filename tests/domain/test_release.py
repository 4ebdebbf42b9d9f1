"""Releases: which speak with which, and what a newer one may say."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mainspring.domain import wire
from mainspring.domain.codec import FRAME_HEADER_BYTES, decode, frame, message, unframe
from mainspring.domain.errors import InvalidMessage, OtherRelease
from mainspring.domain.life import AttemptState
from mainspring.domain.release import (
    KIND_LENGTH_MAX,
    RELEASE,
    STATED_LENGTH_MAX,
    WORDS_LENGTH_MAX,
    Skew,
    Unknown,
    is_newer,
    skew,
)

MAJOR, MINOR, _ = (int(part) for part in RELEASE.split("."))
NEWER, BEYOND = f"{MAJOR}.{MINOR + 1}.0", f"{MAJOR}.{MINOR + 2}.0"
BEAT = {"attempt": "a", "epoch": 1, "generation": 1, "step": 1, "metrics": {}, "ranks": [], "events": []}


@message("TestOnly.NewWord")
class NewWord:
    """What the next release may say."""

    words: str


def body(value: object, release: str | None = RELEASE) -> bytes:
    """Returns a frame's body, as a peer of a release says it; of None, as one that states none."""
    plain: dict[str, Any] = json.loads(frame(value)[FRAME_HEADER_BYTES:])
    del plain["release"]
    return json.dumps(plain if release is None else plain | {"release": release}).encode()


@pytest.mark.parametrize(
    ("own", "peer", "wanted"),
    [
        ("0.3.0", "0.3.9", Skew.SAME),
        ("0.3.0", "0.2.7", Skew.OLDER),
        ("0.3.0", "0.4.0rc1", Skew.NEWER),
        ("0.9.0", "0.10.0", Skew.NEWER),
        ("0.3.0", "0.5.0", Skew.BEYOND),
        ("0.3.0", "0.1.0", Skew.BEYOND),
        ("0.3.0", "1.3.0", Skew.BEYOND),
    ],
)
def test_releases_next_to_each_other_speak_and_others_do_not(own: str, peer: str, wanted: Skew) -> None:
    assert skew(own, peer) is wanted


@pytest.mark.parametrize("stated", ["", "0.3", "three", "0.3.0\n", "0.3.0" + "0" * STATED_LENGTH_MAX, 3])
def test_what_states_no_release_is_refused(stated: object) -> None:
    with pytest.raises(InvalidMessage, match="such as"):
        is_newer(stated, "ada")


def test_peer_that_states_none_is_the_last_release_that_did_not() -> None:
    assert not is_newer(None, "ada", own="0.3.0")
    with pytest.raises(OtherRelease, match=r"on ada; got Mainspring 0\.2\.0 .*next: upgrade the other end"):
        is_newer(None, "ada", own="0.4.0")
    with pytest.raises(OtherRelease, match=r"got Mainspring 0\.5\.0; wanted Mainspring 0\.3\.0.*upgrade this end"):
        is_newer("0.5.0", "ada", own="0.3.0")


@pytest.mark.parametrize("door", [wire.AgentToLead, wire.LeadToAgent, wire.PeerRequest, wire.RankRequest])
def test_unknown_message_comes_in_of_a_newer_peer_alone(door: Any) -> None:
    said = NewWord(words="dance")
    assert unframe(body(said, NEWER), door) == Unknown(kind="TestOnly.NewWord", words="{'words': 'dance'}")
    for release in (RELEASE, None):
        with pytest.raises(InvalidMessage, match=r"TestOnly\.NewWord"):
            unframe(body(said, release), door)
    with pytest.raises(InvalidMessage, match=r"TestOnly\.NewWord"):
        unframe(body(said, NEWER), wire.StepReply)  # No door: an answer to what was asked.


def test_peer_beyond_one_release_is_refused_by_name_whatever_it_says() -> None:
    for said in (wire.Done(), NewWord(words="")):
        with pytest.raises(OtherRelease, match=BEYOND):
            unframe(body(said, BEYOND), wire.AgentToLead)


def test_outcome_of_a_newer_lead_is_unknown_and_of_another_refused() -> None:
    said = json.dumps(BEAT | {"outcome": "hibernated"}).encode()
    assert decode(wire.Heartbeat, said, newer=True).outcome == Unknown(kind="hibernated")
    assert decode(wire.Heartbeat, json.dumps(BEAT | {"outcome": "failed"}).encode(), newer=True).outcome is (
        AttemptState.FAILED
    )
    with pytest.raises(InvalidMessage, match="hibernated"):
        decode(wire.Heartbeat, said)
    with pytest.raises(InvalidMessage):  # Nobody says of himself that he is not understood.
        decode(wire.Heartbeat, json.dumps(BEAT | {"outcome": {"kind": "failed", "words": ""}}).encode())


def test_unknown_words_are_bounded_however_long_or_deep_they_are() -> None:
    deep: Any = "deep"
    for _ in range(200):
        deep = {"in": [deep] * 2} if len(str(deep)) < 100_000 else [deep]
    plain = {"type": "x" * 10_000 + "\ud800", "version": 1, "release": NEWER, "body": {"y" * 100_000: deep}}
    unknown = unframe(json.dumps(plain).encode(), wire.AgentToLead)
    assert isinstance(unknown, Unknown)
    assert (len(unknown.kind), len(unknown.words) <= WORDS_LENGTH_MAX) == (KIND_LENGTH_MAX, True)
    unknown.words.encode()
