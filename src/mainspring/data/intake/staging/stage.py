"""A stage: a local folder that stands for a source elsewhere.

Each of its files has its name and length at once, so that whoever walks the folder finds what the source holds. The
descriptions have their content too. Any other file is a hole without blocks on the disk until somebody must read it;
then it is fetched, and let go again when the room is wanted for others.

    <folder>/lock          whoever fills the stage holds it
    <folder>/tree/<name>/  what is walked
    <folder>/whole/        files that were fetched: the same inodes, named by name and look
    <folder>/parts/        beginnings of files whose fetch broke, named likewise
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from threading import Condition, Lock
from types import TracebackType

from blake3 import blake3

from mainspring.data.intake.report import LeftOut
from mainspring.data.intake.staging.port import BLOCK_BYTES, ENTRIES_MAX, Entry, Listing, Names, Remote, Wait
from mainspring.domain.errors import Conflict, DamagedData, InvalidInput, StorageFull, Unavailable
from mainspring.domain.ports import Backoff
from mainspring.objects.files import reported

BUDGET_BYTES = 64 << 30  # What a stage keeps on the disk at most, unless one recording alone needs more.
BUDGET_SHARE = 0.5  # Of the room that is free, when that is less.
ROOM_BYTES_MIN = 256 << 20  # Left to others on the disk.
DESCRIPTION_BYTES_MAX = 256 << 20  # Of one file: statistics of 100,000 episodes as text.
DESCRIPTIONS_BYTES_MAX = 4 << 30  # Of all.
TRIES_MAX = 8  # To get on with a file, without a single byte between them.
AGAIN = Backoff(first_s=0.25, cap_s=30.0)
_DESCRIBING = (".json", ".jsonl", ".yaml", ".yml", ".csv", ".txt", ".zarray", ".zgroup", ".zattrs", ".zmetadata")
_META = "meta"  # LeRobot's folder of descriptions; in Zarr replay buffers, the one of the episodes' ends.
_NAME_LETTERS = 32


class Stage:
    """A source elsewhere as a local folder; used as a context manager. See `Staging`.

    Args:
        remote: The source.
        folder: The stage's own; made when missing, and used again by the next ingest of the same source.
        wait: Waits so many seconds before something is tried again.
        named: Returns the files that what lies in a folder names.
        budget_bytes: What it keeps on the disk; None for what suits the disk.
    """

    def __init__(
        self, remote: Remote, folder: Path, *, wait: Wait, named: Names, budget_bytes: int | None = None
    ) -> None:
        self._remote, self._folder, self._wait, self._named = remote, folder, wait, named
        self._budget_bytes = budget_bytes
        self._closing = ExitStack()
        self._entries: dict[Path, Entry] = {}
        self._looks: dict[Path, str] = {}
        self._room = _Room(self._let_go)
        self._tree = folder / "tree" / (remote.folder or "files")
        self.refused: tuple[LeftOut, ...] = ()
        self.root = self._tree

    def __enter__(self) -> Stage:
        """Lists the source and fetches its descriptions.

        Raises:
            Conflict: Another process fills the same stage.
        """
        with ExitStack() as opening:
            opening.callback(self._remote.close)
            with reported("stage a source", str(self._folder)):
                for name in ("tree", "whole", "parts"):
                    (self._folder / name).mkdir(parents=True, exist_ok=True)
                lock = opening.enter_context(open(self._folder / "lock", "wb"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise Conflict(
                    "stage a source",
                    on=self._remote.address,
                    got="another process that reads the same source into the same home",
                    next_step="wait for it",
                ) from error
            first = self._remote.first()
            default_bytes = min(BUDGET_BYTES, int(BUDGET_SHARE * shutil.disk_usage(self._folder).free))
            self._room.bytes_max = default_bytes if self._budget_bytes is None else self._budget_bytes
            self._place(first)
            rest = self._remote.rest(self._tree, self._named)
            self._place(rest)
            self._sweep()
            self.refused = (*first.refused, *rest.refused)
            self.root = self._tree / first.entries[0].name if not self._remote.folder else self._tree
            self._closing = opening.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Lets go of what was fetched when all went well; what was fetched before a break is kept for the next try."""
        with self._closing:
            if kind is None:
                self._room.empty()

    def look(self, path: Path) -> str | None:
        """See `Staging.look`."""
        return self._looks.get(path)

    @contextlib.contextmanager
    def held(self, paths: Sequence[Path]) -> Iterator[None]:
        """See `Staging.held`."""
        mine = [path for path in dict.fromkeys(paths) if path in self._entries and not _describes(self._entries[path])]
        if not mine:
            yield
            return
        self._room.claim({path: self._entries[path].size_bytes for path in mine})
        try:
            for path in mine:
                with self._room.lock_of(path):
                    self._have(path)
            yield
        finally:
            self._room.release(mine, there=self._is_there)

    def _is_there(self, path: Path) -> bool:
        return self._stored(self._entries[path]).exists()

    def _place(self, listing: Listing) -> None:
        """Gives each file its name and length, and each description its content."""
        if len(self._entries) + len(listing.entries) > ENTRIES_MAX:
            got = f"over {ENTRIES_MAX:,} files"
            raise InvalidInput("stage a source", on=self._remote.address, got=got, wanted="a part of it")
        describing_bytes = 0
        for entry in listing.entries:
            path = self._tree / entry.name
            self._entries[path] = entry
            with reported("stage a file", entry.name):
                path.parent.mkdir(parents=True, exist_ok=True)
                if not entry.look:
                    self._stored(entry).unlink(missing_ok=True)  # It may be another by now, and nobody can tell.
                if not self._stored(entry).exists():
                    _hollow(path, entry.size_bytes)
                elif not (path.exists() and os.path.samefile(path, self._stored(entry))):
                    self._shown(entry, path)
                seen = path.stat()
                self._looks[path] = f"{entry.size_bytes} {entry.look or (seen.st_ino, seen.st_ctime_ns)}"
            if _describes(entry):
                describing_bytes += entry.size_bytes
                if describing_bytes > DESCRIPTIONS_BYTES_MAX:
                    got = f"over {DESCRIPTIONS_BYTES_MAX >> 30} GiB of descriptions"
                    raise InvalidInput("stage a source", on=self._remote.address, got=got, wanted="a part of it")
                self._have(path)
            elif self._is_there(path):
                self._room.rest(path, entry.size_bytes)

    def _have(self, path: Path) -> None:
        """Makes a file whole."""
        entry = self._entries[path]
        stored = self._stored(entry)
        if stored.exists():
            return
        part = self._folder / "parts" / stored.name
        if not self._remote.ranged:
            part.unlink(missing_ok=True)
        tries = 0
        with reported("fetch a file", entry.name):
            while (begun := part.stat().st_size if part.exists() else 0) < entry.size_bytes or not part.exists():
                try:
                    self._fetch(entry, part, begun)
                except StorageFull:
                    raise
                except Unavailable as error:
                    tries = 1 if part.exists() and part.stat().st_size > begun else tries + 1
                    if tries == TRIES_MAX:
                        raise Unavailable(
                            "fetch a file",
                            on=f"{self._remote.address} {entry.name}",
                            got=f"{error.got or error}, {TRIES_MAX} times in a row",
                            next_step="the same command goes on where it was",
                        ) from error
                    self._wait(AGAIN.wait_s(tries))
            _check(entry, part)
            os.replace(part, stored)
            self._shown(entry, path)

    def _fetch(self, entry: Entry, part: Path, offset: int) -> None:
        free = shutil.disk_usage(self._folder).free
        if free - ROOM_BYTES_MIN < entry.size_bytes - offset:
            got = f"{free >> 20:,} MiB free, {entry.size_bytes - offset >> 20:,} MiB needed"
            raise StorageFull("fetch a file", on=f"{self._remote.address} {entry.name}", got=got)
        done = offset
        with open(part, "ab", buffering=BLOCK_BYTES) as file:
            for block in self._remote.stream(entry, offset):
                done += len(block)
                if done > entry.size_bytes:
                    file.truncate(0)  # Whatever these bytes are, they are not the file that was listed.
                    got = f"more than the {entry.size_bytes:,} bytes it was listed with"
                    raise Conflict("fetch a file", on=f"{self._remote.address} {entry.name}", got=got)
                file.write(block)
        if done < entry.size_bytes:
            raise Unavailable("fetch a file", on=entry.name, got=f"{done:,} of {entry.size_bytes:,} bytes")

    def _let_go(self, path: Path) -> None:
        """Makes a file a hole again."""
        entry = self._entries[path]
        with reported("let go of a file", entry.name):
            _hollow(path, entry.size_bytes)
            self._stored(entry).unlink(missing_ok=True)

    def _stored(self, entry: Entry) -> Path:
        said = f"{entry.name}\0{entry.size_bytes}\0{entry.look}".encode("utf-8", "surrogateescape")
        return self._folder / "whole" / blake3(said).hexdigest()[:_NAME_LETTERS]

    def _shown(self, entry: Entry, path: Path) -> None:
        """Puts a file that was fetched where it is looked for."""
        draft = self._folder / "parts" / f"{self._stored(entry).name}.link"
        draft.unlink(missing_ok=True)
        os.link(self._stored(entry), draft)
        os.replace(draft, path)

    def _sweep(self) -> None:
        """Removes what an earlier listing had and this one has not."""
        kept = {self._stored(entry).name for entry in self._entries.values()}
        with reported("sweep a stage", str(self._folder)):
            for folder in ("whole", "parts"):
                for path in (self._folder / folder).iterdir():
                    if path.name not in kept:
                        path.unlink()
            for path in self._tree.rglob("*"):
                if path not in self._entries and not path.is_dir():
                    path.unlink()


