"""Allocation records of the local engine, as files: one folder an allocation, claimed whole, under one lock.

<root>/.lock                            held during every call that looks at allocations
<root>/.cordons.json                    cordons by node
<root>/<allocation>/claim.json          there as soon as the folder is: the id can never be launched again
<root>/<allocation>/attestation.json    what came with its order, until all is over
<root>/<allocation>/launched.json       its processes; the moment this file is there, the launch has happened
<root>/<allocation>/stop.json           somebody asked it to end
<root>/<allocation>/ended.json          everything is over
<root>/.gone-<allocation>/              what is left of one that is forgotten
<root>/<allocation>/node-<i>/           an agent's own folder: order.json, grace, agent.log, exit.json, rank-<rank>.log;
                                        once all is over, only output and last words stay
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from mainspring.domain.codec import decode, encode
from mainspring.domain.errors import Conflict, DamagedData, InvalidMessage, NotFound, StorageFull, Unavailable
from mainspring.domain.fleet import EndedBefore
from mainspring.domain.ids import NO_JOB, AllocationId, JobId, NodeName, checked_name
from mainspring.engines.common.processes import Process

GONE = ".gone-"
LOCK_WAIT_S = 10.0  # A launch of 100 nodes holds the lock for about a second.
_LOCK_POLL_S = 0.005

ATTESTATION = "attestation.json"

Record = TypeVar("Record")


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """An allocation id that is taken, and for which job; no nodes when it was stopped before it was launched."""

    nodes: tuple[NodeName, ...]
    job_id: JobId = NO_JOB


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """The agents of an allocation, in rank order of their nodes."""

    agents: tuple[Process, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAsked:
    """How long the agents have to end by themselves."""

    grace_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How an allocation ended, and when that was seen; `lost_nodes` are those whose agents did not end well."""

    exit_code: int | None
    reason: str
    ended_s: float
    lost_nodes: tuple[NodeName, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedAt:
    """When an allocation ended: what there is in common of how engines write that down."""

    ended_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cordon:
    """Who keeps new allocations off a node, and why."""

    owner: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cordons:
    """Cordons by node."""

    by_node: Mapping[str, Cordon] = field(default_factory=dict)


class Records:
    """The folder of one local cluster. Safe to use from several processes and threads at once.

    Args:
        root: The folder; made when missing.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self._sizes: dict[str, int] = {}  # Of what has ended, which grows no more.
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)

    def folder(self, allocation: AllocationId) -> Path:
        """Returns an allocation's folder.

        Raises:
            InvalidInput: The id is not one that could name a folder.
        """
        return self.root / checked_name(allocation, "allocation")

    def allocations(self) -> tuple[AllocationId, ...]:
        """Returns every id that is claimed, in order."""
        return tuple(AllocationId(name) for name in sorted(os.listdir(self.root)) if not name.startswith("."))

    def claim(self, allocation: AllocationId, claim: Claim) -> bool:
        """Takes an id until it is forgotten, whole or not at all; returns if it was free. The lock must be held."""
        folder = self.folder(allocation)
        if folder.exists():
            return False
        draft = self.root / f".claim-{allocation}"
        shutil.rmtree(draft, ignore_errors=True)  # Left by a process that died here; the lock keeps others out.
        draft.mkdir(mode=0o700)
        self.write(draft / "claim.json", claim)
        draft.rename(folder)
        return True

    def forget_ended(self, due: EndedBefore, *, below: str = "") -> int:
        """Removes allocations that ended long ago, and what earlier calls left of some; see `Forgetting.forget_ended`.

        One that was stopped before it was launched has ended when its id was taken.

        Args:
            due: Which of them.
            below: The folder in the root that they are in, "" for the root.

        Raises:
            Unavailable: See `locked`.
        """
        place, kept, count = self.root / below, frozenset(due.kept), 0
        names = sorted(os.listdir(place)) if place.is_dir() else []
        beyond = self._beyond(place, names, due) if due.bytes_max is not None else frozenset()
        for name in names:
            if name.startswith(GONE) and due.limit:
                shutil.rmtree(place / name, ignore_errors=True)
            elif name.startswith(".") or name in kept:
                continue  # Of nobody's concern.
            elif name in beyond or self._ended_before(place / name, due.time_s):
                count += 1
                if count <= due.limit:
                    with self.locked(f"forget {name}"), suppress(FileNotFoundError):  # Another server may do the same.
                        (place / name).rename(place / f"{GONE}{name}")
                    shutil.rmtree(place / f"{GONE}{name}", ignore_errors=True)
                    self._sizes.pop(name, None)
        return count

    def _beyond(self, place: Path, names: Collection[str], due: EndedBefore) -> frozenset[str]:
        """Returns what goes because all that has ended takes too much: what ended longest ago."""
        ended: list[tuple[float, str]] = []
        for name in names:
            with suppress(DamagedData, OSError):
                if not name.startswith(".") and (told := self.read(EndedAt, place / name / "ended.json")) is not None:
                    ended.append((told.ended_s, name))
        taken, found = 0, list[str]()
        for ended_s, name in sorted(ended, reverse=True):
            if name not in self._sizes:
                self._sizes[name] = bytes_below(place / name)
            taken += self._sizes[name]
            if taken > (due.bytes_max or 0) and ended_s < due.spared_s:
                found.append(name)
        return frozenset(found)

    def _ended_before(self, folder: Path, time_s: float) -> bool:
        """Returns whether an allocation surely ended before a time; most are not even read."""
        try:
            if folder.is_symlink() or (folder / "claim.json").stat().st_mtime >= time_s:
                return False
            ended = self.read(EndedAt, folder / "ended.json")
            if ended is not None:
                return ended.ended_s < time_s
            claim = self.read(Claim, folder / "claim.json")
        except (DamagedData, OSError):
            return False
        return claim is not None and not claim.nodes

    def read(self, kind: type[Record], path: Path) -> Record | None:
        """Returns a record; None when it was never written.

        Raises:
            DamagedData: The file does not hold such a record.
        """
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            return decode(kind, data)
        except InvalidMessage as error:
            raise DamagedData(f"read a {kind.__name__}", on=str(path), got=error.got, wanted=error.wanted) from error

    def write(self, path: Path, record: object) -> None:
        """Writes a record durably, whole or not at all, readable by its owner alone."""
        draft = path.with_name(f".{path.name}")
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(encode(record))
            file.flush()
            os.fsync(file.fileno())
        draft.rename(path)

    def attestation(self, folder: Path) -> str:
        """Returns what came with an allocation's order; see `Engine.attestation`.

        Args:
            folder: The allocation's.

        Raises:
            NotFound: There is nothing.
        """
        found = self.read(str, folder / ATTESTATION)
        if found is None:
            raise NotFound("know an allocation again", on=folder.name, got="none that runs and has an attestation")
        return found

    def cordons(self) -> Mapping[str, Cordon]:
        """Returns who keeps new allocations off which node."""
        return (self.read(Cordons, self.root / ".cordons.json") or Cordons()).by_node

    def cordon(self, node: NodeName, *, owner: str, reason: str) -> None:
        """Keeps new allocations off a node.

        Raises:
            Conflict: Another owner has cordoned it.
            Unavailable: The folder cannot be used.
        """
        self._change_cordons(node, owner, "cordon a node", Cordon(owner=owner, reason=reason))

    def uncordon(self, node: NodeName, *, owner: str) -> None:
        """Takes back a cordon; does nothing when there is none.

        Raises:
            Conflict: The cordon belongs to another owner.
            Unavailable: The folder cannot be used.
        """
        self._change_cordons(node, owner, "uncordon a node", None)

    def _change_cordons(self, node: NodeName, owner: str, attempted: str, after: Cordon | None) -> None:
        with self.locked(f"{attempted}: {node}"):
            others = dict(self.cordons())
            known = others.pop(node, None)
            if known and known.owner != owner:
                raise Conflict(
                    attempted, on=node, got=f"a cordon of {known.owner!r} ({known.reason})", wanted=f"one of {owner!r}"
                )
            self.write(self.root / ".cordons.json", Cordons(by_node={**others, node: after} if after else others))

    @contextmanager
    def locked(self, attempted: str) -> Iterator[None]:
        """Keeps every other process and thread out; the system lets go when the holder dies.

        Args:
            attempted: What is being done, for the message.

        Raises:
            Unavailable: The lock did not come within `LOCK_WAIT_S`, or the folder cannot be used.
            StorageFull: The disk is full.
        """
        try:
            with open(self.root / ".lock", "wb") as file:
                self._take(file.fileno(), attempted)
                yield
        except OSError as error:
            kind = StorageFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else Unavailable
            raise kind(attempted, on=str(self.root), got=str(error), next_step="look at that folder") from error

    def _take(self, descriptor: int, attempted: str) -> None:
        pause = threading.Event()
        for _ in range(int(LOCK_WAIT_S / _LOCK_POLL_S)):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pause.wait(_LOCK_POLL_S)
            else:
                return
        raise Unavailable(
            attempted, on=str(self.root), got=f"a lock held by another process for {LOCK_WAIT_S:g} s", wanted="the lock"
        )


def bytes_below(folder: Path) -> int:
    """Returns how much the files below a folder take; links count nothing."""
    total = 0
    for place, _, files in os.walk(folder):
        for file in files:
            with suppress(OSError):  # It has gone since the folder was read.
                status = os.lstat(os.path.join(place, file))
                total += status.st_size if stat.S_ISREG(status.st_mode) else 0
    return total
