"""What a machine does to a run: a disk that becomes read-only, a clock that is set while everything runs."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from mainspring.app.base.home import Config
from mainspring.app.sdk.lab import Lab, job
from mainspring.domain.ids import ChipName, ClusterName
from mainspring.domain.life import AttemptState, JobState
from mainspring.domain.wire.events.attempts import NodeBlamedEvent
from mainspring.domain.wire.events.leads import (
    AgentLostEvent,
    CheckpointDurableEvent,
    CheckpointFailedEvent,
    GenerationResumedEvent,
)
from mainspring.engines.local.config import LocalCluster
from tests.app.conftest import until
from tests.node.rig import Rig

pytestmark = pytest.mark.slow


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own, where the attempt keeps its objects."""
    folder = tmp_path / "objects"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("a read-only disk needs the right to mount a tmpfs: run the tests as root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.soak
def test_disk_that_becomes_read_only_stops_saves_alone_and_they_catch_up(
    disk: Path, make_rig: Callable[..., Rig]
) -> None:
    rig = make_rig(steps=700, how=("reconnects",))
    rig.wait_event(CheckpointDurableEvent.kind)

    def remounted(how: str) -> bool:
        return subprocess.run(["mount", "-o", f"remount,{how}", str(disk)], capture_output=True).returncode == 0

    rig.wait(lambda: remounted("ro"), "moment in which nothing is being written")
    failed = rig.wait_event(CheckpointFailedEvent.kind)
    assert "Read-only file system" in str(failed["reason"])
    rig.signal_rank(0, signal.SIGKILL)
    rig.wait_stepping(2)
    assert rig.of_kind(GenerationResumedEvent.kind)[-1]["source"] == "arena"
    assert remounted("rw")
    assert rig.wait_outcome().outcome is AttemptState.SUCCEEDED
    rig.check_results(700, ranks=2)
    assert int(rig.of_kind(CheckpointDurableEvent.kind)[-1]["step"]) == 700


@pytest.fixture
def two_nodes(tmp_path: Path) -> Iterator[Lab]:
    """A lab of two nodes: on the cheaper one, which comes first, the disk of its work folder is as good as full."""
    lab = Lab(tmp_path / "home")
    prices = {"full": 1.0, "sound": 3.0}
    lab.home.write_config(
        Config(
            clusters=tuple(
                LocalCluster(
                    name=ClusterName(name), chip=ChipName("h100"), chips_per_node=1, nodes=1, dollars_per_chip_hour=each
                )
                for name, each in prices.items()
            )
        )
    )
    work = lab.home.engines / "full"
    work.mkdir(parents=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(work)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("a full disk needs the right to mount a tmpfs: run the tests as root")
    try:
        lab.up(port=0)
        yield lab
    finally:
        lab.down()
        subprocess.run(["umount", "-l", str(work)], check=True)


def test_server_whose_disk_is_full_says_so_until_there_is_room(disk: Path, tmp_path: Path) -> None:
    lab = Lab(tmp_path / "home")
    lab.home.write_config(Config(database=f"sqlite:///{disk / 'state.db'}", clusters=()))
    lab.up(port=0)
    try:
        with lab.client() as client:
            assert client.ready()
            filler = disk / "filler"
            with suppress(OSError), filler.open("wb", buffering=0) as file:
                while file.write(bytes(4_096)):
                    pass
            until(lambda: not client.ready(), "the server to notice")
            assert "no room" in str(client.health()) or "full" in str(client.health())
            filler.unlink()
            until(client.ready, "the server to go on")
    finally:
        lab.down()


def test_node_with_a_full_disk_eats_no_job(two_nodes: Lab) -> None:
    lab = two_nodes
    views = []
    for name in ("first", "second"):
        made = lab.run(job(name, [sys.executable, "-c", "print('well')"], on=["h100"]))
        views.append(lab.wait(made.id, timeout_s=120))
    assert [view.state for view in views] == [JobState.SUCCEEDED] * 2
    for view in views:
        assert [(one.state, one.cluster) for one in view.attempts] == [
            (AttemptState.LOST, "full"),
            (AttemptState.SUCCEEDED, "sound"),
        ]
        assert "67108864 bytes free" in view.attempts[0].reason
        (blamed,) = [event for event in lab.events(view.id) if event.kind == NodeBlamedEvent.kind]
        assert (blamed.detail["node"], blamed.detail["again"]) == ("full-0", True)


def test_clock_set_forward_and_back_changes_nothing(make_rig: Callable[..., Rig], tmp_path: Path) -> None:
    ahead = tmp_path / "ahead"
    ahead.write_text("0")
    program = (sys.executable, str(Path(__file__).with_name("adjusted_agent.py")), str(ahead))
    rig = make_rig(steps=300, how=("reconnects",), lease_s=2.0, program=program)
    rig.wait_step(50)
    for ahead_s in (7_200, -86_400, 0):
        ahead.with_suffix(".new").write_text(str(ahead_s))
        ahead.with_suffix(".new").replace(ahead)
        rig.wait_step(rig.heartbeats[-1].step + 50)
    assert rig.wait_outcome().outcome is AttemptState.SUCCEEDED
    assert max(event.time_s for event in rig.events) - min(event.time_s for event in rig.events) > 3_000, "no jump"
    assert len(rig.of_kind(GenerationResumedEvent.kind)) == 1, rig.story()
    assert not rig.of_kind(AgentLostEvent.kind)
    rig.check_results(300, ranks=2)
    seconds = rig.heartbeats[-1].seconds
    assert all(value >= 0 for value in seconds.values())
    assert sum(seconds.values()) < 2 * 120
