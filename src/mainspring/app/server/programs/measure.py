"""One piece of a sweep's work, in a process of its own: `python -m mainspring probes measure SECONDS [GROUP]`."""

from __future__ import annotations

from collections.abc import Sequence

from mainspring.app.base.system import SystemClock
from mainspring.node.probes.sweep import measures


def main(words: Sequence[str]) -> int:
    """Does it, and writes what came of it. Returns the exit code."""
    measures.main(words, SystemClock())
    return 0
