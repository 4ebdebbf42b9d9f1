"""What the local engine promises beyond the port: processes, files, and faults of a real machine."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import mainspring
from mainspring.domain.codec import decode, encode
from mainspring.domain.errors import InvalidInput, MainspringError, NotAllowed, Unavailable
from mainspring.domain.fleet import AgentOrder, AllocationPhase, AllocationSeen, LaunchOrder
from mainspring.domain.ids import AllocationId, AttemptId, ChipName, ClusterName, NodeName, RoleName, TeamName
from mainspring.domain.job import LAB
from mainspring.engines.common.kind import JobUsers
from mainspring.engines.local.config import LocalCluster
from mainspring.engines.local.engine import LocalEngine
from mainspring.node.process.ranks import RankLog
from mainspring.testing import FakeClock

NODES = 24
DAY_S = 86_400.0
NAME = AllocationId("allocation-1")
# Agents in shell: each writes its number where the test can find it, then does what the test says.
OBEDIENT = 'echo $$ >> "$STARTS"; exec sleep 60'
STUBBORN = 'trap "" TERM; echo $$ >> "$STARTS"; sleep 60 & echo $! >> "$STARTS"; while :; do wait; done'
SHORT = 'echo $$ >> "$STARTS"; sleep 60 & echo $! >> "$STARTS"; exit 3'
SPEAKING = 'echo $$ >> "$STARTS"; echo \'{"exit_code": 4, "reason": "no lead"}\' > exit.json; exit 1'


class Machine:
    """A folder, a clock, and engines over them."""

    def __init__(self, root: Path) -> None:
        self.root = root / "alpha"
        self.starts = root / "starts"
        self.clock = FakeClock()

    def engine(
        self,
        program: str = OBEDIENT,
        *,
        words: tuple[str, ...] | None = None,
        users: JobUsers | None = None,
        ready: str = "",
    ) -> LocalEngine:
        cluster = LocalCluster(
            name=ClusterName("alpha"), chip=ChipName("h100"), chips_per_node=8, nodes=NODES, dollars_per_chip_hour=2.0
        )
        return LocalEngine(
            cluster,
            root=self.root,
            agent_command=words or ("/bin/sh", "-c", program, "agent"),
            ready_command=("/bin/sh", "-c", ready) if ready else (),
            environment={"STARTS": str(self.starts), "PATH": os.environ["PATH"]},
            clock=self.clock,
            users=users,
        )

    def started(self) -> list[int]:
        return [int(line) for line in self.starts.read_text().split()] if self.starts.exists() else []

    def until(self, condition: Callable[[], bool]) -> None:
        pause = threading.Event()
        for _ in range(1_000):
            if condition():
                return
            pause.wait(0.01)
        raise AssertionError("waited too long")

    def ended(self, engine: LocalEngine) -> AllocationSeen:
        self.until(lambda: engine.observe()[0].phase is AllocationPhase.ENDED)
        return engine.observe()[0]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """A machine; whatever was started on it is gone afterwards."""
    made = Machine(tmp_path)
    yield made
    engine = made.engine()
    for allocation in engine.observe():
        engine.stop(allocation.allocation, grace_s=0.0)
    made.until(lambda: all(allocation.phase is AllocationPhase.ENDED for allocation in engine.observe()))


def order(count: int = 1) -> LaunchOrder:
    return LaunchOrder(
        allocation=NAME,
        attempt=AttemptId("attempt-1"),
        role=RoleName("main"),
        nodes=tuple(NodeName(f"alpha-{index:02}") for index in range(count)),
        chip_milli=tuple(1_000 + index for index in range(count)),
        controller="http://127.0.0.1:1",
        token="a-secret",
    )


def runs(pid: int) -> bool:
    """Returns whether a process exists and is no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def test_order_file_is_private_and_tells_the_agent_everything(machine: Machine) -> None:
    machine.engine().launch(order(2))
    path = machine.root / NAME / "node-1" / "order.json"
    assert path.stat().st_mode & 0o777 == 0o600
    told = decode(AgentOrder, path.read_bytes())
    assert (told.allocation, told.node, told.index, told.chip_milli) == (NAME, "alpha-01", 1, 1_001)
    assert (told.token, told.work_dir) == ("a-secret", str(path.parent))
    assert "a-secret" not in repr(told)
    assert (told.run_as, told.shared_dir) == ("", "")


