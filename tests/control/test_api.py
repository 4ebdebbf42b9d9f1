"""The API: wire values over HTTP, tokens, errors, and an OpenAPI document that tells the truth."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from threading import Event
from typing import Any

import jsonschema_rs
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance
from tests.control.calling import Api, Served
from tests.domain.test_release import BEYOND, NEWER

from mainspring.control.api_load import REQUESTS_MAX
from mainspring.control.loop.loop import Step
from mainspring.control.service.agents import UNKNOWN_KEPT_MAX
from mainspring.domain import answers, codec, wire
from mainspring.domain.codec import MESSAGE_BYTES_MAX, decode, encode, to_plain
from mainspring.domain.errors import Unavailable
from mainspring.domain.fleet import LogChunk
from mainspring.domain.goodput import Goodput, TimeUse
from mainspring.domain.ids import AllocationId, ChipName, TeamName
from mainspring.domain.job import LAB, JobSpec, Option, Role
from mainspring.domain.life import AttemptState, JobState
from mainspring.domain.release import RELEASE, RELEASE_HEADER
from mainspring.domain.routes import KEY_HEADER, Route
from mainspring.domain.routes.robots import DeviceCalls
from mainspring.domain.team import Team, TeamRole
from mainspring.domain.wire.events.jobs import JobSubmittedEvent
from mainspring.testing import FakeEngine


@pytest.mark.slow
def test_job_submitted_over_http_is_shown_listed_explained_and_stopped(api: Api) -> None:
    made = api.submit(api.world.spec("first"))
    api.world.tick()
    assert decode(answers.JobView, api.get(f"/v1/jobs/{made.id}").content).state is JobState.STARTING
    assert decode(answers.JobView, api.get("/v1/jobs/first").content).id == made.id
    newer = api.submit(api.world.spec("first"))
    assert decode(answers.JobView, api.get("/v1/jobs/first").content).id == newer.id
    listed = codec.decode(tuple[answers.JobView, ...], api.get("/v1/jobs?limit=10").content)
    assert [view.id for view in listed] == [newer.id, made.id]
    only = codec.decode(tuple[answers.JobView, ...], api.get("/v1/jobs?state=starting&team=lab").content)
    assert [view.id for view in only] == [made.id]
    assert decode(answers.Why, api.get(f"/v1/jobs/{made.id}/why").content).candidates
    events = codec.decode(tuple[answers.Event, ...], api.get(f"/v1/jobs/{made.id}/events").content)
    assert events[0].kind == JobSubmittedEvent.kind
    rest = codec.decode(tuple[answers.Event, ...], api.get(f"/v1/events?since={events[0].sequence}").content)
    assert events[0] not in rest
    assert events[-1] in rest
    stopped = api.http.post(f"/v1/jobs/{newer.id}/stop", headers=api.member)
    assert decode(answers.JobView, stopped.content).state is JobState.CANCELLED


def test_clusters_over_http_tell_what_is_used(api: Api) -> None:
    api.submit(api.world.spec(replicas=2))
    api.world.tick()
    east, west = codec.decode(tuple[answers.ClusterView, ...], api.get("/v1/clusters").content)
    assert (east.inventory.cluster, west.inventory.cluster) == ("east", "west")
    assert sum(west.used_chip_milli.values()) == 2_000
    assert not east.used_chip_milli
    assert west.answering


def test_submit_over_http_with_a_used_key_is_idempotent_or_a_conflict(api: Api) -> None:
    first = api.submit(api.world.spec(), key="k")
    assert api.submit(api.world.spec(), key="k").id == first.id
    other = encode(answers.Submit(spec=api.world.spec("other"), key="k"))
    assert api.problem(api.http.post("/v1/jobs", content=other, headers=api.member), 409).error == "Conflict"


def test_the_header_of_keys_counts_for_submits_that_name_none(api: Api) -> None:
    headers = api.member | {KEY_HEADER: '"drawn"'}
    one, named = answers.Submit(spec=api.world.spec()), answers.Submit(spec=api.world.spec(), key="k")

    def made(path: str, body: object) -> list[str]:
        told = api.http.post(path, content=encode(body), headers=headers).json()
        return list(told.get("jobs") or [told["id"]])

    first = made("/v1/jobs", one)
    assert made("/v1/jobs", one) == first != made("/v1/jobs", named)
    batch = made("/v1/jobs/batch", answers.SubmitBatch(submits=(one, one, named)))
    assert made("/v1/jobs/batch", answers.SubmitBatch(submits=(one, one, named))) == batch
    assert (batch[0], batch[2], len(set(batch))) == (first[0], *made("/v1/jobs", named), 3)


def test_submit_under_a_key_of_evaluations_is_refused_and_keeps_no_other(api: Api) -> None:
    key, spec = "evaluation:nightly:job-a:10", api.world.spec()
    plain, keyed = answers.Submit(spec=spec), answers.Submit(spec=spec, key=key)
    every: tuple[tuple[str, object, dict[str, str]], ...] = (
        ("/v1/jobs", keyed, {}),
        ("/v1/jobs", plain, {KEY_HEADER: f'"{key}"'}),
        ("/v1/jobs/batch", answers.SubmitBatch(submits=(plain, keyed)), {}),
    )
    for path, asked, more in every:
        answer = api.http.post(path, content=encode(asked), headers=api.member | more)
        assert "'evaluation:'" in api.problem(answer, 400).detail
    assert api.submit(spec, key="evaluation").spec == spec
    assert len(api.world.control.jobs()) == 1


def test_submit_of_what_can_never_run_says_the_most_that_could(api: Api) -> None:
    api.world.tick()
    huge = encode(answers.Submit(spec=api.world.spec(replicas=50)))
    problem = api.problem(api.http.post("/v1/jobs", content=huge, headers=api.member), 400)
    assert problem.error == "ImpossibleJob"
    assert "4" in f"{problem.got} {problem.wanted}"
    option = Option(chip=ChipName("gpv"))
    typo = answers.Submit(spec=JobSpec(name="typo", roles=(Role(command=("x",), options=(option,)),)))
    problem = api.problem(api.http.post("/v1/jobs", content=encode(typo), headers=api.member), 400)
    assert "gpu" in problem.wanted


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "error"),
    [
        ("GET", "/v1/jobs/nobody", b"", 404, "NotFound"),
        ("GET", "/v1/jobs?limit=0", b"", 400, "InvalidInput"),
        ("GET", "/v1/jobs?state=happy", b"", 400, "InvalidInput"),
        ("GET", "/v1/nothing", b"", 404, "NotFound"),
        ("DELETE", "/v1/jobs", b"", 405, "InvalidInput"),
        ("POST", "/v1/jobs", b"not json", 400, "InvalidMessage"),
        ("POST", "/v1/jobs", b'{"spec": {"name": "x"}}', 400, "InvalidMessage"),
        ("POST", "/v1/jobs", b" " * (MESSAGE_BYTES_MAX + 1), 413, "InvalidMessage"),
        ("PUT", "/v1/teams/a", b'{"name": "b"}', 400, "InvalidInput"),
        ("PUT", "/v1/teams/a", b'{"name": "a", "parent": "nobody"}', 400, "InvalidInput"),
    ],
)
def test_requests_that_cannot_be_served_answer_with_a_problem(
    api: Api, method: str, path: str, body: bytes, status: int, error: str
) -> None:
    problem = api.problem(api.http.request(method, path, content=body, headers=api.admin), status)
    assert problem.error == error


def test_requests_without_a_good_token_are_refused(api: Api) -> None:
    assert api.http.get("/v1/health").status_code == 200
    for headers in ({}, {"Authorization": "Bearer guess"}, {"Authorization": "Basic eDp5"}):
        answer = api.http.get("/v1/jobs", headers=headers)
        assert api.problem(answer, 401).error == "NotAllowed"
        assert "guess" not in answer.text


@pytest.mark.slow
def test_roles_may_do_no_more_than_they_should(api: Api) -> None:
    body = encode(answers.Submit(spec=api.world.spec()))
    assert api.problem(api.http.post("/v1/jobs", content=body, headers=api.viewer), 403).error == "NotAllowed"
    team = encode(Team(name=TeamName("vision"), chips_max=3.0))
    assert api.http.put("/v1/teams/vision", content=team, headers=api.member).status_code == 403
    assert api.http.put("/v1/teams/vision", content=team, headers=api.admin).status_code == 200
    outsider = {"Authorization": f"Bearer {api.world.token(TeamRole.MEMBER, team='vision', holder='bob')}"}
    assert api.http.post("/v1/jobs", content=body, headers=outsider).status_code == 403
    job = api.submit(api.world.spec())
    assert api.http.post(f"/v1/jobs/{job.id}/stop", headers=outsider).status_code == 404
    api.world.tick()
    refused = [line for line in api.world.control.people.audit() if line.outcome == "refused"]
    assert [(line.holder, line.action, line.target) for line in refused] == [
        ("ada", "submit jobs", "/v1/jobs"),
        ("ada", "place a team, or change it", "/v1/teams/vision"),
        ("bob", "submit jobs", "/v1/jobs"),
    ]
    assert {line.address for line in refused} == {"127.0.0.1"}
    agent = next(iter(api.world.orders_of(job.id).values())).token
    assert api.http.get("/v1/jobs", headers={"Authorization": f"Bearer {agent}"}).status_code == 403


def test_agents_register_and_report_over_http(api: Api) -> None:
    job = api.submit(api.world.spec())
    api.world.tick()
    name, order = next(iter(api.world.orders_of(job.id).items()))
    headers = {"Authorization": f"Bearer {order.token}"}
    call = encode(wire.Register(allocation=name, node=order.nodes[0], address="127.0.0.1:9"))
    orders = decode(wire.Orders, api.http.post("/v1/agents/register", content=call, headers=headers).content)
    assert orders.ready
    beat = wire.Heartbeat(
        attempt=orders.attempt,
        epoch=orders.epoch,
        generation=1,
        step=3,
        metrics={"loss": 0.5},
        ranks=(),
        events=(),
        outcome=AttemptState.SUCCEEDED,
    )
    answer = api.http.post("/v1/agents/heartbeat", content=encode(beat), headers=headers)
    assert decode(wire.HeartbeatReply, answer.content) == wire.HeartbeatReply(acknowledged=0)
    api.world.tick(4)
    assert api.world.job(job.id).state is JobState.SUCCEEDED
    again = api.http.post("/v1/agents/heartbeat", content=encode(beat), headers=headers)
    assert decode(wire.HeartbeatReply, again.content).fenced


@pytest.mark.parametrize("release", [NEWER, RELEASE, BEYOND])
def test_unknown_words_of_a_lead_are_kept_and_never_acted_on_if_it_is_newer_and_refused_if_not(
    api: Api, release: str
) -> None:
    job = api.submit(api.world.spec())
    api.world.run(job.id)
    order = next(iter(api.world.orders_of(job.id).values()))
    headers = {"Authorization": f"Bearer {order.token}", RELEASE_HEADER: release}
    events = [{"sequence": n, "time_s": 1.0, "kind": "job_danced", "detail": {"to": "a waltz"}} for n in range(1, 300)]
    said = [to_plain(api.world.last_beat) | new for new in ({"outcome": "hibernated"}, {"events": events})]
    first, answer = (api.http.post("/v1/agents/heartbeat", content=json.dumps(beat), headers=headers) for beat in said)
    told = [event for event in api.world.control.events(job.id) if event.kind == "unknown"]
    if release == NEWER:
        assert "'hibernated'" in str(told.pop(0).told)
        assert decode(wire.HeartbeatReply, answer.content).acknowledged == 299
        assert len(told) == UNKNOWN_KEPT_MAX - 1
        assert "'job_danced', which this one does not know: to a waltz" in str(told[0].told)
        assert api.world.control.job(job.id).state is JobState.RUNNING
    else:
        problems = api.problem(first, 400), api.problem(answer, 400)
        assert {problem.error for problem in problems} == {"OtherRelease" if release == BEYOND else "InvalidMessage"}
        for problem, word in zip(problems, ("hibernated", "job_danced"), strict=True):
            assert (f"Mainspring {BEYOND}" if release == BEYOND else word) in problem.detail
        assert not told


@pytest.mark.parametrize("path", ["/v1/whoami", "/v1/health"])
def test_a_caller_too_far_from_this_release_is_refused_whatever_it_asks(api: Api, path: str) -> None:
    for release, status in ((BEYOND, 400), ("three", 400), (NEWER, 200)):
        answer = api.http.get(path, headers=api.member | {RELEASE_HEADER: release})
        assert (answer.status_code, answer.headers[RELEASE_HEADER]) == (status, RELEASE)


def test_a_newer_caller_of_what_is_not_there_yet_is_told_which_end_to_upgrade(api: Api) -> None:
    problems = [
        api.problem(api.http.get("/v1/dances", headers={RELEASE_HEADER: release}), 404) for release in (NEWER, RELEASE)
    ]
    assert [problem.next_step for problem in problems] == [f"upgrade the server, which is of release {RELEASE}", ""]


def test_goodput_over_http_adds_up_for_a_job_a_team_a_cluster_and_everything(api: Api) -> None:
    job = api.submit(api.world.spec(replicas=2))
    api.world.run(job.id)
    api.world.clock.advance(30.0)
    api.world.beat(job.id, seconds={"productive": 50.0, "nonsense": 1e300, "hang": -5.0, "data": 1e-3})
    told = decode(Goodput, api.get(f"/v1/jobs/{job.id}/goodput").content)
    assert sum(told.seconds.values()) == pytest.approx(told.allocated_s)
    assert told.seconds["productive"] == 50.0  # type: ignore[index]
    assert decode(answers.JobView, api.get(f"/v1/jobs/{job.id}").content).goodput == told
    for query in ("", "?team=lab", "?cluster=west", "?since=1"):
        report = decode(answers.GoodputReport, api.get(f"/v1/goodput{query}").content)
        assert (report.attempts, report.whole.allocated_s) == (1, told.allocated_s)
    assert decode(answers.GoodputReport, api.get("/v1/goodput?since=1e12").content).attempts == 0
    api.world.control.people.set_team(Team(name=LAB), api.world.admin)
    for query in ("?team=nobody", "?cluster=nowhere"):
        assert api.http.get(f"/v1/goodput{query}", headers=api.viewer).status_code == 404
    assert api.http.get("/v1/goodput?since=nan", headers=api.viewer).status_code == 400
    assert api.http.get(f"/v1/jobs/{job.id}/goodput").status_code == 401
    api.world.beat(job.id, seconds={use.value: 1e308 for use in TimeUse})
    told = decode(Goodput, api.get(f"/v1/jobs/{job.id}/goodput").content)
    assert sum(told.seconds.values()) == pytest.approx(told.allocated_s), "whatever a lead may claim"


@pytest.mark.slow
def test_logs_over_http_come_in_pieces_from_the_attempt_asked_for(api: Api) -> None:
    job = api.submit(api.world.spec())
    empty = api.get(f"/v1/jobs/{job.id}/logs")
    assert (empty.content, empty.headers["X-Next-Offset"]) == (b"", "0")
    api.world.tick()
    name = next(iter(api.world.orders_of(job.id)))
    api.world.west.inner.write_log(name, 0, b"step 1\nstep 2\n")
    first = api.get(f"/v1/jobs/{job.id}/logs?limit=7")
    assert (first.content, first.headers["X-Next-Offset"]) == (b"step 1\n", "7")
    assert api.get(f"/v1/jobs/{job.id}/logs?since=7&attempt=1").content == b"step 2\n"
    assert api.http.get(f"/v1/jobs/{job.id}/logs?attempt=2", headers=api.viewer).status_code == 404
    assert api.http.get(f"/v1/jobs/{job.id}/logs?rank=5", headers=api.viewer).status_code == 404
    api.world.west.answering = False
    assert api.http.get(f"/v1/jobs/{job.id}/logs", headers=api.viewer).status_code == 503


@pytest.mark.slow
def test_logs_followed_go_on_into_the_next_attempt_and_end_with_the_job(api: Api) -> None:
    world = api.world
    job = api.submit(world.spec())
    for attempt in (1, 2):
        world.tick(3)
        world.register(job.id)
        world.west.inner.write_log(next(iter(world.orders_of(job.id))), 0, f"hello {attempt} é\n".encode())
        if attempt == 1:
            world.end_agents(job.id, exit_code=-9)
    world.beat(job.id, outcome=AttemptState.SUCCEEDED)
    world.tick(3)
    text = api.get(f"/v1/jobs/{job.id}/logs?follow=true&attempt=1").text
    told = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]
    assert told == [
        {"attempt": 1, "text": "hello 1 é\n"},
        {"attempt": 2, "text": "hello 2 é\n"},
        {"state": "succeeded"},
    ]
    assert "id: 2:11" in text


@pytest.mark.slow
def test_logs_followed_wait_for_a_cluster_that_does_not_answer_and_tell_what_is_lost(api: Api) -> None:
    class Hesitant(FakeEngine):
        calls = 0

        def logs(self, allocation: AllocationId, *, rank: int, since: int, limit: int) -> LogChunk:
            self.calls += 1
            if self.calls == 2:
                raise Unavailable("read a log", got="no answer")
            return LogChunk(data=b"tail" if since == 0 else b"", next_offset=104 if since == 0 else since)

    world = api.world
    world.west.inner = Hesitant(world.west.inner.inventory(), world.clock)
    job = api.submit(world.spec())
    world.run(job.id)
    world.beat(job.id, outcome=AttemptState.SUCCEEDED)
    world.tick(3)
    text = api.get(f"/v1/jobs/{job.id}/logs?follow=true").text
    told = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]
    assert told == [
        {"attempt": 1, "text": "[100 bytes of output are no longer kept]\ntail"},
        {"state": "succeeded"},
    ]


def told(lines: Iterator[str]) -> Iterator[answers.Event]:
    """The events of a stream, until it says that it ends."""
    for line in lines:
        if line == "event: end":
            return
        if line.startswith("data: "):
            yield decode(answers.Event, line.removeprefix("data: ").encode())


@pytest.mark.slow
def test_events_of_a_job_followed_come_as_they_happen_and_end_with_the_job(api: Api) -> None:
    job = api.submit(api.world.spec())
    path = f"/v1/jobs/{job.id}/events?follow=true"
    with api.http.stream("GET", path, headers=api.viewer, timeout=120) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        seen = told(answer.iter_lines())
        assert next(seen).kind == "job_submitted"
        api.world.run(job.id)
        assert next(seen).kind == "attempt_granted"
        api.world.succeed(job.id)
        kinds = [event.kind for event in seen]
    assert kinds[-1] == "job_moved"
    every = decode(tuple[answers.Event, ...], api.get(f"/v1/jobs/{job.id}/events").content)
    assert len(every) == 2 + len(kinds)
    resumed = api.http.get(path, headers=api.viewer | {"Last-Event-ID": str(every[-3].sequence)})
    assert list(told(iter(resumed.text.splitlines()))) == list(every[-2:])


@pytest.mark.slow
def test_events_of_the_lab_followed_are_those_one_may_read(api: Api) -> None:
    world = api.world
    world.control.people.set_team(Team(name=LAB))
    for team in ("arms", "legs"):
        world.control.people.set_team(Team(name=TeamName(team), parent=LAB))
    secret = world.token(TeamRole.VIEWER, team="legs")
    with api.http.stream("GET", "/v1/events?follow=true", headers={"Authorization": f"Bearer {secret}"}) as answer:
        seen = told(answer.iter_lines())
        own = []
        for team in ("arms", "legs", "arms", "legs"):
            job = api.submit(world.spec(team=TeamName(team)))
            own += [job.id] if team == "legs" else []
        assert [next(seen).job for _ in own] == own


@pytest.mark.slow
def test_caller_has_so_many_requests_open_and_no_more(api: Api) -> None:
    with ExitStack() as held:
        for _ in range(REQUESTS_MAX):
            stream = held.enter_context(api.http.stream("GET", "/v1/events?follow=true", headers=api.viewer))
            assert stream.status_code == 200
        refused = api.http.get("/v1/jobs", headers=api.viewer)
        assert api.problem(refused, 429).error == "TooManyRequests"
        assert refused.headers["Retry-After"] == "1"
        assert api.http.get("/v1/jobs", headers=api.member).status_code == 200
    for _ in range(3_000):  # A minute, of which a moment is used.
        if api.http.get("/v1/jobs", headers=api.viewer).status_code == 200:
            return
        Event().wait(0.02)
    raise AssertionError("requests that are over still count")


def test_api_docs_name_no_address_of_others(api: Api) -> None:
    page = api.http.get("/docs").text
    assert "http://" not in page
    assert "https://" not in page
    assert '"validatorUrl": null' in page
    paths = re.findall(r'(?:href|src)="([^"]+)"', page)
    assert len(paths) == 3
    for path in paths:
        assert api.http.get(path).status_code == 200


@pytest.mark.slow
def test_openapi_document_describes_what_the_routes_answer(api: Api) -> None:
    document = api.http.get("/openapi.json").json()
    schemas = document["components"]["schemas"]
    job = api.submit(api.world.spec())
    api.world.run(job.id)
    for path, name, many in (
        (f"/v1/jobs/{job.id}", "JobView", False),
        ("/v1/jobs", "JobView", True),
        (f"/v1/jobs/{job.id}/why", "Why", False),
        ("/v1/events", "Event", True),
        ("/v1/clusters", "ClusterView", True),
    ):
        schema = {"$ref": f"#/components/schemas/{name}", "components": {"schemas": schemas}}
        value = api.get(path).json()
        for item in value if many else [value]:
            jsonschema_rs.validator_for(schema).validate(item)
    body = document["paths"]["/v1/jobs"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$ref": "#/components/schemas/Submit"}
    devices = {route.path for route in vars(DeviceCalls).values() if isinstance(route, Route)}
    open_to_all = [
        (path, method)
        for path, methods in document["paths"].items()
        for method, said in methods.items()
        if not said.get("security") and path not in devices  # Those look at what a robot shows by themselves.
    ]
    reads = [(path, "get") for path in ("/livez", "/readyz", "/v1/health", "/v1/login")]
    assert sorted(open_to_all) == [*reads, ("/v1/login", "post")]


@pytest.mark.slow
@pytest.mark.parametrize("examples", [2, pytest.param(20, marks=pytest.mark.soak)])
def test_requests_drawn_from_the_openapi_document_never_break_the_server(
    api: Api, served: Served, examples: int
) -> None:
    job = api.submit(api.world.spec())
    api.world.run(job.id)
    api.world.control.pulse.stepped(Step.RECORDED)
    attempt = next(iter(api.world.orders_of(job.id).values())).token
    others = [api.world.token(role) for role in TeamRole if role is not TeamRole.ATTEMPT]
    headers = [{"Authorization": f"Bearer {secret}"} for secret in ("nobody's", attempt, *others)]
    schema = schemathesis.openapi.from_url(f"{served.url}/openapi.json")
    checks = [not_a_server_error, response_schema_conformance, status_code_conformance]
    for found in schema.get_all_operations():
        assert isinstance(found, Ok)
        operation = found.ok()

        @settings(max_examples=examples, database=None, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy())
        def call(case: Any) -> None:
            # Followed logs last as long as their job.
            case.query = {key: fact for key, fact in (case.query or {}).items() if key != "follow"}
            for one in headers:
                case.call_and_validate(headers=one, checks=checks)

        call()


def test_caller_that_dies_in_the_middle_of_its_request_is_no_fault_of_the_server(api: Api, served: Served) -> None:
    sent: list[Any] = []

    async def gone() -> dict[str, object]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"authorization", api.member["Authorization"].encode())]
    scope = {"type": "http", "http_version": "1.1", "method": "POST", "path": "/v1/jobs", "query_string": b""}
    asyncio.run(served.app({**scope, "headers": headers}, gone, send))
    assert sent[0]["status"] == 499
