"""The agent's entry program: `python -m mainspring agent --order FILE`, started by an engine on each node.

With `--wait` in place of the order it is started before there is one, and told on standard input where that is.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from pathlib import Path

from mainspring.app.base.system import SystemClock, SystemDice, raise_open_files
from mainspring.app.server.echo import Echo
from mainspring.app.server.output import OutputFile
from mainspring.app.server.telemetry.logs import start_log
from mainspring.domain import codec
from mainspring.domain.fleet import AgentExit, AgentOrder, AgentPlaces
from mainspring.domain.ports import Clock
from mainspring.domain.release import RELEASE
from mainspring.domain.wire.trust import CERTIFICATE_VARIABLE
from mainspring.node.agent import run_agent

EXIT_FILE = "exit.json"
_log = logging.getLogger(__name__)
_SAID_BYTES_MAX = 4 << 20  # One agent's own words; its ranks' output is kept apart.


def main(clock: Clock) -> int:
    """Runs one agent to its end; leaves `exit.json` in its report folder as its last act. Returns the exit code."""
    parser = argparse.ArgumentParser(description="Runs one agent, as its engine ordered.")
    told = parser.add_mutually_exclusive_group(required=True)
    told.add_argument("--order", type=Path, help="file that holds the order")
    told.add_argument("--wait", action="store_true", help="be told the file on standard input, once there is one")
    parser.add_argument("--places", type=Path, help="file that tells all agents' places, where they share an order")
    parser.add_argument("--index", type=int, default=0, help="which of these is this agent's")
    parser.add_argument("--last-words", type=Path, help="file that is told, too, how it ended")
    parser.add_argument("--echo", action="store_true", help="say on standard output what ranks write")
    words = parser.parse_args()
    path = _awaited() if words.wait else words.order
    if path is None:
        return 0
    OutputFile(bytes_max=_SAID_BYTES_MAX, parts_max=1).start()
    order = codec.decode(AgentOrder, path.read_bytes())
    if words.places is not None:
        order = codec.decode(AgentPlaces, words.places.read_bytes()).order_of(words.index, order)
    about = {"job_id": order.job_id, "attempt_id": order.attempt, "allocation_id": order.allocation, "node": order.node}
    start_log(order.log_form, about=about)
    reports = Path(order.report_dir or order.work_dir)
    for folder in (Path(order.work_dir), reports):
        folder.mkdir(parents=True, exist_ok=True)
    raise_open_files()  # A lead has a connection to every agent.
    _log.info("the agent begins, of release %s", RELEASE)
    environment = dict(os.environ)
    certificate = environment.pop(CERTIFICATE_VARIABLE, "")
    echo = Echo(reports, sys.stdout.buffer) if words.echo else None
    try:
        ended = asyncio.run(
            run_agent(order, environment=environment, clock=clock, dice=SystemDice(), certificate=certificate)
        )
    except Exception as error:  # noqa: BLE001  (the last word of a process that ends either way)
        _log.exception("a fault in the agent")
        ended = AgentExit(exit_code=1, reason=f"fault in the agent: {error!r}")
    if echo is not None:
        echo.close()
    _log.info("the agent ends with %d: %s", ended.exit_code, ended.reason)
    try:
        if words.last_words is not None:  # A file that is mounted there: it cannot be replaced.
            words.last_words.write_bytes(codec.encode(ended))
        partial = reports / (EXIT_FILE + ".partial")
        partial.write_bytes(codec.encode(ended))
        partial.replace(reports / EXIT_FILE)
    except OSError:
        _log.exception("the end of the agent could not be written down")  # The exit code alone has to say it.
    return ended.exit_code


def _awaited() -> Path | None:
    """Returns the file of the order once the launch is recorded; works and speaks beside it from then on.

    Standard input has two lines, the order's file and the launch's, and its end. Without both the launch was cut short:
    None.
    """
    lines = sys.stdin.read().splitlines()
    if len(lines) != 2 or not Path(lines[1]).exists():
        return None
    path = Path(lines[0])
    os.chdir(path.parent)
    for number, name, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, "agent.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT),
        (2, "agent.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT),
    ):
        file = os.open(name, flags | os.O_CLOEXEC, 0o666)
        os.dup2(file, number)
        os.close(file)
    return path


if __name__ == "__main__":
    exit_code = main(SystemClock())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)  # A worker thread stuck in a store that does not answer must not keep the process.
