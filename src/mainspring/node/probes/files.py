"""The files in which a kernel tells of its node, below a root folder: "/" on a node, what was recorded of one in tests.

Every read is bounded, and whatever cannot be read is not there: a node lacks most of what is looked for.
"""

from __future__ import annotations

import os
from typing import final

TEXT_BYTES_MAX = 1 << 16  # Of one file: a table of mounts of a busy container host.
NAMES_MAX = 4_096  # Of one folder: PCI functions of a large machine.


@final
class NodeFiles:
    """Reads `/proc`, `/sys` and `/dev` of a node.

    Args:
        root: What stands for "/".
    """

    def __init__(self, root: str = "/") -> None:
        self._root = root.rstrip("/")

    def path(self, name: str) -> str:
        """Returns where a file is.

        Args:
            name: As on a node, without the first slash ("sys/class/net").
        """
        return f"{self._root}/{name}"

    def text(self, name: str, bytes_max: int = TEXT_BYTES_MAX) -> str:
        """Returns what a file says, without space around it; "" where it cannot be read."""
        try:
            opened = os.open(self.path(name), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return ""
        try:
            return os.read(opened, bytes_max).decode(errors="replace").strip()
        except OSError:
            return ""
        finally:
            os.close(opened)

    def names(self, name: str) -> tuple[str, ...]:
        """Returns what is in a folder, in order; nothing where it cannot be read."""
        try:
            return tuple(sorted(os.listdir(self.path(name)))[:NAMES_MAX])
        except OSError:
            return ()

    def link(self, name: str) -> str:
        """Returns the last name of what a symbolic link points at; "" where there is none."""
        try:
            return os.readlink(self.path(name)).rsplit("/", 1)[-1]
        except OSError:
            return ""

    def exists(self, name: str) -> bool:
        """Returns whether there is such a file or folder."""
        return os.path.exists(self.path(name))

    def number(self, name: str) -> int | None:
        """Returns the whole number that a file begins with, None where it has none."""
        words = self.text(name, 128).split(maxsplit=1)
        try:
            return int(words[0], 0) if words else None
        except ValueError:
            return None
