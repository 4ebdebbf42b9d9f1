"""Sending clips home: the catalog first, then the bytes of what comes by itself or was asked for, within a budget.

A clip is sent under the name of its content: the server says how much of it is there, so whatever breaks off is gone on
with, and what was sent twice is there once. What a day may cost is counted on disk, so that a restart spends no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, final

from mainspring.domain.answers import CLIPS_TOLD_MAX, ArrivalView, ClipCatalog, ClipEntry, ClipsAsked, Standing
from mainspring.domain.codec import decode, encode
from mainspring.domain.errors import Conflict, DamagedData, InvalidMessage, MainspringError
from mainspring.domain.job import Tier
from mainspring.domain.ports import Backoff, Clock
from mainspring.robots.logs.clips import Clips, KeptClip, replace_file
from mainspring.robots.logs.rules import LogRules

PIECE_BYTES = 4 << 20  # Of one request, held in memory: what a broken one loses at most.
LOOK_S = 60.0  # How often the lab is asked what it wants: somebody who asked sees it come within a minute.
DAMAGED_MAX = 2  # Once it may be the way; twice it is the robot's own disk, until it is started again.
IDLE_S = 5.0  # How often the disk is looked at for new clips.
AGAIN = Backoff(first_s=1.0, cap_s=300.0)
_DAY_S = 86_400.0


class ClipServer(Protocol):
    """What a robot sends its clips to. All calls may be repeated; each raises `Unavailable` when nobody answers."""

    def tell(self, dataset: str, catalog: ClipCatalog) -> ClipsAsked:
        """Tells the lab of clips, and returns which of them somebody asked for."""

    def look(self, dataset: str, clip: ClipEntry) -> ArrivalView:
        """Returns where a clip stands."""

    def send(self, dataset: str, clip: ClipEntry, offset: int, piece: bytes) -> ArrivalView:
        """Adds bytes to a clip, and returns where it stands.

        Raises:
            Conflict: What is there ends elsewhere, or somebody else sends it.
            DamagedData: It is whole, and not what its id says.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What was sent on a day, counted from the epoch: bytes of each priority."""

    day: int = 0
    size_bytes: dict[Tier, int] = field(default_factory=dict)


@final
class Sender:
    """Sends a robot's clips, a piece a step. Used by one thread, the one that has the clips.

    Args:
        folder: The robot's, as the recorder has it.
    """

    def __init__(self, folder: Path, clips: Clips, server: ClipServer, rules: LogRules, clock: Clock) -> None:
        self.problem = ""  # Why the last try failed, for people.
        self._path = folder / "spent.json"
        self._clips = clips
        self._server = server
        self._rules = rules
        self._clock = clock
        self._spent = self._read()
        self._asked: frozenset[str] = frozenset()
        self._look_s = -LOOK_S
        self._at: tuple[str, int] = ("", 0)  # The clip under way, and how much of it is there.
        self._tries = 0
        self._damaged: dict[str, int] = {}  # How often a clip arrived as something else.

    def step(self) -> float:
        """Does a piece of what is to be done, and returns how long to wait before the next."""
        try:
            waits_s = self._work()
            self._tries, self.problem = 0, ""
        except FileNotFoundError:  # The recorder made room meanwhile.
            self._at, waits_s = ("", 0), 0.0
        except Conflict:  # Somebody else sends it too, or sent more: look again.
            self._at = ("", 0)
            waits_s = self._failed("somebody else sends the same clip")
        except MainspringError as error:
            self._at = ("", 0)
            waits_s = self._failed(str(error))
        return waits_s

    def _failed(self, problem: str) -> float:
        self._tries, self.problem = self._tries + 1, problem
        return AGAIN.wait_s(self._tries + 1)

    def _work(self) -> float:
        unsent = [clip for clip in self._clips.all() if not clip.sent and self._is_sound(clip)]
        now_s = self._clock.monotonic_s()
        if unsent and (now_s - self._look_s >= LOOK_S or not all(clip.told for clip in unsent)):
            self._tell(unsent)
            self._look_s = now_s
            return 0.0
        clip = self._next(unsent)
        if clip is None:
            return IDLE_S
        self._send(clip)
        return 0.0

    def _tell(self, unsent: Sequence[KeptClip]) -> None:
        untold_first = sorted(unsent, key=lambda clip: clip.told)[:CLIPS_TOLD_MAX]
        catalog = ClipCatalog(clips=tuple(clip.entry for clip in untold_first))
        self._asked = frozenset(self._server.tell(self._rules.dataset, catalog).ids)
        for clip in untold_first:
            if not clip.told:
                self._clips.told(clip)

    def _next(self, unsent: Sequence[KeptClip]) -> KeptClip | None:
        """Returns what is sent next: what is under way, what was asked for, the most urgent, the oldest."""
        wanted = [
            clip
            for clip in unsent
            if (clip.entry.send or clip.entry.id in self._asked)
            and (clip.entry.id == self._at[0] or self._has_budget(clip.entry))
        ]
        return min(
            wanted,
            key=lambda clip: (
                clip.entry.id != self._at[0],
                clip.entry.id not in self._asked,
                clip.entry.priority.rank,
                clip.entry.begun_ns,
            ),
            default=None,
        )

    def _send(self, clip: KeptClip) -> None:
        entry = clip.entry
        if self._at[0] != entry.id:
            view = self._server.look(self._rules.dataset, entry)
        else:
            with self._clips.path(clip).open("rb") as file:
                file.seek(self._at[1])
                piece = file.read(PIECE_BYTES)
            try:
                view = self._server.send(self._rules.dataset, entry, self._at[1], piece)
            except DamagedData as error:
                self._damaged[entry.id] = self._damaged.get(entry.id, 0) + 1
                raise DamagedData("send a clip", on=entry.name, got=error.got) from error
            self._spend(entry.priority, len(piece))
        self._at = (entry.id, view.offset)
        if view.standing is not Standing.ARRIVING:
            self._clips.sent(clip)
            self._at = ("", 0)

    def _is_sound(self, clip: KeptClip) -> bool:
        """Returns whether a clip is what it was: where it arrived as something else twice, the disk here changed it."""
        return self._damaged.get(clip.entry.id, 0) < DAMAGED_MAX

    def _has_budget(self, clip: ClipEntry) -> bool:
        """Returns whether a day's budget has room; a clip that is larger than all of it goes on a day of its own."""
        spent = self._today().size_bytes.get(clip.priority, 0)
        return not spent or spent + clip.size_bytes <= self._rules.day_mib.get(clip.priority, 0) << 20

    def _spend(self, priority: Tier, size_bytes: int) -> None:
        today = self._today()
        more = {**today.size_bytes, priority: today.size_bytes.get(priority, 0) + size_bytes}
        self._spent = replace(today, size_bytes=more)
        replace_file(self._path, encode(self._spent))

    def _today(self) -> Spent:
        day = int(self._clock.now_s() // _DAY_S)
        return self._spent if self._spent.day == day else Spent(day=day)

    def _read(self) -> Spent:
        try:
            return decode(Spent, self._path.read_bytes())
        except (FileNotFoundError, InvalidMessage):
            return Spent()