class _Room:
    """Who holds which files, within a budget; those that nobody holds are let go for them, the longest idle first."""

    def __init__(self, let_go: Callable[[Path], None]) -> None:
        self.bytes_max = 0
        self._let_go = let_go
        self._turn = Condition()
        self._holders: dict[Path, int] = {}
        self._sizes: dict[Path, int] = {}  # Of those.
        self._idle: OrderedDict[Path, int] = OrderedDict()  # Fetched, held by nobody, to be let go: the oldest first.
        self._idle_bytes = 0
        self._locks: dict[Path, Lock] = {}

    def claim(self, sizes: Mapping[Path, int]) -> None:
        """Waits until there is room for files beside those that others hold, and makes it."""
        with self._turn:
            while self._holders and sum({**self._sizes, **sizes}.values()) > self.bytes_max:
                self._turn.wait()  # Whoever holds something reads it and lets go: no one waits while holding.
            self._sizes.update(sizes)
            for path in sizes:
                self._holders[path] = self._holders.get(path, 0) + 1
                self._idle_bytes -= self._idle.pop(path, 0)
            needed = sum(self._sizes.values())
            while self._idle and needed + self._idle_bytes > self.bytes_max:
                self._let_go_oldest()

    def release(self, paths: Sequence[Path], *, there: Callable[[Path], bool]) -> None:
        """Keeps files that nobody holds any more, as far as they are there, until their room is wanted."""
        with self._turn:
            for path in paths:
                self._holders[path] -= 1
                if not self._holders[path]:
                    del self._holders[path]
                    size_bytes = self._sizes.pop(path)
                    if there(path):
                        self.rest(path, size_bytes)
            self._turn.notify_all()

    def rest(self, path: Path, size_bytes: int) -> None:
        """Keeps a file that nobody holds."""
        self._idle[path] = size_bytes
        self._idle_bytes += size_bytes

    def empty(self) -> None:
        """Lets go of all that nobody holds."""
        while self._idle:
            self._let_go_oldest()

    def lock_of(self, path: Path) -> Lock:
        """Returns what whoever fetches a file holds."""
        with self._turn:
            return self._locks.setdefault(path, Lock())

    def _let_go_oldest(self) -> None:
        path, size_bytes = self._idle.popitem(last=False)
        self._idle_bytes -= size_bytes
        self._let_go(path)


