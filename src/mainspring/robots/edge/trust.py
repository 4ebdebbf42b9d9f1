"""What may be installed, by TUF's word: python-tuf's client over any way to fetch and any time.

The client's files live in a folder that is thrown away. What is to be kept comes back as one value, so that a disk
that lost some writes never mixes old metadata with new. What came last is a floor: nothing older is believed, though
all that was kept is lost.

python-tuf takes the time from the machine. A robot's clock may be years off, so the time is given here instead, in the
one private field of python-tuf that anything of ours sets; a test fails when it has no effect.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import final

from tuf.api.exceptions import DownloadError, DownloadHTTPError, RepositoryError
from tuf.api.metadata import Snapshot, TargetFile, Targets, Timestamp
from tuf.ngclient import FetcherInterface, Updater, UpdaterConfig

from mainspring.domain.errors import DamagedData, NotFound, Unavailable

ROLES = ("root", Timestamp.type, Snapshot.type, Targets.type)
ISSUED = "issued"  # In a timestamp: when it was made.
KEPT_BYTES_MAX = 16 << 20  # Four roles as long as python-tuf reads them.
_ROOT_FILE = "root_history/{}.root.json"

Fetch = Callable[[str], bytes]
"""Returns a file of metadata by its name. Raises `NotFound` where there is none, `Unavailable` where nobody answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustFloor:
    """What a robot has seen, below which it believes nothing.

    Args:
        versions: The newest of each role.
        issued_s: When the newest timestamp was made, in seconds since the Unix epoch.
    """

    versions: Mapping[str, int] = field(default_factory=dict)
    issued_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedFile:
    """A target: what it is called, and what its bytes must be."""

    path: str
    size_bytes: int
    sha256: str


@final
class TrustedTargets:
    """What is signed, as of one look.

    Args:
        updater: Refreshed.
    """

    def __init__(self, updater: Updater, folder: Path, floor: TrustFloor) -> None:
        self._updater = updater
        self._folder = folder
        self.floor = floor

    def find(self, path: str) -> SignedFile:
        """Returns a target.

        Raises:
            NotFound: Nobody whose word counts has signed it.
            DamagedData: Metadata of a role is forged, expired, or does not belong to the rest.
            Unavailable: Nobody answers.
        """
        with _told(f"look for {path}"):
            found = self._updater.get_targetinfo(path)
        if found is None:
            raise NotFound("find a signed file", on=path[:200], got="none", wanted="a release that is signed")
        return _signed(found, path)

    def kept(self) -> bytes:
        """Returns all metadata that was believed, to be kept and given to `refreshed` next time."""
        files = (path for path in sorted(self._folder.rglob("*.json")) if path.is_file() and not path.is_symlink())
        return json.dumps({str(path.relative_to(self._folder)): path.read_text("utf-8") for path in files}).encode()


def _signed(found: TargetFile, path: str) -> SignedFile:
    sha256 = found.hashes.get("sha256")
    if sha256 is None:
        raise DamagedData("find a signed file", on=path[:200], got=", ".join(found.hashes), wanted="its SHA-256")
    return SignedFile(path=path, size_bytes=found.length, sha256=sha256)


@contextmanager
def refreshed(root: bytes, kept: bytes, fetch: Fetch, *, now_s: float, floor: TrustFloor) -> Iterator[TrustedTargets]:
    """Yields what is signed now.

    Args:
        root: The root of trust that the robot was enrolled with.
        kept: From `TrustedTargets.kept`, b"" for nothing; what cannot be read counts as nothing.
        now_s: By the robot's own clock, in seconds since the Unix epoch.
        floor: What it has seen; its time counts where the clock is behind it.

    Raises:
        DamagedData: Metadata is forged, expired, older than what was seen, or does not belong together.
        Unavailable: Nobody answers.
    """
    with tempfile.TemporaryDirectory(prefix="mainspring-trust-") as name:
        folder = Path(name)
        _lay_out(folder, kept)
        with _told("read the root of trust"):
            updater = Updater(
                name, "mainspring:", fetcher=_Fetcher(fetch), config=UpdaterConfig(app_user_agent=""), bootstrap=root
            )
        trusted = updater._trusted_set
        trusted.reference_time = _at(max(now_s, floor.issued_s))
        with _told("refresh what is signed"):
            updater.refresh()
        seen = {role: trusted[role].version for role in ROLES}
        for role, version in floor.versions.items():
            if seen.get(role, 0) < version:
                got = f"version {seen.get(role, 0)} of {role}"
                raise DamagedData("refresh what is signed", got=got, wanted=f"{version}, which was seen here, or later")
        issued_s = max(_issued_s(trusted.timestamp), floor.issued_s)
        for role in ROLES:  # The newest timestamp may tell of a later time than the clock and all before it.
            if trusted[role].is_expired(_at(issued_s)):
                raise DamagedData("refresh what is signed", on=role, got=f"what ended {trusted[role].expires:%Y-%m-%d}")
        yield TrustedTargets(updater, folder, TrustFloor(versions=seen, issued_s=issued_s))


def _lay_out(folder: Path, kept: bytes) -> None:
    """Writes what was kept where python-tuf looks for it: nothing of it is believed unless it is signed."""
    (folder / "root_history").mkdir()
    with suppress(ValueError, OSError, AttributeError, TypeError):
        for name, text in json.loads(kept[:KEPT_BYTES_MAX] or b"{}").items():
            parts = Path(name).parts
            if len(parts) <= 2 and ".." not in parts and not os.path.isabs(name):
                (folder / name).write_text(text, "utf-8")


def _issued_s(timestamp: Timestamp) -> float:
    try:
        told = str(timestamp.unrecognized_fields.get(ISSUED, ""))
        return datetime.strptime(told, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()
    except ValueError:  # Somebody else's server.
        return 0.0


def _at(time_s: float) -> datetime:
    return datetime.fromtimestamp(min(max(time_s, 0.0), 2.5e11), UTC)  # A clock that is broken may say anything.


@final
class _Fetcher(FetcherInterface):
    """Fetches for python-tuf."""

    def __init__(self, fetch: Fetch) -> None:
        self._own = fetch

    def _fetch(self, url: str) -> Iterator[bytes]:
        try:
            return iter((self._own(url.rpartition("/")[2].removeprefix("mainspring:")),))
        except NotFound as error:
            raise DownloadHTTPError(str(error), 404) from error


@contextmanager
def _told(attempted: str) -> Iterator[None]:
    try:
        yield
    except DownloadError as error:
        raise Unavailable(attempted, got=str(error)[:200], next_step="again, later") from error
    except (RepositoryError, ValueError, KeyError) as error:
        raise DamagedData(attempted, got=f"{type(error).__name__}: {error}"[:300]) from error
