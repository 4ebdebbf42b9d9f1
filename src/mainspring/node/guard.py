"""Ends what an agent leaves behind: a tiny child process that outlives a killed agent just long enough.

It reads "+<group>" and "-<group>" lines from the agent. When the pipe closes, however the agent ended, it kills every
process group still noted. The ranks themselves die with the agent (PR_SET_PDEATHSIG); this catches their children.
Run as a file by an isolated interpreter, so that it starts in milliseconds and holds little memory.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys


def main() -> None:
    """Notes groups until the agent is gone, then kills them."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        group = int(line[1:])
        if line[0] == "+":
            groups.add(group)
        else:
            groups.discard(group)
    for group in sorted(groups):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
