"""Does what `machine.py` says, on a robot's disk: one small piece of work a call, so that nothing else waits for long.

    journal.json   the journal       trust.json     metadata that was believed
    wanted.json    files of what is being installed
    slot-a.json    files of a slot   file-SHA256    whole   part-SHA256    what has come of it

Files are named by their bytes and shared by slots, so what did not change is neither fetched nor copied. A file is
renamed into place after it was synced, so a name never stands for less than it says.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import final

from mainspring.domain.codec import decode, encode
from mainspring.domain.errors import (
    DamagedData,
    InvalidInput,
    InvalidMessage,
    MainspringError,
    StorageFull,
    Unavailable,
)
from mainspring.domain.ports import Clock
from mainspring.robots.edge import machine
from mainspring.robots.edge.machine import SLOTS, EdgeLimits, Journal, Phase, PhaseOutcome
from mainspring.robots.edge.ports import EdgeDisk, EdgeRobot, EdgeSource
from mainspring.robots.edge.trust import SignedFile

PIECE_BYTES = 1 << 20  # Fetched at a time: a robot on a thin line loses little of it.
RESERVE_BYTES = 64 << 20  # Left free for journals, and for whoever else writes to the disk.
CLOCK_SET_S = 1.0  # Clocks that differ by less were read one after the other.
JOURNAL = "journal.json"
_TRUST, _WANTED = "trust.json", "wanted.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotFiles:
    """What a slot holds, or is to hold.

    Args:
        target: The release.
        files: Of it: the release itself first.
    """

    target: str = ""
    files: tuple[SignedFile, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Returns the bytes of all files, each once."""
        return sum({file.sha256: file.size_bytes for file in self.files}.values())


