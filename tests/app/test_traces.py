"""Traces, end to end: a real receiver of OTLP over HTTP, a server that is killed, a job of two ranks that loses one."""

from __future__ import annotations

import gzip
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from mainspring.app.sdk.lab import Lab
from mainspring.app.server.daemon import running
from mainspring.domain.ids import JobId
from mainspring.domain.life import JobState
from mainspring.domain.wire.telemetry import TraceRules, place_from, place_of, place_of_attempt
from tests.app.conftest import counting, halted, kill, until
from tests.app.test_secrets import ms
from tests.receivers import Posts, posts

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

MS = "from mainspring.app.cli.main import main; main()"


@pytest.fixture
def collector() -> Iterator[Posts]:
    with posts() as made:
        yield made


def spans_in(collector: Posts) -> list[Span]:
    found = []
    for headers, body in list(collector.taken):
        told = {name.lower(): value for name, value in headers.items()}
        assert told["content-type"] == "application/x-protobuf"
        plain = gzip.decompress(body) if told.get("content-encoding") == "gzip" else body
        for resource in ExportTraceServiceRequest.FromString(plain).resource_spans:
            about = {each.key: each.value.string_value for each in resource.resource.attributes}
            assert about["service.name"] == "mainspring"
            found += [span for scope in resource.scope_spans for span in scope.spans]
    return found


def named(collector: Posts, name: str) -> list[Span]:
    """Spans of a name, each once."""
    return list({span.span_id: span for span in spans_in(collector) if span.name == name}.values())


def facts(span: Span | Span.Event) -> dict[str, object]:
    return {each.key: getattr(each.value, str(each.value.WhichOneof("value"))) for each in span.attributes}


def tracing(lab: Lab, port: int) -> None:
    lab.down()
    lab.home.write_config(replace(lab.home.config(), traces=TraceRules(endpoint=f"http://127.0.0.1:{port}")))
    lab.up()


def test_job_of_two_ranks_that_loses_one_while_the_server_is_killed_is_one_whole_trace(
    lab: Lab, collector: Posts, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    gate.mkdir()
    tracing(lab, collector.port)
    view = lab.run(counting(gate, 30, name="stormy"))
    victim = halted(lab, view.id, gate, 30).attempts[-1].ranks[1].pid
    until(lambda: bool(named(collector, "launch")), "what is over to be told while the job runs")
    record = lab.home.server()
    assert record is not None
    kill(record.pid)
    until(lambda: not running(record, lab.home), "the server to be gone")
    kill(victim)
    (gate / "go-30").touch()
    lab.up()
    assert lab.wait(view.id, timeout_s=90).state is JobState.SUCCEEDED
    until(lambda: bool(named(collector, "job")), "the whole to be told")
    assert set(collector.paths) == {"/v1/traces"}

    every = {span.span_id: span for span in spans_in(collector)}
    assert sorted(span.name for span in every.values()) == [
        "attempt",
        "generation",
        "generation",
        "job",
        "launch",
        "queued",
    ]
    attempt = lab.status(view.id).attempts[-1].id
    whole, inner = place_of(view.id, parent=None), place_of_attempt(view.id, attempt, parent=None)
    assert {span.trace_id.hex() for span in every.values()} == {whole.trace}
    above = {span.name: span.parent_span_id.hex() for span in every.values()}
    assert above == {
        "job": "",
        "queued": whole.span,
        "attempt": whole.span,
        "launch": inner.span,
        "generation": inner.span,
    }
    first, second = sorted(named(collector, "generation"), key=lambda span: span.start_time_unix_nano)
    (lost,) = [each for each in first.events if each.name == "rank_exited"]
    assert facts(lost)["process.exit.code"] == -signal.SIGKILL
    assert (first.status.code, second.status.code) == (Status.STATUS_CODE_ERROR, Status.STATUS_CODE_OK)
    assert first.end_time_unix_nano == second.start_time_unix_nano
    assert {"generation_resumed", "generation_stepping", "caught_up"} <= {each.name for each in second.events}
    (ended,) = named(collector, "job")
    assert facts(ended)["mainspring.job.id"] == view.id
    assert ended.start_time_unix_nano < first.start_time_unix_nano < ended.end_time_unix_nano


def test_collector_that_is_away_is_told_later_and_the_log_says_so_once(lab: Lab, collector: Posts) -> None:
    collector.status = 503
    tracing(lab, collector.port)
    begun = lab.home.log.stat().st_size
    told = ms(lab, "run", "--no-code", "--name", "seen", "--wait", "--on", "h100", "--", sys.executable, "-c", "")
    assert told.returncode == 0, told.stderr
    until(lambda: "traces wait" in lab.home.log.read_text(), "the log to say that the collector is away")
    until(lambda: collector.tried > 6, "the collector to be asked again")
    collector.status = 200
    until(lambda: bool(named(collector, "job")), "what waited to be told", wait_s=120)
    said = lab.home.log.read_bytes()[begun:].decode()
    assert said.count("traces wait") == 1, said
    assert "HTTP 503" in said
    until(lambda: "traces are taken again" in lab.home.log.read_text(), "the log to say that it is over")
    assert "Traceback" not in said


def test_program_and_job_below_it_hang_under_the_span_that_submitted(
    lab: Lab, collector: Posts, tmp_path: Path
) -> None:
    tracing(lab, collector.port)
    inner = "import mainspring as ms, sys; ms.run(ms.job('inner', [sys.executable, '-c', ''], on='h100'))"
    script = tmp_path / "outer.py"
    script.write_text(f"import os; print(os.environ['TRACEPARENT'])\n{inner}\n")
    words = ("run", "--no-code", "--wait", "--json", "--on", "v5e", "--env", f"MAINSPRING_HOME={lab.home.path}")
    command = [sys.executable, "-c", MS, *words, "--", sys.executable, str(script)]
    known = {**os.environ, "MAINSPRING_HOME": str(lab.home.path), "TRACEPARENT": PARENT}
    done = subprocess.run(command, env=known, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    until(lambda: len(named(collector, "job")) == 2, "both jobs to be told")
    below, outer = sorted(named(collector, "job"), key=lambda span: str(facts(span)["mainspring.job.name"]))
    job = JobId(str(facts(outer)["mainspring.job.id"]))
    parent = place_from(PARENT)
    assert parent is not None
    assert outer.parent_span_id.hex() == parent.span
    place = place_of_attempt(job, lab.status(job).attempts[-1].id, parent=parent)
    with lab.client() as client:
        assert client.logs(job, attempt=1).data.decode().split()[0] == str(place)
    assert (below.trace_id.hex(), below.parent_span_id.hex()) == (parent.trace, place.span)


def test_server_without_the_packages_says_what_to_install(lab: Lab, tmp_path: Path) -> None:
    lab.down()
    empty = tmp_path / "opentelemetry" / "exporter" / "otlp" / "proto" / "http"  # In the place of the real one.
    empty.mkdir(parents=True)
    (empty / "__init__.py").touch()
    lab.home.write_config(replace(lab.home.config(), traces=TraceRules(endpoint="http://127.0.0.1:4318")))
    known = {**os.environ, "MAINSPRING_HOME": str(lab.home.path), "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", MS, "up"], env=known, capture_output=True, text=True)
    assert done.returncode != 0
    said = " ".join(done.stderr.split())
    assert "no packages of OpenTelemetry" in said
    assert "pip install 'mainspring[otel]'" in said
    assert "Traceback" not in said
    lab.home.write_config(replace(lab.home.config(), traces=TraceRules()))
