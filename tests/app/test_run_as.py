"""Ranks that run as their team's user: what they do then, and what they cannot reach. Real processes; needs root."""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from math import inf
from pathlib import Path

import pytest

from mainspring.app.base.home import Config
from mainspring.app.render.tables import ACCOUNT
from mainspring.app.sdk.lab import Lab, job
from mainspring.domain.answers import JobView, NewSecret, NewToken
from mainspring.domain.errors import Conflict, InvalidSpec, NotAllowed, Unavailable
from mainspring.domain.ids import TeamName
from mainspring.domain.job import JobSpec
from mainspring.domain.life import JobState, ended
from mainspring.domain.wire.events.leads import CheckpointDurableEvent, GenerationResumedEvent
from tests.app.conftest import clusters, halted, kill, kinds, until
from tests.users import LIBRARIES, RULES, SERVER, USERS, python_of_everybody, sudo_rule

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"
SECRET = "the password of team arms"
COUNTER = (Path(__file__).parent / "counter.py").read_text()
VICTIM = """
import json, os, subprocess, sys, threading
from pathlib import Path
import numpy as np
import mainspring as ms
from mainspring.session import Block

session = ms.join()
session.report(1, {})
session.snapshot(1, [Block.whole("number", np.ones(1000))], {})
Path("mine").write_text("work of team arms")
stray = subprocess.Popen(["sleep", "1000"], start_new_session=True)
told = {
    "pid": os.getpid(), "stray": stray.pid, "starter": os.getppid(),
    "work": os.getcwd(), "secret": os.environ["REGISTRY_FILE"],
    "socket": os.environ["MAINSPRING_SOCKET"], "arena": session._arena._path,
    "is": [os.getresuid(), os.getresgid(), os.getgroups()],
    "home": [os.environ[name] for name in ("HOME", "USER", "LOGNAME")],
    "reads": Path(os.environ["REGISTRY_FILE"]).read_text(),
}
(Path(sys.argv[1]) / "told.part").write_text(json.dumps(told))
(Path(sys.argv[1]) / "told.part").rename(Path(sys.argv[1]) / "told")
while not (Path(sys.argv[1]) / "go").exists():
    threading.Event().wait(0.02)
session.result({"still": Path("mine").read_text() + Path(os.environ["REGISTRY_FILE"]).read_text()})
"""
# Each line of its input is something to try; what came of it goes to its output.
SPY = """
import ctypes, glob, json, os, signal, socket, sys
from pathlib import Path

def read(path): return open(path, "rb").read(10)
def look(path): return os.listdir(path)
def write(path): return open(path, "ab").write(b"x")
def make(path): return os.mkdir(path)
def remove(path): return os.unlink(path)
def end(pid): return os.kill(int(pid), signal.SIGKILL)
def trace(pid):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(16, int(pid), None, None):
        raise OSError(ctypes.get_errno(), "ptrace")
def call(path):
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(path)
def found(pattern):
    if not glob.glob(pattern):
        raise FileNotFoundError(pattern)

came = {}
for line in Path(sys.argv[1]).read_text().splitlines():
    what, on = line.split(" ", 1)
    try:
        globals()[what](on)
        came[line] = "done"
    except OSError as error:
        came[line] = type(error).__name__
print(json.dumps({"uid": os.getuid(), "came": came}))
"""


