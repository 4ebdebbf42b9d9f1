"""`RemoteEngine` over a real sshd: banners, keys, and a login node that dies or hangs in the middle."""

from __future__ import annotations

import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mainspring.app.base.system import SystemClock
from mainspring.domain.errors import Unavailable
from mainspring.domain.fleet import AllocationPhase
from mainspring.domain.ids import ClusterName
from mainspring.engines.common.nonblocking import NonBlockingEngine
from mainspring.engines.remote.connection import HostCommand
from mainspring.engines.remote.engine import RemoteEngine, ssh_words
from tests.engines.remote_host import OpenTest
from tests.engines.sshd import Sshd
from tests.engines.test_remote import ENVIRONMENT, gone, pids, until
from tests.engines.troubled import order

pytestmark = pytest.mark.slow


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[Sshd]:
    made = Sshd(tmp_path, greeting="Welcome. 3 updates can be applied.")
    yield made
    made.kill()


@pytest.fixture
def far(sshd: Sshd, tmp_path: Path) -> Iterator[RemoteEngine]:
    words = ssh_words("login", sys.executable, "engine-host")
    # The host must find the tests too; a lab's has Mainspring installed.
    path = f"PYTHONPATH={shlex.quote(ENVIRONMENT['PYTHONPATH'])} {sys.executable} -m tests.engines.remote_host"
    made = RemoteEngine(
        HostCommand(
            words=(words[0], "-F", str(sshd.client), *words[1:-1], f"exec env {path}"),
            on="login",
            environment=ENVIRONMENT,
            open_s=8.0,
            silent_s=4.0,
        ),
        OpenTest(nodes=3, pids=str(tmp_path / "pids")),
        clock=SystemClock(),
        call_s=20.0,
    )
    yield made
    made.close()


def answers(far: RemoteEngine) -> bool:
    try:
        far.inventory()
    except Unavailable:
        return False
    return True


def test_calls_come_through_whatever_banner_and_shell_print(far: RemoteEngine) -> None:
    assert len(far.inventory().nodes) == 3
    far.launch(order())
    assert [seen.phase for seen in far.observe()] == [AllocationPhase.RUNNING]


def test_an_sshd_killed_in_the_middle_is_told_and_used_again_once_it_is_back(
    far: RemoteEngine, sshd: Sshd, tmp_path: Path
) -> None:
    assert answers(far)
    sshd.kill()
    with pytest.raises(Unavailable, match=r"exit status 255: .*(closed by remote host|reset|refused|Broken pipe)"):
        far.inventory()
    with pytest.raises(Unavailable, match="Connection refused"):
        far.inventory()
    sshd.start()
    until(lambda: answers(far))
    assert len(pids(tmp_path)) == 2
    assert gone(pids(tmp_path)[0])


@pytest.mark.soak
def test_an_sshd_that_hangs_is_given_up_and_its_host_ends_once_it_wakes(
    far: RemoteEngine, sshd: Sshd, tmp_path: Path
) -> None:
    assert answers(far)
    sshd.signal(signal.SIGSTOP)
    with pytest.raises(Unavailable, match="not a word for 4 s"):
        far.inventory()
    with pytest.raises(Unavailable):
        far.inventory()
    sshd.signal(signal.SIGCONT)
    until(lambda: gone(pids(tmp_path)[0]))
    until(lambda: answers(far))


def test_a_key_that_is_not_taken_is_told_in_the_words_of_ssh(far: RemoteEngine, sshd: Sshd) -> None:
    sshd.lock_out()
    with pytest.raises(Unavailable, match=r"Permission denied \(publickey\)"):
        far.inventory()


def test_a_python_that_is_not_there_is_told_in_the_words_of_the_shell(sshd: Sshd) -> None:
    words = ssh_words("login", "/nowhere/python", "engine-host")
    far = RemoteEngine(
        HostCommand(words=(words[0], "-F", str(sshd.client), *words[1:]), on="login", environment=ENVIRONMENT),
        OpenTest(nodes=3),
        clock=SystemClock(),
        call_s=20.0,
    )
    with pytest.raises(Unavailable, match=r"exit status 127: .*/nowhere/python: not found"):
        far.inventory()
    far.close()


def test_behind_an_sshd_that_comes_and_goes_nobody_waits_and_a_launch_that_returned_stays(
    far: RemoteEngine, sshd: Sshd
) -> None:
    behind = NonBlockingEngine(
        far, name=ClusterName("alpha"), clock=SystemClock(), inventory_s=0.2, observe_s=0.2, stale_s=3.0
    )
    slowest_s = 0.0

    def done(act: Callable[[], object]) -> bool:
        nonlocal slowest_s
        begun = time.monotonic()
        try:
            act()
        except Unavailable:
            return False
        finally:
            slowest_s = max(slowest_s, time.monotonic() - begun)
        return True

    until(lambda: done(lambda: behind.launch(order())))
    until(lambda: done(behind.observe))
    sshd.signal(signal.SIGSTOP)
    until(lambda: not done(behind.observe))
    assert not done(lambda: behind.stop(order().allocation, grace_s=1.0))
    sshd.signal(signal.SIGCONT)
    sshd.kill()
    threading.Event().wait(0.2)
    assert not done(behind.inventory)
    sshd.start()
    until(lambda: done(lambda: behind.stop(order().allocation, grace_s=1.0)))
    until(lambda: done(behind.inventory))
    assert len(behind.inventory().nodes) == 3
    assert slowest_s < 10.0, "each call took a moment"
    far.close()
    behind.close()
