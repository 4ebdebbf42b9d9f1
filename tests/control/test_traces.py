"""A job's life as spans: folded from its events, told once they are over, the same ones whoever tells them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest

from mainspring.control.service.traces.spans import EVENTS_MAX, JobSpan
from mainspring.control.service.traces.telling import SENT_MAX, TAKEN_MAX, Traces
from mainspring.control.store.settings import Settings
from mainspring.domain.answers import Submit
from mainspring.domain.errors import Conflict, InvalidInput, InvalidSpec, Unavailable
from mainspring.domain.ids import JobId
from mainspring.domain.wire.telemetry import TraceRules, place_from, place_of, place_of_attempt

if TYPE_CHECKING:
    from tests.control.calling import Api
    from tests.control.conftest import World

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
RULES = TraceRules(endpoint="http://collector:4318")


class Collector:
    """Takes spans, or does not."""

    def __init__(self) -> None:
        self.spans: list[JobSpan] = []
        self.tried = 0
        self.away = False
        self.never: JobId | None = None

    def take(self, spans: Sequence[JobSpan]) -> None:
        self.tried += 1
        if self.away:
            raise Unavailable("send traces", got="HTTP 503")
        if any(span.facts["mainspring.job.id"] == self.never for span in spans):
            raise InvalidInput("send traces", got="HTTP 400")
        self.spans += spans

    def names(self) -> list[str]:
        return [span.name for span in self.spans]

    def ids(self) -> list[str]:
        return [span.place.span for span in self.spans]

    def one(self, name: str) -> JobSpan:
        (found,) = [span for span in self.spans if span.name == name]
        return found


def telling(world: World, collector: Collector, **fields: Any) -> Traces:
    rules = TraceRules(endpoint="http://collector:4318", **fields)
    world.tick()
    made = Traces(
        world.control.store, world.clock, rules, collector.take, world.loop.write, since_s=world.clock.now_s()
    )
    made.step()
    return made


def told(traces: Traces) -> None:
    while traces.step():
        pass


def recovered(world: World, job: JobId) -> None:
    """A running job loses a rank and goes on."""
    world.beat(job, ("generation_preparing", {"generation": 1, "cause": "start"}))
    world.clock.advance(5)
    world.beat(job, ("rank_exited", {"generation": 1, "rank": 1, "exit_code": -9, "step": 40}), step=40)
    world.beat(job, ("generation_preparing", {"generation": 2, "cause": "rank 1 was ended by signal 9"}), step=40)
    world.clock.advance(2)
    resumed = {"generation": 2, "step": 38, "source": "arena"}
    world.beat(job, ("generation_resumed", resumed), step=38, generation=2)  # type: ignore[arg-type]


def test_life_of_a_job_is_one_trace_of_spans_in_each_other(world: World) -> None:
    collector = Collector()
    traces = telling(world, collector)
    job = world.submit(world.spec("fold"))
    world.run(job)
    recovered(world, job)
    world.succeed(job)
    told(traces)
    assert collector.names() == ["queued", "launch", "generation", "generation", "attempt", "job"]
    assert len({span.place.trace for span in collector.spans}) == 1
    attempt = world.job(job).attempts[-1].id
    whole = place_of(job, parent=None)
    inner = place_of_attempt(job, attempt, parent=None)
    assert [span.parent for span in collector.spans] == [whole, inner, inner, inner, whole, None]
    first, second = (span for span in collector.spans if span.name == "generation")
    assert first.ended_s == second.begun_s
    assert (first.well, second.well) == (False, True)
    assert first.words == second.facts["mainspring.cause"] == "rank 1 was ended by signal 9"
    (lost,) = first.marks
    assert (lost.name, lost.facts["process.exit.code"], lost.facts["mainspring.step"]) == ("rank_exited", -9, 40)
    assert str(lost.facts["mainspring.said"]).startswith("rank 1 was ended by signal 9")
    assert "generation_resumed" in [mark.name for mark in second.marks]
    ended = collector.one("job")
    assert ended.facts["mainspring.job.state"] == "succeeded"
    assert (ended.facts["mainspring.team"], ended.facts["mainspring.tier"]) == ("lab", "standard")
    assert world.job(job).trace == "", "nobody is told of it here"
    assert ended.begun_s == world.job(job).submitted_s
    assert ended.ended_s == world.job(job).ended_s


def test_what_ended_before_anybody_looked_is_told_to_nobody_and_the_rest_whole(world: World) -> None:
    over, live = world.submit(), world.submit()
    world.control.steering.stop(over)
    world.tick(2)
    world.clock.advance(1)
    begun_s = world.clock.now_s()
    world.register(live)
    world.beat(live)
    world.succeed(live)
    collector = Collector()
    traces = Traces(world.control.store, world.clock, RULES, collector.take, world.loop.write, since_s=begun_s)
    told(traces)
    assert collector.names() == ["launch", "attempt", "job"]
    assert collector.one("job").facts["mainspring.job.id"] == live
    assert collector.one("job").begun_s < begun_s


def test_job_that_waits_again_and_fails_tells_of_each_wait_and_attempt(world: World) -> None:
    collector = Collector()
    traces = telling(world, collector)
    job = world.submit(world.spec("fold", attempts_max=1))
    world.run(job)
    world.control.steering.requeue(job)
    world.tick(3)
    world.run(job)
    world.end_agents(job, exit_code=1, reason="no such gripper")
    world.tick(4)
    told(traces)
    assert collector.names() == ["queued", "launch", "attempt", "queued", "launch", "attempt", "job"]
    assert len(set(collector.ids())) == len(collector.spans)
    first, second = (span for span in collector.spans if span.name == "attempt")
    assert (first.well, first.facts["mainspring.stop_cause"]) == (None, "requeue")
    assert (second.well, second.facts["error.type"]) == (False, "lost")
    ended = collector.one("job")
    assert (ended.well, ended.facts["error.type"]) == (False, "failed")
    assert "no such gripper" in ended.words


def test_spans_are_told_as_they_end_and_by_no_two_looks(world: World) -> None:
    collector = Collector()
    traces = telling(world, collector)
    job = world.submit()
    told(traces)
    assert collector.names() == []
    world.tick(2)
    told(traces)
    assert collector.names() == ["queued"]
    world.register(job)
    world.beat(job, ("generation_preparing", {"generation": 1, "cause": "start"}))
    told(traces)
    assert collector.names() == ["queued", "launch"]
    world.succeed(job)
    told(traces)
    told(traces)
    assert collector.names() == ["queued", "launch", "generation", "attempt", "job"]


def test_leader_that_died_loses_no_span_and_what_is_told_again_has_the_same_ids(world: World) -> None:
    collector = Collector()
    traces = telling(world, collector)
    job = world.submit()
    world.run(job)
    told(traces)
    collector.away = True
    world.succeed(job)
    with pytest.raises(Unavailable):
        traces.step()
    world.loop.resign()
    world.control.store.close()
    world.restart(settings=Settings(traces=RULES))
    world.tick()
    collector.away = False
    with pytest.raises(Conflict):  # Told, and not written down: the old leader may write no more.
        traces.step()
    another = Traces(world.control.store, world.clock, RULES, collector.take, world.loop.write, since_s=0.0)
    told(another)
    assert collector.names() == ["queued", "launch", "attempt", "job", "launch", "attempt", "job"]
    assert collector.spans[1:4] == collector.spans[4:]


def test_trace_goes_on_from_what_a_job_was_submitted_under(world: World) -> None:
    collector = Collector()
    traces = telling(world, collector)
    one = world.control.submit(Submit(spec=world.spec("one"), traceparent=PARENT)).id
    many = world.control.submit(Submit(spec=world.spec("many"), count=2, traceparent=PARENT)).id
    for job in (one, many):
        world.control.steering.stop(job, array=job == many)
    told(traces)
    parent = place_from(PARENT)
    assert [(span.parent, span.place.trace) for span in collector.spans if span.name == "job"] == [
        (parent, "0af7651916cd43dd8448eb211c80319c")
    ] * 3
    assert len(set(collector.ids())) == len(collector.spans)


def test_job_submitted_under_what_nobody_keeps_is_told_to_nobody(world: World) -> None:
    collector = Collector()
    traces = telling(world, collector)
    job = world.control.submit(Submit(spec=world.spec(), traceparent=PARENT[:-1] + "0")).id
    world.control.steering.stop(job)
    told(traces)
    assert collector.tried == 0


def test_job_links_to_what_it_comes_after_and_begins_from(world: World) -> None:
    collector = Collector()
    traces = telling(world, collector)
    first = world.control.submit(Submit(spec=world.spec("first"), traceparent=PARENT)).id
    world.run(first)
    world.succeed(first)
    second = world.submit(world.spec("second", after=(first,), begins_from=f"{first}@3"))
    world.control.steering.stop(second)
    told(traces)
    own = [span for span in collector.spans if span.name == "job"][-1]
    assert [(link.place, link.facts["mainspring.link"]) for link in own.links] == [
        (place_of(first, parent=place_from(PARENT)), how) for how in ("after", "begins_from")
    ]


def test_programs_are_told_the_span_of_their_attempt_where_it_is_told(world: World) -> None:
    spec = world.spec("plain")
    (plain,), (under,) = (
        _environments(world, Submit(spec=spec)),
        _environments(world, Submit(spec=spec, traceparent=PARENT)),
    )
    assert "TRACEPARENT" not in plain
    assert under["TRACEPARENT"] == PARENT
    world.restart(settings=Settings(traces=RULES))
    world.clock.advance(5)
    job = world.control.submit(Submit(spec=spec, traceparent=PARENT)).id
    world.tick(2)
    attempt = world.job(job).attempts[-1].id
    (orders,) = world.register(job)
    assert world.job(job).trace == "0af7651916cd43dd8448eb211c80319c"
    assert world.job(world.submit()).trace == place_of(world.control.jobs()[0].id, parent=None).trace
    assert orders.roles[0].environment["TRACEPARENT"] == str(place_of_attempt(job, attempt, parent=place_from(PARENT)))


def _environments(world: World, submit: Submit) -> list[Any]:
    job = world.control.submit(submit).id
    world.tick(2)
    return [orders.roles[0].environment for orders in world.register(job)]


def test_header_of_a_request_names_the_span_above_a_job_that_names_none(api: Api) -> None:
    world = api.world
    collector = Collector()
    traces = telling(world, collector)
    plain = {"spec": _plain_spec(), "key": ""}
    other = PARENT.replace("b7ad", "c7ad")
    for body, header in ((plain, PARENT), (plain | {"traceparent": other}, PARENT), (plain, "garbage"), (plain, "")):
        headers = api.member | ({"traceparent": header} if header else {})
        made = api.http.post("/v1/jobs", json=body, headers=headers)
        assert made.status_code == 200, made.text
        world.control.steering.stop(JobId(made.json()["id"]))
    batch = api.http.post(
        "/v1/jobs/batch", json={"submits": [plain, plain]}, headers=api.member | {"traceparent": PARENT}
    )
    for job in batch.json()["jobs"]:
        world.control.steering.stop(JobId(job))
    told(traces)
    parents = [span.parent for span in collector.spans if span.name == "job"]
    assert parents == [place_from(each) for each in (PARENT, other, "", "", PARENT, PARENT)]
    assert {span.facts["user.name"] for span in collector.spans if span.name == "job"} == {"ada"}
    refused = api.http.post("/v1/jobs", json=plain | {"traceparent": "00-1-2-3"}, headers=api.member)
    assert "field 'traceparent'" in api.problem(refused, 400).detail


def _plain_spec() -> dict[str, object]:
    option = {"chip": "gpu"}
    return {"name": "fold", "roles": [{"name": "main", "command": ["train"], "options": [option]}]}


def test_what_is_never_taken_is_left_out_and_nothing_else(world: World) -> None:
    collector = Collector()
    traces = telling(world, collector)
    jobs = [world.submit() for _ in range(5)]
    for job in jobs:
        world.control.steering.stop(job)
    collector.never = jobs[2]
    told(traces)
    assert traces.refused == 2
    named = {span.facts["mainspring.job.id"] for span in collector.spans}
    assert named == set(jobs) - {jobs[2]}


def test_what_ended_long_before_it_could_be_told_is_passed_over(world: World) -> None:
    collector = Collector()
    traces = telling(world, collector, hours=1.0)
    old = world.submit()
    world.control.steering.stop(old)
    world.clock.advance(3_700)
    young = world.submit()
    world.control.steering.stop(young)
    world.tick()
    told(traces)
    assert {span.facts["mainspring.job.id"] for span in collector.spans} == {young}


def test_many_that_end_at_once_are_told_in_bounded_requests(world: World) -> None:
    collector = Collector()
    traces = telling(world, collector)
    first = world.submit(count=TAKEN_MAX + SENT_MAX)
    world.control.steering.stop(first, array=True)
    told(traces)
    assert len(collector.spans) == len(set(collector.ids())) == 2 * (TAKEN_MAX + SENT_MAX)
    assert collector.tried >= len(collector.spans) / SENT_MAX


def test_span_keeps_the_newest_of_very_many_events_and_counts_the_others(world: World) -> None:
    collector = Collector()
    traces = telling(world, collector)
    job = world.submit()
    world.run(job)
    world.beat(job, ("generation_preparing", {"generation": 1, "cause": "start"}))
    slow = ("rank_slow", {"rank": 1, "node": "west-0", "ratio": 2.0})
    world.beat(job, *[slow] * (EVENTS_MAX + 7))  # type: ignore[arg-type]
    world.succeed(job)
    told(traces)
    span = collector.one("generation")
    assert len(span.marks) == EVENTS_MAX
    assert span.facts["mainspring.events_left_out"] == 7 + 1  # With what ended it.
    assert span.marks[0].facts["host.name"] == "west-0"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
        "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-00000000000000000000000000000000-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
        "00-0AF7651916CD43DD8448EB211C80319C-B7AD6B7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-1",
        "\u0660" * 55,
        "0" * 1_000_000,
    ],
    ids=range(9),
)
def test_traceparent_that_is_none_is_read_as_none(text: str) -> None:
    assert place_from(text) is None


def test_traceparent_of_a_later_version_is_read_as_far_as_this_one_goes() -> None:
    assert place_from("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what the future will be like") == (
        place_from(PARENT)
    )


@pytest.mark.parametrize(
    "endpoint",
    ["collector:4318", "ftp://collector", "http://", "http://me:word@collector", "http://h:x", "http://h?a=1"],
)
def test_endpoint_that_is_no_plain_url_is_refused_without_its_password(endpoint: str) -> None:
    with pytest.raises(InvalidSpec, match=r"traces\.endpoint") as refused:
        TraceRules(endpoint=endpoint)
    assert "word" not in str(refused.value).replace("password", "")


def test_spans_are_posted_below_the_endpoint_where_collectors_take_them() -> None:
    urls = ["", "http://c:4318", "http://c:4318/", "https://c/otlp", "http://c/v1/traces"]
    assert [TraceRules(endpoint=url).url for url in urls] == [
        "",
        "http://c:4318/v1/traces",
        "http://c:4318/v1/traces",
        "https://c/otlp/v1/traces",
        "http://c/v1/traces",
    ]
