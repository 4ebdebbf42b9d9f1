"""What a profile holds: XLA's trace of a few steps, memory meanwhile, what compiled programs cost.

Source: JAX 0.10, `jax.profiler`; XLA's client, `live_executables`, by which operations are told from what they cost.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, final

from mainspring.domain import wire

SAMPLE_S = 0.02  # Between two looks at memory: each takes some tens of microseconds.
SAMPLES_MAX = 100_000  # Half an hour of them; the file has 4 MB then.
STEPS_MAX = 1_000  # A trace of many steps says no more than one of a few, and fills disks.
XPLANE, TRACE, ABOUT = "host.xplane.pb", "host.trace.json.gz", "about.json"
_STATM = "/proc/self/statm"  # Source: proc(5); the second number is resident pages.


@final
class Recording:
    """A trace under way."""

    def __init__(self, wanted: wire.ProfileWanted, step: int, stopwatch: Callable[[], float]) -> None:
        import jax

        self.wanted = wanted
        self._stopwatch = stopwatch
        self._first = step
        self._steps: list[tuple[int, float]] = [(step, 0.0)]
        self._memory: list[tuple[float, int, int]] = []
        self._ended = threading.Event()
        self._folder = Path(tempfile.mkdtemp(prefix="mainspring-profile-"))
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # Its events are most of the bytes, and slow the host down.
        jax.profiler.start_trace(str(self._folder), profiler_options=options)
        self._begun_s = stopwatch()
        self._annotation: Any = jax.profiler.StepTraceAnnotation("step", step_num=step)
        self._annotation.__enter__()
        self._sampling = threading.Thread(target=self._sample, name="mainspring-memory", daemon=True)
        self._sampling.start()

    def next(self, step: int) -> bool:
        """Returns whether another step belongs to the trace."""
        import jax

        self._annotation.__exit__(None, None, None)
        self._steps.append((step, self._stopwatch() - self._begun_s))
        if step - self._first >= min(self.wanted.steps, STEPS_MAX):
            self._annotation = None
            return False
        self._annotation = jax.profiler.StepTraceAnnotation("step", step_num=step)
        self._annotation.__enter__()
        return True

    def end(self) -> dict[str, Path]:
        """Ends the trace and returns its files, by name."""
        import jax

        if self._annotation is not None:
            self._annotation.__exit__(None, None, None)
            self._steps.append((self._steps[-1][0] + 1, self._stopwatch() - self._begun_s))
        self._ended.set()
        self._sampling.join()
        jax.profiler.stop_trace()  # type: ignore[no-untyped-call]
        about = self._folder / ABOUT
        about.write_text(json.dumps(self._about()))
        files = {ABOUT: about}
        for name, ending in ((XPLANE, "*.xplane.pb"), (TRACE, "*.trace.json.gz")):
            found = next(self._folder.rglob(ending), None)
            if found is not None:
                files[name] = found
        return files

    def clean(self) -> None:
        """Removes its files."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _sample(self) -> None:
        """Looks at memory at once, again and again, and at the end."""
        over = False
        while len(self._memory) < SAMPLES_MAX:
            self._memory.append((self._stopwatch() - self._begun_s, *_memory()))
            if over:
                return
            over = self._ended.wait(SAMPLE_S)

    def _about(self) -> dict[str, Any]:
        """Returns what the trace itself does not say."""
        import jax

        devices = jax.local_devices()
        limits = [(device.memory_stats() or {}).get("bytes_limit", 0) for device in devices]
        return {
            "platform": devices[0].platform,
            "device_kind": devices[0].device_kind,
            "devices": len(devices),
            "device_bytes": max(limits),
            "jax": jax.__version__,
            "steps": [{"step": step, "begun_s": at_s} for step, at_s in self._steps],
            "memory": [{"at_s": at_s, "device_bytes": used, "host_bytes": host} for at_s, used, host in self._memory],
            "modules": _modules(devices[0].client),
        }


def _memory() -> tuple[int, int]:
    """Returns the bytes in use of the fullest device here (0 where it does not say), and of this process."""
    import jax

    used = [(device.memory_stats() or {}).get("bytes_in_use", 0) for device in jax.local_devices()]
    with open(_STATM) as file:
        pages = int(file.read().split()[1])
    return max(used), pages * os.sysconf("SC_PAGE_SIZE")


def _modules(client: Any) -> dict[str, dict[str, float]]:
    """Returns what one run of each compiled program costs by XLA's own count, by the program's name."""
    found: dict[str, dict[str, float]] = {}
    for executable in client.live_executables():
        with contextlib.suppress(Exception):  # Some kinds of device do not count.
            costs = executable.cost_analysis()
            costs = costs if isinstance(costs, dict) else costs[0]
            name = executable.hlo_modules()[0].name
            ours = {"flops": float(costs.get("flops", 0.0)), "bytes": float(costs.get("bytes accessed", 0.0))}
            if ours["flops"] >= found.get(name, {}).get("flops", -1.0):  # Of several of one name, the largest.
                found[name] = ours
    return found