@final
class EdgeAgent:
    """The agent of one robot. Used by one thread. Made anew after a power loss, it goes on where its journal says.

    Args:
        slot_bytes_max: A release that is larger is refused.
    """

    def __init__(
        self,
        disk: EdgeDisk,
        source: EdgeSource,
        robot: EdgeRobot,
        clock: Clock,
        *,
        limits: EdgeLimits | None = None,
        slot_bytes_max: int = 64 << 30,
    ) -> None:
        self._disk = disk
        self._source = source
        self._robot = robot
        self._clock = clock
        self._ahead_s = clock.now_s() - clock.monotonic_s()
        self._limits = limits or EdgeLimits()
        self._slot_bytes_max = slot_bytes_max
        self._why = ""
        self._unwritten = False  # Whether the disk had no room for the journal as it is.
        self.journal = self._read_journal()
        try:
            self._enter(machine.booted(self.journal, clock.now_s()))
        except StorageFull as error:  # A start that cannot be counted is none: what is committed runs.
            self._enter(machine.gone_back(self.journal, str(error)), safe=True)
        self._run_if_other("")

    def ask(self, target: str, *, action: str = "") -> None:
        """Has a release installed, unless it is, or something else is being installed.

        Args:
            target: Of the release.
            action: What the server calls it.
        """
        self._follow_clock()
        self._enter(machine.asked(self.journal, target, action=action, now_s=self._clock.now_s()))

    def roll_back(self) -> None:
        """Goes back to the release before, at once and without network: somebody at the robot wants it."""
        before = self.journal.runs
        self._enter(machine.by_hand(self.journal, self._clock.now_s()), safe=True)
        self._run_if_other(before)

    def cancel(self) -> None:
        """Gives up what is being installed: the server wants it no more. A trial goes on while a restart would do harm;
        who wants it given up asks again.
        """
        if self.journal.trial and self._robot.unsafe():
            return
        before = self.journal.runs
        self._enter(machine.cancelled(self.journal), safe=True)
        self._run_if_other(before)
        self._sweep()

    def told(self, count: int) -> None:
        """Forgets what the server has been told; where that cannot be written it is at worst told once more.

        Args:
            count: So many, oldest first.
        """
        self._enter(replace(self.journal, told=self.journal.told[count:]), safe=True)

    def files(self, slot: str) -> tuple[SignedFile, ...]:
        """Returns what a slot holds: the release itself first."""
        return self._slot(f"slot-{slot}.json").files if slot in SLOTS else ()

    def step(self) -> None:
        """Does a piece of what is to be done."""
        before = self.journal
        if self._unwritten:
            self._write()
        seen = self._worked()
        self._follow_clock()
        after = machine.next_of(self.journal, seen, self._clock.now_s(), self._limits, self._why)
        # That a trial was started is written before it is, and a power loss asks no more of it.
        safe = after.phase is Phase.PROVING or (after.phase is Phase.IDLE and after.committed == before.committed)
        try:
            self._enter(after, safe=safe)
        except StorageFull as error:  # A phase that cannot be written is not entered; its time goes on.
            self._why = f"no room for the journal: {error}"
            return
        if before.phase is not self.journal.phase:
            self._why = ""
        if before.phase is not Phase.IDLE and self.journal.phase is Phase.IDLE:
            self._run_if_other(before.runs)
            self._sweep()

    def _follow_clock(self) -> None:
        """Sets the journal's times as the robot's clock was set meanwhile."""
        ahead_s = self._clock.now_s() - self._clock.monotonic_s()
        by_s = ahead_s - self._ahead_s
        if abs(by_s) > CLOCK_SET_S:
            self._ahead_s = ahead_s
            self._enter(machine.clock_set(self.journal, by_s), safe=True)

    # ---------------------------------------------------------------- phases

    def _worked(self) -> PhaseOutcome:
        try:
            return self._work()
        except (StorageFull, InvalidInput) as error:
            if isinstance(error, DamagedData):  # Forged, old or ended: nothing is installed; the time-out decides.
                self._why = str(error)
                return PhaseOutcome.NOT_YET
            self._why = str(error)
            return PhaseOutcome.FAILED
        except Unavailable as error:
            self._why = str(error)
            return PhaseOutcome.FAILED if self.journal.phase is Phase.RESTARTING else PhaseOutcome.NOT_YET
        except MainspringError as error:
            self._why = str(error)
            return PhaseOutcome.FAILED

    def _work(self) -> PhaseOutcome:
        journal = self.journal
        match journal.phase:
            case Phase.IDLE:
                return PhaseOutcome.NOT_YET
            case Phase.DOWNLOADING:
                return self._download()
            case Phase.VERIFYING:
                return self._verify()
            case Phase.INSTALLING:
                self._replace(f"slot-{journal.spare}.json", encode(self._slot(_WANTED)))
                return PhaseOutcome.DONE
            case Phase.WAITING:
                return PhaseOutcome.NOT_YET if self._robot.unsafe() else PhaseOutcome.DONE
            case Phase.RESTARTING:
                self._run()
                return PhaseOutcome.DONE
            case Phase.PROVING:
                return PhaseOutcome.DONE if self._robot.healthy(journal.trial) else PhaseOutcome.NOT_YET

    def _download(self) -> PhaseOutcome:
        wanted = self._slot(_WANTED)
        if wanted.target != self.journal.wanted:
            self._sweep()
            wanted = self._look()
            missing = sum(
                file.size_bytes - self._disk.size(f"part-{file.sha256}")
                for file in {file.sha256: file for file in wanted.files}.values()
                if not self._disk.size(f"file-{file.sha256}")
            )
            free = self._disk.free_bytes() - RESERVE_BYTES
            if wanted.size_bytes > self._slot_bytes_max or missing > free:
                most = min(self._slot_bytes_max, free)
                raise StorageFull("install a release", got=f"{wanted.size_bytes} bytes", wanted=f"at most {most}")
            for file in wanted.files:  # What the disk did not keep is fetched again; read once, not at each piece.
                if self._disk.sha256(f"file-{file.sha256}") not in ("", file.sha256):
                    self._disk.remove(f"file-{file.sha256}")
            self._replace(_WANTED, encode(wanted))
        for file in wanted.files:
            if not self._has(file):
                self._fetch(file)
                return PhaseOutcome.NOT_YET
        return PhaseOutcome.DONE

    def _has(self, file: SignedFile) -> bool:
        """Returns whether a file is there, by its length: it got its name once its bytes were right."""
        name = f"file-{file.sha256}"
        return self._disk.size(name) == file.size_bytes and (file.size_bytes > 0 or name in self._disk.names())

    def _fetch(self, file: SignedFile) -> None:
        """Fetches a piece of a file, and makes it whole with the last one."""
        part = f"part-{file.sha256}"
        offset = self._disk.size(part)
        if offset < file.size_bytes:
            piece = self._source.fetch(file, offset, min(PIECE_BYTES, file.size_bytes - offset))
            self._disk.append(part, piece[: file.size_bytes - offset])
        elif not file.size_bytes:
            self._disk.append(part, b"")
        if self._disk.size(part) < file.size_bytes:
            return
        if self._disk.sha256(part) != file.sha256:  # Torn by a power loss, or by the network: anew.
            self._disk.remove(part)
            return
        self._disk.sync(part)
        self._disk.rename(part, f"file-{file.sha256}")
        self._disk.sync_names()

    def _verify(self) -> PhaseOutcome:
        """Looks once more whether all of it is signed, and reads every byte."""
        wanted = self._look()
        self._replace(_WANTED, encode(wanted))
        for file in wanted.files:
            if self._disk.sha256(f"file-{file.sha256}") != file.sha256:
                self._disk.remove(f"file-{file.sha256}")
                if not self.journal.slots[self.journal.spare]:
                    raise StorageFull("install a release", on=file.path, got="bytes that the disk did not keep")
                self._enter(machine.damaged(self.journal, self._clock.now_s()), safe=True)
                return PhaseOutcome.NOT_YET
        return PhaseOutcome.DONE

    def _look(self) -> SlotFiles:
        """Returns what is signed of the wanted release, and keeps what was seen with it."""
        kept = self._disk.read(_TRUST) or b""
        journal = self.journal
        found = self._source.look(journal.wanted, now_s=self._clock.now_s(), floor=journal.floor, kept=kept)
        if found.kept != kept:
            self._replace(_TRUST, found.kept)
        self._enter(replace(journal, floor=found.floor))
        return SlotFiles(target=journal.wanted, files=found.files)

    def _run(self) -> None:
        """Has the policy server run what the journal says."""
        slot = self.journal.runs
        if slot:
            self._robot.start(slot, self._slot(f"slot-{slot}.json").files)

    def _run_if_other(self, before: str) -> None:
        """Has it run what is to run now where that is another slot than before; one that does not start is not healthy,
        and started by whoever keeps it running.
        """
        if self.journal.runs != before:
            with suppress(Unavailable):
                self._run()

    # ---------------------------------------------------------------- the disk

    def _enter(self, journal: Journal, *, safe: bool = False) -> None:
        """Writes the journal, then is where that says.

        Args:
            safe: Whether that may be so before it is written, on a disk without room: a power loss harms nothing.
        """
        if journal == self.journal:
            return
        try:
            self._replace(JOURNAL, encode(journal))
        except StorageFull:
            if not safe:
                raise
            self._unwritten = True
        else:
            self._unwritten = False
        self.journal = journal

    def _write(self) -> None:
        """Writes the journal once there is room for it again."""
        with suppress(StorageFull):
            self._replace(JOURNAL, encode(self.journal))
            self._unwritten = False

    def _replace(self, name: str, data: bytes) -> None:
        """Writes a file, so that it is there whole, as it was or as it is, whatever happens."""
        self._disk.remove(f"{name}.new")
        self._disk.append(f"{name}.new", data)
        self._disk.sync(f"{name}.new")
        self._disk.rename(f"{name}.new", name)
        self._disk.sync_names()

    def _slot(self, name: str) -> SlotFiles:
        try:
            return decode(SlotFiles, self._disk.read(name) or b"{}")
        except InvalidMessage:
            return SlotFiles()

    def _read_journal(self) -> Journal:
        """Returns the journal; where it cannot be read, one of the slots that are whole."""
        data = self._disk.read(JOURNAL)
        try:
            return decode(Journal, data) if data is not None else Journal()
        except InvalidMessage:
            whole = {slot: self._slot(f"slot-{slot}.json") for slot in SLOTS}
            held = {slot: found.target if self._is_whole(found.files) else "" for slot, found in whole.items()}
            return Journal(slots=held, committed=next((slot for slot in SLOTS if held[slot]), ""))

    def _is_whole(self, files: Sequence[SignedFile]) -> bool:
        return all(self._disk.sha256(f"file-{file.sha256}") == file.sha256 for file in files)

    def _sweep(self) -> None:
        """Removes files of releases that no slot holds; while nothing is being installed, parts of files too."""
        slots = [self._slot(f"slot-{slot}.json") for slot in SLOTS if self.journal.slots[slot]]
        kept = {f"file-{file.sha256}" for slot in slots for file in slot.files}
        if self.journal.phase is Phase.IDLE:
            self._disk.remove(_WANTED)
        for name in self._disk.names():
            part = name.startswith("part-") and self.journal.phase is Phase.IDLE
            if part or (name.startswith("file-") and name not in kept):
                self._disk.remove(name)


def sha256_of(data: bytes) -> str:
    """Returns the hash that a file of these bytes is named by."""
    return hashlib.sha256(data).hexdigest()
