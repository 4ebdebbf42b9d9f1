"""What an agent stands on: a disk that may lose what was not synced, what it installs from, and what it controls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from mainspring.robots.edge.trust import SignedFile, TrustFloor


class EdgeDisk(Protocol):
    """Files in one folder. After a power loss a file holds what it held when it was last synced, or anything of what
    was written since; a rename or a removal happened or did not, unless `sync_names` returned after it.

    Every call raises `StorageFull` where there is no room, and `Unavailable` where the disk does not answer.
    """

    def read(self, name: str) -> bytes | None:
        """Returns a whole file, None where there is none."""

    def size(self, name: str) -> int:
        """Returns a file's length, 0 where there is none."""

    def append(self, name: str, data: bytes) -> None:
        """Adds bytes at a file's end, and makes it where there is none."""

    def remove(self, name: str) -> None:
        """Removes a file; does nothing where there is none."""

    def rename(self, name: str, to: str) -> None:
        """Gives a file another name, in place of what was there."""

    def sync(self, name: str) -> None:
        """Returns once a file's bytes outlive a power loss."""

    def sync_names(self) -> None:
        """Returns once names, renames and removals outlive a power loss."""

    def names(self) -> Sequence[str]:
        """Returns every file, in order."""

    def sha256(self, name: str) -> str:
        """Returns the hash of a file's bytes, "" where there is none."""

    def free_bytes(self) -> int:
        """Returns how much may still be written."""


class EdgeSource(Protocol):
    """Where releases come from. Nothing of it is believed unless it is signed."""

    def look(self, target: str, *, now_s: float, floor: TrustFloor, kept: bytes) -> EdgeLook:
        """Returns what is signed of a release now.

        Raises:
            NotFound: No such release is signed, or no longer.
            DamagedData: What came is forged, old, ended, or does not belong together.
            InvalidInput: It does not fit this robot.
            Unavailable: Nobody answers.
        """

    def fetch(self, file: SignedFile, offset: int, size_bytes: int) -> bytes:
        """Returns some bytes of a file, at least one.

        Raises:
            Unavailable: Nobody answers, or the budget is used up for now.
            NotFound: It is not there.
        """


class EdgeLook(Protocol):
    """What a look found."""

    @property
    def files(self) -> tuple[SignedFile, ...]:
        """The release itself first, then each of its files."""

    @property
    def floor(self) -> TrustFloor:
        """What has been seen with it."""

    @property
    def kept(self) -> bytes:
        """Metadata to be kept."""


class EdgeRobot(Protocol):
    """The policy server on the robot, and the robot's own state."""

    def unsafe(self) -> str:
        """Returns why it must not be restarted now (it moves, its lock file is held, its battery is low, it is no
        window of its operator's), "" where it may.
        """

    def start(self, slot: str, files: Sequence[SignedFile]) -> None:
        """Starts the policy server on a slot, in place of what runs. May be repeated.

        Raises:
            Unavailable: It does not start.
        """

    def healthy(self, slot: str) -> bool:
        """Returns whether the policy server runs this slot and answers as it should."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeAnswer:
    """What the server answered to a call."""

    status: int
    body: bytes


class EdgeHttp(Protocol):
    """Calls the server."""

    def call(self, method: str, path: str, headers: Mapping[str, str], body: bytes = b"") -> EdgeAnswer:
        """Returns the server's answer, of any status.

        Args:
            path: Below the server's address, with its query.

        Raises:
            Unavailable: Nobody answers, or not in time.
        """
