"""Ports of InfiniBand, RoCE and EFA adapters: whether each is up and as fast as its like, and its error counters.

A counter's file is opened once and read again at its beginning, which the kernel fills anew each time; what did not
change is not even parsed. Adapters of one make in one node do the same work, so they are measured by each other: no
table of what a port should be is needed. A port that is down with most of its like was never connected.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import final

from mainspring.domain.hardware.health import Repair, ScopeKind
from mainspring.node.probes.files import NodeFiles
from mainspring.node.probes.sightings import Sighting, well
from mainspring.node.probes.watchers.counters import COUNTERS, DEVICE_HARDWARE, INTERFACE, PORT, CounterRule

ADAPTERS = "sys/class/infiniband"
LISTED_S = 10.0  # How often adapters are counted.
SETTLED_S = 5.0  # A port that comes back sooner has flapped, which a counter tells; longer, it is down.
GONE_S = 3 * LISTED_S  # An adapter that is reset is away for a while.
PORTS_MAX = 32  # Each keeps up to thirty files open; physical ports of today's largest nodes are half as many.
_VALUE_BYTES = 64
_SPEED_WORDS = 2  # "400 Gb/sec (4X NDR)"


@dataclass(slots=True)
class _Gauge:
    """A counter of one port.

    Args:
        told: What its file said last.
        value: That as a number; None until it has said one.
        from_value: What it was when its window began.
    """

    rule: CounterRule
    file: int
    from_s: float
    told: bytes = b""
    value: int | None = None
    from_value: int = 0


@dataclass(slots=True)
class _Port:
    """A port.

    Args:
        part: Its name in events.
        like: What ports that do the same work have in common.
        state: The file that tells whether it is up, and those that say more of it.
        was_up: Whether it has been up since we look.
        since_s: Since when it is as it is.
    """

    part: str
    like: tuple[str, ...]
    state: int
    rate: int
    up_word: bytes
    gauges: list[_Gauge] = field(default_factory=list)
    up: bool = False
    was_up: bool = False
    since_s: float = float("-inf")
    speed: str = ""
    missing_s: float | None = None

    def files(self) -> Iterator[int]:
        yield from (self.state, self.rate)
        yield from (gauge.file for gauge in self.gauges)


@final
class Links:
    """Watches the ports of a node's adapters.

    Args:
        counters: What is read, and how much is too much.
    """

    name = "links"
    every_s = 1.0

    def __init__(self, files: NodeFiles, counters: Sequence[CounterRule] = COUNTERS) -> None:
        self._files = files
        self._counters = counters
        self._ports: dict[str, _Port] = {}
        self._listed_s = float("-inf")

    def look(self, now_s: float) -> Sequence[Sighting]:
        """Returns what stands and what happened at each port."""
        found: list[Sighting] = []
        if not 0 <= now_s - self._listed_s < LISTED_S:
            self._listed_s = now_s
            found += self._list(now_s)
        here = [port for port in self._ports.values() if port.missing_s is None]
        for port in here:
            self._read_state(port, now_s)
            for gauge in port.gauges:
                told = _read(gauge.file)
                if told != gauge.told or gauge.rule.window_s:
                    found += _counted(port, gauge, told, now_s)
        found += _compared(here, now_s)
        return found

    def close(self) -> None:
        """Closes every file; all ports are looked for anew if they are looked at again."""
        for port in self._ports.values():
            _close(port)
        self._ports.clear()
        self._listed_s = float("-inf")

    # ------------------------------------------------------------ which there are

    def _list(self, now_s: float) -> Iterator[Sighting]:
        there = dict(self._there())
        for part in sorted(there.keys() - self._ports.keys()):
            if len(self._ports) < PORTS_MAX:
                opened = self._open(part, *there[part], now_s)
                if opened is not None:
                    self._ports[part] = opened
        for part, port in list(self._ports.items()):
            if part in there:
                if port.missing_s is not None:
                    _close(port)
                    del self._ports[part]  # It is another one by now: its files are opened anew.
                    opened = self._open(part, *there[part], now_s)
                    if opened is not None:
                        opened.was_up = port.was_up
                        self._ports[part] = opened
                yield well("link-gone", ScopeKind.LINK, part)
            else:
                if port.missing_s is None:
                    port.missing_s = now_s
                if now_s - port.missing_s >= GONE_S:
                    yield Sighting(
                        check="link-gone",
                        kind=ScopeKind.LINK,
                        part=part,
                        fatal=True,
                        message=f"the adapter of {part} is no longer there",
                        repair=Repair.RESTART_NODE,
                    )

    def _there(self) -> Iterator[tuple[str, tuple[str, str]]]:
        for adapter in self._files.names(ADAPTERS):
            if self._files.exists(f"{ADAPTERS}/{adapter}/device/physfn"):
                continue  # A virtual function: its port is that of the physical one.
            for port in self._files.names(f"{ADAPTERS}/{adapter}/ports"):
                yield f"{adapter}/{port}", (adapter, port)

    def _open(self, part: str, adapter: str, number: str, now_s: float) -> _Port | None:
        files, device = self._files, f"{ADAPTERS}/{adapter}"
        folder = f"{device}/ports/{number}"
        layer = files.text(f"{folder}/link_layer", 64)
        interface = next(iter(files.names(f"{device}/device/net")), "")
        is_efa = files.link(f"{device}/device/driver") == "efa"  # Its driver always says ACTIVE.
        if is_efa and not interface:
            state, up_word = -1, b""
        elif is_efa:
            state, up_word = self._file(f"{device}/device/net/{interface}/operstate"), b"up"
        else:
            state, up_word = self._file(f"{folder}/state"), b"ACTIVE"
        if state < 0 and not is_efa:
            return None
        function = files.link(f"{device}/device").rpartition(".")[2]
        made = _Port(
            part=part,
            like=(files.text(f"{device}/hca_type", 64), files.text(f"{device}/board_id", 64), layer, function, number),
            state=state,
            rate=self._file(f"{folder}/rate"),
            up_word=up_word,
            since_s=now_s,
        )
        folders = {PORT: f"{folder}/counters", DEVICE_HARDWARE: f"{device}/hw_counters"}
        folders |= {INTERFACE: f"{device}/device/net/{interface}"} if interface else {}
        checks: set[str] = set()
        for rule in self._counters:
            below = folders.get(rule.folder, "" if rule.folder == INTERFACE else f"{folder}/{rule.folder}")
            file = self._file(f"{below}/{rule.counter}") if below and rule.check not in checks else -1
            if file >= 0:
                checks.add(rule.check)  # A link that goes down is counted once: by its adapter, else its interface.
                made.gauges.append(_Gauge(rule=rule, file=file, from_s=now_s))
        return made

    def _file(self, name: str) -> int:
        try:
            return os.open(self._files.path(name), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return -1

    # ------------------------------------------------------------ how they are

    def _read_state(self, port: _Port, now_s: float) -> None:
        if port.state < 0:
            port.up = True  # An adapter that has nothing to tell it by.
            return
        said = _read(port.state)
        if not said:  # The adapter was taken away or reset, and its files with it: it is looked for anew.
            port.missing_s = now_s
        up = port.up_word in said
        if up != port.up:
            port.up, port.since_s = up, now_s
        port.was_up = port.was_up or up
        if up:
            words = _read(port.rate).split(maxsplit=_SPEED_WORDS)
            port.speed = words[0].decode(errors="replace") if words else ""


def _compared(ports: Sequence[_Port], now_s: float) -> Iterator[Sighting]:
    """Yields how each port is beside its like."""
    alike: dict[tuple[str, ...], list[_Port]] = defaultdict(list)
    for port in ports:
        alike[port.like].append(port)
    for group in alike.values():
        up = [port for port in group if port.up]
        speeds = Counter(port.speed for port in up if port.speed)
        usual, count = speeds.most_common(1)[0] if speeds else ("", 0)
        for port in group:
            if port.up:
                yield well("link-state", ScopeKind.LINK, port.part)
            elif (port.was_up or 2 * len(up) > len(group)) and now_s - port.since_s >= SETTLED_S:
                yield Sighting(
                    check="link-state",
                    kind=ScopeKind.LINK,
                    part=port.part,
                    fatal=True,
                    message=f"{port.part} is down; {len(up)} of {len(group)} ports like it are up",
                    repair=Repair.CALL_PEOPLE,
                )
            if port.up and port.speed:
                slow = 2 * count > len(up) and _slower(port.speed, usual)
                yield (
                    Sighting(
                        check="link-speed",
                        kind=ScopeKind.LINK,
                        part=port.part,
                        codes=(port.speed,),
                        message=f"{port.part} runs at {port.speed} Gb/s; {count} ports like it run at {usual}",
                        repair=Repair.CALL_PEOPLE,
                    )
                    if slow
                    else well("link-speed", ScopeKind.LINK, port.part)
                )


def _slower(speed: str, usual: str) -> bool:
    try:
        return float(speed) < float(usual)
    except ValueError:
        return False


def _counted(port: _Port, gauge: _Gauge, told: bytes, now_s: float) -> Iterator[Sighting]:
    """Yields what a counter's newest value tells."""
    rule = gauge.rule
    if told != gauge.told:
        value = _number(told)
        if value is None:
            return  # It cannot be read now.
        before, gauge.told, gauge.value = gauge.value, told, value
        if before is None or value < before:  # The first look, or somebody has set it back.
            gauge.from_value, gauge.from_s = value, now_s
            return
    elif gauge.value is None:
        return
    grown = gauge.value - gauge.from_value
    if grown > rule.most:
        yield Sighting(
            check=rule.check,
            kind=ScopeKind.LINK,
            part=port.part,
            stands=rule.window_s > 0,
            codes=(rule.counter,),
            fatal=rule.fatal,
            message=f"{rule.words} on {port.part}: {rule.counter} grew by {grown} to {gauge.value}",
            repair=rule.repair,
        )
        gauge.from_value, gauge.from_s = gauge.value, now_s
    elif rule.window_s and not 0 <= now_s - gauge.from_s < rule.window_s:
        gauge.from_value, gauge.from_s = gauge.value, now_s
        yield well(rule.check, ScopeKind.LINK, port.part)


def _read(file: int) -> bytes:
    try:
        return os.pread(file, _VALUE_BYTES, 0)
    except OSError:
        return b""


def _number(told: bytes) -> int | None:
    try:
        return int(told)
    except ValueError:
        return None


def _close(port: _Port) -> None:
    for file in port.files():
        if file >= 0:
            os.close(file)
