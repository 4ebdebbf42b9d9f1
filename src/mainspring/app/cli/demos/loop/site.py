"""What the story and the processes that play arms tell each other, as files in one folder.

`site.json` says which arms there are, once; `work.json` what they are to do now; `played-N.jsonl` what one process saw
them do, a line an episode.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import final

from mainspring.domain.codec import decode, encode
from mainspring.domain.errors import InvalidMessage
from mainspring.domain.job import Tier
from mainspring.robots.logs.rules import LogRules, TriggerRule

SITE, WORK = "site.json", "work.json"
RATE_HZ = 80.0  # As the task of the simulated arm defines it.
FAILED, SHOWN = "failed", "shown"  # The triggers of an arm.


class Place(str, Enum):
    """Where arms are to bring things."""

    TABLE = "table"
    SHELF = "shelf"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmSite:
    """An arm.

    Args:
        ring: The group that it is in, "" for none.
        agent: Folder of its agent.
        log: Folder of its recorder.
        port: Of its policy server, on this machine.
        token: By which it sends its clips: its own.
        seed: Of the starts that it meets.
    """

    name: str
    ring: str
    agent: str
    log: str
    port: int
    token: str
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """All arms.

    Args:
        url: The lab's server.
        dataset: What their clips join.
        helper: Who shows them how it is done.
        failures_each: How many failures an arm sends home, at most.
    """

    url: str
    dataset: str
    helper: str
    failures_each: int
    arms: tuple[ArmSite, ...]

    def rules(self, arm: ArmSite) -> LogRules:
        """Returns what an arm keeps of its log, and sends: all of an episode that failed, or that it was shown."""
        shown = TriggerRule(when="button", before_s=60.0, after_s=0.0, cooldown_s=0.0, hour_max=1_000)
        failed = replace(shown, when="failure", priority=Tier.CRITICAL, hour_max=self.failures_each)
        triggers = {FAILED: failed, SHOWN: shown}
        return LogRules(
            robot=arm.name, dataset=self.dataset, rate_hz=RATE_HZ, ring_mib=16, clips_mib=64, triggers=triggers
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What arms are to do.

    Args:
        shows_each: How often the helper may have shown each of them how it is done; 0 while nobody is there.
    """

    place: Place = Place.TABLE
    shows_each: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """An episode.

    Args:
        at_s: When it ended, by the clock of the machine.
        release: What the arm ran, as "NAME@VERSION".
        shown: Whether the helper did it, in the policy's place.
    """

    at_s: float
    robot: str
    release: str
    place: Place
    solved: bool
    shown: bool = False


def write_plain(folder: Path, name: str, value: Site | Work) -> None:
    """Writes what is told, in place of what was told before."""
    new = folder / f"{name}.new"
    new.touch(mode=0o600)  # Tokens of arms are in it.
    new.write_bytes(encode(value))
    new.replace(folder / name)


def read_site(folder: Path) -> Site:
    """Returns which arms there are."""
    return decode(Site, (folder / SITE).read_bytes())


def read_work(folder: Path) -> Work:
    """Returns what arms are to do."""
    return decode(Work, (folder / WORK).read_bytes())


def played_path(folder: Path, share: int) -> Path:
    """Returns where the process of a share of the arms writes what it saw."""
    return folder / f"played-{share}.jsonl"


def share_of(arms: Sequence[ArmSite], share: int, shares: int) -> tuple[ArmSite, ...]:
    """Returns the arms that a process plays."""
    return tuple(arms[share::shares])


@final
class PlayedLog:
    """What all arms did, read as it comes."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._at = dict.fromkeys(paths, 0)
        self._all: list[Played] = []

    def read(self) -> Sequence[Played]:
        """Returns all episodes so far, in the order in which they were seen; a line that is not whole comes later."""
        for path, at in self._at.items():
            if not path.exists():
                continue
            with path.open("rb") as file:
                file.seek(at)
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._at[path] = at + len(whole)
            try:
                self._all += [decode(Played, line) for line in whole.splitlines()]
            except InvalidMessage as error:
                raise AssertionError(path) from error
        return self._all
