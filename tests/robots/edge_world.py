"""A robot's disk that loses what was not synced, a source of releases, and a robot, for tests of the agent."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from mainspring.domain.errors import NotFound, StorageFull, Unavailable
from mainspring.robots.edge.agent import EdgeAgent
from mainspring.robots.edge.machine import EdgeLimits, Phase
from mainspring.robots.edge.trust import SignedFile, TrustFloor
from mainspring.testing import FakeClock, SeededDice

LIMITS = EdgeLimits(download_s=500.0, wait_s=200.0, prove_s=20.0, healthy_s=5.0)


class PowerLoss(Exception):
    """The robot's power is gone."""


class LossyDisk:
    """Loses, in a power loss, any part of what was not synced; loses power at the call that a test says."""

    def __init__(self, seed: int = 0, *, free: int = 1 << 40) -> None:
        self.files: dict[str, bytes] = {}
        self.synced: dict[str, bytes] = {}  # Bytes that outlive it, by name as of now.
        self.durable: dict[str, bytes] = {}  # Names that outlive it.
        self.free = free
        self.calls = 0
        self.lose_at: int | None = None
        self.dice = SeededDice(seed, "disk")

    def _call(self) -> None:
        self.calls += 1
        if self.lose_at is not None and self.calls >= self.lose_at:
            self.lose_at = None
            self.lose()
            raise PowerLoss

    def lose(self) -> None:
        """What a disk may make of it: names as of the last sync of names, or as of now; bytes torn anywhere."""
        names = self.files if self.dice.bits(1) else self.durable
        kept = {}
        for name in names:
            safe, now = self.synced.get(name, self.durable.get(name, b"")), self.files.get(name, b"")
            cut = self.dice.bits(16) % (len(now) - len(safe) + 1) if now.startswith(safe) else 0
            torn = bytes(byte ^ 0xFF for byte in now[len(safe) : len(safe) + cut])
            kept[name] = safe + (torn if self.dice.bits(1) else now[len(safe) : len(safe) + cut])
        self.files, self.synced, self.durable = dict(kept), dict(kept), dict(kept)

    def read(self, name: str) -> bytes | None:
        return self.files.get(name)

    def size(self, name: str) -> int:
        return len(self.files.get(name, b""))

    def append(self, name: str, data: bytes) -> None:
        self._call()
        if len(data) > self.free:
            raise StorageFull("write", on=name)
        self.free -= len(data)
        self.files[name] = self.files.get(name, b"") + data

    def remove(self, name: str) -> None:
        self._call()
        self.files.pop(name, None)
        self.synced.pop(name, None)

    def rename(self, name: str, to: str) -> None:
        self._call()
        self.files[to] = self.files.pop(name)
        self.synced[to] = self.synced.pop(name, b"")

    def sync(self, name: str) -> None:
        self._call()
        self.synced[name] = self.files[name]

    def sync_names(self) -> None:
        self._call()
        self.durable = {name: self.synced.get(name, b"") for name in self.files}

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self.files))

    def sha256(self, name: str) -> str:
        return hashlib.sha256(self.files[name]).hexdigest() if name in self.files else ""

    def free_bytes(self) -> int:
        return self.free


@dataclass
class Look:
    files: tuple[SignedFile, ...]
    floor: TrustFloor
    kept: bytes = b"{}"


@dataclass
class Shop:
    """A source: releases by target, each some files."""

    releases: dict[str, tuple[bytes, ...]] = field(default_factory=dict)
    away: bool = False
    fetched: int = 0
    wrong: int = 0  # So many fetches bring other bytes.

    def look(self, target: str, *, now_s: float, floor: TrustFloor, kept: bytes) -> Look:
        if self.away:
            raise Unavailable("look", on=target)
        if target not in self.releases:
            raise NotFound("look", on=target)
        files = tuple(
            SignedFile(path=f"artifacts/{n}", size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
            for n, data in enumerate(self.releases[target])
        )
        return Look(files, TrustFloor(versions={"targets": len(self.releases)}, issued_s=floor.issued_s))

    def fetch(self, file: SignedFile, offset: int, size_bytes: int) -> bytes:
        if self.away:
            raise Unavailable("fetch", on=file.path)
        known = {hashlib.sha256(data).hexdigest(): data for some in self.releases.values() for data in some}
        size = min(size_bytes, 7, file.size_bytes - offset)  # A thin line: pieces are short.
        self.fetched += size
        if self.wrong:
            self.wrong -= 1
            return b"?" * size
        return known[file.sha256][offset : offset + size]


class Arm:
    """A robot: it runs what it was started with; releases with a file `bad` are never healthy."""

    def __init__(self, disk: LossyDisk) -> None:
        self.disk = disk
        self.busy, self.broken, self.refuses = "", False, False
        self.runs: tuple[SignedFile, ...] = ()
        self.starts = 0

    def unsafe(self) -> str:
        return self.busy

    def start(self, slot: str, files: Sequence[SignedFile]) -> None:
        if self.refuses:
            raise Unavailable("start the policy server", on=slot)
        self.runs = tuple(files)
        self.starts += 1

    def contents(self) -> tuple[bytes, ...]:
        return tuple(self.disk.files.get(f"file-{file.sha256}", b"lost") for file in self.runs)

    def healthy(self, slot: str) -> bool:
        return bool(self.runs) and not self.broken and b"bad" not in self.contents() and b"lost" not in self.contents()


class Robot:
    """All of it, with a clock."""

    def __init__(self, seed: int = 0, *, slot_bytes_max: int = 1 << 30) -> None:
        self.disk, self.shop, self.clock = LossyDisk(seed), Shop(), FakeClock()
        self.arm = Arm(self.disk)
        self.slot_bytes_max = slot_bytes_max
        self.boot()

    def boot(self) -> None:
        """Power comes back, perhaps to go again."""
        self.arm.runs = ()
        self.agent = EdgeAgent(
            self.disk, self.shop, self.arm, self.clock, limits=LIMITS, slot_bytes_max=self.slot_bytes_max
        )

    def go(self, target: str = "", *, steps: int = 200) -> None:
        """Until nothing is to be done, or power is lost."""
        if target:
            self.agent.ask(target, action="1")
        for _ in range(steps):
            self.agent.step()
            self.clock.advance(1.0)
            if self.agent.journal.phase is Phase.IDLE:
                return
