"""Hooks of repairs as a server calls them: what is told, what counts as done, and what nobody waits for."""

from __future__ import annotations

import os
import socket
import sys
from threading import Event

import pytest

from mainspring.app.server.leading.repairs import SAID_BYTES_MAX, HookThreads
from mainspring.control.service.nodes.repairing import HookCall, HookSaid
from mainspring.domain.answers import RepairOutcome
from mainspring.domain.hardware.care import RepairHook, Rung
from mainspring.domain.ids import ClusterName
from tests.receivers import posts

DONE, FAILED, LATE = RepairOutcome.DONE, RepairOutcome.FAILED, RepairOutcome.LATE
BODY = b'{"node":"n1"}'


def said(hook: RepairHook, number: int = 7) -> HookSaid:
    """What comes of calling a hook."""
    threads = HookThreads()
    threads.call(HookCall(number=number, rung=Rung.RESET, hook=hook, cluster=ClusterName("hall"), node="n1", body=BODY))
    for _ in range(6_000):
        if number in threads.said():
            return threads.said()[number]
        Event().wait(0.005)
    raise AssertionError("nothing came of it")


def python(text: str, *words: str, limit_s: float = 30.0) -> RepairHook:
    return RepairHook(command=(sys.executable, "-I", "-S", "-c", text, *words), limit_s=limit_s)


@pytest.mark.parametrize(("status", "outcome"), [(200, DONE), (500, FAILED), (302, FAILED)])
def test_a_post_is_done_with_2xx_alone_and_follows_nobody_elsewhere(status: int, outcome: RepairOutcome) -> None:
    with posts(status=status) as server:
        found = said(RepairHook(url=f"http://127.0.0.1:{server.port}/reset"))
    assert (found.outcome, found.words) == (outcome, f"HTTP {status}")
    assert server.paths == ["/reset"]
    for headers, body in server.taken:
        assert (headers["Idempotency-Key"], headers["Content-Type"], body) == ("7", "application/json", BODY)


def test_a_post_that_nobody_answers_fails_at_once_or_is_late_at_its_limit() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert said(RepairHook(url=url, limit_s=0.1)).outcome is LATE
    assert said(RepairHook(url=url)).outcome is FAILED


def test_a_command_reads_what_a_post_would_say_and_knows_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAINSPRING_TOKEN", "a-secret")
    text = "import os, sys; print(sys.stdin.read(), sys.argv[1], sorted(os.environ)); sys.exit(3)"
    found = said(python(text, "{cluster}/{node}"))
    assert found.outcome is FAILED
    assert found.words.startswith(f"exit code 3: {BODY.decode()} hall/n1 ")
    assert "MAINSPRING_TOKEN" in os.environ
    assert "MAINSPRING_TOKEN" not in found.words


def test_a_command_that_says_much_is_quoted_at_its_end_and_one_that_hangs_is_ended() -> None:
    found = said(python("print('a' * 10_000 + 'the end')"))
    assert found.outcome is DONE
    assert found.words.endswith("the end")
    assert len(found.words) < SAID_BYTES_MAX + 50
    assert said(python("import signal; signal.pause()", limit_s=0.2)).outcome is LATE
    assert said(RepairHook(command=("/nowhere/reset",))).outcome is FAILED
