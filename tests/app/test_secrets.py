"""Secrets of teams, end to end: a server, its agents and ranks as processes; a value is in no file of the home."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from mainspring.app.base.client import Client
from mainspring.app.sdk.lab import Lab, job
from mainspring.domain.answers import NewSecret, NewToken
from mainspring.domain.errors import NotAllowed, NotFound, Unavailable
from mainspring.domain.ids import TeamName
from mainspring.domain.job import JobSpec
from mainspring.domain.life import JobState
from mainspring.domain.team import TeamRole
from tests.app.conftest import until
from tests.app.ready_ms import ready_ms

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

VALUE = "hf_" + hashlib.sha256(b"a value that no file may hold").hexdigest()
FILE = "user: robot\npassword: " + hashlib.sha256(b"nor this one").hexdigest() + "\n"
TALE = """
import hashlib, os, sys
import mainspring as ms

session = ms.join()
value, file = os.environ["HF_TOKEN"], open(os.environ["REGISTRY_FILE"]).read()
before = [line.split()[2] for line in open(sys.argv[1])] if os.path.exists(sys.argv[1]) else []
with open(sys.argv[1], "a") as note:
    note.write(" ".join([hashlib.sha256(each.encode()).hexdigest() for each in (value, file)]))
    note.write(f" {os.environ['REGISTRY_FILE']} {'REGISTRY' in os.environ} {'OTHER' in os.environ} ")
    note.write(f"{len(before)} {sum(map(os.path.exists, before))}\\n")
session.result({"token": value})
sys.stdout.write(f"half {value[:9]}")
sys.stdout.flush()
sys.stdout.write(f"{value[9:]} whole\\n{file}")
raise RuntimeError(f"401 for {value}")
"""
SLEEPER = """
import os, sys, threading

with open(sys.argv[1], "w") as note:
    note.write(f"{os.environ['REGISTRY_FILE']} {os.getppid()}\\n")
