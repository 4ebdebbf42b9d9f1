"""The command line as a user runs it, against a real server."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from mainspring.app.base.home import Config
from mainspring.app.sdk.lab import Lab
from mainspring.domain.answers import NewToken
from mainspring.domain.errors import Conflict, InvalidInput, NotAllowed, NotFound, Unavailable
from mainspring.domain.ids import TeamName
from mainspring.domain.plan import Limit
from mainspring.domain.team import TeamRole
from mainspring.planner import Policy
from tests.app.conftest import until
from tests.app.ready_ms import ready_ms

pytestmark = pytest.mark.slow


PROGRAM = str(Path(sys.executable).parent / "ms")


def _environment(lab: Lab) -> dict[str, str]:
    return {**os.environ, "COLUMNS": "200", "MAINSPRING_HOME": str(lab.home.path)}


def _ms(
    lab: Lab, *words: str, cwd: Path | None = None, stdin: str = "", **variables: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ready_ms(), *words],
        cwd=cwd or lab.home.path,
        env=_environment(lab) | variables,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
    )


def _json(lab: Lab, *words: str) -> Any:
    done = _ms(lab, *words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_first_job_runs_and_every_verb_speaks_of_it(lab: Lab) -> None:
    words = ("--on", "h100", "--on", "v5e@0.5", "--name", "hello", "--no-code", "-f", "--", "echo", "hello there")
    done = _ms(lab, "run", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "hello there" in done.stdout
    assert "(simulated)" in _ms(lab, "ps").stdout
    assert "(simulated)" in _ms(lab, "fleet").stdout
    (job,) = _json(lab, "ps")
    assert job["state"] == "succeeded"
    why = _ms(lab, "why", "hello").stdout
    assert "beta (simulated)" in why
    assert "alpha (simulated)" in why
    assert "hello there" in _ms(lab, "logs", "hello").stdout
    assert "succeeded" in _ms(lab, "status", "hello").stdout
    assert _json(lab, "status")["jobs"] == {"succeeded": 1}
    assert "running -> succeeded: every rank ended well" in _ms(lab, "events", "--limit", "1").stdout
    told = [json.loads(line) for line in _ms(lab, "events", "hello", "-f", "--json").stdout.splitlines()]
    assert (told[0]["kind"], told[-1]["detail"]["after"]) == ("job_submitted", "succeeded")
    assert _ms(lab, "ps", "--owner", "nobody").stdout.strip() == "No jobs of those."
    assert "--after job-" in _ms(lab, "ps", "--limit", "1").stderr
    assert _json(lab, "ps", "--after", "hello") == []
    assert _json(lab, "fleet")[0]["inventory"]["simulated"] is True
    ran = lab.status("hello").attempts[0]
    then = _json(lab, "fleet", "--at", datetime.fromtimestamp(ran.granted_s + 0.005, UTC).isoformat())
    assert [(one["name"], one["cluster"]) for one in then["attempts"]] == [("hello", ran.cluster)]
    assert "0 on nodes, 0 waiting" in _ms(lab, "fleet", "--at", "0s").stdout
    assert "the first of which anything is known" in _ms(lab, "fleet", "--at", "7d").stderr


def test_a_failing_program_ends_with_its_own_words_and_exit_code_one(shared_lab: Lab) -> None:
    code = "import sys; print('the first error'); sys.exit(3)"
    done = _ms(shared_lab, "run", "--on", "h100", "--no-code", "--wait", "--name", "bad", "--", "python", "-c", code)
    assert done.returncode == 1
    view = _json(shared_lab, "status", "bad")
    assert view["state"] == "failed"
    assert "the first error" in view["reason"]


def test_code_travels_with_the_job_and_again_repeats_it(shared_lab: Lab, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "main.py").write_text("print('version one')\n")
    first = _ms(shared_lab, "run", "--on", "h100", "--name", "mine", "-f", "--", "python", "main.py", cwd=project)
    assert "version one" in first.stdout, first.stdout + first.stderr
    (project / "main.py").write_text("print('version two')\n")
    again = _ms(shared_lab, "run", "--again", "mine", "-f", cwd=project)
    assert "version one" in again.stdout
    assert "version two" not in again.stdout


def test_the_same_key_makes_one_job(shared_lab: Lab) -> None:
    words = ("run", "--on", "h100", "--no-code", "--key", "once", "--name", "k", "--", "true")
    ids = {json.loads(_ms(shared_lab, "run", "--json", *words[1:]).stdout)["id"] for _ in range(2)}
    assert len(ids) == 1
    other = _ms(shared_lab, "run", "--on", "h100", "--no-code", "--key", "once", "--name", "other", "--", "true")
    assert other.returncode == 4
    assert "once" in other.stderr


def test_an_unknown_chip_is_refused_naming_the_nearest(shared_lab: Lab) -> None:
    done = _ms(shared_lab, "run", "--on", "h10", "--no-code", "--", "true")
    assert done.returncode == 2
    assert "h10" in done.stderr
    assert "h100" in done.stderr


def test_an_impossible_gang_is_refused_saying_the_most_that_could_ever_fit(shared_lab: Lab) -> None:
    before = _json(shared_lab, "ps")
    done = _ms(shared_lab, "run", "--on", "h100", "--replicas", "64", "--no-code", "--", "true")
    assert done.returncode == 2
    assert "64" in done.stderr
    assert "2" in done.stderr
    assert "alpha" in done.stderr
    assert [view["id"] for view in _json(shared_lab, "ps")] == [view["id"] for view in before]


def test_a_need_of_memory_that_no_chip_has_is_refused_and_one_that_some_have_is_met(shared_lab: Lab) -> None:
    words = ("run", "--no-code", "--on", "h100", "--on", "v5e")
    done = _ms(shared_lab, *words, "--chip-memory", "90", "--", "true")
    assert done.returncode == 2
    assert "alpha" in done.stderr
    assert "its h100 have 80 GiB a chip at most, and 90 GiB are needed" in " ".join(done.stderr.split())
    done = _ms(shared_lab, *words, "--chip-memory", "60", "--wait", "--json", "--", "true")
    assert done.returncode == 0
    view = json.loads(done.stdout)
    assert [option["chip_memory_gib"] for option in view["spec"]["roles"][0]["options"]] == [60.0, 60.0]
    assert [attempt["cluster"] for attempt in view["attempts"]] == ["alpha"], "v5e have 16 GiB, and are cheaper"


def test_a_spec_with_a_typo_is_refused_naming_the_field(shared_lab: Lab, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("name: x\ncommand: 'true'\noptions: [{chip: h100, replicaz: 2}]\n")
    done = _ms(shared_lab, "run", str(path))
    assert done.returncode == 2
    assert "replicaz" in done.stderr
    assert "replicas" in done.stderr


def test_an_unknown_job_is_not_found(shared_lab: Lab) -> None:
    for verb in ("status", "why", "logs", "stop"):
        assert _ms(shared_lab, verb, "nobody").returncode == 3, verb


def test_a_wrong_token_is_refused(shared_lab: Lab) -> None:
    token = shared_lab.home.token()
    shared_lab.home.write_token("wrong")
    done = _ms(shared_lab, "ps")
    shared_lab.home.write_token(token)
    assert done.returncode == 5
    assert token not in done.stderr


def test_verbs_without_a_server_say_how_to_start_one(tmp_path: Path) -> None:
    done = _ms(Lab(tmp_path / "empty"), "ps", cwd=tmp_path)
    assert done.returncode == 6
    assert "ms up" in done.stderr


def test_down_ends_no_server_of_another_home_that_got_the_old_ones_number(lab: Lab, tmp_path: Path) -> None:
    record, other = lab.home.server(), Lab(tmp_path / "other")
    assert record is not None
    other.home.write_server(record)
    assert _json(other, "down") == {"stopped": False}
    assert lab.up() == record
    linked = tmp_path / "linked"
    linked.symlink_to(lab.home.path)
    assert _json(Lab(linked), "down") == {"stopped": True}
    lab.up()


def test_second_server_on_one_file_names_the_owner_and_ends_at_once(shared_lab: Lab, tmp_path: Path) -> None:
    other = Lab(tmp_path / "other")
    other.home.write_config(Config(database=shared_lab.home.database_url(shared_lab.home.config()), clusters=()))
    done = _ms(other, "up", "--port", "0")
    assert done.returncode == Unavailable.exit_code
    record = shared_lab.home.server()
    assert record is not None
    assert f"process {record.pid} on {socket.gethostname()}, which has it since 20" in " ".join(done.stderr.split())
    assert "one server at a time" in other.home.log.read_text()
    assert "is up" not in done.stdout
    assert "ok" in _ms(shared_lab, "status").stdout


def test_store_is_shown_and_goes_back_only_without_a_server(shared_lab: Lab, tmp_path: Path) -> None:
    seen = _json(shared_lab, "store", "show")
    assert seen["kind"] == "sqlite"
    assert seen["revision"] == seen["newest"]
    done = _ms(shared_lab, "store", "down", "0010")
    assert done.returncode == Conflict.exit_code
    assert f"on {socket.gethostname()}, which has it since" in done.stderr
    assert _ms(Lab(tmp_path / "none"), "store", "show", cwd=tmp_path).returncode == NotFound.exit_code


def test_a_home_that_is_logged_in_elsewhere_works_there_until_it_is_logged_out(shared_lab: Lab, tmp_path: Path) -> None:
    record, other = shared_lab.home.server(), Lab(tmp_path / "other")
    other.home.path.mkdir()
    assert record is not None
    made = shared_lab.new_token(NewToken(holder="eve", role=TeamRole.VIEWER))
    done = _ms(other, "login", record.url, stdin="ms_guess\n")
    assert (done.returncode, other.home.login()) == (NotAllowed.exit_code, None)
    assert _ms(other, "login", record.url, stdin="").returncode == InvalidInput.exit_code
    assert _ms(other, "login", f"{record.url},lab:7077", stdin="").returncode == InvalidInput.exit_code
    done = _ms(other, "login", f"http://127.0.0.1:1,{record.url}/", stdin=made.secret + "\n")
    assert "knows you as eve, viewer of team lab" in done.stdout, done.stderr
    assert made.secret not in done.stdout
    assert (other.home.path / "login.json").stat().st_mode & 0o777 == 0o600
    assert _ms(other, "ps").returncode == _ms(other, "ps", MAINSPRING_URL=record.url).returncode == 0
    assert _ms(other, "cluster", "add", "local", "pod", "--chip", "h100").returncode == InvalidInput.exit_code
    assert _ms(other, "logout").returncode == 0
    assert _ms(other, "ps").returncode == Unavailable.exit_code


def test_a_choice_that_is_the_default_may_be_named(shared_lab: Lab) -> None:
    done = _ms(shared_lab, "token", "new", "ada", "--role", TeamRole.MEMBER.value)
    assert (done.returncode, done.stdout[:3]) == (0, "ms_"), done.stderr


def test_no_server_is_shown_a_token_that_was_meant_for_another(shared_lab: Lab, tmp_path: Path) -> None:
    seen: list[str] = []

    class Nosy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers.get("Authorization", ""))
            self.send_response(401)
            self.end_headers()

    with HTTPServer(("127.0.0.1", 0), Nosy) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        done = _ms(shared_lab, "ps", MAINSPRING_URL=f"http://127.0.0.1:{server.server_port}")
        server.shutdown()
    assert done.returncode != 0
    assert seen == [""]


def test_a_wrong_configuration_is_refused_naming_the_field(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "home")
    lab.home.path.mkdir()
    (lab.home.path / "config.yaml").write_text("prot: 80\n")
    done = _ms(lab, "up")
    assert done.returncode == 2
    assert "port" in done.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("port: 99999\n", "0 to 65535"),
        ("port: many\n", "whole number"),
        ("clusters: [&a {name: a, chip: x, chips_per_node: 1, nodes: 1, dollars_per_chip_hour: 1}, *a]\n", "differ"),
        ("objects: ftp://nowhere\n", "s3"),
        ("\x01", "config.yaml"),
    ],
)
def test_a_configuration_out_of_range_is_refused_before_a_server_starts(tmp_path: Path, text: str, words: str) -> None:
    lab = Lab(tmp_path / "home")
    lab.home.path.mkdir()
    (lab.home.path / "config.yaml").write_text(text)
    done = _ms(lab, "up")
    assert done.returncode == 2
    assert words in done.stderr
    assert not lab.home.log.exists()


def test_flags_beside_a_yaml_spec_apply_or_are_refused(shared_lab: Lab, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("name: from-yaml\ncommand: 'true'\noptions: [{chip: h100}]\n")
    for flag in (("--replicas", "4"), ("--on", "v5e"), ("--tier", "critical"), ("--env", "A=1"), ("--name", "x")):
        done = _ms(shared_lab, "run", str(path), *flag)
        assert done.returncode == 2, flag
        assert flag[0] in done.stderr
    assert "from-yaml" not in {view["spec"]["name"] for view in _json(shared_lab, "ps")}
    assert _ms(shared_lab, "run", str(path), "--wait", "--no-code").returncode == 0


def test_a_program_whose_last_words_look_like_markup_can_be_looked_at(shared_lab: Lab) -> None:
    code = "import sys; print('[/red] boom'); sys.exit(3)"
    done = _ms(shared_lab, "run", "--on", "h100", "--no-code", "--wait", "--name", "marked", "--", "python", "-c", code)
    assert done.returncode == 1
    for words in ((), ("ps",), ("status", "marked")):
        shown = _ms(shared_lab, *words).stdout if words else done.stdout
        assert "[/red] boom" in " ".join(shown.split())  # A table may wrap it.


def test_wrong_usage_with_json_is_an_error_in_json(tmp_path: Path) -> None:
    done = _ms(Lab(tmp_path), "run", "--replicas", "many", "--json", "--", "true", cwd=tmp_path)
    assert done.returncode == 2
    assert "--replicas" in json.loads(done.stderr)["got"]
    done = _ms(Lab(tmp_path), "run", "--on", "h100:x", "--", "true", "--json", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("Could not"), "what follows -- belongs to the program"


def test_a_folder_that_is_gone_is_told_without_a_trace(shared_lab: Lab, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script = f'cd {gone} && rmdir {gone} && {PROGRAM} run --on h100 -- "true"'
    done = subprocess.run(
        ["sh", "-c", script], env=_environment(shared_lab), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 3
    assert "the current folder" in done.stderr


def test_an_interrupt_while_following_leaves_the_job_and_no_trace(lab: Lab) -> None:
    words = [PROGRAM, "run", "--on", "h100", "--no-code", "--name", "long", "-f", "--", "sh", "-c", "echo on; sleep 60"]
    follower = subprocess.Popen(words, env=_environment(lab), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert follower.stdout is not None
    assert any(line == "on\n" for line in follower.stdout)
    follower.send_signal(signal.SIGINT)
    _, errors = follower.communicate(timeout=120)
    assert follower.returncode == 130
    assert "ms stop" in errors
    assert "Traceback" not in errors
    assert lab.status("long").state.value == "running"


def test_a_wait_outlives_a_server_that_is_started_anew(lab: Lab, tmp_path: Path) -> None:
    gate = tmp_path / "go"
    script = f"until [ -e {gate} ]; do sleep 0.05; done"
    words = [PROGRAM, "run", "--on", "h100", "--no-code", "--name", "w", "--wait", "--", "sh", "-c", script]
    waiter = subprocess.Popen(words, env=_environment(lab))
    until(lambda: any(view.state.value == "running" for view in lab.ps()), "the job to run")
    lab.down()
    lab.up()
    gate.touch()
    assert waiter.wait(timeout=60) == 0


def test_an_interrupted_demo_leaves_no_process(tmp_path: Path) -> None:
    home = tmp_path / "home"
    words = [PROGRAM, "--home", str(home), "demo", "--episodes", "2", "--starts", "1"]
    demo = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    assert demo.stderr is not None
    until(lambda: sum("mainspring\0agent" in words for words in _processes(home)) == 2, "two agents", wait_s=40)
    demo.send_signal(signal.SIGINT)
    _, errors = demo.communicate(timeout=40)
    assert demo.returncode == 130
    assert "Traceback" not in errors
    until(lambda: _processes(home) == [], "the last process to end", wait_s=5)


def _processes(home: Path) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (process / "cmdline").read_bytes().decode(errors="replace")
            works_there = (process / "cwd").readlink().is_relative_to(home)  # An agent that was ready names no order.
            found += [words] if works_there or str(home) in words else []
    return found


def test_a_team_over_its_quota_waits_and_says_so_and_an_unknown_team_is_refused(lab: Lab) -> None:
    words = ("run", "--on", "h100", "--no-code", "--team", "vision")
    unknown = _ms(lab, *words, "--", "true")
    assert unknown.returncode == 3
    assert "ms team set vision" in unknown.stderr
    assert _json(lab, "team", "set", "vision", "--chips-max", "1")["parent"] == "lab"
    assert "vision" in _ms(lab, "team", "ls").stdout
    assert _ms(lab, *words, "--name", "first", "--", "sleep", "30").returncode == 0
    until(lambda: lab.status("first").state.value == "running", "the first job to run")
    assert _ms(lab, *words, "--name", "second", "--", "true").returncode == 0
    until(lambda: lab.why("second").limit is not None, "a plan to say why the second waits")
    assert lab.why("second").limit is Limit.QUOTA
    until(lambda: "vision" in lab.status("second").reason, "the plan's words to be written")
    lab.stop("first")
    assert lab.wait("second", timeout_s=60).state.value == "succeeded"


def test_teams_are_changed_field_by_field_and_listed_with_what_they_hold(lab: Lab) -> None:
    words = ("--guarantee", "h100=1", "--weight", "2", "--order", "attained", "--dollars-max", "500")
    assert _ms(lab, "team", "set", "vision", *words, "--budget-days", "7").returncode == 0
    team = _json(lab, "team", "set", "vision", "--chips-max", "3")
    assert (team["guarantee"], team["weight"], team["order"]) == ({"h100": 1.0}, 2.0, "attained")
    more = _json(lab, "team", "set", "vision", "--guarantee", "v5e=2")
    assert more["guarantee"] == {"h100": 1.0, "v5e": 2.0}
    emptied = _json(lab, "team", "set", "vision", "--guarantee", "none", "--chips-max", "none")
    assert (emptied["guarantee"], emptied["chips_max"]) == ({}, None)
    assert _ms(lab, "team", "set", "vision", "--under", "vision").returncode == 2
    assert _ms(lab, "team", "set", "vision", "--guarantee", "h100").returncode == 2
    assert _ms(lab, "team", "set", "vision", "--under", "nobody").returncode == 2
    assert (
        _ms(lab, "run", "--on", "h100", "--no-code", "--team", "vision", "--name", "x", "--", "sleep", "30").returncode
        == 0
    )
    until(lambda: lab.status("x").state.value == "running", "the job to run")

    def held() -> bool:
        use = {view.team.name: view.use for view in lab.teams()}[TeamName("vision")]
        return use is not None and use.chips == {"h100": 1.0}

    until(held, "a plan to see what the team holds")
    assert "1 h100" in _ms(lab, "team", "ls").stdout


def test_an_array_runs_each_job_with_its_place_and_is_one_line(lab: Lab) -> None:
    words = ("--on", "h100", "--on", "v5e", "--no-code", "--name", "sweep", "--count", "3")
    code = "import os; print(os.environ['MAINSPRING_ARRAY_INDEX'], 'of', os.environ['MAINSPRING_ARRAY_COUNT'])"
    done = _ms(lab, "run", *words, "--", "python", "-c", code)
    assert done.returncode == 0, done.stderr
    assert "3 jobs" in done.stdout
    last = _ms(lab, "run", "--on", "h100", "--no-code", "--name", "last", "--after", "sweep-2", "--wait", "--", "true")
    assert last.returncode == 0, last.stdout
    until(lambda: _json(lab, "status")["jobs"] == {"succeeded": 4}, "every job to end")
    assert "2 of 3" in _ms(lab, "logs", "sweep-2").stdout
    listed = _ms(lab, "ps").stdout
    assert "sweep-[0..2]" in listed
    assert "3 succeeded" in listed
    assert [view["spec"]["name"] for view in _json(lab, "ps", "--array", "sweep-0")] == [
        "sweep-0",
        "sweep-1",
        "sweep-2",
    ]
    assert _ms(lab, "run", *words, "--wait", "--", "true").returncode == 2
    assert "3 succeeded" in _ms(lab, "stop", "sweep-0", "--array").stdout


def test_a_waiting_job_says_until_when_and_what_would_start_it_and_what_if_tells_of_it(
    lab: Lab, tmp_path: Path
) -> None:
    words = ("run", "--on", "h100", "--no-code", "--replicas", "2", "--duration", "2h")
    assert _ms(lab, *words, "--name", "first", "--", "sleep", "60").returncode == 0
    until(lambda: lab.status("first").state.value == "running", "the first job to run")
    assert _ms(lab, *words, "--name", "second", "--", "true").returncode == 0
    until(lambda: lab.why("second").limit is not None, "a plan to say why the second waits")
    why = _ms(lab, "why", "second").stdout
    assert "starts" in why
    assert "now, if" in why
    assert "v5e" in why
    assert "second" not in _ms(lab, "plan").stdout.replace("second ", "")
    assert lab.status("second").id in _ms(lab, "plan").stdout
    grown = _ms(lab, "plan", "--if", "add-nodes=alpha:2")
    assert "would start now" in grown.stdout, grown.stderr
    assert lab.status("second").id in grown.stdout
    spec = tmp_path / "tried.yaml"
    spec.write_text("name: tried\ncommand: 'true'\noptions: [{chip: v5e}]\n")
    tried = _json(lab, "plan", "--if", f"submit={spec}", "--if", "quota=lab:chips=2")
    assert tried["start"] == []
    assert _json(lab, "plan", "--if", "remove-cluster=alpha", "--if", f"submit={spec}")["stranded"]
    assert _ms(lab, "plan", "--if", "remove-cluster=alhpa").returncode == 3
    assert _ms(lab, "plan", "--if", "add-nodes=alpha").returncode == 2
    assert _ms(lab, "plan", "--if", "sell=alpha").returncode == 2
    assert lab.status("second").state.value == "queued"


def test_a_policy_is_read_strictly_kept_and_not_taken_by_a_running_server(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "home")
    policy = tmp_path / "policy.yaml"
    policy.write_text("premept: false\n")
    done = _ms(lab, "up", "--port", "0", "--policy", str(policy), cwd=tmp_path)
    assert done.returncode == 2
    assert "preempt" in done.stderr
    policy.write_text("preempt: false\n")
    try:
        assert _ms(lab, "up", "--port", "0", "--policy", str(policy), cwd=tmp_path).returncode == 0
        assert _ms(lab, "up", "--policy", str(policy), cwd=tmp_path).returncode == 0
        policy.write_text("preempt: true\n")
        again = _ms(lab, "up", "--policy", str(policy), cwd=tmp_path)
        assert again.returncode == 4
        assert "ms down" in again.stderr
        assert lab.home.policy() == Policy(preempt=False)
    finally:
        lab.down()


def test_a_verb_that_needs_an_extra_says_what_to_install(tmp_path: Path) -> None:
    code = "import sys; sys.modules['pyarrow'] = None; from mainspring.app.cli.main import main; main()"
    words = [sys.executable, "-c", code, "--home", str(tmp_path), "data", "ls"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 6
    assert "no package 'pyarrow'" in done.stderr
    assert "mainspring[all]" in done.stderr
