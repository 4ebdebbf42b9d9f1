"""An agent whose machine's clock is set while it runs: python adjusted_agent.py FILE --order ORDER.

FILE holds how many seconds the clock is ahead of the true time.
"""

from __future__ import annotations

import sys
from pathlib import Path

from mainspring.app.base.system import SystemClock
from mainspring.app.server import agent


class AdjustedClock(SystemClock):
    def __init__(self, ahead: Path) -> None:
        self._ahead = ahead

    def now_s(self) -> float:
        return super().now_s() + float(self._ahead.read_text())


if __name__ == "__main__":
    sys.exit(agent.main(AdjustedClock(Path(sys.argv.pop(1)))))