threading.Event().wait()
"""


@pytest.fixture
def teams(lab: Lab) -> Lab:
    lab.set_team("arms")
    lab.set_team("grasp", parent="arms")
    lab.set_team("vision")
    return lab


def ms(lab: Lab, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "200", "MAINSPRING_HOME": str(lab.home.path)}
    command = [ready_ms(), *words]
    return subprocess.run(command, env=environment, input=stdin, capture_output=True, text=True, timeout=60)


def telling(program: str, *words: str, team: str = "grasp", name: str = "tell") -> JobSpec:
    command = [sys.executable, "-c", program, *words]
    return job(name, command, on=["h100"], team=team, secrets=["HF_TOKEN"], secret_files=["REGISTRY"])


def keep(lab: Lab) -> None:
    lab.set_secret("arms", "HF_TOKEN", NewSecret(value=VALUE))
    lab.set_secret("grasp", "REGISTRY", NewSecret(value=FILE))


def holding(folder: Path, *values: str) -> list[Path]:
    """Returns the files that hold a value, as it is or in base64."""
    spelt = [said for value in values for said in (value.encode(), base64.b64encode(value.encode()))]
    found = []
    for path in folder.rglob("*"):
        with suppress(OSError):
            if path.is_file() and any(said in path.read_bytes() for said in spelt):
                found.append(path)
    return found


def as_somebody(lab: Lab, team: str, role: TeamRole) -> Client:
    made = lab.new_token(NewToken(holder="ada", team=TeamName(team), role=role))
    record = lab.home.server()
    assert record is not None
    return Client(record.url, made.secret)


def test_secrets_reach_ranks_as_variable_and_file_and_are_told_to_nobody_else(teams: Lab, tmp_path: Path) -> None:
    lab, note = teams, tmp_path / "note"
    kept = ms(lab, "secret", "set", "HF_TOKEN", "--team", "arms", stdin=f"{VALUE}\n")
    assert kept.returncode == 0, kept.stderr
    assert ms(lab, "secret", "set", "REGISTRY", "--team", "grasp", stdin=FILE).returncode == 0
    lab.set_secret("arms", "OTHER", NewSecret(value="not asked for"))
    view = lab.wait(lab.run(telling(TALE, str(note))).id)
    lives = [line.split() for line in note.read_text().splitlines()]
    hashes = [hashlib.sha256(each.encode()).hexdigest() for each in (VALUE, FILE)]
    assert len(lives) > 1
    for at, (value, file, path, *others, before, there) in enumerate(lives):
        assert [value, file, *others] == [*hashes, "False", "False"]
        assert (before, there) == (str(at), "0")  # Files of the process before are gone when the next one begins.
        assert not Path(path).parent.exists()
    assert view.state is JobState.FAILED
    assert "401 for [secret HF_TOKEN]" in view.reason
    assert view.result == {"token": "[secret HF_TOKEN]"}
    assert "half [secret HF_TOKEN] whole" in ms(lab, "logs", "tell").stdout
    shown = [ms(lab, *words) for words in (("status", "tell"), ("status", "tell", "--json"), ("why", "tell"))]
    shown += [ms(lab, *words) for words in (("ps", "--json"), ("secret", "ls", "--json"), ("audit", "--json"))]
    assert [done.returncode for done in shown] == [0] * len(shown)
    with lab.client() as client:
        told = "".join(str(event) for event in client.all_events()) + "".join(done.stdout for done in shown)
    password = FILE.split()[-1]
    assert not [each for each in (VALUE, password) if each in told]
    assert "rank_exited" in told
    assert holding(lab.home.path, VALUE, password) == []
    listed = json.loads(ms(lab, "secret", "ls", "--team", "grasp", "--json").stdout)
    assert [(one["team"], one["name"]) for one in listed] == [
        ("arms", "HF_TOKEN"),
        ("arms", "OTHER"),
        ("grasp", "REGISTRY"),
    ]


@pytest.mark.parametrize("alone", [True, False])
def test_files_of_secrets_do_not_outlive_an_agent_that_is_killed(teams: Lab, tmp_path: Path, alone: bool) -> None:
    keep(teams)
    note = tmp_path / "note"
    view = teams.run(telling(SLEEPER, str(note)))
    until(lambda: note.exists() and note.read_text().endswith("\n"), "the rank to tell where its file is")
    path, agent = note.read_text().split()
    assert Path(path).read_text() == FILE
    children = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
    doomed = [int(pid) for pid in (agent, *([] if alone else children))]
    for number in (signal.SIGSTOP, signal.SIGKILL):  # Stopped first, so that none sees another one end.
        for pid in doomed:
            os.kill(pid, number)
    until(lambda: not Path(path).parent.parent.exists(), "the guard, or else the engine, to remove the file")
    teams.stop(view.id)


def test_who_may_not_is_refused_over_the_api(teams: Lab) -> None:
    teams.down()
    teams.up(shared_account=True)  # People of two teams.
    keep(teams)
    spec = telling("pass", team="vision")
    with pytest.raises(NotFound, match="HF_TOKEN of team vision"):
        teams.run(spec)
    with as_somebody(teams, "arms", TeamRole.VIEWER) as viewer, pytest.raises(NotAllowed):
        viewer.set_secret("arms", "HF_TOKEN", NewSecret(value="hf_another"))
    with as_somebody(teams, "arms", TeamRole.MEMBER) as member:
        with pytest.raises(NotAllowed):
            member.remove_secret("arms", "HF_TOKEN")
        assert [one.name for one in member.secrets()] == ["HF_TOKEN", "REGISTRY"]
    with as_somebody(teams, "vision", TeamRole.ADMIN) as stranger:
        assert stranger.secrets() == ()
        with pytest.raises(NotAllowed):
            stranger.set_secret("arms", "HF_TOKEN", NewSecret(value="hf_another"))
    refused = ms(teams, "secret", "set", "HF_TOKEN", "--team", "arms", stdin="tiny")
    assert refused.returncode == 2
    assert "tiny" not in refused.stderr + refused.stdout


def test_rotation_keeps_jobs_working_and_a_wrong_file_of_keys_stops_those_with_secrets_alone(teams: Lab) -> None:
    lab = teams
    keep(lab)
    old = lab.home.secret_keys.read_text()
    done = ms(lab, "secret", "rotate", "--json")
    assert json.loads(done.stdout) == {"count": 2}
    fresh = lab.home.secret_keys.read_text()
    lab.down()
    lab.up()
    program = "import os; assert len(os.environ['HF_TOKEN']) == 67; print('well')"
    assert lab.wait(lab.run(telling(program)).id).state is JobState.SUCCEEDED
    lab.home.secret_keys.write_text(old)
    with pytest.raises(Unavailable, match=r"HF_TOKEN of team arms.*secrets\.key"):
        lab.run(telling(program))
    plain = job("plain", [sys.executable, "-c", "print('well')"], on=["h100"])
    assert lab.wait(lab.run(plain).id).state is JobState.SUCCEEDED
    lab.home.secret_keys.write_text(fresh)
    assert lab.wait(lab.run(telling(program)).id).state is JobState.SUCCEEDED


def test_run_names_secrets_and_warns_of_variables_that_look_like_them(teams: Lab) -> None:
    keep(teams)
    words = ("run", "--name", "told", "--team", "grasp", "--on", "h100", "--no-code", "--wait")
    given = ("--secret", "HF_TOKEN", "--secret-file", "REGISTRY", "--env", "WANDB_API_KEY=x", "--env", "DEPTH=1")
    done = ms(teams, *words, *given, "--", "sh", "-c", 'test "${#HF_TOKEN}" = 67 && test -r "$REGISTRY_FILE"')
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ms secret set WANDB_API_KEY --team grasp" in done.stderr
    assert "DEPTH" not in done.stderr
    again = ms(teams, "run", "--again", "told", "--wait")
    assert again.returncode == 0, again.stdout + again.stderr
