"""The words of staging: what a source elsewhere lists, how its bytes are had, and what an ingest asks of a stage."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol, TypeAlias

from mainspring.data.intake.report import LeftOut

ENTRIES_MAX = 2_000_000  # About 1 GiB of names and placeholders; the largest published sets have 200,000 files.
NAME_BYTES_MAX = 255  # Of one part of a name: what file systems allow.
PATH_BYTES_MAX = 2_048  # Of a whole name; with the stage's folder before it still under the 4,096 that systems allow.
DEPTH_MAX = 64  # As of walks through local folders.
BLOCK_BYTES = 4 << 20  # Read and written at once.

Names: TypeAlias = Callable[[Path], Iterable[Path]]
Wait: TypeAlias = Callable[[float], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A file of a source.

    Args:
        name: Relative, parts joined by "/".
        size_bytes: Its length.
        look: Another text as soon as its content is another; "" where the source cannot tell.
        digest: Hash of its content, "sha256:hex" or "md5:hex"; "" where the source gives none.
    """

    name: str
    size_bytes: int
    look: str
    digest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What a source holds.

    Args:
        entries: Its files, each name once.
        refused: What is in it and not read, and why.
    """

    entries: tuple[Entry, ...]
    refused: tuple[LeftOut, ...] = ()


class Remote(Protocol):
    """A source elsewhere. Calls block, may be repeated, and `stream` may be made from many threads."""

    @property
    def address(self) -> str:
        """Returns where it lies, without secrets: its identity, and what people read."""

    @property
    def folder(self) -> str:
        """Returns what its folder is called; "" when it is a single file."""

    @property
    def ranged(self) -> bool:
        """Returns whether a part of a file costs less than all of it, so that a fetch goes on where it broke."""

    def first(self) -> Listing:
        """Returns what can be listed without reading any of it.

        Raises:
            NotFound: Nothing is there.
            InvalidInput: It is not what it should be.
            NotAllowed: Whoever asks may not read it.
            Unavailable: It does not answer.
        """

    def rest(self, root: Path, named: Names) -> Listing:
        """Returns what the descriptions among the first name; they lie in `root` by now.

        Args:
            root: The local folder.
            named: Returns the files that what lies in a folder names.

        Raises:
            DamagedData: The descriptions do not hold together.
            Unavailable: It does not answer.
        """

    def stream(self, entry: Entry, offset: int) -> Iterator[bytes]:
        """Yields a file's bytes from `offset` to its end, or raises in the middle.

        Raises:
            NotFound: It is gone.
            Conflict: It has changed since it was listed.
            DamagedData: Its bytes do not hold together.
            Unavailable: The stream broke; the rest may be asked for.
        """

    def close(self) -> None:
        """Lets go of files and connections."""


class Staging(Protocol):
    """What an ingest asks about files that may lie elsewhere."""

    def look(self, path: Path) -> str | None:
        """Returns how a file looks at its source; None for a local one, or where the source cannot tell."""

    def held(self, paths: Sequence[Path]) -> AbstractContextManager[None]:
        """Has files whole while the block runs; local ones are so already.

        Raises:
            NotFound: One is gone.
            Conflict: One has changed since it was listed.
            DamagedData: Its bytes do not hold together.
            Unavailable: Its source does not answer, however often it is asked.
            StorageFull: There is no room.
        """


class _Local:
    """Staging of sources that lie here."""

    def look(self, path: Path) -> str | None:
        """See `Staging.look`."""
        return None

    def held(self, paths: Sequence[Path]) -> AbstractContextManager[None]:
        """See `Staging.held`."""
        return nullcontext()


LOCAL: Staging = _Local()


def why_not(name: str) -> str:
    """Returns why a file of this name cannot be given a place in a folder; "" when it can.

    Args:
        name: As the source says it.
    """
    parts = PurePosixPath(name).parts
    if not name or "\0" in name or name.endswith("/"):
        return "no name of a file"
    if name.startswith("/") or ".." in parts or (len(name) > 1 and name[1] == ":" and name[0].isalpha()):
        return "a path that leaves the source"
    if any(len(part.encode("utf-8", "surrogateescape")) > NAME_BYTES_MAX for part in parts):
        return f"a name longer than {NAME_BYTES_MAX} bytes"
    if len(parts) > DEPTH_MAX or len(name.encode("utf-8", "surrogateescape")) > PATH_BYTES_MAX:
        return f"a path deeper than {DEPTH_MAX} folders or longer than {PATH_BYTES_MAX} bytes"
    return ""


def sifted(found: Iterable[Entry], refused: Iterable[LeftOut] = ()) -> Listing:
    """Returns entries that may lie in one folder, under plain names; what may not is refused.

    Args:
        found: As the source lists them.
        refused: What was refused before.
    """
    given: dict[str, list[Entry]] = {}
    out = list(refused)
    for entry in found:
        plain = PurePosixPath(entry.name).as_posix()  # Without "./" and double slashes.
        if reason := why_not(entry.name):
            out.append(LeftOut(source=entry.name[:PATH_BYTES_MAX], reason=reason))
        else:
            given.setdefault(plain, []).append(entry)
    entries: list[Entry] = []
    for name, ones in sorted(given.items()):
        above = next((str(up) for up in PurePosixPath(name).parents if str(up) in given), "")
        if len(ones) > 1:
            reason = f"{len(ones)} files have this name, and nothing says which of them counts"
            out.append(LeftOut(source=name, reason=reason))
        elif above:
            out.append(LeftOut(source=name, reason=f"a file inside {above!r}, which is a file too"))
        else:
            one = ones[0]
            entries.append(Entry(name=name, size_bytes=one.size_bytes, look=one.look, digest=one.digest))
    return Listing(entries=tuple(entries), refused=tuple(out))
