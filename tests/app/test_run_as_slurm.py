"""Ranks that run as their team's user on a real Slurm: by the nodes' rule of sudo, or where all is root."""

from __future__ import annotations

import json
import os
import pwd
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from mainspring.app.base.home import Config
from mainspring.app.sdk.lab import Lab, job
from mainspring.domain.answers import NewSecret
from mainspring.domain.ids import ChipName, ClusterName
from mainspring.domain.life import ended
from mainspring.engines.slurm.cluster.config import SlurmCluster
from mainspring.testing.slurm import SlurmNodes, SlurmServer, slurm_missing
from tests.app.conftest import kill, until
from tests.app.test_run_as import SECRET, SPY, VICTIM, agent_of, lives, ms
from tests.users import LIBRARIES, SERVER, USERS, python_of_everybody, sudo_rule

MISSING = slurm_missing()
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.skipif(bool(MISSING), reason=MISSING)]


# Says where it is, and goes on for ever.
HELD = """
import os, sys, threading
from pathlib import Path
told = Path(sys.argv[1], f"part-{os.getpid()}")
told.write_text(f"{Path(os.environ['MAINSPRING_SOCKET']).parent} {os.getppid()} {os.getpid()}")
told.rename(Path(sys.argv[1], "held"))
threading.Event().wait()
"""


@pytest.fixture(params=["sudo", pytest.param("root", marks=pytest.mark.soak)])
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """Gives a server with one Slurm cluster, under an account with a rule of sudo, or all of it root."""
    python_of_everybody()
    user = SERVER if request.param == "sudo" else "root"
    with ExitStack() as closing:
        root = Path(closing.enter_context(tempfile.TemporaryDirectory(prefix="lab-", dir="/tmp")))
        slurm = closing.enter_context(SlurmServer(root / "slurm", nodes=[SlurmNodes(count=2, chips=1)]))
        on_nodes, program = root / "python", sys.executable if user == "root" else python_of_everybody()
        on_nodes.write_text(f'#!/bin/sh\nPYTHONPATH={LIBRARIES} exec {program} "$@"\n')
        on_nodes.chmod(0o755)
        cluster = SlurmCluster(
            name=ClusterName("hall"),
            partitions=("main",),
            shared=str(root / "shared"),
            dollars_per_chip_hour={ChipName("h100"): 2.0},
            python=str(on_nodes),
            scratch=str(root / "scratch"),
            refresh_s=1.0,
        )
        lab = Lab(root / "home")
        lab.home.write_config(Config(clusters=(cluster,), run_as=USERS))
        (root / "shared").mkdir(mode=0o700)
        for path in (root, root / "shared", root / "home", *(root / "home").rglob("*")):
            os.chown(path, pwd.getpwnam(user).pw_uid, -1)
        root.chmod(0o755)
        (root / "scratch").mkdir()
        (root / "scratch").chmod(0o1777)
        if user != "root":
            with pytest.raises(AssertionError, match=rf"{SERVER} ALL=\(games\) NOPASSWD: ALL"):
                ms(lab, "cluster", "check", "hall", "--json", user=user, variables=slurm.environment)
            closing.enter_context(sudo_rule())
            told = ms(lab, "cluster", "check", "hall", "--json", user=user, variables=slurm.environment)
            assert "runs ranks as games, nobody" in told
        ms(lab, "up", "--port", "0", user=user, variables=slurm.environment)
        try:
            for team in USERS:
                lab.set_team(team)
            yield lab
        finally:
            for view in lab.ps():
                if not ended(view.state):
                    lab.stop(view.id)
            until(lambda: all(ended(view.state) for view in lab.ps()), "jobs to end", wait_s=60)
            lab.down()


def test_jobs_of_two_teams_on_slurm_reach_nothing_of_each_other_and_leave_nothing(lab: Lab) -> None:
    python = python_of_everybody()
    with tempfile.TemporaryDirectory(prefix="run-as-", dir="/tmp") as name:
        gate = Path(name)
        gate.chmod(0o1777)
        lab.set_secret("arms", "REGISTRY", NewSecret(value=SECRET))

        def run(program: str, word: Path, **fields: object) -> str:
            command = [python, "-c", program, str(word)]
            spec = job("job", command, on=["h100"], environment={"PYTHONPATH": LIBRARIES}, **fields)  # type: ignore[arg-type]
            return lab.run(spec).id

        victim = run(VICTIM, gate, team="arms", secret_files=["REGISTRY"])
        until((gate / "told").exists, "the job of the one team to be under way")
        told = json.loads((gate / "told").read_text())
        assert told["is"][0] == [pwd.getpwnam("games").pw_uid] * 3
        agent, server = agent_of(told["starter"]), lab.home.server()
        assert server is not None
        (order,) = lab.home.path.parent.glob("scratch/mainspring-*/*/order.json")
        files = [order, *lab.home.path.parent.glob("shared/*/orders.jsonl"), lab.home.path / "token"]
        files += [Path(told["work"], "mine"), Path(told["secret"]), Path(told["arena"])]
        assert len(files) == 6
        tries = [f"{what} {path}" for path in files for what in ("read", "write")]
        tries += [f"call {told['socket']}", f"look {Path(told['socket']).parent}"]
        for pid in (server.pid, agent, told["starter"], told["pid"]):
            tries += [f"read /proc/{pid}/environ", f"read /proc/{pid}/mem", f"end {pid}", f"trace {pid}"]
        (gate / "tries").write_text("\n".join(tries))
        spy = run(SPY, gate / "tries", team="vision")
        over = lab.wait(spy, timeout_s=90)
        said = json.loads(b"".join(lab.logs(spy)))
        assert said["uid"] == pwd.getpwnam("nobody").pw_uid, over.reason
        assert said["came"] == dict.fromkeys(tries, "PermissionError")

        kill(agent)
        until(lambda: not any(lives(told[one]) for one in ("pid", "stray", "starter")), "its processes to end")
        until(lambda: not Path(told["secret"]).parent.exists(), "its secrets to go")
        until(lambda: not Path(told["socket"]).parent.exists(), "its folder to go")
        (gate / "go").touch()
        over = lab.wait(victim, timeout_s=90)
        assert over.result["still"] == "work of team arms[secret REGISTRY]", over.reason

        held = run(HELD, gate, team="arms")
        until((gate / "held").exists, "another job to be under way")
        folder, starter, pid = (gate / "held").read_text().split()
        agent = agent_of(int(starter))
        os.kill(agent, signal.SIGSTOP)  # Neither can see to it then.
        kill(int(starter))
        kill(agent)
        until(lambda: not lives(int(pid)), "its rank to end")
        until(lambda: not Path(folder).exists(), "its folder to go")
        lab.stop(held)
