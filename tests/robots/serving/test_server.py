"""A policy server as its robots meet it: answers, refusals, batches, deadlines, swaps, and its end."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import numpy as np
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from mainspring.domain.errors import InvalidInput
from mainspring.domain.wire.tickets import new_ticket
from mainspring.robots.serving.admission import Admission
from mainspring.robots.serving.guards import ActionLimits, read_limits
from mainspring.robots.serving.kept import KeptRequests, read_kept
from mainspring.robots.serving.policies.functions import FunctionPolicy, function_named
from mainspring.robots.serving.server import ServeLimits
from mainspring.robots.serving.wire import pack, unpack
from tests.robots.serving.served import DIMS, HORIZON, Toy, ask, robot, seen, served, until

UNSAFE = [
    (np.full((HORIZON, DIMS), np.nan), "got nan"),
    (np.full((HORIZON, DIMS), np.inf), "got inf"),
    (np.zeros((HORIZON, DIMS + 1)), "shape"),
    (np.zeros((HORIZON - 1, DIMS)), "shape"),
    (np.zeros(DIMS), "shape"),
    (np.zeros((HORIZON, DIMS), bool), "got bool"),
    (np.full((HORIZON, DIMS), 1.5), "got 1.5; wanted -1 to 1"),
    (np.full((HORIZON, DIMS), -1.001), "got -1.001; wanted -1 to 1"),
]


def test_a_request_is_answered_as_openpi_answers_it_with_ours_under_one_key() -> None:
    async def scene() -> None:
        async with served(Toy()) as (server, url), robot(url) as line:
            first = await ask(line, seen(2.0, seed=5, deadline_ms=10_000.0))
            second = await ask(line, seen(3.0))
        assert first["actions"].shape == (HORIZON, DIMS)
        assert first["actions"][0].tolist() == [2.0, 2.0, 5.0]
        assert set(first["server_timing"]) == {"infer_ms"}
        assert set(second["server_timing"]) == {"infer_ms", "prev_total_ms"}
        ours = first["mainspring"]
        assert (ours["policy_version"], ours["policy"], ours["seed"], ours["late_ms"]) == (1, "toy 0", 5, 0.0)
        assert second["mainspring"]["seed"] == second["actions"][0, -1] == 2.0  # Drawn, and told.
        assert (server.serving.answered, server.serving.missed, server.serving.in_flight) == (2, 0, 0)

    asyncio.run(scene())


def test_the_first_frame_tells_what_the_policy_is() -> None:
    async def scene() -> Any:
        async with served(Toy(guided=True)) as (_, url), connect(url) as line:
            return unpack(await line.recv())  # type: ignore[arg-type]

    told = asyncio.run(scene())
    assert told["robot"] == "toy"
    assert told["mainspring"] == {
        "protocol": 1,
        "policy": "toy 0",
        "policy_version": 1,
        "real_time_chunking": True,
        "horizon": HORIZON,
        "action_dim": DIMS,
    }


@pytest.mark.parametrize(("chunk", "words"), UNSAFE, ids=[words for _, words in UNSAFE])
def test_a_chunk_that_is_not_safe_is_never_sent(chunk: Any, words: str) -> None:
    async def scene() -> Any:
        policy = Toy(chunk=lambda asked: chunk if asked.observation["state"][0] else np.zeros((HORIZON, DIMS)))
        limits = ActionLimits(low=(-1.0,) * DIMS, high=(1.0,) * DIMS)
        async with served(policy, actions=limits) as (_, url), robot(url) as line:
            return await ask(line, seen(1.0)), await ask(line, seen(0.0))

    refused, after = asyncio.run(scene())
    assert refused.startswith("unsafe_action: ")
    assert words in refused
    assert after["actions"].shape == (HORIZON, DIMS)  # The line is as good as before.


BAD = [
    ([1, 2], "got list"),
    ({"mainspring": 3}, "mainspring; got int"),
    ({"state": np.zeros(DIMS), "mainspring": {"seed": -1}}, "seed"),
    ({"state": np.zeros(DIMS), "mainspring": {"seed": 2**40}}, "seed"),
    ({"state": np.zeros(DIMS), "mainspring": {"deadline_ms": 0}}, "deadline_ms"),
    ({"state": np.zeros(DIMS), "mainspring": {"deadline_ms": float("nan")}}, "deadline_ms"),
    ({"state": np.zeros(DIMS), "mainspring": {"deadline_ms": "soon"}}, "deadline_ms"),
    ({"state": np.zeros(DIMS), "mainspring": {"prev_chunk_left_over": np.zeros(3)}}, "prev_chunk_left_over"),
    ({"state": np.zeros(DIMS), "mainspring": {"prev_chunk_left_over": np.full((2, 3), np.nan)}}, "not finite"),
    (
        {"state": np.zeros(DIMS), "mainspring": {"prev_chunk_left_over": np.zeros((2, 3)), "inference_delay": -1}},
        "inference_delay",
    ),
]


@pytest.mark.parametrize(("request_", "words"), BAD, ids=[str(index) for index in range(len(BAD))])
def test_a_request_that_says_what_it_must_not_is_refused_and_the_next_answered(request_: Any, words: str) -> None:
    async def scene() -> Any:
        async with served(Toy()) as (_, url), robot(url) as line:
            return await ask(line, request_), await ask(line, seen(1.0))

    refused, after = asyncio.run(scene())
    assert refused.startswith("bad_request: ")
    assert words in refused
    assert after["actions"][0, 0] == 1.0


def test_requests_that_gather_are_looked_at_together_by_shape() -> None:
    gate, policy = Event(), Toy(batch_max=4)
    policy.gate = gate

    async def scene() -> list[Any]:
        async with served(policy) as (server, url):
            lines = [robot(url) for _ in range(8)]
            opened = [await line.__aenter__() for line in lines]
            first = asyncio.create_task(ask(opened[0], seen(0.0)))
            await asyncio.to_thread(policy.begun.wait, 30)
            odd = {"state": np.zeros(DIMS, np.float64)}
            rest = [asyncio.create_task(ask(line, seen(float(n + 1)))) for n, line in enumerate(opened[1:7])]
            rest.append(asyncio.create_task(ask(opened[7], odd)))
            await until(lambda: server.serving.in_flight == 8)
            gate.set()
            answers = [await first, *[await task for task in rest]]
            for line in lines:
                await line.__aexit__(None, None, None)
            return answers

    answers = asyncio.run(scene())
    assert policy.batches[0] == 1
    assert sorted(policy.batches[1:]) == [1, 2, 4]  # Six alike by fours, and one of another type.
    assert [answer["actions"][0, 0] for answer in answers[:7]] == [float(n) for n in range(7)]
    assert answers[1]["mainspring"]["batch"] in (2, 4)


def test_one_bad_observation_fails_none_that_it_was_looked_at_with() -> None:
    gate = Event()

    def chunk(asked: Any) -> Any:
        if asked.observation["state"][0] == 2.0:
            raise InvalidInput("see", got="a two")
        if asked.observation["state"][0] == 3.0:
            raise RuntimeError("secret words of a policy")
        return np.full((HORIZON, DIMS), asked.observation["state"][0])

    policy = Toy(chunk=chunk, gate=gate)

    async def scene() -> list[Any]:
        async with served(policy) as (server, url), robot(url) as a, robot(url) as b, robot(url) as c, robot(url) as d:
            first = asyncio.create_task(ask(a, seen(0.0)))
            await asyncio.to_thread(policy.begun.wait, 30)
            rest = [asyncio.create_task(ask(line, seen(float(n + 1)))) for n, line in enumerate((b, c, d))]
            await until(lambda: server.serving.in_flight == 4)
            gate.set()
            return [await first, *[await task for task in rest]]

    first, good, bad, failed = asyncio.run(scene())
    assert (first["actions"][0, 0], good["actions"][0, 0]) == (0.0, 1.0)
    assert bad.startswith("bad_request: could not see; got a two")
    assert failed == "policy_failed: RuntimeError: secret words of a policy"
    assert "Traceback" not in failed


@pytest.mark.slow
def test_a_chunk_that_comes_late_is_sent_and_counted_and_one_not_begun_is_refused() -> None:
    gate, policy = Event(), Toy(batch_max=1)
    policy.gate = gate

    async def scene() -> Any:
        async with served(policy) as (server, url), robot(url) as a, robot(url) as b:
            slow = asyncio.create_task(ask(a, seen(1.0, deadline_ms=1_000.0)))  # It has to begin within that.
            await asyncio.to_thread(policy.begun.wait, 30)
            refused = await ask(b, seen(2.0, deadline_ms=30.0))
            await asyncio.sleep(1.1)
            gate.set()
            late = await slow
            metrics = server.metrics.text().decode()
            return late, refused, server.serving, metrics

    late, refused, serving, metrics = asyncio.run(scene())
    assert late["actions"][0, 0] == 1.0
    assert late["mainspring"]["late_ms"] > 0
    assert refused.startswith("deadline_missed: not begun after")
    assert (serving.answered, serving.missed) == (1, 2)
    assert "mainspring_serving_missed_total 2.0" in metrics
    assert 'mainspring_serving_refused_total{reason="deadline_missed"} 1.0' in metrics
    assert policy.batches == [1]


def test_the_most_urgent_request_goes_first() -> None:
    gate, order = Event(), list[float]()

    def chunk(asked: Any) -> Any:
        order.append(float(asked.observation["state"][0]))
        return np.zeros((HORIZON, DIMS))

    policy = Toy(batch_max=1, gate=gate, chunk=chunk)

    async def scene() -> None:
        async with served(policy) as (server, url), robot(url) as a, robot(url) as b, robot(url) as c, robot(url) as d:
            tasks = [asyncio.create_task(ask(a, seen(0.0)))]
            await asyncio.to_thread(policy.begun.wait, 30)
            tasks.append(asyncio.create_task(ask(b, seen(1.0))))
            await until(lambda: server.serving.in_flight == 2)
            tasks.append(asyncio.create_task(ask(c, seen(2.0, deadline_ms=60_000.0))))
            tasks.append(asyncio.create_task(ask(d, seen(3.0, deadline_ms=950.0))))
            await until(lambda: server.serving.in_flight == 4)
            gate.set()
            await asyncio.gather(*tasks)

    asyncio.run(scene())
    assert order == [0.0, 3.0, 1.0, 2.0]  # Who names no deadline is as urgent as one of a second.


def test_weights_change_between_chunks_and_never_inside_one() -> None:
    gate, old, new = Event(), Toy(value=0.0), Toy(value=100.0)
    old.gate = gate

    async def scene() -> Any:
        async with served(old) as (server, url), robot(url) as a, robot(url) as b:
            under_way = asyncio.create_task(ask(a, seen(1.0)))
            await asyncio.to_thread(old.begun.wait, 30)
            assert await asyncio.to_thread(server.swap, new) == 2
            after = asyncio.create_task(ask(b, seen(1.0)))
            await until(lambda: server.serving.in_flight == 2)
            gate.set()
            return await under_way, await after

    under_way, after = asyncio.run(scene())
    assert (under_way["actions"][0, 0], under_way["mainspring"]["policy_version"]) == (1.0, 1)
    assert (after["actions"][0, 0], after["mainspring"]["policy_version"]) == (101.0, 2)
    assert (under_way["mainspring"]["policy"], after["mainspring"]["policy"]) == ("toy 0", "toy 100")


def test_a_server_that_ends_answers_what_is_under_way_and_takes_no_more() -> None:
    gate, policy = Event(), Toy()
    policy.gate = gate

    async def scene() -> None:
        async with served(policy) as (server, url), robot(url) as a, robot(url) as b:
            under_way = asyncio.create_task(ask(a, seen(1.0)))
            await asyncio.to_thread(policy.begun.wait, 30)
            ending = asyncio.create_task(server.stop(drain_s=30))
            await until(lambda: not server.serving.ready)
            assert (await ask(b, seen(2.0))).startswith("draining: ")
            async with httpx.AsyncClient() as http:
                assert (await http.get(f"{url.replace('ws', 'http', 1)}/healthz")).status_code == 503
            gate.set()
            assert (await under_way)["actions"][0, 0] == 1.0
            await ending
            with pytest.raises(ConnectionClosed) as closed:
                await b.recv()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1001
            server.stop = _nothing  # type: ignore[method-assign]  # It has ended.

    async def _nothing(*, drain_s: float) -> None:
        return

    asyncio.run(scene())


def test_only_who_shows_a_token_comes_in_but_health_is_everybodys() -> None:
    async def scene() -> None:
        async with served(Toy(), admission=Admission(tokens=("one", "two"), now_s=time.time)) as (_, url):
            for headers in (
                {},
                {"Authorization": "Api-Key three"},
                {"Authorization": "Api-Key "},
                {"Authorization": "two"},
                {"Authorization": "Basic two"},
            ):
                with pytest.raises(InvalidStatus) as refused:
                    async with robot(url, additional_headers=headers):
                        pass
                assert refused.value.response.status_code == 401
            async with robot(url, additional_headers={"Authorization": "Api-Key two"}) as line:
                assert (await ask(line, seen(1.0)))["actions"][0, 0] == 1.0
            page = url.replace("ws", "http", 1)
            async with httpx.AsyncClient() as http:
                assert (await http.get(f"{page}/healthz")).text == "OK\n"
                assert (await http.get(f"{page}/metrics")).status_code == 401
                shown = await http.get(f"{page}/metrics", headers={"Authorization": "Bearer one"})
                assert "mainspring_serving_chunk_seconds_count 1.0" in shown.text

    asyncio.run(scene())


def test_a_replica_knows_tickets_that_were_made_from_its_own_secret_until_they_end() -> None:
    admission = Admission(tokens=("one",), secret="its own", now_s=lambda: 1_000.0)
    good = new_ticket("its own", 1_001.0)
    for shown, admitted in (
        (good, True),
        ("one", True),
        (new_ticket("its own", 1_000.0), False),
        (new_ticket("another's", 1_001.0), False),
        (good.replace("1001", "9001"), False),
        (f"{good}0", False),
        ("", False),
    ):
        assert admission.admits([f"Api-Key {shown}"]) is admitted
    assert not admission.admits([f"Api-Key {good}"] * 2)


def test_requests_are_kept_where_a_robot_asks_for_it_the_newest_ones(tmp_path: Path) -> None:
    async def scene() -> None:
        kept = KeptRequests(tmp_path / "kept", files=2)
        async with served(Toy(), kept=kept) as (_, url), robot(url) as line:
            await ask(line, seen(9.0))
            for state in (1.0, 2.0, 3.0):
                await ask(line, seen(state, keep=True))

    asyncio.run(scene())
    files = sorted((tmp_path / "kept").iterdir())
    assert [path.name for path in files] == ["0.msgpack", "1.msgpack"]
    requests = [read_kept(path) for path in files]
    assert [request["state"][0] for request, _ in requests] == [3.0, 2.0]
    assert requests[0][1]["policy"] == "toy 0"
    assert requests[0][1]["actions"][0].tolist() == [3.0, 3.0, requests[0][1]["seed"]]
    again = KeptRequests(tmp_path / "kept", files=2)  # A server that starts anew goes on in the ring.
    again.keep(pack(seen(4.0)), {})
    again.close()
    assert read_kept(tmp_path / "kept" / "1.msgpack")[0]["state"][0] == 4.0


def test_limits_of_a_robot_are_read_from_a_file_and_odd_ones_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "limits.json"
    path.write_text('{"low": [-1, 0.5], "high": [1, 2]}')
    assert read_limits(path) == ActionLimits(low=(-1.0, 0.5), high=(1.0, 2.0))
    odd: list[Any] = [
        [1],
        {"low": [1]},
        {"low": [2], "high": [1]},
        {"low": ["a"], "high": [1]},
        {"low": [], "high": []},
    ]
    for plain in odd:
        path.write_text(json.dumps(plain))
        with pytest.raises(InvalidInput):
            read_limits(path)
    path.write_text('{"low": [NaN], "high": [1]}')
    with pytest.raises(InvalidInput):
        read_limits(path)
    with pytest.raises(InvalidInput):
        read_limits(tmp_path / "none")


def test_functions_are_policies_of_one_observation_or_of_several() -> None:
    def one(observation: Any) -> Any:
        return {"actions": np.full((4, 2), observation["state"][0])}

    def several(observations: Any) -> Any:
        return [np.full((4, 2), each["state"][0]) for each in observations]

    async def scene(policy: FunctionPolicy) -> Any:
        async with served(policy) as (_, url), robot(url) as line:
            return await ask(line, seen(2.0))

    for policy in (FunctionPolicy(one, name="one"), FunctionPolicy(several, name="several", batch_max=8)):
        assert asyncio.run(scene(policy))["actions"].tolist() == [[2.0, 2.0]] * 4
    assert asyncio.run(scene(FunctionPolicy(lambda _: None, name="none"))).startswith("unsafe_action: ")
    assert callable(function_named("json:dumps"))
    for source in ("json:nothing", "nowhere_at_all:act", "json:__doc__", "json:", ":x"):
        with pytest.raises(InvalidInput):
            function_named(source)


def test_a_robot_that_asks_too_often_is_refused_and_may_ask_later() -> None:
    async def scene() -> None:
        limits = ServeLimits(requests_per_s=20.0, burst=3)
        async with served(Toy(), limits=limits) as (_, url), robot(url) as line, robot(url) as other:
            answers = [await ask(line, seen(1.0)) for _ in range(5)]
            refused = [each for each in answers if isinstance(each, str)]
            assert refused
            assert all(each.startswith("too_many_requests: over 20 a second") for each in refused)
            assert not isinstance(await ask(other, seen(1.0)), str)  # Each robot has its own share.
            await asyncio.sleep(0.1)
            assert not isinstance(await ask(line, seen(1.0)), str)

    asyncio.run(scene())
