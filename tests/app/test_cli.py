"""The command line as a user runs it, against a real server."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mainspring.app.sdk import Lab

pytestmark = pytest.mark.slow


def _ms(lab: Lab, *words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    program = str(Path(sys.executable).parent / "ms")
    environment = {**os.environ, "COLUMNS": "200", "MAINSPRING_HOME": str(lab.home.path)}
    return subprocess.run(
        [program, *words], cwd=cwd or lab.home.path, env=environment, capture_output=True, text=True, timeout=60
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
    assert _json(lab, "fleet")[0]["inventory"]["simulated"] is True


def test_a_failing_program_ends_with_its_own_words_and_exit_code_one(lab: Lab) -> None:
    code = "import sys; print('the first error'); sys.exit(3)"
    done = _ms(lab, "run", "--on", "h100", "--no-code", "--wait", "--name", "bad", "--", "python", "-c", code)
    assert done.returncode == 1
    view = _json(lab, "status", "bad")
    assert view["state"] == "failed"
    assert "the first error" in view["reason"]


def test_code_travels_with_the_job_and_again_repeats_it(lab: Lab, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "main.py").write_text("print('version one')\n")
    first = _ms(lab, "run", "--on", "h100", "--name", "mine", "-f", "--", "python", "main.py", cwd=project)
    assert "version one" in first.stdout, first.stdout + first.stderr
    (project / "main.py").write_text("print('version two')\n")
    again = _ms(lab, "run", "--again", "mine", "-f", cwd=project)
    assert "version one" in again.stdout
    assert "version two" not in again.stdout


def test_the_same_key_makes_one_job(lab: Lab) -> None:
    words = ("run", "--on", "h100", "--no-code", "--key", "once", "--name", "k", "--", "true")
    ids = {json.loads(_ms(lab, "run", "--json", *words[1:]).stdout)["id"] for _ in range(2)}
    assert len(ids) == 1
    other = _ms(lab, "run", "--on", "h100", "--no-code", "--key", "once", "--name", "other", "--", "true")
    assert other.returncode == 4
    assert "once" in other.stderr


def test_an_unknown_chip_is_refused_naming_the_nearest(lab: Lab) -> None:
    done = _ms(lab, "run", "--on", "h10", "--no-code", "--", "true")
    assert done.returncode == 2
    assert "h10" in done.stderr
    assert "h100" in done.stderr


def test_an_impossible_gang_is_refused_saying_the_most_that_could_ever_fit(lab: Lab) -> None:
    done = _ms(lab, "run", "--on", "h100", "--replicas", "64", "--no-code", "--", "true")
    assert done.returncode == 2
    assert "64" in done.stderr
    assert "2" in done.stderr
    assert "alpha" in done.stderr
    assert _json(lab, "ps") == []


def test_a_spec_with_a_typo_is_refused_naming_the_field(lab: Lab, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("name: x\ncommand: 'true'\noptions: [{chip: h100, replicaz: 2}]\n")
    done = _ms(lab, "run", str(path))
    assert done.returncode == 2
    assert "replicaz" in done.stderr
    assert "replicas" in done.stderr


def test_an_unknown_job_is_not_found(lab: Lab) -> None:
    for verb in ("status", "why", "logs", "stop"):
        assert _ms(lab, verb, "nobody").returncode == 3, verb


def test_a_wrong_token_is_refused(lab: Lab) -> None:
    token = lab.home.token()
    lab.home.write_token("wrong")
    done = _ms(lab, "ps")
    lab.home.write_token(token)
    assert done.returncode == 5
    assert token not in done.stderr


def test_a_port_in_use_is_named_with_a_next_step(lab: Lab, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        done = _ms(Lab(tmp_path / "other"), "up", "--port", str(port), cwd=tmp_path)
    assert done.returncode == 4
    assert str(port) in done.stderr
    assert "ms up --port 0" in done.stderr


def test_verbs_without_a_server_say_how_to_start_one(tmp_path: Path) -> None:
    done = _ms(Lab(tmp_path / "empty"), "ps", cwd=tmp_path)
    assert done.returncode == 6
    assert "ms up" in done.stderr


def test_up_twice_is_one_server_and_down_stops_it(lab: Lab) -> None:
    assert _json(lab, "up") == _json(lab, "up")
    assert _json(lab, "down") == {"stopped": True}
    assert _json(lab, "down") == {"stopped": False}
    assert _ms(lab, "ps").returncode == 6
    lab.up()


def test_a_wrong_configuration_is_refused_naming_the_field(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "home")
    lab.home.path.mkdir()
    (lab.home.path / "config.yaml").write_text("prot: 80\n")
    done = _ms(lab, "up")
    assert done.returncode == 2
    assert "port" in done.stderr
