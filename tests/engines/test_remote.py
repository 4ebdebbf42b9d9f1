"""`RemoteEngine`: an engine at the other end of a pipe, and every way in which the pipe goes wrong."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.app.base.system import SystemClock
from mainspring.domain import errors
from mainspring.domain.answers import Problem, error_of, problem_of
from mainspring.domain.codec import decode, encode
from mainspring.domain.errors import Conflict, MainspringError, NotFound, Unavailable
from mainspring.domain.fleet import AllocationPhase, EndedBefore
from mainspring.domain.ids import AllocationId, ClusterName, NodeName
from mainspring.domain.ports import Clock
from mainspring.domain.release import RELEASE
from mainspring.engines.common.nonblocking import NonBlockingEngine
from mainspring.engines.remote.connection import HostCommand
from mainspring.engines.remote.engine import RETRY_S, RemoteEngine, ssh_words
from mainspring.testing import FakeClock
from tests.engines.remote_host import OpenTest, many_nodes
from tests.engines.troubled import order

ROOT = Path(__file__).parents[2]
HOST = (sys.executable, "-m", "tests.engines.remote_host")
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
ONE, NODE = AllocationId("allocation-1"), NodeName("alpha-0")
Make = Callable[..., RemoteEngine]


@pytest.fixture
def far(tmp_path: Path) -> Iterator[Make]:
    made: list[RemoteEngine] = []

    def make(
        *words: str, clock: Clock | None = None, call_s: float = 30.0, nodes: int = 3, **limits: float
    ) -> RemoteEngine:
        made.append(
            RemoteEngine(
                HostCommand(words=words or HOST, on="ada@login", environment=ENVIRONMENT, **limits),
                OpenTest(nodes=nodes, pids=str(tmp_path / "pids")),
                clock=clock or SystemClock(),
                call_s=call_s,
            )
        )
        return made[-1]

    yield make
    for engine in made:
        engine.close()


def shell(script: str) -> tuple[str, ...]:
    return ("/bin/sh", "-c", script)


def pids(tmp_path: Path) -> list[int]:
    return [int(line) for line in (tmp_path / "pids").read_text().split()]


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120.0
    while not true():
        assert time.monotonic() < deadline
        threading.Event().wait(0.02)


@pytest.mark.slow
def test_all_calls_come_back_as_the_engine_there_answered(far: Make) -> None:
    engine = far()
    assert [node.name for node in engine.inventory().nodes] == ["alpha-0", "alpha-1", "alpha-2"]
    assert engine.observe() == ()
    engine.launch(order())
    (seen,) = engine.observe()
    assert (seen.allocation, seen.phase, seen.nodes) == (ONE, AllocationPhase.RUNNING, (NODE,))
    chunk = engine.logs(ONE, rank=3, since=200, limit=100)
    assert (chunk.data, chunk.next_offset) == ((bytes(range(256)) * 2)[200:300], 300)
    engine.cordon(NODE, owner="ada", reason="noisy fan")
    assert engine.inventory().nodes[0].condition_reason == "noisy fan"
    engine.uncordon(NODE, owner="ada")
    engine.stop(ONE, grace_s=0.5)
    assert engine.observe()[0].phase is AllocationPhase.STOPPING
    assert engine.forget_ended(EndedBefore(time_s=1_000.0, kept=(ONE, ONE), limit=30)) == 1_032


@pytest.mark.slow
def test_errors_arrive_with_all_their_parts_and_end_nothing(far: Make) -> None:
    engine = far()
    engine.cordon(NODE, owner="ada", reason="")
    with pytest.raises(Conflict) as raised:
        engine.cordon(NODE, owner="bob", reason="")
    assert (raised.value.on, raised.value.got, raised.value.wanted) == (NODE, "a cordon of 'ada'", "of 'bob'")
    with pytest.raises(NotFound):
        engine.launch(order(node="beta-0"))
    with pytest.raises(Unavailable, match=r"a fault in the engine: KeyError\('a fault'\)"):
        engine.cordon(NODE, owner="ada", reason="fault")
    assert len(engine.inventory().nodes) == 3


@given(
    st.sampled_from(
        [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, MainspringError)]
    ),
    st.lists(st.text(max_size=20), min_size=5, max_size=5),
)
def test_every_error_of_the_tree_survives_its_way(kind: type[MainspringError], parts: list[str]) -> None:
    attempted, on, got, wanted, next_step = (part.encode(errors="replace").decode() for part in parts)
    error = kind(attempted, on=on, got=got, wanted=wanted, next_step=next_step)
    came = error_of(decode(Problem, encode(problem_of(error))))
    assert type(came) is kind
    assert problem_of(came) == problem_of(error)


@pytest.mark.parametrize("name", ["KeyError", "Iterable", "nearest", "__name__", ""])
def test_an_error_nobody_knows_is_still_one_of_ours(name: str) -> None:
    assert type(error_of(Problem(error=name, attempted="read it"))) is MainspringError


@pytest.mark.slow
def test_a_large_cluster_comes_in_parts_and_whole(far: Make) -> None:
    assert far(nodes=20_000).inventory().nodes == many_nodes(20_000)


@pytest.mark.slow
def test_a_call_that_hangs_holds_up_no_other_and_ends_in_time(far: Make) -> None:
    engine = far(call_s=4.0)
    with ThreadPoolExecutor() as pool:
        hanging = [pool.submit(engine.cordon, NODE, owner="ada", reason="hang") for _ in range(3)]
        assert len(engine.inventory().nodes) == 3
        for each in hanging:
            with pytest.raises(Unavailable, match=r"no answer within 4 s"):
                each.result()
    assert len(engine.inventory().nodes) == 3, "on the same line"


@pytest.mark.slow
def test_a_host_that_dies_is_told_in_its_last_words_and_the_next_call_finds_another(far: Make, tmp_path: Path) -> None:
    engine = far()
    for times in (1, 2):
        with pytest.raises(Unavailable, match=r"exit status -9: .*Killed by the administrator"):
            engine.cordon(NODE, owner="ada", reason="die")
        assert len(engine.inventory().nodes) == 3
        assert len(pids(tmp_path)) == times + 1


@pytest.mark.slow
def test_a_command_that_fails_is_quoted_and_tried_again_ever_more_rarely(far: Make, tmp_path: Path) -> None:
    clock, runs = FakeClock(), tmp_path / "runs"
    engine = far(
        *shell(f"echo x >> {runs}; echo 'ada@login: Permission denied (publickey).' >&2; exit 255"), clock=clock
    )
    for wait_s in RETRY_S:
        clock.advance(wait_s)
        for _ in range(3):
            with pytest.raises(Unavailable, match=r"exit status 255: ada@login: Permission denied \(publickey\)\."):
                engine.inventory()
    # The first failure is forgiven at once, so its wait counts a second call.
    assert len(runs.read_text().split()) == len(RETRY_S) + 1


@pytest.mark.parametrize("banner", ["Welcome to the cluster\\n", "no end of line", "mainspring-engine-host x y\\n"])
@pytest.mark.slow
def test_what_a_login_shell_prints_first_is_passed_over(far: Make, banner: str) -> None:
    assert len(far(*shell(f"printf '{banner}'; exec {' '.join(HOST)}")).inventory().nodes) == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo 'This account is closed.'", "exit status 0: This account is closed."),
        ("yes no", "bytes that hold no greeting"),
        ("echo mainspring-engine-host 999 9.9.9; cat", "Mainspring 9.9.9, whose messages are of version 999"),
        ("echo mainspring-engine-host 1 {RELEASE}; echo 'You have mail.'; cat >&2", "got 1500476704 bytes"),
        ("echo mainspring-engine-host 1 {RELEASE}; printf '\\0\\0\\0\\4nope'; cat >&2", "wanted UTF-8 JSON"),
        ("echo mainspring-engine-host 1 9.9.9; cat", "Mainspring 9.9.9; wanted Mainspring"),
        ("python-that-is-not-there", "not found"),
    ],
)
def test_what_is_no_host_is_told_in_its_own_words(far: Make, script: str, words: str) -> None:
    with pytest.raises(Unavailable) as raised:
        far(*shell(script.replace("{RELEASE}", RELEASE))).inventory()
    assert words in str(raised.value)


def test_a_command_that_is_not_there_is_told(far: Make) -> None:
    with pytest.raises(Unavailable, match="No such file"):
        far("/nowhere/ssh").inventory()


@pytest.mark.slow
def test_a_command_that_says_nothing_is_given_up(far: Make) -> None:
    with pytest.raises(Unavailable, match=r"(nothing|not a word) for 0\.5 s: Enter passphrase"):
        far(*shell("echo 'Enter passphrase' >&2; sleep 60"), open_s=0.5).inventory()


@pytest.mark.slow
def test_an_engine_that_cannot_be_made_is_told_as_a_cluster_that_does_not_answer(far: Make) -> None:
    with pytest.raises(Unavailable, match=r"serve a test; on nodes; got 1; wanted three; next: count"):
        far(nodes=1).launch(order())


@pytest.mark.slow
def test_a_host_that_hangs_is_given_up_and_another_started(far: Make, tmp_path: Path) -> None:
    engine = far(silent_s=4.0)
    engine.inventory()
    (pid,) = pids(tmp_path)
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(Unavailable, match="not a word for 4 s"):
        engine.inventory()
    assert len(engine.inventory().nodes) == 3
    until(lambda: gone(pid))


@pytest.mark.slow
def test_close_ends_the_host_and_whoever_waits(far: Make, tmp_path: Path) -> None:
    engine = far()
    engine.inventory()
    with ThreadPoolExecutor() as pool:
        hanging = pool.submit(engine.cordon, NODE, owner="ada", reason="hang")
        threading.Event().wait(0.1)
        engine.close()
        with pytest.raises(Unavailable, match="closed"):
            hanging.result()
    with pytest.raises(Unavailable, match="closed"):
        engine.inventory()
    until(lambda: gone(pids(tmp_path)[0]))


@pytest.mark.slow
def test_a_host_ends_with_whoever_started_it(far: Make, tmp_path: Path) -> None:
    engine = far(*shell(f"cat | setsid -w {' '.join(HOST)} | cat"))  # In a session of its own, as behind an sshd.
    engine.inventory()
    (pid,) = pids(tmp_path)
    engine.close()
    until(lambda: gone(pid))


@pytest.mark.slow
def test_behind_far_a_controller_never_waits_for_a_line_that_hangs(far: Make) -> None:
    clock = SystemClock()
    hanging = far(*shell("sleep 60"))
    engine = NonBlockingEngine(
        hanging,
        name=ClusterName("alpha"),
        clock=clock,
        inventory_s=1.0,
        observe_s=1.0,
        stale_s=30.0,
    )
    begun = clock.monotonic_s()
    for _ in range(20):
        with pytest.raises(Unavailable):
            engine.inventory()
        with pytest.raises(Unavailable):
            engine.launch(order())
    assert clock.monotonic_s() - begun < 30.0
    hanging.close()
    engine.close()


def test_the_command_of_ssh_names_target_and_program_and_asks_nobody() -> None:
    words = ssh_words("ada@login.lab", "/opt/lab env/bin/python", "engine-host")
    assert words[-3:] == (
        "--",
        "ada@login.lab",
        "exec '/opt/lab env/bin/python' -P -m mainspring engine-host",
    )
    assert "BatchMode=yes" in words
