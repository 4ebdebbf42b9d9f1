"""An agent that is started before there is an order for it: a launch on an idle cluster waits for no interpreter."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import final

from mainspring.domain.ports import Clock

REST_S = 0.3  # After a launch; while launches come faster, another interpreter would only slow down what they start.
AGAIN_S = 60.0  # One that ended by itself would do so again.


@final
class ReadyAgent:
    """One agent that waits on a pipe for its order; it ends when the pipe is closed without one, so with this process.

    Args:
        command: Program and words of an agent that so waits; none is kept where it is empty.
        environment: Every variable it gets.
    """

    def __init__(self, command: tuple[str, ...], environment: Mapping[str, str], clock: Clock) -> None:
        self._command = command
        self._environment = environment
        self._clock = clock
        self._child: subprocess.Popen[bytes] | None = None
        self._not_before_s = 0.0

    def keep(self) -> None:
        """Begins one where there is none, unless something was launched just now, or one ended by itself."""
        if not self._command:
            return
        now_s = self._clock.monotonic_s()
        if self._child is not None and self._child.poll() is not None:
            self._drop(now_s + AGAIN_S)
        if self._child is None and now_s >= self._not_before_s:
            with suppress(OSError):  # A launch starts its agents itself then, and says what is wrong.
                self._child = subprocess.Popen(
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env=self._environment,
                    start_new_session=True,
                )

    def take(self, order: Path, gate: Path) -> subprocess.Popen[bytes] | None:
        """Returns the one that waits, told its order; None where none does.

        Once its pipe is closed it goes on, where the gate is there then.

        Args:
            order: Where its order is; it works in that folder, and speaks to `agent.log` there.
            gate: The file without which it ends.
        """
        self._not_before_s = max(self._not_before_s, self._clock.monotonic_s() + REST_S)
        child, self._child = self._child, None
        if child is None:
            return None
        assert child.stdin is not None
        try:
            child.stdin.write(f"{order}\n{gate}\n".encode())
            child.stdin.flush()
        except OSError:
            self._child = child
            self._drop(self._clock.monotonic_s() + AGAIN_S)
            return None
        return child

    def _drop(self, not_before_s: float) -> None:
        child, self._child = self._child, None
        assert child is not None
        assert child.stdin is not None
        with suppress(OSError):
            child.stdin.close()
        child.kill()
        child.wait()
        self._not_before_s = not_before_s
