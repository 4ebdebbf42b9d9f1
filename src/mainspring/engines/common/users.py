"""What ranks of other users have left behind, removed."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from pathlib import Path

from mainspring.domain.fleet import memory_of

REMOVE_S_MAX = 10.0  # A disk that hangs keeps what is left.


def remove_of(user: str, folder: Path) -> None:
    """Removes what a killed agent's ranks have left in a folder of their user, and in memory, if it is still there.

    It is done as root, or as that user by a rule of sudo: no link in the folder leads out of it.
    """
    way = () if os.geteuid() == 0 else ("sudo", "-n", "-u", user, "--")
    places = (str(folder), memory_of(str(folder)))
    if any(map(os.path.lexists, places)):
        with suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(
                (*way, "rm", "-rf", "--", *places),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=REMOVE_S_MAX,
                check=False,
            )
