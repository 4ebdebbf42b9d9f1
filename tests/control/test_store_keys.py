"""Credentials of the object store that an attempt's agents share: asked for once, renewed in time, never waited for."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from mainspring.control.service import store_keys
from mainspring.control.service.store_keys import StoreKeys
from mainspring.domain.errors import NotAllowed, Unavailable
from mainspring.domain.ids import AttemptId
from mainspring.domain.wire import StoreCredentials
from mainspring.objects import Access
from mainspring.testing import FakeClock

LASTS_S = 1_000.0
ONE, OTHER = AttemptId("one.1"), AttemptId("other.1")


class FakeGrants:
    """Gives numbered credentials, once it may."""

    def __init__(self) -> None:
        self.given: list[tuple[str, Access]] = []
        self.may = threading.Event()
        self.may.set()
        self.refuses = False

    def grant(self, access: Access, *, holder: str) -> StoreCredentials:
        self.given.append((holder, access))
        number = len(self.given)
        assert self.may.wait(10)
        if self.refuses:
            raise NotAllowed("give", on=holder)
        return StoreCredentials(
            access_key_id=f"key {number}", secret_access_key="s", session_token="t", lasts_s=LASTS_S
        )


def _access(attempt: AttemptId) -> Access:
    return Access(writes=(f"checkpoints/{attempt}",))


def test_agents_of_an_attempt_share_credentials_and_others_have_others() -> None:
    grants = FakeGrants()
    keys = StoreKeys(grants, FakeClock())
    grants.may.clear()
    with ThreadPoolExecutor(8) as agents:
        asking = [agents.submit(keys.of, ONE, _access(ONE)) for _ in range(8)]
        grants.may.set()
        assert {asked.result().access_key_id for asked in asking} == {"key 1"}
    assert keys.of(OTHER, _access(OTHER)).access_key_id == "key 2"
    assert grants.given == [(ONE, _access(ONE)), (OTHER, _access(OTHER))]


def test_credentials_come_with_the_time_left_and_are_new_past_half_of_it() -> None:
    clock, grants = FakeClock(), FakeGrants()
    keys = StoreKeys(grants, clock)
    assert keys.of(ONE, _access(ONE)).lasts_s == LASTS_S
    clock.advance(LASTS_S / 2 - 1)
    held = keys.of(ONE, _access(ONE))
    assert (held.access_key_id, held.lasts_s) == ("key 1", LASTS_S / 2 + 1)
    clock.advance(1)
    held = keys.of(ONE, _access(ONE))
    assert (held.access_key_id, held.lasts_s) == ("key 2", LASTS_S)


def test_a_refusal_is_told_and_the_next_question_is_a_new_one() -> None:
    grants = FakeGrants()
    keys = StoreKeys(grants, FakeClock())
    grants.refuses = True
    with pytest.raises(NotAllowed):
        keys.of(ONE, _access(ONE))
    grants.refuses = False
    assert keys.of(ONE, _access(ONE)).access_key_id == "key 2"


def test_a_store_that_does_not_answer_keeps_nobody_and_its_late_answer_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_keys, "ANSWER_S", 0.05)
    grants = FakeGrants()
    keys = StoreKeys(grants, FakeClock())
    grants.may.clear()
    for _ in range(3):
        with pytest.raises(Unavailable, match="no answer"):
            keys.of(ONE, _access(ONE))
    grants.may.set()
    monkeypatch.setattr(store_keys, "ANSWER_S", 10.0)
    assert keys.of(ONE, _access(ONE)).access_key_id == "key 1"


def test_attempts_beyond_the_bound_are_forgotten_least_recently_used_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_keys, "HELD_MAX", 2)
    grants = FakeGrants()
    keys = StoreKeys(grants, FakeClock())
    for attempt in (ONE, OTHER, ONE, AttemptId("third.1"), ONE, OTHER):
        keys.of(attempt, _access(attempt))
    assert [holder for holder, _ in grants.given] == [ONE, OTHER, "third.1", OTHER]
