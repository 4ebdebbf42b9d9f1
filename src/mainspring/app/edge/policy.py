"""The policy server on a robot: a process that runs on the files of a slot, and whether it may be restarted now."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import final

import urllib3

from mainspring.app.edge.config import EdgeConfig
from mainspring.domain.answers.policies.releases import SLOT_RELEASE, PolicyRelease
from mainspring.domain.codec import decode
from mainspring.domain.errors import MainspringError, Unavailable
from mainspring.robots.edge.trust import SignedFile

END_S = 10.0  # Between asking it to end and killing it.
RESTART_S = 5.0  # Between two starts of one that ends by itself.
HEALTH_S = 2.0  # For an answer from the robot itself.
_SLOTS = "slots"
_PR_SET_PDEATHSIG = 1  # Linux, sys/prctl.h.


def end_with_parent() -> None:
    """Has the kernel end a process with the one that starts it, however that ends: a policy server with its agent, as
    the next one starts its own. Called in the new process.

    Source: prctl(2), PR_SET_PDEATHSIG.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


@final
class PolicyProcess:
    """See `EdgeRobot`.

    Args:
        folder: The agent's own.
    """

    def __init__(self, config: EdgeConfig, folder: Path) -> None:
        self._config = config
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._slot = ""
        self._started_s = 0.0
        self._pool = urllib3.PoolManager(retries=False, timeout=HEALTH_S)

    def unsafe(self) -> str:
        """See `EdgeRobot.unsafe`."""
        config, now = self._config, time.localtime()
        if config.lock_file and Path(config.lock_file).exists():
            return f"{config.lock_file} is there"
        if not config.in_window(now.tm_hour * 60 + now.tm_min):
            return f"not in its window, {config.window}"
        return self._state() if config.state_file else ""

    def _state(self) -> str:
        path = Path(self._config.state_file)
        try:
            old_s = time.time() - path.stat().st_mtime
            state = json.loads(path.read_bytes())
            moving, battery = bool(state.get("moving", True)), float(state.get("battery", 100.0))
        except (OSError, ValueError, AttributeError, TypeError):
            return f"{path} says nothing"
        if moving or abs(old_s) > self._config.state_s:
            return "it moves" if moving else f"{path} is {old_s:.0f} s old"
        return f"its battery is at {battery:g} %" if battery < self._config.battery else ""

    def start(self, slot: str, files: Sequence[SignedFile]) -> None:
        """See `EdgeRobot.start`."""
        self.end()
        self._slot, self._started_s = slot, time.monotonic()
        place = self._lay_out(slot, files)
        command = [word.replace("{slot}", str(place)) for word in self._config.command]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=end_with_parent,  # noqa: PLW1509  This process has one thread.
            )
        except OSError as error:
            raise Unavailable("start the policy server", on=command[0], got=str(error)) from error

    def _lay_out(self, slot: str, files: Sequence[SignedFile]) -> Path:
        """Returns a folder in which files are called as in their release; they lie where they lay. One that is as it is
        to be is left alone: a disk may have no room for it anew.
        """
        place = self._folder / _SLOTS / slot
        try:
            words = (self._folder / f"file-{files[0].sha256}").read_bytes()
            named = {file.path: file.sha256 for file in decode(PolicyRelease, words).content.files}
            named[SLOT_RELEASE] = files[0].sha256  # Last: no file of a release stands in its place.
            wanted = {place / name: self._folder / f"file-{sha256}" for name, sha256 in named.items()}
            if {path: path.readlink() for path in place.rglob("*") if path.is_symlink()} == wanted:
                return place
            shutil.rmtree(place, ignore_errors=True)
            for path, file in wanted.items():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.symlink_to(file)
        except (OSError, IndexError, MainspringError) as error:
            raise Unavailable("lay out a slot", on=slot, got=str(error)) from error
        return place

    def healthy(self, slot: str) -> bool:
        """See `EdgeRobot.healthy`."""
        if self._process is None or self._slot != slot or self._process.poll() is not None:
            return False
        if not self._config.health:
            return True
        try:
            return self._pool.request("GET", self._config.health).status == 200
        except urllib3.exceptions.HTTPError:
            return False

    def keep(self, slot: str, files: Sequence[SignedFile]) -> None:
        """Starts it where it ended by itself, did not start, or runs another slot; what ends at once is not healthy.

        Raises:
            Unavailable: It does not start.
        """
        runs = self._process is not None and self._process.poll() is None and self._slot == slot
        if not runs and time.monotonic() - self._started_s >= RESTART_S:
            self.start(slot, files)

    def end(self) -> None:
        """Ends it, with all that it started."""
        if self._process is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self._process.pid, number)
                self._process.wait(END_S)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue
            break
        self._process = None
