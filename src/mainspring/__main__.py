"""Programs that run without a person at them: `python -m mainspring PROGRAM ...`.

Their names are on disk and on other machines (job commands, batch scripts), so they stay when modules move.
"""

from __future__ import annotations

import runpy
import sys

PROGRAMS = {
    "agent": "mainspring.app.server.agent",
    "bundle": "mainspring.engines.kubernetes.setup.bundle",
    "check-cluster": "mainspring.app.server.checking",
    "engine-host": "mainspring.app.server.engine_host",
    "evaluate": "mainspring.app.server.programs.evaluate",
    "pictures": "mainspring.app.server.programs.pictures",
    "probes": "mainspring.app.server.programs.probes",
    "proxy": "mainspring.app.server.programs.robots.service_proxy",
    "record": "mainspring.app.server.programs.record",
    "serve": "mainspring.app.server.programs.robots.serve",
    "server": "mainspring.app.web.serving",
    "take-in": "mainspring.app.server.programs.take_in",
    "train": "mainspring.app.server.programs.train",
    "try-users": "mainspring.app.server.programs.try_users",
}


def main() -> None:
    """Runs the program that the first argument names."""
    program = sys.argv[1] if len(sys.argv) > 1 else ""
    if program not in PROGRAMS:
        sys.exit(f"run a program; got {program!r}; wanted one of {', '.join(PROGRAMS)}; people use the command `ms`")
    sys.argv[:2] = [f"python -m mainspring {program}"]
    runpy.run_module(PROGRAMS[program], run_name="__main__", alter_sys=True)  # Its classes find their own module.


if __name__ == "__main__":
    main()
