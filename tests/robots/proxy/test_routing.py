"""Which replica a request goes to, and how long one is waited for."""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np
import pytest

from mainspring.robots.proxy.asking import DEADLINE_S, deadline_of
from mainspring.robots.proxy.routing import SEEN_MIN, SLOW_PARTS, SLOW_S_MIN, Replicas, Target
from mainspring.robots.serving.wire import pack


def _replicas(*addresses: str, unready: tuple[str, ...] = ()) -> Replicas:
    made = Replicas()
    made.learn([Target(address=each, ready=each not in unready) for each in addresses])
    return made


def test_a_robot_stays_at_its_replica_until_another_has_clearly_less_to_do() -> None:
    replicas = _replicas("a", "b")
    assert replicas.choose((), "b", 0.0) == "b"
    replicas.begun("b")
    assert replicas.choose((), "b", 0.0) == "b"
    replicas.begun("b")
    assert replicas.choose((), "b", 0.0) == "a"


def test_a_replica_that_failed_or_is_not_ready_comes_last_and_is_tried_when_there_is_no_other() -> None:
    replicas = _replicas("a", "b", "c", unready=("c",))
    replicas.failed("a", 0.0)
    order, tried = [], set[str]()
    while (address := replicas.choose(tried, "", 0.1)) is not None:
        order.append(address)
        tried.add(address)
    assert order == ["b", "c", "a"]
    assert replicas.choose((), "a", 100.0) == "a", "it has had its pause"


def test_what_is_known_of_a_replica_outlives_a_newer_list_and_one_that_is_gone_is_forgotten() -> None:
    replicas = _replicas("a", "b")
    replicas.begun("a")
    replicas.learn([Target(address="a", ready=True), Target(address="c", ready=True)])
    assert (list(replicas.addresses), replicas.in_flight) == (["a", "c"], 1)
    replicas.over("b")
    replicas.failed("b", 0.0)


def test_another_is_asked_at_half_of_the_deadline_or_when_answers_are_known_to_come_sooner() -> None:
    replicas = _replicas("a")
    assert replicas.patience_s(1.0) == 0.5
    for _ in range(SEEN_MIN):
        replicas.answered("a", 0.1)
    assert replicas.patience_s(1.0) == SLOW_PARTS * 0.1
    assert replicas.patience_s(0.1) == 0.05
    quick = _replicas("a")
    for _ in range(SEEN_MIN):
        quick.answered("a", 0.001)
    assert quick.patience_s(1.0) == SLOW_S_MIN


@pytest.mark.parametrize(
    ("message", "deadline_s"),
    [
        ({"image": np.zeros((224, 224, 3), np.uint8), "mainspring": {"keep": True, "deadline_ms": 50}}, 0.05),
        ({"mainspring": {"deadline_ms": 2500.0}, "prompt": "pick"}, 2.5),
        ({"state": np.zeros(3)}, DEADLINE_S),
        ({"mainspring": {"deadline_ms": "soon"}}, DEADLINE_S),
        ({"mainspring": {"deadline_ms": -1}}, DEADLINE_S),
        ({"mainspring": 7}, DEADLINE_S),
        ([1, 2], DEADLINE_S),
        ({"nested": {"mainspring": {"deadline_ms": 1}}}, DEADLINE_S),
    ],
)
def test_of_a_request_the_deadline_alone_is_read(message: Any, deadline_s: float) -> None:
    assert deadline_of(pack(message)) == deadline_s


@pytest.mark.parametrize("frame", [b"", b"\xc1", b"\xdf\xff\xff\xff\xff", b"\x81", msgpack.packb(7), b"\x91" * 10_000])
def test_garbage_has_the_deadline_of_who_names_none(frame: bytes) -> None:
    assert deadline_of(frame) == DEADLINE_S
