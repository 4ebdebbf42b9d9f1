"""The last release and this one work together: servers, commands, agents, ranks, engine hosts, in every pair."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mainspring.app.base.system import SystemClock
from mainspring.domain.life import AttemptState
from mainspring.domain.release import RELEASE
from mainspring.domain.wire.events.leads import GenerationResumedEvent, UnknownWordEvent
from mainspring.engines.remote.connection import HostCommand
from mainspring.engines.remote.engine import RemoteEngine
from tests.domain.test_release import BEYOND, NEWER
from tests.earlier.make import processes
from tests.engines.remote_host import OpenTest
from tests.node.conftest import make_rig as make_rig
from tests.node.rig import Rig
from tests.upgrades.last import ROOT, Commands, running, unpack

TRAINEE = Path(__file__).with_name("trainee.py")
NODES = Path(__file__).parents[1] / "node"
STEPS = 2_000  # More than anybody waits for.
PAUSE_S = 0.1
CALM_STEPS = 300
FAR_INVENTORY = """
import sys
from mainspring.app.base.system import SystemClock
from mainspring.engines.remote.connection import HostCommand
from mainspring.engines.remote.engine import RemoteEngine
from tests.engines.remote_host import OpenTest

command = HostCommand(words=tuple(sys.argv[1:]), on="ada@login", environment={})
print(len(RemoteEngine(command, OpenTest(nodes=3), clock=SystemClock(), call_s=60.0).inventory().nodes))
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def last(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the last release."""
    return unpack(tmp_path_factory.mktemp("last"))


def host_of(tree: Path) -> tuple[str, ...]:
    return ("env", f"PYTHONPATH={running(tree)['PYTHONPATH']}", sys.executable, "-m", "tests.engines.remote_host")


def test_server_of_this_release_has_an_engine_on_a_host_of_the_last(last: Path) -> None:
    command = HostCommand(words=host_of(last), on="ada@login", environment={"PATH": "/usr/bin:/bin"}, open_s=60.0)
    engine = RemoteEngine(command, OpenTest(nodes=3), clock=SystemClock(), call_s=60.0)
    try:
        assert len(engine.inventory().nodes) == 3
    finally:
        engine.close()


def test_server_of_the_last_release_has_an_engine_on_a_host_of_this(last: Path) -> None:
    words = [sys.executable, "-c", FAR_INVENTORY, *host_of(ROOT)]
    done = subprocess.run(words, env=running(last), cwd=last, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("3\n", 0), done.stderr


@pytest.mark.parametrize("lead", ["last", "this"])
def test_agents_of_two_releases_recover_together_and_end_bitwise_as_one_would(
    make_rig: Callable[..., Rig], last: Path, tmp_path: Path, lead: str
) -> None:
    """Agent 0 leads; the other is of the other release, and so is every rank's session with one of the two."""
    of_last = ("env", f"PYTHONPATH={last / 'src'}")
    meeting = tmp_path / "met"
    meeting.mkdir()
    program = (sys.executable, str(NODES / "program.py"), "60", "0.02", str(meeting))
    rig = make_rig(
        command=(*of_last, *program) if lead == "last" else program,
        within={0 if lead == "last" else 1: of_last},
        lease_s=10.0,
    )
    rig.wait_step(20)
    rig.signal_rank(1, signal.SIGKILL)
    assert rig.wait_outcome().outcome is AttemptState.SUCCEEDED, rig.story()
    assert len(rig.of_kind(GenerationResumedEvent.kind)) == 2
    rig.check_results(60, ranks=2)


# ---------------------------------------------------------------- the release after this one


def planted(folder: Path, release: str) -> Path:
    """Returns this release as if it were a later one, whose agents say a word to their leads that is new."""
    source = folder / release
    shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
    for path, said, instead in (
        ("domain/release.py", f'RELEASE = "{RELEASE}"', f'RELEASE = "{release}"'),
        (
            "domain/wire/rank.py",
            "RankRequest = ",
            '@message("Dance")\nclass Dance:\n    steps: int = 3\n\n\nRankRequest = ',
        ),
        (
            "node/agent.py",
            "        self._line = line\n",
            "        self._line = line\n        line.send(wire.Dance())\n",
        ),
    ):
        file = source / "mainspring" / path
        text = file.read_text()
        assert text.count(said) == 1, f"{path} has no such place any more: {said}"
        file.write_text(text.replace(said, instead))
    return source


def test_new_word_of_the_next_releases_agents_is_shown_and_the_attempt_ends_well(
    make_rig: Callable[..., Rig], tmp_path: Path
) -> None:
    source = planted(tmp_path, NEWER)
    rig = make_rig(steps=20, within={1: ("env", f"PYTHONPATH={source}")}, lease_s=10.0)
    assert rig.wait_outcome().outcome is AttemptState.SUCCEEDED, rig.story()
    assert rig.of_kind(UnknownWordEvent.kind) == [{"word": "Dance", "words": "{'steps': 3}"}]
    rig.check_results(20, ranks=2)


def test_agent_of_a_release_too_far_from_its_controller_ends_and_names_both(
    make_rig: Callable[..., Rig], tmp_path: Path
) -> None:
    rig = make_rig(within={1: ("env", f"PYTHONPATH={planted(tmp_path, BEYOND)}")}, lease_s=10.0)
    ended = rig.exit_of(1)
    assert ended.exit_code == 1
    assert f"got Mainspring {RELEASE}; wanted Mainspring {BEYOND}" in ended.reason


# ---------------------------------------------------------------- a job that moves


@pytest.fixture
def commands(last: Path, tmp_path: Path) -> Iterator[tuple[Commands, Commands]]:
    """`ms` of the last release and of this one, in one home."""
    home = tmp_path / "home"
    home.mkdir()
    cluster = {"name": "alpha", "chip": "h100", "chips_per_node": 1, "nodes": 4, "dollars_per_chip_hour": 3.0}
    (home / "config.yaml").write_text(json.dumps({"port": 0, "clusters": [cluster]}))
    yield Commands(tree=last, home=home), Commands(tree=ROOT, home=home)
    for left in processes(str(tmp_path)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(left, signal.SIGKILL)


def submitted(ms: Commands, name: str, *words: object) -> str:
    """Returns a job of two ranks, whose sessions are of the same release as the command."""
    environment = f"PYTHONPATH={ms.tree / 'src'}"
    program = (sys.executable, str(TRAINEE), *map(str, words))
    asked = ("--on", "h100", "--replicas", "2", "--no-code", "--env", environment)
    return str(ms.json("run", "--name", name, *asked, "--", *program)["id"])


def losses(ms: Commands, job: str) -> list[str]:
    """Returns the losses of a job's steps, in order; every step was done once."""
    told = re.findall(r"(?m)^step (\d+) loss (\S+)$", ms.told("logs", job))
    assert [int(step) for step, _ in told] == list(range(1, len(told) + 1))
    return [loss for _, loss in told]


@pytest.mark.timeout(600)
def test_running_jobs_move_through_an_upgrade_and_a_downgrade_bitwise(
    commands: tuple[Commands, Commands], tmp_path: Path
) -> None:
    old, new = commands
    end = tmp_path / "end"
    old.told("up")
    tables = old.json("store", "show")["newest"]
    moved = submitted(old, "moved", STEPS, PAUSE_S, end)
    new.wait_step(moved, 3)  # This release's commands at the last one's server.

    old.told("down")
    new.told("up")
    new.wait_on(moved)
    later = submitted(new, "later", STEPS, PAUSE_S, end)
    old.wait_step(later, 3)  # The reverse.

    new.told("down")
    if new.json("store", "show")["revision"] != tables:
        new.told("store", "down", tables)
    old.told("up")
    for job in (moved, later):
        old.wait_on(job)
    end.touch()
    calm = submitted(old, "calm", CALM_STEPS, 0.0, tmp_path / "never")
    for job in (moved, later, calm):
        attempts = old.wait_end(job)["attempts"]
        assert [attempt["generation"] for attempt in attempts] == [1]
    undisturbed = losses(old, calm)
    assert len(undisturbed) == CALM_STEPS
    for job in (moved, later):
        own = losses(new, job)
        assert len(own) > 6
        assert own[:CALM_STEPS] == undisturbed[: len(own)]