def test_agents_are_told_the_user_of_the_nearest_team_and_a_folder_each_which_goes_when_they_end(
    machine: Machine, tmp_path: Path
) -> None:
    folder = tmp_path / "runs"
    users = JobUsers(run_as={"vla": "games", "lab": "nobody"}, folder=folder)
    engine = machine.engine(users=users)
    team, above = TeamName("arms"), TeamName("vla")
    engine.launch(replace(order(2), teams=(team, above, LAB)))
    told = [decode(AgentOrder, path.read_bytes()) for path in sorted(machine.root.glob("*/node-*/order.json"))]
    assert [one.run_as for one in told] == ["games"] * 2
    shared = [Path(one.shared_dir) for one in told]
    assert {path.parent for path in shared} == {folder}
    assert len(set(shared)) == 2
    for path in shared:
        (path / "job").mkdir(parents=True)
    engine.stop(NAME, grace_s=0.0)
    machine.ended(engine)
    assert list(folder.iterdir()) == []


def test_an_allocation_of_a_team_without_a_user_is_refused_where_teams_have_some(machine: Machine) -> None:
    users = JobUsers(run_as={"vla": "games"}, folder=machine.root / "runs")
    with pytest.raises(NotAllowed, match="run_as"):
        machine.engine(users=users).launch(order())
    assert not machine.root.exists() or machine.engine().observe() == ()


def test_token_shows_in_neither_arguments_nor_environment(machine: Machine) -> None:
    machine.engine().launch(order())
    machine.until(lambda: len(machine.started()) == 1)
    process = Path(f"/proc/{machine.started()[0]}")
    assert b"a-secret" not in (process / "cmdline").read_bytes() + (process / "environ").read_bytes()


def test_agents_have_sessions_of_their_own_and_leave_no_zombies(machine: Machine) -> None:
    engine = machine.engine()
    engine.launch(order(2))
    machine.until(lambda: len(machine.started()) == 2)
    for pid in machine.started():
        assert os.getsid(pid) == pid
    engine.stop(NAME, grace_s=60.0)
    assert machine.ended(engine).exit_code == -signal.SIGTERM
    assert not any(Path(f"/proc/{pid}").exists() for pid in machine.started())


def test_stop_of_a_stubborn_agent_kills_its_whole_session_after_the_grace(machine: Machine) -> None:
    engine = machine.engine(STUBBORN)
    engine.launch(order())
    machine.until(lambda: len(machine.started()) == 2)
    engine.stop(NAME, grace_s=10.0)
    machine.clock.advance(9.0)
    assert engine.observe()[0].phase is AllocationPhase.STOPPING
    assert all(runs(pid) for pid in machine.started())
    machine.clock.advance(1.0)
    assert machine.ended(engine).exit_code == -signal.SIGKILL
    machine.until(lambda: not any(runs(pid) for pid in machine.started()))


def test_stop_goes_on_in_a_new_controller(machine: Machine) -> None:
    machine.engine(STUBBORN).launch(order())
    machine.until(lambda: len(machine.started()) == 2)
    machine.engine().stop(NAME, grace_s=10.0)
    again = machine.engine()
    assert again.observe()[0].phase is AllocationPhase.STOPPING
    machine.clock.advance(10.0)
    machine.ended(again)
    machine.until(lambda: not any(runs(pid) for pid in machine.started()))


def test_agent_that_dies_takes_its_session_along(machine: Machine) -> None:
    engine = machine.engine(SHORT)
    engine.launch(order())
    seen = machine.ended(engine)
    assert (seen.exit_code, seen.reason) == (3, "agent on alpha-00: exited with code 3, without a last word")
    machine.until(lambda: len(machine.started()) == 2 and not any(runs(pid) for pid in machine.started()))


def test_agent_killed_while_others_live_is_told_of(machine: Machine) -> None:
    engine = machine.engine()
    engine.launch(order(2))
    machine.until(lambda: len(machine.started()) == 2)
    os.kill(machine.started()[0], signal.SIGKILL)
    machine.until(lambda: engine.observe()[0].reason != "")
    seen = engine.observe()[0]
    assert (seen.phase, seen.exit_code) == (AllocationPhase.RUNNING, None)
    assert seen.reason.endswith("was ended by signal 9, without a last word")


def test_agents_last_words_are_reported(machine: Machine) -> None:
    engine = machine.engine(SPEAKING)
    engine.launch(order())
    seen = machine.ended(engine)
    assert (seen.exit_code, seen.reason) == (4, "agent on alpha-00: no lead")
    assert machine.engine().observe() == (seen,)


def test_agent_program_that_is_missing_is_told_of(machine: Machine) -> None:
    engine = machine.engine(words=("/nowhere/agent",))
    engine.launch(order())
    assert machine.ended(engine).exit_code == 127
    assert "/nowhere/agent" in (machine.root / NAME / "node-0" / "agent.log").read_text()