def stage_folder(cache: Path, address: str) -> Path:
    """Returns the folder of a source's stage.

    Args:
        cache: Where stages are.
        address: The source's.
    """
    return cache / "sources" / blake3(address.encode("utf-8", "surrogateescape")).hexdigest()[:_NAME_LETTERS]


def _describes(entry: Entry) -> bool:
    """Returns whether a file says what others are, and so is wanted before any of them."""
    path = PurePosixPath(entry.name)
    said = path.suffix.lower() in _DESCRIBING or path.name in _DESCRIBING or _META in path.parts[:-1]
    return said and entry.size_bytes <= DESCRIPTION_BYTES_MAX


def _hollow(path: Path, size_bytes: int) -> None:
    """Puts a file of a length at a path that takes no room on the disk."""
    draft = path.with_name(f".{path.name[:60]}.hollow")
    with open(draft, "wb") as file:
        file.truncate(size_bytes)
    os.replace(draft, path)


def _check(entry: Entry, part: Path) -> None:
    kind, _, wanted = entry.digest.partition(":")
    if not kind:
        return
    hasher = hashlib.new(kind, usedforsecurity=False)
    with open(part, "rb") as file:
        while block := file.read(BLOCK_BYTES):
            hasher.update(block)
    if hasher.hexdigest() != wanted.lower():
        part.unlink()
        raise DamagedData(
            "fetch a file",
            on=entry.name,
            got=f"{kind} {hasher.hexdigest()[:16]}..",
            wanted=f"{wanted[:16]}.., as its source says",
        )
