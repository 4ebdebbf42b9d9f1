"""What our processes say of themselves: lines of JSON with ids, where that is asked for, and nothing secret."""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from mainspring.app.base.home import Config
from mainspring.app.sdk.lab import Lab, job
from mainspring.app.server.telemetry.logs import WORDS_LENGTH_MAX, LineFormatter, last_words
from mainspring.domain.errors import InvalidSpec, MainspringError
from mainspring.domain.release import RELEASE, RELEASE_HEADER
from mainspring.domain.wire.telemetry import LogForm
from tests.app.conftest import clusters, until
from tests.app.test_secrets import ms

HOSTILE = 'a "quote",\n\x1b[2Ja line\u2028 of its own\\'


def record(words: str, *args: object, **facts: object) -> logging.LogRecord:
    made = logging.LogRecord("mainspring.x", logging.WARNING, __file__, 1, words, args, None)
    made.__dict__.update(facts)
    return made


def line_of(made: logging.LogRecord, form: LogForm = LogForm.JSON) -> str:
    about = {"node": "alpha-0", "attempt_id": "attempt-1"}
    return LineFormatter(form, about, lambda: {"request_id": "req-1"}).format(made)


def test_line_of_json_is_one_line_whatever_it_says_and_has_the_ids_it_is_about() -> None:
    made = record("%s of %s", HOSTILE, {"x"}, job_id="job-7", attempt_id="attempt-2", password="never", node="")
    line = line_of(made)
    assert "\n" not in line
    told = json.loads(line)
    assert told.pop("time").endswith("Z")
    assert told == {
        "level": "warning",
        "message": f"{HOSTILE} of {{'x'}}",
        "logger": "mainspring.x",
        "node": "alpha-0",
        "attempt_id": "attempt-2",
        "request_id": "req-1",
        "job_id": "job-7",
    }


def test_line_of_text_is_for_people_and_has_the_same_ids() -> None:
    line = line_of(record("a tick was cut short"), LogForm.TEXT)
    assert line.endswith("Z WARNING a tick was cut short node=alpha-0 attempt_id=attempt-1 request_id=req-1")


def test_line_is_bounded_and_keeps_the_end_of_a_traceback() -> None:
    try:
        raise ValueError("x" * 50_000 + "the end")
    except ValueError:
        made = record("y" * 50_000)
        made.exc_info = sys.exc_info()
    told = json.loads(line_of(made))
    assert (len(told["message"]), len(told["exception"])) == (WORDS_LENGTH_MAX, WORDS_LENGTH_MAX)
    assert told["exception"].endswith("the end")


@pytest.mark.parametrize(
    ("line", "words"),
    [('{"message": "no disk", "time": "x"}', "no disk"), ("plain", "plain"), ("[1]", "[1]"), ('{"a": 1}', '{"a": 1}')],
)
def test_last_words_are_what_a_line_says(line: str, words: str) -> None:
    assert last_words(line) == words


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def logging_json(lab: Lab) -> None:
    lab.down()
    lab.home.log.write_text("")
    lab.home.write_config(replace(lab.home.config(), log_format=LogForm.JSON))
    lab.up()


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_server_and_agents_that_are_to_log_json_do_so_with_ids_and_without_secrets(lab: Lab) -> None:
    logging_json(lab)
    view = lab.wait(lab.run(job("seen", [sys.executable, "-c", ""], on="h100")).id, timeout_s=60)
    with pytest.raises(MainspringError):
        lab.stop("nobody")
    (submit,) = [line for line in lines_of(lab.home.log) if line.get("operation") == "submit"]
    assert (submit["level"], submit["status"]) == ("info", 200)
    assert submit["request_id"].startswith("req-")
    assert submit["holder"]
    (stop,) = [line for line in lines_of(lab.home.log) if line.get("operation") == "stop_job"]
    assert (stop["status"], stop["job_id"]) == (404, "nobody")
    logs = sorted(lab.home.engines.rglob("agent.log"))
    assert logs
    said = [line for path in logs for line in lines_of(path)]
    mine = [line for line in said if line.get("job_id") == view.id]
    assert [line["message"].split()[:3] for line in mine] == [["the", "agent", "begins,"], ["the", "agent", "ends"]]
    assert {"time", "level", "attempt_id", "allocation_id", "node"} <= mine[0].keys()
    assert mine[0]["attempt_id"] == view.attempts[-1].id
    every = lab.home.log.read_text() + "".join(path.read_text() for path in logs)
    assert lab.home.token() not in every


@pytest.mark.slow
def test_request_has_an_id_in_its_answer_its_error_and_the_log(lab: Lab) -> None:
    logging_json(lab)
    record = lab.home.server()
    assert record is not None
    known = {"Authorization": f"Bearer {lab.home.token()}", RELEASE_HEADER: RELEASE}
    with httpx.Client(base_url=record.url, headers=known, trust_env=False) as http:
        drawn = [http.get("/v1/health").headers["X-Request-Id"] for _ in range(2)]
        assert len(set(drawn)) == 2
        own = http.get("/v1/jobs/none", headers={"X-Request-Id": "trace:7f.a"})
        assert own.headers["X-Request-Id"] == own.json()["request_id"] == "trace:7f.a"
        garbage = ('a"b', "x" * 65, "a b", "%0a")
        refused = [http.post("/v1/jobs/none/stop", headers={"X-Request-Id": each}) for each in garbage]
        served = [answer.headers["X-Request-Id"] for answer in refused]
        assert all(each.startswith("req-") for each in served)
        assert [answer.json()["request_id"] for answer in refused] == served
        unknown = http.get("/v1/jobs", headers={"Authorization": "Bearer wrong"})
        assert (unknown.status_code, unknown.json()["request_id"]) == (401, unknown.headers["X-Request-Id"])
    logged = [line["request_id"] for line in lines_of(lab.home.log) if "request_id" in line]
    assert set(served) <= set(logged)
    assert unknown.headers["X-Request-Id"] not in logged


@pytest.mark.slow
def test_server_that_does_not_start_says_why_in_words_whatever_it_logs(lab: Lab, tmp_path: Path) -> None:
    other = Lab(tmp_path / "other")
    database = lab.home.database_url(lab.home.config())
    other.home.write_config(Config(clusters=clusters(), database=database, log_format=LogForm.JSON))
    done = ms(other, "up", "--port", "0")
    assert done.returncode != 0
    assert "{" not in done.stderr
    assert "one server at a time" in " ".join(done.stderr.split()) or "key" in done.stderr
    assert all(line["level"] for line in lines_of(other.home.log))


@pytest.mark.slow
def test_flag_says_how_to_log_until_the_server_is_started_without_it(lab: Lab) -> None:
    lab.down()
    lab.home.log.write_text("")
    assert ms(lab, "up", "--log-format", "json").returncode == 0
    assert ms(lab, "run", "--no-code", "--on", "h100", "--", "true").returncode == 0
    until(lambda: bool(lines_of(lab.home.log)), "the server to say something")
    lab.down()
    before = len(lab.home.log.read_text())
    lab.up()
    assert ms(lab, "run", "--no-code", "--on", "h100", "--", "true").returncode == 0
    assert '"level"' not in lab.home.log.read_text()[before:]
    assert ms(lab, "up", "--log-format", "xml").returncode == InvalidSpec.exit_code


def test_configuration_that_names_another_format_is_refused(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    (tmp_path / "config.yaml").write_text("log_format: xml\n")
    with pytest.raises(InvalidSpec, match="log_format"):
        lab.home.config()
