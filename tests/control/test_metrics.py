"""Metrics: what Prometheus is told of the lab and of its server, in its own format, and whom."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.app.certificates import self_signed
from tests.control.calling import Api
from tests.control.conftest import World

from mainspring.control.api_metrics import Metrics
from mainspring.control.loop.loop import Step
from mainspring.control.service.metrics import lab
from mainspring.control.service.metrics.events import EventCounts
from mainspring.control.service.metrics.home import HomeCollector
from mainspring.control.service.metrics.large import LargeJobs
from mainspring.control.service.metrics.promises import Promises
from mainspring.control.store.ledger import StateWriter
from mainspring.control.store.tokens import LAB_ITSELF
from mainspring.domain.ids import JobId, TeamName
from mainspring.domain.job import Tier
from mainspring.domain.release import RELEASE
from mainspring.domain.team import Team, TeamRole
from mainspring.domain.wire.events.jobs import StartPromisedEvent
from mainspring.domain.wire.events.leads import (
    CheckpointDurableEvent,
    GenerationPreparingEvent,
    GenerationSteppingEvent,
    HangEvent,
)

Samples = dict[tuple[str, ...], float]
HANG: dict[str, str | int | float | bool] = {"generation": 1, "step": 7, "silent_s": 30.0, "odd": "", "evidence": ""}


def read(metrics: Metrics) -> Samples:
    """Every sample by its name and the values of its labels, in the order of the labels' names."""
    told, _ = metrics.read(LAB_ITSELF, "text/plain")
    return samples(told.decode())


def samples(text: str) -> Samples:
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def place(world: World, *teams: str) -> None:
    for team in teams:
        world.control.people.set_team(Team(name=TeamName(team)))


def test_jobs_queue_and_chips_are_told_by_team_tier_and_cluster(world: World) -> None:
    metrics = Metrics(world.control)
    place(world, "arms", "vision")
    world.tick()
    for team, tier, count in (("arms", Tier.CRITICAL, 2), ("vision", Tier.STANDARD, 9)):
        for _ in range(count):
            world.submit(world.spec(team=TeamName(team), tier=tier))
    world.tick(2)
    world.clock.advance(100)
    told = read(metrics)
    assert told["mainspring_jobs", "starting", "arms"] == 2
    assert told["mainspring_jobs", "queued", "vision"] == told["mainspring_queue_jobs", "vision", "standard"] == 3
    assert 1 <= told["mainspring_queue_oldest_seconds", "vision", "standard"] <= 3  # When the last plan was made.
    held = {key: value for key, value in told.items() if key[0] == "mainspring_chips_held"}
    assert sum(held.values()) == 8
    assert sum(value for key, value in held.items() if key[2:] == ("arms", "critical")) == 2
    assert told["mainspring_nodes", "east", "ready"] == 2
    assert told["mainspring_chips", "gpu", "east", "ready"] == 4
    assert told["mainspring_cluster_up", "west"] == told["mainspring_store_up",] == told["mainspring_leads",] == 1
    assert told["mainspring_release_info", RELEASE] == 1


def test_ends_and_where_time_went_add_up_over_a_jobs_life(world: World) -> None:
    metrics = Metrics(world.control)
    job = world.submit()
    world.run(job)
    world.clock.advance(50)
    world.beat(job, seconds={"productive": 40.0}, step=5)
    live = read(metrics)
    assert live["mainspring_node_seconds", "lab", "productive"] == pytest.approx(40)
    world.succeed(job)
    world.tick(3)
    over = read(metrics)
    assert over["mainspring_jobs_ended_total", "succeeded", "lab"] == 1
    assert ("mainspring_jobs", "running", "lab") not in over
    uses = {key[2]: value for key, value in over.items() if key[:2] == ("mainspring_node_seconds", "lab")}
    report = world.control.accounts.report()
    assert sum(uses.values()) == pytest.approx(report.whole.allocated_s)
    clusters = [value for key, value in over.items() if key[0] == "mainspring_cluster_node_seconds"]
    assert sum(clusters) == pytest.approx(report.whole.allocated_s)


