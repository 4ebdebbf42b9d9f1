"""Where a robot's releases come from: what is signed by TUF, fits the robot, and stays in its budget of bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from mainspring.domain.answers.policies.releases import Embodiment, PolicyRelease
from mainspring.domain.codec import decode
from mainspring.domain.errors import DamagedData, InvalidInput, Unavailable
from mainspring.domain.ports import Clock
from mainspring.domain.release import RELEASE
from mainspring.robots.edge.trust import Fetch, SignedFile, TrustFloor, refreshed

RELEASE_BYTES_MAX = 1 << 20  # Of a release's own words, of a thousand files.

FetchPiece = Callable[[str, int, int], bytes]
"""Returns some bytes of a target from an offset, at most so many; b"" past its end. Raises as `Fetch` does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedRelease:
    """See `EdgeLook`."""

    files: tuple[SignedFile, ...]
    floor: TrustFloor
    kept: bytes


@final
class ByteBudget:
    """How many bytes may be fetched: so many a second, and what was left over of the last minute. Used by one thread.

    Args:
        per_s: None for any number.
    """

    SAVED_S = 60.0  # Longer bursts than a minute would fill the line that a camera needs.

    def __init__(self, clock: Clock, per_s: float | None) -> None:
        self._clock = clock
        self._per_s = per_s
        self._left = 0.0 if per_s is None else per_s
        self._since_s = clock.monotonic_s()

    def take(self, wanted: int) -> int:
        """Returns how many bytes may be fetched now, up to what is wanted.

        Raises:
            Unavailable: None may.
        """
        if self._per_s is None:
            return wanted
        now_s = self._clock.monotonic_s()
        self._left = min(self._per_s * self.SAVED_S, self._left + (now_s - self._since_s) * self._per_s)
        self._since_s = now_s
        allowed = min(wanted, int(self._left))
        if allowed < 1:
            raise Unavailable("fetch a release", got="a budget of bytes that is used up", next_step="again, later")
        self._left -= allowed
        return allowed


@final
class SignedSource:
    """See `EdgeSource`.

    Args:
        root: The root of trust that the robot was enrolled with.
        metadata: Fetches TUF's metadata.
        piece: Fetches pieces of targets.
        robot: What the robot is.
        runtime: The release of Mainspring that it has.
    """

    def __init__(
        self,
        root: bytes,
        metadata: Fetch,
        piece: FetchPiece,
        *,
        robot: Embodiment,
        budget: ByteBudget,
        runtime: str = RELEASE,
    ) -> None:
        self._root = root
        self._metadata = metadata
        self._piece = piece
        self._robot = robot
        self._budget = budget
        self._runtime = runtime

    def look(self, target: str, *, now_s: float, floor: TrustFloor, kept: bytes) -> SignedRelease:
        """See `EdgeSource.look`."""
        with refreshed(self._root, kept, self._metadata, now_s=now_s, floor=floor) as trusted:
            signed = trusted.find(target)
            release = self._release(signed)
            self._check_fits(release)
            files = [signed]
            for file in release.content.files:
                found = trusted.find(release.target_of_file(file))
                if (found.sha256, found.size_bytes) != (file.sha256, file.size_bytes):
                    raise DamagedData("read a release", on=file.path, got="another file than was signed")
                files.append(found)
            return SignedRelease(files=tuple(files), floor=trusted.floor, kept=trusted.kept())

    def fetch(self, file: SignedFile, offset: int, size_bytes: int) -> bytes:
        """See `EdgeSource.fetch`."""
        piece = self._piece(file.path, offset, self._budget.take(size_bytes))
        if not piece:
            raise Unavailable("fetch a release", on=file.path, got="fewer bytes than were signed")
        return piece

    def _release(self, signed: SignedFile) -> PolicyRelease:
        if signed.size_bytes > RELEASE_BYTES_MAX:
            wanted = f"at most {RELEASE_BYTES_MAX} bytes"
            raise InvalidInput("read a release", on=signed.path, got=f"{signed.size_bytes} bytes", wanted=wanted)
        text = b""
        while len(text) < signed.size_bytes:
            text += self.fetch(signed, len(text), signed.size_bytes - len(text))
        if hashlib.sha256(text).hexdigest() != signed.sha256:
            raise DamagedData("read a release", on=signed.path, got="other words than were signed")
        release = decode(PolicyRelease, text)
        if release.target != signed.path:
            raise InvalidInput("read a release", on=signed.path, got=f"words of {release.reference}")
        return release

    def _check_fits(self, release: PolicyRelease) -> None:
        if release.content.image:
            step = "ms release create JOB@STEP for robots with our agent"
            on = release.reference
            raise InvalidInput("install a release", on=on, got="an image", wanted="a policy", next_step=step)
        apart = release.content.fits.mismatches(self._robot)
        if apart:
            raise InvalidInput(
                "install a release", on=release.reference, got="; ".join(apart)[:400], wanted="one that fits"
            )
        if _numbers(release.content.runtime) > _numbers(self._runtime):
            wanted = f"at least {release.content.runtime}"
            raise InvalidInput("install a release", on="runtime", got=self._runtime, wanted=wanted)


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split(".")[:3])
