"""Profiles of a program while it runs: XLA's own trace of a few steps, and the memory meanwhile.

Asked for by people through the agent; a program that calls `Session.steps` and uses JAX gives it without a word of its
own. Nothing is imported and nothing costs anything until somebody asks.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import final

from mainspring.domain import wire
from mainspring.domain.errors import MainspringError
from mainspring.session.profiling.recording import Recording

_log = logging.getLogger(__name__)


@final
class Profiler:
    """Profiles the steps of one rank, whenever it is asked. Used by the program's thread, and told by another.

    Args:
        keep: Hands files over, by name, with why there are none ("" where there are).
        stopwatch: Seconds that never go back.
    """

    def __init__(self, keep: Callable[[str, Mapping[str, Path], str], None], stopwatch: Callable[[], float]) -> None:
        self._keep = keep
        self._stopwatch = stopwatch
        self._wanted: wire.ProfileWanted | None = None
        self._seen = ""  # The newest that was begun.
        self._active: Recording | None = None

    def want(self, wanted: wire.ProfileWanted | None) -> None:
        """Takes what the agent asks for; what was asked before counts for nothing."""
        if wanted is not None and wanted.id != self._seen:
            self._wanted = wanted

    def boundary(self, step: int) -> None:
        """Begins, goes on or ends, between two steps; `step` is the one about to begin."""
        if self._active is not None:
            if self._active.next(step):
                return
            self._end()
        elif self._wanted is not None:
            wanted, self._wanted = self._wanted, None
            self._seen = wanted.id
            if "jax" not in sys.modules:
                self._give(wanted.id, {}, "the program does not use JAX: nothing of it can be traced")
                return
            try:
                self._active = Recording(wanted, step, self._stopwatch)
            except Exception as error:  # noqa: BLE001  A profile must never end the program that it is of.
                self._give(wanted.id, {}, f"no trace could be begun: {error}"[:1_000])

    def close(self) -> None:
        """Ends with what there is: the program's loop is over."""
        if self._active is not None:
            self._end()

    def _end(self) -> None:
        active, self._active = self._active, None
        assert active is not None
        try:
            files = active.end()
        except Exception as error:  # noqa: BLE001  As above.
            self._give(active.wanted.id, {}, f"the trace could not be ended: {error}"[:1_000])
            active.clean()
            return

        def hand_over() -> None:
            self._give(active.wanted.id, files, "")
            active.clean()

        threading.Thread(target=hand_over, name="mainspring-profile", daemon=True).start()

    def _give(self, id: str, files: Mapping[str, Path], failure: str) -> None:
        try:
            self._keep(id, files, failure)
        except (MainspringError, OSError) as error:
            _log.warning("a profile was not kept: %s", error)
