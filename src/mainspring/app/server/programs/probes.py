"""Watches a node that may be idle: `python -m mainspring probes --cluster NAME [--once] [--to URL]`.

For Slurm's HealthCheckProgram, a DaemonSet, a unit of systemd, or by hand. What it sees it writes: a line for each
fault, or with `--json` one JSON object for each event. With `--to` it tells a controller, too.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from mainspring.app.base.system import SystemClock, SystemDice
from mainspring.domain import codec
from mainspring.domain.errors import InvalidInput, MainspringError, Unavailable
from mainspring.domain.hardware.health import HealthEvent, Strategy
from mainspring.domain.ids import ClusterName, NodeName, checked_name
from mainspring.domain.ports import Clock
from mainspring.node.probes.files import NodeFiles
from mainspring.node.probes.sightings import Teller, Watcher
from mainspring.node.probes.watch import Watch, watchers_of
from mainspring.node.probes.watchers.devices import DeviceReader
from mainspring.node.probes.watchers.links import SETTLED_S
from mainspring.node.probes.watchers.tpu import Tpus, has_tpu

if TYPE_CHECKING:
    from mainspring.node.probes.telling import HttpPost

ONCE_S = SETTLED_S + 1.5  # So long a port has to be down before it counts, and a counter has to be read twice.
ONCE_SINCE_S = 600.0  # What the kernel logged before that was told by the look before.
SINCE_S = 86_400.0  # As far as rules look back; what was told before is known again.
OTHERS = {
    "measure": "mainspring.app.server.programs.measure",
    "network": "mainspring.app.server.programs.network",
    "sweep": "mainspring.app.server.programs.sweep",
    "tpu": "mainspring.node.probes.watchers.libtpu",
}
TOLD_S = 10.0  # How long a watch that ends waits for a controller.
SICK = 10  # Exit code of a look that saw something fatal; lower ones are those of commands that failed.


def main() -> int:
    """Watches, or does what else the first word names. Returns the exit code."""
    logging.basicConfig(format="%(message)s", stream=sys.stderr, level=logging.INFO)
    if sys.argv[1:2] and sys.argv[1] in OTHERS:
        module = import_module(OTHERS[sys.argv[1]])
        return int(module.main(sys.argv[2:]))
    words = arguments_of(sys.argv[1:])
    try:
        reader = None if words.no_nvml else _reader()
        return watch(words, reader)
    except MainspringError as error:
        print(error, file=sys.stderr)
        return error.exit_code


def watch(words: argparse.Namespace, reader: DeviceReader | None) -> int:
    """Watches until it is told to end, or the time is over.

    Args:
        words: The command's.
        reader: The driver of the node's GPUs, None for none.

    Raises:
        MainspringError: The command names no cluster or node, or nothing may be told where it says.
    """
    clock, dice, ended = SystemClock(), SystemDice(), Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    cluster = ClusterName(checked_name(words.cluster, "cluster"))
    node = NodeName(checked_name(words.node or socket.gethostname().partition(".")[0].lower(), "node"))
    strategy = Strategy.SHADOW if words.shadow else Strategy.ACT
    outgoing = None
    if words.to:
        from mainspring.node.probes.telling import Outgoing  # What only writes lines needs no HTTP.

        outgoing = Outgoing(post_of(words), clock=clock, dice=dice)
    seconds = ONCE_S if words.once and words.seconds is None else words.seconds
    over_s = float("inf") if seconds is None else clock.monotonic_s() + seconds
    since = words.since if words.since is not None else ONCE_SINCE_S if words.once else SINCE_S
    others = _others(words, node, clock, has_driver=reader is not None)
    looked = Watch(
        watchers_of(words.root, reader, since_s=clock.now_s() - since, others=others),
        Teller(cluster, node, dice, strategy=strategy),
        clock,
        left_out=outgoing.take_left_out if outgoing else lambda: 0,
        every_s=words.every,
    )
    sick = False
    try:
        while True:
            told = looked.look()
            sick = sick or any(event.fatal for event in told)
            read = write_events(told, as_json=words.json)
            if outgoing is not None and told:
                outgoing.add(told)
            if outgoing is None and not read:
                break
            left_s = min(looked.next_s, over_s) - clock.monotonic_s()
            if ended.wait(max(0.0, left_s)) or clock.monotonic_s() >= over_s:
                break
        if outgoing is not None and not outgoing.drain(TOLD_S):
            raise Unavailable("tell what was seen", on=words.to, got=outgoing.trouble or f"no answer in {TOLD_S:g} s")
    finally:
        looked.close()
    return SICK if words.once and sick else 0


def arguments_of(arguments: Sequence[str]) -> argparse.Namespace:
    """Returns what a command says.

    Args:
        arguments: Its words, after the name of the program.
    """
    parser = argparse.ArgumentParser(
        prog="python -m mainspring probes", description="Watches a node, whether anything runs there or not."
    )
    parser.add_argument("--cluster", required=True, help="the node's cluster, as the lab calls it")
    parser.add_argument("--node", default="", help="the node, as its cluster calls it; else this machine's name")
    parser.add_argument(
        "--once", action="store_true", help=f"look for {ONCE_S:g} s and end: with {SICK} where something is fatal"
    )
    parser.add_argument(
        "--every", type=seconds_of, default=0.0, help="the least seconds between two looks at one thing"
    )
    parser.add_argument("--seconds", type=seconds_of, default=None, help="end after so many")
    parser.add_argument(
        "--since", type=seconds_of, default=SINCE_S, help="read so many seconds of the kernel's log back"
    )
    add_telling(parser)
    parser.add_argument("--root", default="/", help="where the node's /proc, /sys and /dev are")
    parser.add_argument("--no-nvml", action="store_true", help="do not ask NVIDIA's driver")
    exporter = parser.add_mutually_exclusive_group()
    exporter.add_argument(
        "--dcgm",
        default="",
        metavar="URL",
        help="ask DCGM's exporter there; else at port 9400 where NVML is not asked",
    )
    exporter.add_argument("--no-dcgm", action="store_true", help="do not ask DCGM's exporter")
    parser.add_argument("--no-tpu", action="store_true", help="do not ask libtpu")
    return parser.parse_args(arguments)


def add_telling(parser: argparse.ArgumentParser) -> None:
    """Adds how and whom to tell to what a command may say."""
    parser.add_argument("--json", action="store_true", help="write every event, as one line of JSON")
    parser.add_argument("--to", default="", metavar="URL[,URL]", help="tell a controller; MAINSPRING_TOKEN is shown")
    parser.add_argument("--token-file", type=Path, default=None, help="read the token there")
    parser.add_argument("--insecure", action="store_true", help="show the token over plain HTTP, too")
    parser.add_argument("--shadow", action="store_true", help="nothing is to follow from what is told")


def seconds_of(text: str) -> float:
    """Returns the seconds that a word says.

    Raises:
        ValueError: It says none.
    """
    seconds = float(text)
    if not 0 <= seconds < float("inf"):
        raise ValueError(text)
    return seconds


seconds_of.__name__ = "number of seconds"  # What argparse calls it.


def _others(words: argparse.Namespace, node: NodeName, clock: Clock, *, has_driver: bool) -> list[Watcher]:
    """Returns watchers of what few nodes have; none of their libraries is loaded elsewhere.

    Args:
        has_driver: Whether NVIDIA's driver is asked.

    Raises:
        InvalidInput: The command says wrongly where to ask.
    """
    files, found = NodeFiles(words.root), list[Watcher]()
    unasked = not has_driver and files.exists("proc/driver/nvidia/version")
    if not words.no_dcgm and (words.dcgm or unasked):
        from mainspring.node.probes.watchers.dcgm import open_dcgm

        found.append(open_dcgm(files, words.dcgm, node=node, clock=clock))
    if not (words.no_tpu or words.once) and has_tpu(files):  # It takes longer to answer than one look does.
        if find_spec("libtpu") is None:
            logging.getLogger(__name__).info("this node has TPUs, and no libtpu to ask: install it, or say --no-tpu")
        else:
            from mainspring.node.probes.watchers.libtpu import LibtpuProcess

            command = (sys.executable, "-m", "mainspring", "probes", "tpu")
            without = {name: value for name, value in os.environ.items() if name != "MAINSPRING_TOKEN"}
            found.append(Tpus(LibtpuProcess(command, without, clock)))
    return found


def _reader() -> DeviceReader | None:
    from mainspring.node.probes.watchers.nvml import open_nvml  # Where there is no GPU it is not needed.

    try:
        return open_nvml()
    except Unavailable as error:
        logging.getLogger(__name__).info("%s", error)
        return None


def post_of(words: argparse.Namespace) -> HttpPost:
    """Returns how to tell the controller that a command names.

    Raises:
        InvalidInput: It names none, or no token for it.
    """
    from mainspring.domain.wire.addresses import addresses_of
    from mainspring.domain.wire.trust import CERTIFICATE_VARIABLE
    from mainspring.node.probes.telling import HttpPost

    urls, token = addresses_of(words.to), os.environ.get("MAINSPRING_TOKEN", "")
    if words.token_file is not None:
        try:
            token = words.token_file.read_text().strip()
        except OSError as error:
            raise InvalidInput("read a token", on=str(words.token_file), got=str(error)) from error
    if not token:
        raise InvalidInput(
            "tell a controller",
            on=words.to,
            got="no token",
            wanted="MAINSPRING_TOKEN or --token-file",
            next_step="ms token new --role watcher HOLDER makes one",
        )
    certificate = os.environ.get(CERTIFICATE_VARIABLE, "")
    return HttpPost(urls, token, certificate=certificate, insecure=words.insecure)


def write_events(told: Sequence[HealthEvent], *, as_json: bool) -> bool:
    """Writes a line for each event, or, for people, for each fault. Returns whether somebody reads on, as `head` does
    not.
    """
    try:
        sys.stdout.writelines(_lines(told, as_json=as_json))
        sys.stdout.flush()
    except BrokenPipeError:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())  # What is still to be written would fail again at the end.
        return False
    return True


def _lines(told: Sequence[HealthEvent], *, as_json: bool) -> Iterator[str]:
    for event in told:
        if as_json:
            yield codec.encode(event).decode() + "\n"
        elif not event.healthy:
            part = f" {event.scope.part}" if event.scope.part else ""
            fatal = "fatal" if event.fatal else "warning"
            yield f"{fatal}: {event.check}{part}: {event.message}; would help: {event.repair.value}\n"


if __name__ == "__main__":
    sys.exit(main())
