"""Google's libtpu, asked in a process of its own: it takes 130 MiB, and minutes where a cloud does not answer it.

The process (`python -m mainspring probes tpu`) writes a line of JSON for each time that it asked, and ends when whoever
started it does. It opens no chip: those are whose program runs there.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, final

from mainspring.domain.ports import Backoff, Clock
from mainspring.node.probes.watchers.tpu import METRICS, PARTS_MAX, TpuAnswer

ASKED_S = 30.0
SILENT_S = 300.0  # Metadata that no cloud gives are asked for 30 times each, which takes two minutes.
LINE_BYTES_MAX = 1 << 17  # Of `PARTS_MAX` rows of each metric.
ROW_MAX = 120  # Letters.
AGAIN = Backoff(first_s=60.0, cap_s=3_600.0)
_READ_BYTES = 1 << 16
_ENDS_S = 5.0  # For a process that was killed.


@final
class LibtpuProcess:
    """Asks libtpu through a process of its own, which is started anew where it ends or says nothing.

    Args:
        command: Starts it.
        environment: Its variables.
        silent_s: After so long without a line it is ended.
        again: How long to wait before it is started anew.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        clock: Clock,
        *,
        silent_s: float = SILENT_S,
        again: Backoff = AGAIN,
    ) -> None:
        self._command = tuple(command)
        self._environment = dict(environment)
        self._clock = clock
        self._silent_s = silent_s
        self._again = again
        self._process: subprocess.Popen[bytes] | None = None
        self._rest = b""
        self._heard_s = 0.0
        self._starts_s = float("-inf")
        self._failures = 0

    def read(self) -> TpuAnswer | None:
        """Returns what it said since the last call; see `TpuReader`."""
        now_s = self._clock.monotonic_s()
        if self._process is None:
            return self._start(now_s) if now_s >= self._starts_s else None
        code = self._process.poll()  # Before the pipe is read: what it wrote before it ended is there then.
        line = self._newest_line()
        if line:
            self._heard_s, self._failures = now_s, 0
            return _answer(line)
        if code is not None:
            return self._failed(now_s, f"the process that asks libtpu ended with {code}")
        if now_s - self._heard_s > self._silent_s:
            return self._failed(now_s, f"libtpu has not answered for {self._silent_s:g} s")
        return None

    def close(self) -> None:
        """Ends the process."""
        process, self._process = self._process, None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        process.kill()
        with suppress(subprocess.TimeoutExpired):  # It hangs in the kernel, and ends once that lets it.
            process.wait(_ENDS_S)

    def _start(self, now_s: float) -> TpuAnswer | None:
        pipe = subprocess.PIPE
        try:
            process = subprocess.Popen(
                self._command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=self._environment
            )
        except OSError as error:
            return self._failed(now_s, f"libtpu cannot be asked: {error}"[:300])
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        self._process, self._heard_s, self._rest = process, now_s, b""
        return None

    def _failed(self, now_s: float, words: str) -> TpuAnswer:
        self.close()
        self._failures += 1
        self._starts_s = now_s + self._again.wait_s(self._failures)
        return TpuAnswer(trouble=words)

    def _newest_line(self) -> bytes:
        """Returns the newest whole line; b"" for none."""
        assert self._process is not None
        assert self._process.stdout is not None
        newest = b""
        for _ in range(2 * LINE_BYTES_MAX // _READ_BYTES):
            try:
                data = os.read(self._process.stdout.fileno(), _READ_BYTES)
            except OSError:
                break  # Nothing more yet.
            if not data:
                break
            *whole, self._rest = (self._rest + data).split(b"\n")
            newest = next((line for line in reversed(whole) if line), newest)
            self._rest = self._rest[-LINE_BYTES_MAX:]
        return newest


def _answer(line: bytes) -> TpuAnswer:
    try:
        told = json.loads(line)
        if not isinstance(told, dict):
            raise ValueError("no object")
        metrics = {
            name: tuple(str(row)[:ROW_MAX] for row in rows[:PARTS_MAX])
            for name in METRICS
            if isinstance(rows := told.get(name), list)
        }
    except (ValueError, RecursionError) as error:
        return TpuAnswer(trouble=f"what libtpu answered cannot be read: {error}"[:300])
    return TpuAnswer(metrics=metrics, trouble=str(told.get("trouble", ""))[:300])


# ---------------------------------------------------------------- the process


def main(words: Sequence[str]) -> int:
    """Asks libtpu until nobody reads what it writes. Returns the exit code.

    Args:
        words: None.
    """
    written = os.dup(1)
    os.dup2(2, 1)  # The library writes where it likes.
    try:
        monitoring = import_module("libtpu.sdk").tpumonitoring
    except (ImportError, AttributeError) as error:
        os.write(written, json.dumps({"trouble": f"libtpu cannot be asked: {error}"[:300]}).encode() + b"\n")
        return 1
    return ask_on(monitoring.get_metric, lambda line: os.write(written, line), sys.stdin.fileno(), ASKED_S)


def ask_on(get_metric: Callable[[str], Any], write: Callable[[bytes], object], until: int, every_s: float) -> int:
    """Asks again and again until a pipe is closed.

    Args:
        get_metric: libtpu's.
        write: Takes a line.
        until: The pipe's number.
    """
    while True:
        try:
            write(json.dumps(_told(get_metric)).encode() + b"\n")
        except OSError:
            return 0
        if select.select([until], [], [], every_s)[0]:
            return 0


def _told(get_metric: Callable[[str], Any]) -> Mapping[str, object]:
    told: dict[str, object] = {}
    for name in METRICS:
        try:
            rows = get_metric(name).data()
        except Exception as error:  # noqa: BLE001  (whatever a library of others raises for a chip that it does not know)
            told.setdefault("trouble", f"{name}: {error!r}"[:300])
            continue
        told[name] = [str(row)[:ROW_MAX] for row in list(rows or ())[:PARTS_MAX]]
    return told
