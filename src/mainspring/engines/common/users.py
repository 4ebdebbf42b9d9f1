"""Folders of users that ranks run as, where they do not run under their agents' account."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from hashlib import blake2s
from pathlib import Path

REMOVE_S_MAX = 10.0  # A disk that hangs keeps what is left.
_NAME_BYTES = 8  # Half as many letters are needed to tell folders apart; sockets below them want short paths.


def unguessable(words: str, secret: str) -> str:
    """Returns a short name of a file, always the same for the same words, that cannot be guessed without the secret."""
    return blake2s(words.encode(), digest_size=_NAME_BYTES, key=blake2s(secret.encode()).digest()).hexdigest()


def remove_of(user: str, folder: Path) -> None:
    """Removes what a killed agent's ranks have left in a folder of their user, if it is still there.

    It is done as root, or as that user by a rule of sudo: no link in the folder leads out of it.
    """
    way = () if os.geteuid() == 0 else ("sudo", "-n", "-u", user, "--")
    if os.path.lexists(folder):
        with suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(
                (*way, "rm", "-rf", "--", str(folder)),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=REMOVE_S_MAX,
                check=False,
            )