def test_what_leads_tell_is_counted_once_from_when_the_server_began(world: World) -> None:
    job = world.submit()
    world.run(job)
    world.beat(job, (HangEvent.kind, HANG))
    metrics = Metrics(world.control)
    assert read(metrics)["mainspring_events_total", "west", "hang"] == 0
    world.beat(job, (HangEvent.kind, HANG), (GenerationPreparingEvent.kind, {"generation": 2, "cause": "hang"}))
    world.clock.advance(7)
    world.beat(job, (GenerationSteppingEvent.kind, {"generation": 2, "step": 8}))
    (cluster,) = {attempt.cluster for attempt in world.job(job).attempts}
    for _ in range(2):  # Reading changes nothing.
        told = read(metrics)
        assert told["mainspring_events_total", cluster, "hang"] == 1
        assert told["mainspring_recovery_seconds_sum", cluster] == pytest.approx(7)
        assert told["mainspring_recovery_seconds_bucket", cluster, "5.0"] == 0
        assert told["mainspring_recovery_seconds_bucket", cluster, "10.0"] == 1
        assert told["mainspring_detection_seconds_bucket", cluster, "30.0"] == 1
        assert told["mainspring_detection_seconds_sum", cluster] == pytest.approx(30)
    world.control.steering.stop(job)
    world.tick()
    assert read(metrics)["mainspring_attempts_stopped_total", "cancel", cluster] == 1


def test_a_burst_of_events_is_read_in_pieces_and_none_is_missed(world: World) -> None:
    job = world.submit()
    world.run(job)
    found = EventCounts(most=20)

    def told() -> float:
        with world.control.store.read() as connection:
            samples = [sample for family in found.collect(connection, world.clock.now_s()) for sample in family.samples]
        return sum(sample.value for sample in samples if sample.name == "mainspring_events_total")

    assert told() == 0
    saved: dict[str, str | int | float | bool] = {"step": 1, "size_bytes": 1}
    world.beat(job, *[(CheckpointDurableEvent.kind, saved)] * 50)
    assert [told() for _ in range(4)] == [20, 40, 50, 50]


def test_a_promised_start_is_late_once_its_tolerance_is_over() -> None:
    found = Promises()

    def told(now_s: float) -> list[float]:
        samples = [sample for family in found.collect(now_s) for sample in family.samples]
        return [sample.value for sample in samples if sample.name.endswith("_total")]

    for job in ("soon", "late", "moved", "waits", "stopped"):
        found.promised(JobId(job), 1_000.0, 0.0)
    found.promised(JobId("moved"), 5_000.0, 900.0)  # What was said first counts.
    found.excused(JobId("stopped"))
    found.started(JobId("soon"), 1_099.0)
    found.started(JobId("late"), 1_101.0)
    found.started(JobId("never-promised"), 9_000.0)
    assert told(1_100.0) == [2, 1]
    assert told(1_101.0) == [4, 3]  # Those that still wait.
    found.started(JobId("waits"), 1_200.0)
    assert told(9_000.0) == [4, 3]


def test_promises_of_plans_are_held_against_grants(world: World) -> None:
    metrics = Metrics(world.control)
    read(metrics)
    jobs = [world.submit() for _ in range(2)]
    with world.control.store.write() as connection:
        writer = StateWriter(connection, world.clock.now_s())
        starts = (world.clock.now_s() + 500.0, world.clock.now_s() - 61.0)
        writer.tell_each(jobs, [StartPromisedEvent(start_s=start_s) for start_s in starts])
    world.tick(2)
    told = read(metrics)
    assert told["mainspring_promised_starts_total",] == 2
    assert told["mainspring_promised_starts_late_total",] == 1