@pytest.fixture(scope="module")
def python() -> str:
    return python_of_everybody()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Gives a folder that everybody may go through and write in."""
    with tempfile.TemporaryDirectory(prefix="run-as-", dir="/tmp") as name:
        os.chmod(name, 0o1777)
        yield Path(name)


@pytest.fixture(params=["root", "sudo"])
def lab(request: pytest.FixtureRequest, python: str) -> Iterator[Lab]:
    """Gives a server whose jobs run as other users: it is root, or an ordinary user whom a rule of sudo lets do so."""
    with ExitStack() as closing:
        closing.enter_context(sudo_rule()) if request.param == "sudo" else None
        root = Path(closing.enter_context(tempfile.TemporaryDirectory(prefix="lab-", dir="/tmp")))
        lab = Lab(root / "home")
        lab.home.write_config(Config(clusters=clusters(), run_as=USERS, run_folder=f"{root}/runs"))
        user = SERVER if request.param == "sudo" else "root"
        for path in (root, *root.rglob("*")):
            os.chown(path, pwd.getpwnam(user).pw_uid, -1)
        root.chmod(0o755)
        ms(lab, "up", "--port", "0", user=user)
        try:
            for team in (*USERS, "strays"):
                lab.set_team(team)
            lab.set_team("grasp", parent="arms")
            yield lab
        finally:
            for view in lab.ps():
                if not ended(view.state):
                    lab.stop(view.id)
            until(lambda: all(ended(view.state) for view in lab.ps()), "jobs to end", wait_s=40)
            lab.down()


def _runs(lab: Lab) -> Path:
    return lab.home.run_folder(lab.home.config())


def _job(python: str, program: str, *words: str, team: str, **fields: object) -> JobSpec:
    command = [python, "-c", program, *words]
    return job("job", command, on=["h100"], team=team, environment={"PYTHONPATH": LIBRARIES}, **fields)  # type: ignore[arg-type]


def _well(lab: Lab, view: JobView) -> JobView:
    over = lab.wait(view.id, timeout_s=90)
    assert over.state is JobState.SUCCEEDED, (over.reason, b"".join(lab.logs(view.id)).decode())
    return over


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def agent_of(starter: int) -> int:
    """Returns the agent above a starter: its parent, or that of its sudo."""
    pid = starter
    while "agent" not in Path(f"/proc/{pid}/cmdline").read_text().split("\0"):
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_job_of_another_user_reaches_nothing_of_the_server_or_of_other_teams(
    lab: Lab, python: str, open_folder: Path
) -> None:
    lab.set_secret("arms", "REGISTRY", NewSecret(value=SECRET))
    gate = open_folder / "gate"
    gate.mkdir()
    gate.chmod(0o777)
    victim = lab.run(_job(python, VICTIM, str(gate), team="grasp", secret_files=["REGISTRY"]))
    until((gate / "told").exists, "the job of the one team to be under way")
    told = json.loads((gate / "told").read_text())
    games, server = pwd.getpwnam("games"), lab.home.server()
    assert server is not None
    assert told["is"] == [[games.pw_uid] * 3, [games.pw_gid] * 3, sorted(os.getgrouplist("games", games.pw_gid))]
    assert told["home"] == [games.pw_dir, "games", "games"]
    assert told["reads"] == SECRET

    home, runs = lab.home.path, _runs(lab)
    (order,) = home.glob("engines/*/*/node-0/order.json")
    files = [home / name for name in ("token", "key", "secrets.key", "state.db", "config.yaml", "server.log")]
    assert all(file.exists() for file in files)
    mine = [Path(told["work"], "mine"), Path(told["secret"])]
    tries = [
        f"{what} {path}" for path in (*files, order, order.parent / "agent.log", *mine) for what in ("read", "write")
    ]
    tries += [
        f"look {path}" for path in (home, runs, told["work"], Path(told["secret"]).parent, Path(told["socket"]).parent)
    ]
    tries += [f"remove {path}" for path in (told["socket"], *mine, home / "token")]
    tries += [f"make {path}" for path in (home / "x", Path(told["socket"]).parent / "x", Path(told["work"], "x"))]
    tries += [
        f"call {told['socket']}",
        f"call {told['socket']}.files",
        f"read {told['arena']}",
        f"write {told['arena']}",
    ]
    tries += [f"found {runs}/*"]
    agent = agent_of(told["starter"])
    guards = _children(agent)
    assert len(guards) > 1
    for pid in (server.pid, agent, told["starter"], told["pid"], *guards):
        tries += [f"read /proc/{pid}/{name}" for name in ("environ", "mem", "maps")]
        tries += [f"look /proc/{pid}/{name}" for name in ("fd", "cwd")]
        tries += [f"end {pid}", f"trace {pid}"]
    (open_folder / "tries").write_text("\n".join(tries))
    spy = lab.run(_job(python, SPY, str(open_folder / "tries"), team="vision"))
    _well(lab, spy)
    said = json.loads(b"".join(lab.logs(spy.id)))
    assert said["uid"] == pwd.getpwnam("nobody").pw_uid
    assert {line: came for line, came in said["came"].items() if came == "done"} == {}
    refusals = {"PermissionError", "FileNotFoundError"}  # The latter of what it cannot even see.
    assert set(said["came"].values()) <= refusals
    assert [line for line, came in said["came"].items() if came == "FileNotFoundError"] == [f"found {runs}/*"]
    assert len(said["came"]) == len(set(tries))

    (gate / "go").touch()
    assert _well(lab, victim).result["still"] == "work of team arms[secret REGISTRY]"
    until(lambda: not list(runs.iterdir()), "folders of jobs that have ended to go")
    assert not Path(told["secret"]).parent.exists()
    with pytest.raises(NotAllowed, match="run_as"):
        lab.run(_job(python, SPY, team="strays"))


def _at_risk(lab: Lab, view: JobView) -> float:
    risk = lab.status(view.id).attempts[-1].at_risk
    return inf if risk is None else risk.steps


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("lab", ["sudo", pytest.param("root", marks=pytest.mark.soak)], indirect=True)
def test_a_job_of_another_user_goes_on_from_its_snapshots_after_a_rank_is_killed(
    lab: Lab, python: str, open_folder: Path
) -> None:
    def count(*halts: str) -> JobView:
        words = ("60", "7", str(open_folder), *halts)
        return lab.run(_job(python, COUNTER, *words, team="arms", replicas=2, each={"memory_gib": 2}))

    undisturbed = _well(lab, count())
    view = count("20")
    pids = [rank.pid for rank in halted(lab, view.id, open_folder, 20).attempts[-1].ranks]
    assert {os.stat(f"/proc/{pid}").st_uid for pid in pids} == {pwd.getpwnam("games").pw_uid}
    until(lambda: CheckpointDurableEvent.kind in kinds(lab, view.id), "a durable checkpoint")
    until(lambda: _at_risk(lab, view) <= 20 - 14, "step 14 in memory")
    kill(pids[0])
    (open_folder / "go-20").touch()
    over = _well(lab, view)
    assert [over.result[f"number_{rank}"] for rank in range(2)] == [
        undisturbed.result[f"number_{rank}"] for rank in range(2)
    ]
    resumed = [event.detail for event in lab.events(view.id) if event.kind == GenerationResumedEvent.kind]
    assert [(one["step"], one["source"]) for one in resumed][-1] == (14, "arena")
    assert over.result["generation"] == 2


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_killed_agent_leaves_nothing_of_ranks_of_another_user(lab: Lab, python: str, open_folder: Path) -> None:
    lab.set_secret("arms", "REGISTRY", NewSecret(value=SECRET))
    view = lab.run(_job(python, VICTIM, str(open_folder), team="arms", secret_files=["REGISTRY"]))
    until((open_folder / "told").exists, "the job to be under way")
    told = json.loads((open_folder / "told").read_text())
    (open_folder / "go").touch()
    kill(agent_of(told["starter"]))
    until(lambda: not any(lives(told[name]) for name in ("pid", "stray")), "its processes to end")
    until(lambda: not Path(told["secret"]).parent.exists(), "its secrets to go")
    until(lambda: not Path(told["socket"]).parent.exists(), "its folder to go")
    assert len(_well(lab, view).attempts) == 2


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_an_agent_killed_with_all_that_would_tidy_up_after_it_leaves_no_secret(
    lab: Lab, python: str, open_folder: Path
) -> None:
    lab.set_secret("arms", "REGISTRY", NewSecret(value=SECRET))
    view = lab.run(_job(python, VICTIM, str(open_folder), team="arms", secret_files=["REGISTRY"]))
    until((open_folder / "told").exists, "the job to be under way")
    told = json.loads((open_folder / "told").read_text())
    agent = agent_of(told["starter"])
    doomed = {agent, *_children(agent), told["starter"]}
    for number in (signal.SIGSTOP, signal.SIGKILL):  # Stopped first, so that none sees another one end.
        for pid in doomed:
            os.kill(pid, number)
    until(lambda: not Path(told["secret"]).parent.parent.exists(), "its secrets to go")
    (open_folder / "go").touch()
    assert len(_well(lab, view).attempts) == 2


@pytest.mark.slow
@pytest.mark.parametrize("lab", ["root"], indirect=True)
def test_teams_whose_jobs_run_as_different_users_may_both_have_people(lab: Lab) -> None:
    lab.new_token(NewToken(holder="ada", team=TeamName("arms")))
    lab.new_token(NewToken(holder="bo", team=TeamName("vision")))
    lab.new_token(NewToken(holder="cy", team=TeamName("strays")))  # Who can submit nothing.
    told = ms(lab, "up") + ms(lab, "cluster", "check", "alpha")
    assert ACCOUNT not in told
    assert told.count("Jobs run as users of their teams: games, nobody.") == 2
    lab.down()
    lab.home.write_config(
        Config(
            clusters=clusters(),
            run_as={**USERS, "hands": "nobody", "thumbs": "nobody"},
            run_folder=str(_runs(lab)),
            public_url="https://a.example.org",
        )
    )
    lab.up(port=0)  # Reached from elsewhere, without a word on sharing the account.
    lab.set_team("hands")
    with pytest.raises(Conflict, match="run_as"):
        lab.new_token(NewToken(holder="di", team=TeamName("hands")))
    with pytest.raises(Conflict, match="run_as"):
        lab.set_team("hands", parent="arms")
    with pytest.raises(Conflict, match="add a team"):
        lab.set_team("thumbs", parent="arms")


def ms(lab: Lab, *words: str, user: str = "root", variables: Mapping[str, str] | None = None) -> str:
    """Returns what a command of ours says, as it is run by a user of this machine."""
    python = sys.executable if user == "root" else python_of_everybody()
    home = {"MAINSPRING_HOME": str(lab.home.path)}
    done = subprocess.run(
        [python, "-c", "from mainspring.app.cli.main import main; main()", *words],
        env={**os.environ, **home, "COLUMNS": "200", "PYTHONPATH": LIBRARIES, **(variables or {})},
        user=user,
        cwd="/",
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("given", "matched", "kind"),
    [
        ({"run_as": {"arms": "nobody-of-that-name"}}, "users of this machine", InvalidSpec),
        ({"run_as": {"*": "root"}}, "the server's own account", InvalidSpec),
        ({"run_as": {"arms": "nobody"}, "run_folder": "/proc/version"}, "/proc/version", Unavailable),
        ({"run_as": {"arms": "nobody"}, "run_folder": "/root/.made-for-a-test"}, "Permission denied", Unavailable),
    ],
)
def test_a_server_that_cannot_run_jobs_as_its_configuration_says_does_not_start(
    python: str, tmp_path: Path, given: dict[str, object], matched: str, kind: type[Exception]
) -> None:
    lab = Lab(tmp_path / "home")
    lab.home.write_config(Config(clusters=clusters(), **given))  # type: ignore[arg-type]
    try:
        with pytest.raises(kind, match=matched):
            lab.up(port=0)
        assert lab.home.server() is None
    finally:
        lab.down()
        with suppress(FileNotFoundError):
            Path("/root/.made-for-a-test").rmdir()


def test_a_folder_whose_entries_others_can_remove_is_no_folder_for_jobs(
    python: str, open_folder: Path, tmp_path: Path
) -> None:
    lab = Lab(tmp_path / "home")
    lab.home.write_config(Config(clusters=clusters(), run_as=USERS, run_folder=f"{open_folder}/runs"))
    open_folder.chmod(0o777)
    with pytest.raises(Unavailable, match="write only their own"):
        lab.up(port=0)


def test_a_server_without_a_rule_of_sudo_for_its_users_does_not_start_and_says_which(
    python: str, open_folder: Path
) -> None:
    with sudo_rule():
        lab = Lab(open_folder / "home")
        lab.home.write_config(Config(clusters=clusters(), run_as={"*": "uucp"}, run_folder=f"{open_folder}/runs"))
        for path in open_folder.rglob("*"):
            os.chown(path, pwd.getpwnam(SERVER).pw_uid, -1)
        with pytest.raises(AssertionError, match=rf"{SERVER} ALL=\(uucp\) NOPASSWD: ALL"):
            ms(lab, "up", "--port", "0", user=SERVER)
        assert lab.home.server() is None


@pytest.mark.slow
def test_commands_of_the_page_set_up_a_server_whose_jobs_run_as_users_by_a_rule_of_sudo(python: str) -> None:
    section = PAGE.read_text().partition("## Jobs as users of their teams")[2].partition("\n## ")[0]
    blocks = dict(re.findall(r"```(\w[^\n]*)\n(.*?)```", section, re.DOTALL))
    users = ["mainspring", *re.findall(r"for user in (.*?);", blocks["sh admin"])[0].split()]
    made = [RULES / "mainspring", Path("/srv/mainspring")]
    if shutil.which("sudo") is None or any(path.exists() for path in made) or not {*users}.isdisjoint(_everybody()):
        pytest.skip("needs sudo (apt-get install sudo), and a machine without the users and files of the page")
    try:
        _sh(blocks["sh admin"], {"PATH": f"{os.environ['PATH']}:/usr/sbin"}, "root")
        server = pwd.getpwnam("mainspring")
        home = Path(server.pw_dir, ".mainspring")
        home.mkdir(mode=0o700)
        (home / "config.yaml").write_text(blocks["yaml"])
        command = home / "bin" / "ms"
        command.parent.mkdir()
        command.write_text(f"#!{python}\nfrom mainspring.app.cli.main import main\nmain()\n")
        command.chmod(0o700)
        for path in (home, *home.rglob("*")):
            os.chown(path, server.pw_uid, server.pw_gid)
        environment = {"HOME": server.pw_dir, "PATH": f"{command.parent}:{os.defpath}", "PYTHONPATH": LIBRARIES}
        try:
            told = _sh(blocks["sh mainspring"], environment, "mainspring")
        finally:
            _sh("ms down", environment, "mainspring")
        assert "lab-vla" in told.splitlines()
        assert "Jobs run as users of their teams: lab-others, lab-vision, lab-vla." in told
    finally:
        for user in users:
            subprocess.run(["userdel", "--remove", user], check=False, capture_output=True)
        made[0].unlink(missing_ok=True)
        shutil.rmtree(made[1], ignore_errors=True)


def _everybody() -> set[str]:
    return {user.pw_name for user in pwd.getpwall()}


def _sh(script: str, environment: Mapping[str, str], user: str) -> str:
    done = subprocess.run(
        ["bash", "-c", f"set -eux -o pipefail\n{script}"],
        env=environment,
        cwd="/",
        user=user,
        extra_groups=(),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-4_000:]
    return done.stdout


def test_a_home_that_others_can_look_into_is_no_home_for_jobs_of_other_users(python: str, tmp_path: Path) -> None:
    lab = Lab(tmp_path / "home")
    lab.home.write_config(Config(clusters=clusters(), run_as=USERS))
    lab.home.path.chmod(0o755)
    with pytest.raises(NotAllowed, match="chmod"):
        lab.up(port=0)


@pytest.mark.parametrize(
    "given",
    [
        {"run_as": {"arms": ""}},
        {"run_as": {"arms": "a b"}},
        {"run_as": {"**": "nobody"}},
        {"run_as": {f"team-{number}": "nobody" for number in range(1_001)}},
        {"run_folder": "runs"},
        {"run_folder": "/a/../b"},
        {"run_folder": "/" + "a" * 100},
    ],
)
def test_users_to_run_jobs_as_that_cannot_be_are_refused(given: dict[str, object]) -> None:
    with pytest.raises(InvalidSpec, match=next(iter(given))):
        Config(**given)  # type: ignore[arg-type]
