"""The arms of the show: each a real agent, `ms-edge`, as a process, with a policy server of its own; two more processes
play them. All end with the demo, however that ends.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import final

from mainspring.app.cli.demos.loop.physics import LOCK
from mainspring.app.cli.demos.loop.site import (
    RATE_HZ,
    SITE,
    WORK,
    ArmSite,
    PlayedLog,
    Site,
    Work,
    played_path,
    write_plain,
)
from mainspring.app.edge.http import UrlHttp
from mainspring.app.sdk.lab import Lab
from mainspring.domain.answers import NewRobot, NewToken
from mainspring.domain.answers.policies.releases import Embodiment, RobotChannel
from mainspring.domain.codec import to_plain
from mainspring.domain.errors import Unavailable
from mainspring.domain.job import LAB
from mainspring.domain.team import TeamRole
from mainspring.robots.arm import ACTION_NAMES, STATE_NAMES
from mainspring.robots.edge.device import enrol
from mainspring.robots.edge.folder import FolderDisk

GENTLE = 10  # How much the machine's other work comes first: training goes on beside the arms.
SHARES = 2  # Processes that play arms.
PORTS = range(20_000, 32_000)  # Below those that the kernel gives to whoever calls out.
PROVE_S, HEALTHY_S = 600.0, 2.0  # Of a trial: twenty policy servers may start at once on two cores.
END_S = 30.0  # An agent gives its policy server ten seconds.
LOG_LINES = 20
_AGENT = """import sys
from mainspring.app.edge.main import main
from mainspring.app.edge.policy import end_with_parent
end_with_parent()
sys.exit(main())"""  # `ms-edge`, that ends with the demo.
SEEDS = 1_000  # Of the first arm's starts: none that data are recorded at.
EMBODIMENT = Embodiment(
    state=tuple(RobotChannel(name=name) for name in STATE_NAMES),
    action=tuple(RobotChannel(name=name) for name in ACTION_NAMES),
    rate_hz=RATE_HZ,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A process of an arm.

    Args:
        log: Where it says what it has to say.
    """

    name: str
    process: subprocess.Popen[bytes]
    log: Path


def ring_names(count: int) -> tuple[str, ...]:
    """Returns the group of each arm: the first is the simulated one, the second the lab's, the third the canary."""
    return tuple(("sim", "lab", "canary")[number] if number < 3 else "" for number in range(count))


def free_ports(count: int) -> tuple[int, ...]:
    """Returns ports of this machine that nobody listens on now.

    Raises:
        Unavailable: There are not so many.
    """
    found: list[int] = []
    with ExitStack() as held:  # So that none is found twice.
        for port in random.sample(PORTS, len(PORTS)):
            if len(found) == count:
                break
            probe = held.enter_context(socket.socket())
            with suppress(OSError):
                probe.bind(("127.0.0.1", port))
                found.append(port)
    if len(found) < count:
        raise Unavailable("start arms", got=f"{len(found)} free ports", wanted=f"{count} of {PORTS}")
    return tuple(found)


@final
class Fleet:
    """The arms, from the first that is enrolled to the end of their last process.

    Args:
        folder: Theirs.
        dataset: What their clips join.
        helper: Who shows them how it is done.
    """

    def __init__(self, lab: Lab, folder: Path, *, dataset: str, helper: str) -> None:
        self._lab, self._folder = lab, folder
        self._dataset, self._helper = dataset, helper
        self._running: list[Running] = []
        self.names: tuple[str, ...] = ()
        self.played = PlayedLog([played_path(folder, share) for share in range(SHARES)])

    def enrol(self, count: int, *, failures_each: int) -> None:
        """Enrols arms by one-time tokens, and gives each one more by which it sends its own clips."""
        self._folder.mkdir(parents=True)
        arms = []
        with self._lab.client() as client:
            url = client.servers.url
            for number, (ring, port) in enumerate(zip(ring_names(count), free_ports(count), strict=True)):
                name = f"arm-{number + 1:02}"
                once = client.enrol_robot(NewRobot(name=name, group=ring, labels={"site": "demo"})).secret
                token = client.new_token(NewToken(holder=name, team=LAB, role=TeamRole.MEMBER)).secret
                agent = self._folder / name / "agent"
                log = self._folder / name / "log"
                log.mkdir(parents=True)
                self._configure(agent, port)
                enrol(FolderDisk(agent), UrlHttp(url), url, once)
                arms.append(
                    ArmSite(
                        name=name,
                        ring=ring,
                        agent=str(agent),
                        log=str(log),
                        port=port,
                        token=token,
                        seed=SEEDS + number,
                    )
                )
        self.names = tuple(arm.name for arm in arms)
        site = Site(url=url, dataset=self._dataset, helper=self._helper, failures_each=failures_each, arms=tuple(arms))
        write_plain(self._folder, SITE, site)
        self.work(Work())
        for arm in arms:
            self._start(arm.name, "-c", _AGENT, "--folder", arm.agent, "run")

    def _configure(self, agent: Path, port: int) -> None:
        """Writes what an operator says of an arm."""
        cache = self._lab.home.cache / "compiled"
        serve = [sys.executable, "-m", "mainspring", "serve", "slot:{slot}", "--port", str(port), "--cache", str(cache)]
        config = {
            "fits": to_plain(EMBODIMENT),
            "command": [*serve, "--batched", "1", "--rate", "100000"],
            "health": f"http://127.0.0.1:{port}/healthz",
            "lock_file": str(agent / LOCK),
            "limits": {"prove_s": PROVE_S, "healthy_s": HEALTHY_S},
        }
        agent.mkdir(mode=0o700, parents=True)
        (agent / "edge.json").write_text(json.dumps(config))

    def play(self) -> None:
        """Has the arms begin to work."""
        for share in range(SHARES):
            words = ("-m", "mainspring.app.cli.demos.loop.physics", str(self._folder), str(share), str(SHARES))
            self._start(f"physics-{share}", *words)

    def work(self, work: Work) -> None:
        """Says what the arms are to do from their next episode on."""
        write_plain(self._folder, WORK, work)

    def _start(self, name: str, *words: str) -> None:
        log = self._folder / f"{name}.log"
        gentle = ["nice", "-n", str(GENTLE)] if shutil.which("nice") else []
        with log.open("ab") as file:
            process = subprocess.Popen(
                [*gentle, sys.executable, *words],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,  # An interrupt of the terminal is ours: they are ended in order.
            )
        self._running.append(Running(name=name, process=process, log=log))

    def check(self) -> None:
        """Returns if all processes run.

        Raises:
            Unavailable: One has ended; says what it said last.
        """
        for each in self._running:
            if (code := each.process.poll()) is not None:
                lines = each.log.read_text(errors="replace").splitlines()[-LOG_LINES:]
                got = f"exit code {code}: {' / '.join(lines)[-1_500:]}"
                raise Unavailable("keep the arms running", on=each.name, got=got, next_step=f"read {each.log}")

    def close(self) -> None:
        """Ends every process, with what it started."""
        for each in reversed(self._running):
            with suppress(ProcessLookupError):
                each.process.send_signal(signal.SIGTERM)
        until_s = time.monotonic() + END_S
        for each in self._running:
            try:
                each.process.wait(max(0.0, until_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                each.process.kill()  # The kernel ends its policy server.
                each.process.wait()
        self._running = []
