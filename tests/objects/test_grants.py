"""Credentials of the object store that an attempt's agents share: asked for once, renewed in time, never waited for."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from mainspring.domain.errors import NotAllowed, Unavailable
from mainspring.domain.wire import StoreCredentials
from mainspring.objects import Access, SharedGrants
from mainspring.testing import FakeClock

LASTS_S = 1_000.0
ONE, OTHER = "one.1", "other.1"


class FakeGrants:
    """Gives numbered credentials, once it may."""

    def __init__(self) -> None:
        self.given: list[tuple[str, Access]] = []
        self.may = threading.Event()
        self.may.set()
        self.refuses = False
        self.answered = threading.Event()

    def grant(self, access: Access, *, holder: str) -> StoreCredentials:
        self.given.append((holder, access))
        number = len(self.given)
        assert self.may.wait(120)
        self.answered.set()
        if self.refuses:
            raise NotAllowed("give", on=holder)
        return StoreCredentials(
            access_key_id=f"key {number}", secret_access_key="s", session_token="t", lasts_s=LASTS_S
        )

    def check(self, access: Access) -> None:
        """Whatever it is, it may be given."""


def _access(attempt: str) -> Access:
    return Access(writes=(f"checkpoints/{attempt}",))


def _of(shared: SharedGrants, attempt: str) -> StoreCredentials:
    return shared.grant(_access(attempt), holder=attempt)


def test_agents_of_an_attempt_share_credentials_and_others_have_others() -> None:
    grants = FakeGrants()
    shared = SharedGrants(grants, FakeClock())
    grants.may.clear()
    with ThreadPoolExecutor(8) as agents:
        asking = [agents.submit(_of, shared, ONE) for _ in range(8)]
        grants.may.set()
        assert {asked.result().access_key_id for asked in asking} == {"key 1"}
    assert _of(shared, OTHER).access_key_id == "key 2"
    assert grants.given == [(ONE, _access(ONE)), (OTHER, _access(OTHER))]


def test_credentials_come_with_the_time_left_and_are_new_past_half_of_it() -> None:
    clock, grants = FakeClock(), FakeGrants()
    shared = SharedGrants(grants, clock)
    assert _of(shared, ONE).lasts_s == LASTS_S
    clock.advance(LASTS_S / 2 - 1)
    held = _of(shared, ONE)
    assert (held.access_key_id, held.lasts_s) == ("key 1", LASTS_S / 2 + 1)
    clock.advance(1)
    held = _of(shared, ONE)
    assert (held.access_key_id, held.lasts_s) == ("key 2", LASTS_S)


def test_a_refusal_is_told_and_the_next_question_is_a_new_one() -> None:
    grants = FakeGrants()
    shared = SharedGrants(grants, FakeClock())
    grants.refuses = True
    with pytest.raises(NotAllowed):
        _of(shared, ONE)
    grants.refuses = False
    assert _of(shared, ONE).access_key_id == "key 2"


def test_a_store_that_does_not_answer_keeps_nobody_and_its_late_answer_counts() -> None:
    grants = FakeGrants()
    shared = SharedGrants(grants, FakeClock(), answer_s=0.05)
    grants.may.clear()
    for _ in range(3):
        with pytest.raises(Unavailable, match="no answer"):
            _of(shared, ONE)
    grants.may.set()
    assert grants.answered.wait(120)
    assert _of(shared, ONE).access_key_id == "key 1"


def test_holders_beyond_the_bound_are_forgotten_least_recently_used_first() -> None:
    grants = FakeGrants()
    shared = SharedGrants(grants, FakeClock(), held_max=2)
    for attempt in (ONE, OTHER, ONE, "third.1", ONE, OTHER):
        _of(shared, attempt)
    assert [holder for holder, _ in grants.given] == [ONE, OTHER, "third.1", OTHER]
