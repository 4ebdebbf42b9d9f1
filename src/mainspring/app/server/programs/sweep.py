"""Puts nodes to work to find which of them is at fault: `python -m mainspring probes sweep`, one rank a node.

It is a program like any other, under `ms run` (one replica a node, with all of its chips), Slurm, torchrun or by hand:
RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT say who is who. Rank 0 leads, and writes what came of it. With `--minutes`
it is a burn-in: sweeps one after the other, of which every fault counts.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Event, Thread

from mainspring.app.base.system import SystemClock, SystemDice, raise_open_files
from mainspring.app.server.programs.probes import TOLD_S, add_telling, post_of, seconds_of, write_events
from mainspring.domain.errors import InvalidInput, MainspringError, Unavailable
from mainspring.domain.hardware.health import HealthEvent, Strategy
from mainspring.domain.ids import ClusterName, NodeName, checked_name
from mainspring.node.probes.sightings import Sighting, Teller
from mainspring.node.probes.sweep.meeting import SweepLead, SweepPlan, Swept, be_member, child_work
from mainspring.node.probes.sweep.verdicts import HISTORY_MAX, judged, merged, rates_of
from mainspring.node.process.environment import NODE_VARIABLE

CHILD = (sys.executable, "-m", "mainspring", "probes", "measure")
MINUTES_MAX = 7 * 24 * 60.0
FILE_BYTES_MAX = 1 << 20
FAILED = 1  # Exit code of a burn-in that a node did not pass.


def main(arguments: Sequence[str]) -> int:
    """Leads a sweep, or is a member of one. Returns the exit code: 0, whatever is found, unless that is to tell."""
    words = _words(arguments)
    try:
        return _sweep(words)
    except MainspringError as error:
        print(error, file=sys.stderr)
        return error.exit_code


def _sweep(words: argparse.Namespace) -> int:
    clock, environment = SystemClock(), os.environ
    rank, count = _number(environment, "RANK", 0), _number(environment, "WORLD_SIZE", 1)
    lead = environment.get("MASTER_ADDR") or "127.0.0.1", _number(environment, "MASTER_PORT", 0)
    if not 0 <= rank < count or (count > 1 and not lead[1]):
        got, wanted = f"RANK={rank} WORLD_SIZE={count} MASTER_PORT={lead[1]}", "a rank below the count, and a port"
        raise InvalidInput("sweep", on="the environment", got=got, wanted=wanted)
    node = checked_name(words.node or _own_name(environment), "node")
    cluster = ClusterName(checked_name(words.cluster, "cluster"))
    history = _history_folder(words)
    post = post_of(words) if words.to and rank == 0 else None
    work, pause = child_work(CHILD), Event().wait
    if rank:
        be_member(lead, rank, node, work, clock=clock, meet_s=words.meet, pause=pause)
        return 0
    raise_open_files()  # A connection to every node.
    plan = SweepPlan(count=count, seconds=words.work, limit_s=words.limit, meet_s=words.meet)
    with _listening(lead[1]) as listener:
        met = lead[0] if count > 1 else "127.0.0.1", listener.getsockname()[1]
        how = {"clock": clock, "meet_s": words.meet, "pause": pause}
        own = Thread(target=be_member, args=(met, 0, node, work), kwargs=how, daemon=True)
        own.start()
        leading, passes = SweepLead(listener, plan, clock), list[Mapping[int, Sequence[Sighting]]]()
        leading.meet()
        over_s = clock.monotonic_s() + 60 * words.minutes
        while True:
            swept = leading.sweep()
            passes.append(_judged(swept, history))
            if clock.monotonic_s() >= over_s:
                break
        leading.end()
        own.join(words.limit)
    found = merged(passes)
    if history is not None:
        _remember(swept, history)
    strategy, told = Strategy.SHADOW if words.shadow else Strategy.ACT, list[HealthEvent]()
    for one, sightings in found.items():
        teller = Teller(cluster, NodeName(swept.nodes[one]), SystemDice(), strategy=strategy)
        told += teller.tell("sweep", sightings, clock.now_s())
    if words.json:
        write_events(told, as_json=True)
    else:
        _summarise(swept, found)
    if post is not None:
        from mainspring.node.probes.telling import Outgoing

        outgoing = Outgoing(post, clock=clock, dice=SystemDice())
        outgoing.add(told)
        if not outgoing.drain(TOLD_S):
            raise Unavailable("tell what was found", on=words.to, got=outgoing.trouble or f"no answer in {TOLD_S:g} s")
    failed = bool(swept.missing) or any(seen.fatal for sightings in found.values() for seen in sightings)
    return FAILED if words.strict and failed else 0


def _own_name(environment: Mapping[str, str]) -> str:
    """Returns what this node's cluster calls it, as far as anybody says."""
    told = environment.get(NODE_VARIABLE) or environment.get("SLURMD_NODENAME")
    return told or socket.gethostname().partition(".")[0].lower()