def test_time_of_large_jobs_is_counted_from_when_the_server_began_to_their_end(world: World) -> None:
    jobs = [world.submit(world.spec(replicas=2)), world.submit()]
    for job in jobs:
        world.run(job)
    world.clock.advance(50)
    world.beat(jobs[0], seconds={"productive": 40.0}, step=5)
    found = LargeJobs(nodes=2)

    def told() -> dict[str, float]:
        with world.control.store.read() as connection:
            (family,) = found.collect(connection, now_s=world.clock.now_s(), lease_s=15.0)
        return {sample.labels["use"]: sample.value for sample in family.samples if sample.value}

    assert told() == {}
    world.clock.advance(10)
    world.beat(jobs[0], seconds={"productive": 60.0}, step=7)
    world.beat(jobs[1], seconds={"productive": 60.0}, step=7)
    assert told()["productive"] == pytest.approx(20)
    world.beat(jobs[0], seconds={"productive": 50.0, "repeated": 10.0}, step=7)
    assert told() == {**told(), "productive": pytest.approx(20), "repeated": pytest.approx(10)}
    world.succeed(jobs[0])
    world.tick(3)
    whole = told()
    assert whole["productive"] == pytest.approx(20)
    world.clock.advance(50)
    assert told() == whole
    later = world.submit(world.spec(replicas=2))
    world.run(later)
    world.clock.advance(30)
    world.beat(later, seconds={"productive": 30.0}, step=5)
    assert told()["productive"] == pytest.approx(20 - 10 + 30)  # All of what begins later; 10 had moved away.


def test_a_job_that_should_have_been_archived_shows(world: World) -> None:
    metrics = Metrics(world.control)
    job = world.submit()
    world.run(job)
    world.succeed(job)
    world.tick(3)
    assert read(metrics)["mainspring_archive_behind_seconds",] == 0
    world.clock.advance(92 * 86_400)
    assert read(metrics)["mainspring_archive_behind_seconds",] == pytest.approx(2 * 86_400, abs=60)


def test_the_loop_of_a_server_that_stands_still_shows(world: World) -> None:
    metrics = Metrics(world.control)
    assert read(metrics)["mainspring_loop_silent_seconds",] == 0
    world.control.pulse.stepped(Step.RECORDED)
    world.clock.advance(95)
    assert read(metrics)["mainspring_loop_silent_seconds",] == 95


def test_certificate_disk_and_back_up_are_told_where_they_can_be_read(tmp_path: Path) -> None:
    made = self_signed(tmp_path, name="lab.example.org")
    damaged = tmp_path / "damaged.pem"
    damaged.write_text("-----BEGIN CERTIFICATE-----\nno\n-----END CERTIFICATE-----\n")

    def told(certificate: Path) -> dict[str, float]:
        families = HomeCollector(
            certificate=certificate, store_folder=tmp_path, backed_up_s=lambda: 7.0, unread_s=lambda: 3.0
        ).collect()
        return {family.name: family.samples[0].value for family in families}

    ends_s = told(made.chain).pop("mainspring_certificate_expiry_timestamp_seconds")
    assert ends_s - made.chain.stat().st_mtime == pytest.approx(2 * 86_400, abs=60)
    found = told(damaged)
    assert 0 < found.pop("mainspring_store_free_ratio") <= 1
    assert found == {"mainspring_backup_timestamp_seconds": 7.0, "mainspring_arrivals_oldest_seconds": 3.0}


LABELS = {"team", "tier", "cluster", "cause"}
OF_WHAT = {"state", "use", "condition", "chip", "kind", "status", "operation", "step", "release", "le", "generation"}
OF_WHAT |= {"closure", "by"}  # Three kinds, of health or of people.


def test_labels_are_few_and_of_a_closed_list(world: World) -> None:
    world.run(world.submit())
    metrics = Metrics(world.control)
    for family in metrics.measures.registry.collect():
        for sample in family.samples:
            assert len(sample.labels.keys() & LABELS) <= 3
            assert sample.labels.keys() <= LABELS | OF_WHAT, sample.name