def test_launch_that_fails_leaves_nothing_and_is_never_repeated(machine: Machine) -> None:
    with pytest.raises(Unavailable):
        machine.engine(words=("/bin/sh", "x" * (1 << 20))).launch(order(3))  # Over the system's limit of arguments.
    engine = machine.engine()
    seen = engine.observe()[0]
    assert (seen.phase, seen.exit_code, seen.nodes) == (AllocationPhase.ENDED, None, order(3).nodes)
    assert "cut short" in seen.reason
    engine.launch(order(3))
    assert engine.observe() == (seen,)
    assert machine.started() == []


def test_process_number_used_again_by_a_stranger_is_not_mistaken(machine: Machine) -> None:
    machine.engine().launch(order())
    machine.until(lambda: len(machine.started()) == 1)
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as stranger:
        record = machine.root / NAME / "launched.json"
        written = record.read_text()
        record.write_text(written.replace(f'"pid":{machine.started()[0]},', f'"pid":{stranger.pid},'))
        engine = machine.engine()
        engine.stop(NAME, grace_s=0.0)
        assert engine.observe()[0].phase is AllocationPhase.ENDED
        assert stranger.poll() is None
        stranger.kill()
    os.kill(machine.started()[0], signal.SIGKILL)


def test_launch_from_many_threads_starts_once(machine: Machine) -> None:
    engines = [machine.engine() for _ in range(8)]
    together = threading.Barrier(len(engines))
    failed: list[Exception] = []

    def launch(engine: LocalEngine) -> None:
        together.wait(timeout=120)
        try:
            engine.launch(order(2))
        except (OSError, MainspringError) as error:
            failed.append(error)

    threads = [threading.Thread(target=launch, args=(engine,)) for engine in engines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert not failed
    machine.until(lambda: len(machine.started()) >= 2)
    engine = machine.engine()
    engine.stop(NAME, grace_s=60.0)
    machine.ended(engine)
    assert len(machine.started()) == 2


CONTROLLER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from mainspring.domain.codec import decode, encode
from mainspring.domain.fleet import LaunchOrder
from mainspring.engines.local.config import LocalCluster
from mainspring.engines.local.engine import LocalEngine
from mainspring.testing import FakeClock
cluster = LocalCluster(name="alpha", chip="h100", chips_per_node=8, nodes=24, dollars_per_chip_hour=2.0)
command = ("/bin/sh", "-c", 'echo $$ >> "$STARTS"; exec sleep 60', "agent")
root = Path(sys.argv[2])
clock = FakeClock()
ready = ("/bin/sh", "-c", sys.argv[3]) if len(sys.argv) > 3 else ()
engine = LocalEngine(
    cluster, root=root / "alpha", agent_command=command, ready_command=ready, clock=clock,
    environment={"STARTS": str(root / "starts"), "PATH": "/usr/bin:/bin"},
)
engine.observe()
engine.launch(decode(LaunchOrder, (root / "launch.json").read_bytes()))
clock.advance(1.0)
engine.observe()
sys.stdin.read()
"""


@pytest.mark.slow
@pytest.mark.parametrize("step", [".claim-allocation-1", "allocation-1/node-0", "allocation-1/node-12/agent.log"])
def test_controller_killed_while_launching_starts_all_agents_or_none(machine: Machine, step: str) -> None:
    root = machine.root.parent
    (root / "launch.json").write_bytes(encode(order(NODES)))
    source = str(Path(mainspring.__file__).parent.parent)
    with subprocess.Popen([sys.executable, "-c", CONTROLLER, source, str(root)]) as controller:
        while controller.poll() is None and not (machine.root / step).exists():
            pass
        controller.kill()
    engine = machine.engine()
    found = engine.observe()
    if not found:
        assert machine.started() == [], "killed before the claim: as if it was never asked"
        return
    if found[0].phase is AllocationPhase.RUNNING:
        machine.until(lambda: len(machine.started()) == NODES)
        return
    assert "cut short" in found[0].reason
    engine.launch(order(NODES))
    assert engine.observe() == found
    assert machine.started() == []


@pytest.mark.slow
def test_agents_outlive_the_controller(machine: Machine) -> None:
    root = machine.root.parent
    (root / "launch.json").write_bytes(encode(order(2)))
    source = str(Path(mainspring.__file__).parent.parent)
    subprocess.run([sys.executable, "-c", CONTROLLER, source, str(root)], check=True, timeout=120, input=b"")
    machine.until(lambda: len(machine.started()) == 2)
    engine = machine.engine()
    assert engine.observe()[0].phase is AllocationPhase.RUNNING
    engine.stop(NAME, grace_s=60.0)
    seen = machine.ended(engine)
    assert (seen.exit_code, seen.reason) == (None, "agent on alpha-00: ended unseen, without a last word")


def test_log_that_turns_over_is_followed_without_a_gap_and_tells_what_is_no_longer_kept(machine: Machine) -> None:
    engine = machine.engine()
    engine.launch(order(2))
    log = RankLog(machine.root / NAME / "node-1" / "rank-1.log", bytes_max=100)
    lines = [b"%06d\n" % number for number in range(40)]
    read, offset = b"", 0
    for line in lines:
        log.write(line)
        chunk = engine.logs(NAME, rank=1, since=offset, limit=5)
        read, offset = read + chunk.data, chunk.next_offset
    while (chunk := engine.logs(NAME, rank=1, since=offset, limit=1_000)).data:
        read, offset = read + chunk.data, chunk.next_offset
    assert read == b"".join(lines)
    assert offset == len(read)
    late = engine.logs(NAME, rank=1, since=0, limit=1_000)
    assert late.next_offset - len(late.data) > 0
    assert b"".join(lines)[: late.next_offset].endswith(late.data)
    log.close()


def test_agent_that_has_ended_leaves_its_output_and_no_token(machine: Machine) -> None:
    words = SPEAKING.replace("exit 1", "mkdir code; echo x > code/train.py; echo y > rank-0.log; exit 1")
    engine = machine.engine(words)
    engine.launch(order())
    assert machine.ended(engine).exit_code == 4
    left = sorted(path.name for path in (machine.root / NAME / "node-0").iterdir())
    assert left == ["agent.log", "exit.json", "rank-0.log"]
    assert engine.logs(NAME, rank=0, since=0, limit=10).data == b"y\n"


def test_log_that_was_begun_anew_is_read_from_its_start(machine: Machine) -> None:
    engine = machine.engine()
    engine.launch(order(2))
    (machine.root / NAME / "node-1" / "rank-1.log").write_bytes(b"new")
    chunk = engine.logs(NAME, rank=1, since=1_000, limit=10)
    assert (chunk.data, chunk.next_offset) == (b"new", 3)


def test_allocation_id_that_would_leave_the_folder_is_refused(machine: Machine) -> None:
    engine = machine.engine()
    for name in ("../alpha", "a/b", ".cordons.json", ""):
        with pytest.raises(InvalidInput):
            engine.stop(AllocationId(name), grace_s=1.0)
        with pytest.raises(InvalidInput):
            engine.logs(AllocationId(name), rank=0, since=0, limit=1)


def test_folder_that_is_gone_makes_the_engine_unavailable(machine: Machine) -> None:
    engine = machine.engine()
    shutil.rmtree(machine.root)
    with pytest.raises(Unavailable):
        engine.observe()
    machine.root.mkdir()


@pytest.mark.parametrize("racks", [1, 2, 3])
def test_racks_share_the_nodes_evenly_in_name_order(tmp_path: Path, racks: int) -> None:
    cluster = LocalCluster(
        name=ClusterName("beta"),
        chip=ChipName("h100"),
        chips_per_node=1,
        nodes=6,
        dollars_per_chip_hour=1.0,
        racks=racks,
    )
    engine = LocalEngine(cluster, root=tmp_path, agent_command=("true",), environment={}, clock=FakeClock())
    domains = [node.domains for node in engine.inventory().nodes]
    assert domains == [(("rack", f"rack-{index * racks // 6}"),) for index in range(6)]


@pytest.mark.parametrize("change", [{"nodes": 0}, {"racks": 9}, {"chips_per_node": 0}, {"name": "No Name"}])
def test_cluster_that_cannot_be_is_refused(change: dict[str, object]) -> None:
    values: dict[str, object] = {
        "name": "beta",
        "chip": "h100",
        "chips_per_node": 1,
        "nodes": 4,
        "dollars_per_chip_hour": 1.0,
    }
    with pytest.raises(InvalidInput):
        LocalCluster(**(values | change))  # type: ignore[arg-type]


def test_agents_find_how_long_they_have_when_they_are_asked_to_end(machine: Machine) -> None:
    program = 'trap "cat grace > told; exit 0" TERM; echo $$ >> "$STARTS"; while :; do sleep 0.05; done'
    engine = machine.engine(program)
    engine.launch(order(2))
    machine.until(lambda: len(machine.started()) == 2)
    assert not list(machine.root.glob("*/node-*/grace"))
    engine.stop(NAME, grace_s=12.5)
    told = [machine.root / NAME / f"node-{index}" / "told" for index in range(2)]
    machine.until(lambda: all(path.exists() and path.read_text() for path in told))
    assert [float(path.read_text()) for path in told] == [12.5, 12.5]