def _listening(port: int) -> socket.socket:
    try:
        return socket.create_server(("", port), backlog=1_024)
    except OSError as error:
        raise Unavailable("lead a sweep", on=f"port {port}", got=str(error), wanted="a free port") from error


def _judged(swept: Swept, history: Path | None) -> Mapping[int, Sequence[Sighting]]:
    past = {} if history is None else {rank: _past(history, node) for rank, node in swept.nodes.items()}
    return judged(swept.alone, swept.groups, past)


def _summarise(swept: Swept, found: Mapping[int, Sequence[Sighting]]) -> None:
    """Writes what is wrong with whom, and a line for each rank."""
    for rank, sightings in found.items():
        node, faults = swept.nodes[rank], [seen for seen in sightings if not seen.healthy]
        for seen in faults:
            print(f"{'fatal' if seen.fatal else 'warning'}: rank {rank} on {node}: {seen.check}: {seen.message}")
        measure = swept.alone[rank].measure if rank in swept.alone else None
        rates = {} if measure is None else rates_of(measure)
        shown = ", ".join(f"{check.removeprefix('sweep-')} {rate:.3g}/s" for check, rate in rates.items())
        verdict = "bad" if any(seen.fatal for seen in faults) else "suspect" if faults else "well"
        print(f"rank {rank} on {node} is {verdict}; {shown or 'it did no work'}")
    for rank in swept.missing:
        print(f"rank {rank} did not come")
    sys.stdout.flush()


# ---------------------------------------------------------------- what was before


def _history_folder(words: argparse.Namespace) -> Path | None:
    if words.history is None:
        return None
    folder: Path = words.history
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput("keep the rates of nodes", on=str(folder), got=str(error), wanted="a folder") from error
    return folder


def _past(folder: Path, node: str) -> Mapping[str, Sequence[float]]:
    """Returns a node's rates of earlier sweeps; none where its file is missing or no such file."""
    try:
        with (folder / f"{node}.json").open("rb") as file:
            plain = json.loads(file.read(FILE_BYTES_MAX))
    except (OSError, ValueError):
        return {}
    if not isinstance(plain, dict):
        return {}
    kept = {key: rates for key, rates in plain.items() if isinstance(rates, list)}
    return {key: [float(rate) for rate in rates if isinstance(rate, (int, float))] for key, rates in kept.items()}


def _remember(swept: Swept, folder: Path) -> None:
    for rank, node in swept.nodes.items():
        measure = swept.alone[rank].measure if rank in swept.alone else None
        if measure is None:
            continue
        rates = {key: list(known) for key, known in _past(folder, node).items()}
        for key, rate in rates_of(measure).items():
            rates[key] = [*rates.get(key, []), rate][-HISTORY_MAX:]
        partial = folder / f"{node}.json.partial"
        partial.write_text(json.dumps(rates))
        partial.replace(folder / f"{node}.json")


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, "")
    if text and not (text.isdigit() and len(text) < 8):
        raise InvalidInput("sweep", on=name, got=repr(text[:40]), wanted="a whole number")
    return int(text) if text else default


def _words(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m mainspring probes sweep", description="Finds nodes that are at fault."
    )
    parser.add_argument("--cluster", required=True, help="the nodes' cluster, as the lab calls it")
    parser.add_argument("--node", default="", help="this node, as its cluster calls it; else this machine's name")
    parser.add_argument("--work", type=seconds_of, default=1.0, help="seconds at each thing, about")
    parser.add_argument(
        "--limit", type=seconds_of, default=120.0, help="seconds that one piece of work may take in all"
    )
    parser.add_argument("--meet", type=seconds_of, default=120.0, help="seconds that nodes are waited for")
    parser.add_argument("--minutes", type=seconds_of, default=0.0, help="sweep again for so long: a burn-in")
    parser.add_argument("--strict", action="store_true", help=f"exit with {FAILED} where a node is bad, or missing")
    parser.add_argument("--history", type=Path, default=None, help="folder that keeps the rates of each node")
    add_telling(parser)
    words = parser.parse_args(arguments)
    if not words.work or words.minutes > MINUTES_MAX:
        parser.error(f"--work is over 0, and --minutes at most {MINUTES_MAX:g}")
    return words