def test_a_store_that_is_away_leaves_what_the_server_knows_of_itself(tmp_path: Path) -> None:
    world = World(tmp_path)
    metrics = Metrics(world.control)
    world.tick()
    world.control.store.close()
    for file in tmp_path.glob("store.db*"):
        file.unlink()
    (tmp_path / "store.db").mkdir()
    told = {family.name: family for family in metrics.measures.registry.collect()}
    assert told["mainspring_store_up"].samples[0].value == 0
    assert told["mainspring_cluster_up"].samples
    assert "mainspring_jobs" not in told


def test_no_metric_has_more_series_than_its_bound_and_the_largest_are_kept(world: World) -> None:
    place(world, *(f"team-{index}" for index in range(30)))
    for index in range(30):
        for _ in range(1 + (index == 7)):
            world.submit(world.spec(team=TeamName(f"team-{index}")))
    families = {family.name: family for family in Metrics(world.control).measures.registry.collect()}
    assert len(families["mainspring_jobs"].samples) == 30
    for family in families.values():
        for sample in family.samples:
            assert len(sample.labels) <= 3, sample
    many = {(str(number),): float(number) for number in range(lab.SERIES_MAX + 5)}
    assert min(value for _, value in lab._largest(many)) == 5


def test_probes_are_timed_and_are_no_requests_that_fail(world: World) -> None:
    measures = Metrics(world.control).measures
    for operation, status in (("readyz", 503), ("livez", 503), ("list_jobs", 503), ("list_jobs", 200)):
        measures.answered(operation, status, world.clock.monotonic_s())
    told = {
        (sample.name, *sample.labels.values()): sample.value
        for family in measures.registry.collect()
        for sample in family.samples
    }
    assert told["mainspring_requests_total", "503"] == told["mainspring_requests_total", "200"] == 1
    assert told["mainspring_request_seconds_count", "readyz"] == 1


@pytest.mark.slow
def test_prometheus_reads_over_http_with_a_token_and_requests_are_counted(api: Api) -> None:
    world = api.world
    auditor = {"Authorization": f"Bearer {world.token(TeamRole.AUDITOR)}"}
    assert api.http.get("/metrics").status_code == 401
    api.problem(api.http.get("/metrics", headers=api.viewer), 403)
    api.get("/v1/jobs")
    plain = api.http.get("/metrics", headers=auditor)
    assert plain.headers["content-type"].startswith("text/plain; version=")
    told = samples(plain.text)
    assert told["mainspring_request_seconds_count", "list_jobs"] == 1
    assert told["mainspring_requests_total", "401"] == told["mainspring_requests_total", "403"] == 1
    assert told["process_resident_memory_bytes",] > 1e6
    api.http.get("/v1/no-such-thing", headers=auditor)
    open_metrics = api.http.get("/metrics", headers=auditor | {"Accept": "application/openmetrics-text; version=1.0.0"})
    assert open_metrics.headers["content-type"].startswith("application/openmetrics-text")
    assert open_metrics.text.endswith("# EOF\n")
    assert 'mainspring_request_seconds_count{operation="none"} 1.0' in open_metrics.text


def test_ticks_are_measured_step_by_step(world: World) -> None:
    measures = Metrics(world.control).measures
    for _ in range(3):
        for step in world.loop.steps():
            measures.stepped(step)
            world.clock.advance(0.2)
    values = {
        (sample.name, *sample.labels.values()): sample.value
        for family in measures.registry.collect()
        for sample in family.samples
    }
    assert values["mainspring_tick_seconds_count",] == 3
    assert values["mainspring_tick_step_seconds_sum", "planned"] == pytest.approx(0.6)
    assert 3 < values["mainspring_tick_seconds_sum",] < 6
