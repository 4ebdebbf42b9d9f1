"""Compiling ahead in a process of its own, without other ranks; with them: `test_jax_distributed`."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.session.agent import Agent, welcome

from mainspring.session import Session

jax = pytest.importorskip("jax", reason="the train extra is not installed")

from mainspring.session.jax_ahead import compile_ahead, end_ahead  # noqa: E402

LIMIT_S = 120.0


def session(agent: Agent, *, shrunk_size: int = 1, local_rank: int = 0) -> Session:
    return agent.session(replace(welcome(rank=0, world_size=2), shrunk_size=shrunk_size, local_rank=local_rank))


def lower(devices: Sequence[Any]) -> Any:
    place = jax.sharding.SingleDeviceSharding(devices[0])
    return jax.jit(lambda number: number + 1).lower(jax.ShapeDtypeStruct((), "float32", sharding=place))


def test_program_is_lowered_for_as_many_processes_as_would_be_left(agent: Agent) -> None:
    asked: list[Sequence[Any]] = []

    def noted(devices: Sequence[Any]) -> Any:
        asked.append(devices)
        return lower(devices)

    ahead = compile_ahead(session(agent), noted)
    assert ahead is not None
    assert ahead.wait(LIMIT_S)
    assert asked == [tuple(jax.devices())]


@pytest.mark.parametrize(("shrunk_size", "local_rank"), [(0, 0), (2, 0), (1, 1)])
def test_nothing_is_compiled_where_nothing_would_change_or_another_rank_does_it(
    agent: Agent, shrunk_size: int, local_rank: int
) -> None:
    assert compile_ahead(session(agent, shrunk_size=shrunk_size, local_rank=local_rank), lower) is None
    assert compile_ahead(Session("", pid=1, stopwatch=lambda: 0.0), lower) is None


def test_program_that_cannot_be_lowered_is_said_and_harms_nobody(
    agent: Agent, capfd: pytest.CaptureFixture[str]
) -> None:
    def unfit(devices: Sequence[Any]) -> Any:
        raise ValueError("16 chunks do not fit")

    ahead = compile_ahead(session(agent), unfit)
    assert ahead is not None
    assert ahead.wait(LIMIT_S)
    assert "nothing compiled ahead: ValueError: 16 chunks do not fit" in capfd.readouterr().err


def test_end_of_a_generation_waits_and_compiles_no_more(agent: Agent) -> None:
    begun, go, compiled = threading.Event(), threading.Event(), []

    class Program:
        def compile(self) -> None:
            compiled.append(True)

    def slow(devices: Sequence[Any]) -> Any:
        begun.set()
        assert go.wait(LIMIT_S)
        return Program()

    ahead = compile_ahead(session(agent), slow)
    assert ahead is not None
    assert begun.wait(LIMIT_S)
    ending = threading.Thread(target=end_ahead)
    ending.start()
    assert not ahead.wait(0.05)
    go.set()
    ending.join(LIMIT_S)
    assert ahead.wait(0.0)
    assert not compiled
