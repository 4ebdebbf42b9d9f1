"""The inputs of requests, kept on demand for whoever looks into what a policy did: a ring of files on disk."""

from __future__ import annotations

import contextlib
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, final

from mainspring.domain.errors import InvalidInput
from mainspring.robots.serving.wire import pack, unpack

_log = logging.getLogger(__name__)

FILES_MAX = 10_000
QUEUE_MAX = 16  # Requests on their way to disk; where it is slower than robots ask, some are not kept.


@final
class KeptRequests:
    """The newest requests that were to be kept, a file each: `0.msgpack` to `N.msgpack`, written over in turn.

    Args:
        folder: Where; made if it is not there.
        files: How many at most.
    """

    def __init__(self, folder: Path, *, files: int) -> None:
        if not 1 <= files <= FILES_MAX:
            raise InvalidInput("keep requests", got=f"{files} files", wanted=f"1 to {FILES_MAX}")
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # Pictures of where robots are.
        except OSError as error:
            raise InvalidInput("keep requests", on=str(folder), got=str(error), wanted="a folder") from error
        self._folder = folder
        self._files = files
        self._next = (max(_numbers(folder), key=lambda each: each[1], default=(-1, 0.0))[0] + 1) % files
        self._queued = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kept")

    def keep(self, request: bytes, facts: dict[str, Any]) -> None:
        """Writes a request a little later, unless too many are waiting for that.

        Args:
            request: The message as it came.
            facts: What it takes to draw its chunk again, and what came of it.
        """
        if self._queued >= QUEUE_MAX:
            return
        self._queued += 1
        self._thread.submit(self._write, request, facts)

    def _write(self, request: bytes, facts: dict[str, Any]) -> None:
        try:
            path = self._folder / f"{self._next}.msgpack"
            partial = path.with_suffix(".partial")
            with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(pack({"request": request, "facts": facts}))
            partial.replace(path)
            self._next = (self._next + 1) % self._files
        except OSError as error:
            _log.warning("could not keep a request: %s", error)
        finally:
            self._queued -= 1

    def close(self) -> None:
        """Writes what is still to be written."""
        self._thread.shutdown()


def read_kept(path: Path) -> tuple[Any, dict[str, Any]]:
    """Returns a request that was kept, and the facts beside it.

    Raises:
        InvalidInput: There is none.
    """
    try:
        both = unpack(path.read_bytes())
        return unpack(both["request"]), both["facts"]
    except (OSError, KeyError, TypeError) as error:
        raise InvalidInput("read a kept request", on=str(path), got=str(error)) from error


def _numbers(folder: Path) -> list[tuple[int, float]]:
    found = []
    for path in folder.glob("*.msgpack"):
        with contextlib.suppress(ValueError, OSError):
            found.append((int(path.stem), path.stat().st_mtime))
    return found
