"""Trained policies of every kind as they are served: what they see, pure chunks, seams, and following a job."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax", reason="the train extra is not installed")

import jax

from mainspring.domain.errors import DamagedData, InvalidInput
from mainspring.robots.serving.client import Command, Doing, RobotClient
from mainspring.robots.serving.following import follow
from mainspring.robots.serving.policies.trained import prefix_weights
from mainspring.robots.serving.policy import Asked, Guide
from tests.robots.serving.served import Toy, ask, robot, served, until
from tests.robots.serving.trained_policies import DIMS, EDGE, KINDS, VIEWS, policy_of

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True, scope="module")
def compiled_at_once() -> Iterator[None]:
    """XLA leaves most optimizations out: for models this small they take longer than all that is computed."""
    jax.config.update("jax_disable_most_optimizations", True)  # type: ignore[no-untyped-call]
    yield
    jax.config.update("jax_disable_most_optimizations", False)  # type: ignore[no-untyped-call]


def observation_of(kind: str, row: int = 0) -> dict[str, Any]:
    dice = np.random.default_rng(row)
    seen: dict[str, Any] = {"state": dice.normal(size=DIMS).astype(np.float32)}
    if kind == "video":
        seen["before"] = seen["state"] - np.float32(0.1)
    if kind in ("video", "vla"):
        seen["images"] = dice.integers(0, 256, (VIEWS, EDGE, EDGE, 3), np.uint8)
    return seen


@pytest.mark.parametrize("kind", KINDS)
def test_a_chunk_follows_from_its_request_and_seed_alone_whoever_is_looked_at_with_it(kind: str) -> None:
    policy = policy_of(kind)
    asked = [Asked(observation=observation_of(kind, row), seed=row) for row in range(3)]
    together = policy.infer(asked)
    assert together.shape == (3, 8, DIMS)
    for row, each in enumerate(asked):
        np.testing.assert_allclose(policy.infer([each])[0], together[row], rtol=1e-3, atol=1e-4)
    other = policy.infer([replace(asked[0], seed=99)])[0]
    flows = kind != "act"
    assert policy.facts.guided == flows
    assert (np.abs(other - together[0]).max() > 0.01) == flows
    moved = dict(asked[0].observation)
    moved["state"] = moved["state"] + np.float32(1.0)
    assert np.abs(policy.infer([replace(asked[0], observation=moved)])[0] - together[0]).max() > 1e-4


@pytest.mark.parametrize("kind", ["plain", "video", "vla"])
def test_a_chunk_goes_on_from_what_is_left_of_the_one_before(kind: str) -> None:
    policy, seen = policy_of(kind), observation_of(kind)
    old = policy.infer([Asked(observation=seen, seed=1)])[0]
    left, delay = old[3:], 2
    free = policy.infer([Asked(observation=seen, seed=2)])[0]
    guide = Guide(left_over_TA=left, delay=delay, horizon=len(left))
    guided = policy.infer([Asked(observation=seen, seed=2, guide=guide)])[0]
    before, after = np.abs(free[: len(left)] - left), np.abs(guided[: len(left)] - left)
    assert after[:delay].max() < 0.1 * before[:delay].max()  # What will be done before it comes stays as it is.
    assert after[delay].max() < 0.4 * before[delay].max()  # And the next step is near to it.


def test_weights_of_a_prefix_are_one_then_fall_then_zero() -> None:
    weights = prefix_weights(2, 6, 8)
    assert weights[:2].tolist() == [1.0, 1.0]
    assert (np.diff(weights[1:7]) < 0).all()
    assert weights[6:].tolist() == [0.0, 0.0]
    assert prefix_weights(9, 3, 3).tolist() == [1.0, 1.0, 1.0]
    assert prefix_weights(0, 1, 1)[0] > 0


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("plain", {"state": None}, "on state; got nothing"),
    ("plain", {"state": np.zeros(DIMS + 1)}, "on state"),
    ("plain", {"state": np.array(["a"] * DIMS)}, "on state"),
    ("plain", {"state": np.full(DIMS, np.nan)}, "not finite"),
    ("video", {"before": None}, "on before"),
    ("video", {"images": None}, "on images"),
    ("video", {"images": np.zeros((VIEWS, EDGE, EDGE + 1, 3), np.uint8)}, "on images"),
    ("video", {"images": np.zeros((VIEWS, EDGE, EDGE, 3), np.float32)}, "on images"),
    ("video", {"images": {"top": np.zeros((EDGE, EDGE, 3), np.uint8)}}, "on images"),
]


@pytest.mark.parametrize(("kind", "changes", "words"), BAD, ids=[str(index) for index in range(len(BAD))])
def test_an_observation_that_is_not_what_the_policy_sees_is_refused(
    kind: str, changes: dict[str, Any], words: str
) -> None:
    seen = {name: value for name, value in (observation_of(kind) | changes).items() if value is not None}
    with pytest.raises(InvalidInput, match=words):
        policy_of(kind).infer([Asked(observation=seen, seed=0)])


def test_observations_are_named_as_openpi_and_lerobot_name_them_too() -> None:
    policy, ours = policy_of("video"), observation_of("video")
    expected = policy.infer([Asked(observation=ours, seed=0)])
    views = ours["images"]
    for theirs in (
        {"observation/state": ours["state"], "observation/image": views[0], "observation/wrist_image": views[1]},
        {"observation.state": ours["state"], "images": {"a": np.moveaxis(views[0], -1, 0), "b": views[1]}},
    ):
        seen = {**theirs, "before": ours["before"], "prompt": "anything"}
        np.testing.assert_array_equal(policy.infer([Asked(observation=seen, seed=0)]), expected)


def test_a_robot_that_goes_over_to_the_next_chunk_feels_no_seam() -> None:
    inner = policy_of("plain", batch_max=1)
    jumps: dict[bool, list[float]] = {True: [], False: []}

    def chunk(asked: Asked) -> Any:
        chunks = {guided: inner.infer([asked if guided else replace(asked, guide=None)])[0] for guided in (True, False)}
        if asked.guide is not None:
            seam = asked.guide.delay
            for guided, drawn in chunks.items():
                jumps[guided].append(float(np.abs(drawn[seam] - asked.guide.left_over_TA[seam]).mean()))
        return chunks[True]

    async def scene() -> list[Command]:
        async with (
            served(Toy(horizon=8, guided=True, chunk=chunk)) as (_, url),
            RobotClient(url, period_ms=20.0, ask_every=3) as client,
        ):
            await client.connected.wait()
            taken = []
            for _ in range(40):
                taken.append(client.step(observation_of("plain")))
                await until(lambda: not client.asking)
            return taken

    taken = asyncio.run(scene())
    assert [each.doing for each in taken[1:]] == [Doing.FOLLOW] * 39
    assert len(jumps[True]) >= 10
    assert np.mean(jumps[True]) < 0.4 * np.mean(jumps[False])


def test_a_server_follows_a_job_and_passes_over_what_cannot_be_read() -> None:
    steps, loaded = [1], []

    def load(step: int) -> Any:
        loaded.append(step)
        if step == 2:
            raise DamagedData("read a checkpoint", got="damage")
        return policy_of("plain", key=step, name=f"job@{step}", batch_max=1)

    async def scene() -> tuple[Any, Any]:
        async with served(load(1)) as (server, url), robot(url) as line:
            following = asyncio.create_task(follow(server, begun=1, newest=lambda: steps[-1], load=load, every_s=0.01))
            first = await ask(line, {**observation_of("plain"), "mainspring": {"seed": 3}})
            for step in (2, 3):
                steps.append(step)
                await until(lambda step=step: step in loaded)  # type: ignore[misc]
            await until(lambda: server.policy_version == 2)
            second = await ask(line, {**observation_of("plain"), "mainspring": {"seed": 3}})
            following.cancel()
            return first, second

    first, second = asyncio.run(scene())
    assert (first["mainspring"]["policy"], second["mainspring"]["policy"]) == ("job@1", "job@3")
    assert second["mainspring"]["policy_version"] == 2
    assert np.abs(first["actions"] - second["actions"]).max() > 1e-3
    assert loaded == [1, 2, 3]
