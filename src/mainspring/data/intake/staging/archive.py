"""Zip and tar archives as sources, read where they lie; a tar that is compressed is unpacked into one that is not.

Nothing in an archive is trusted: names that leave it, links, devices, encrypted members, lengths that contradict the
archive's own and contents out of all proportion are refused, each by name.
"""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from threading import Lock
from types import MappingProxyType
from typing import IO, cast

import zstandard
from blake3 import blake3

from mainspring.data.intake.report import LeftOut
from mainspring.data.intake.staging.port import (
    BLOCK_BYTES,
    ENTRIES_MAX,
    PATH_BYTES_MAX,
    Entry,
    Listing,
    Names,
    sifted,
)
from mainspring.data.intake.staging.stage import ROOM_BYTES_MIN
from mainspring.domain.errors import DamagedData, InvalidInput, StorageFull
from mainspring.objects.files import reported, whole_file

RATIO_MAX = 200  # Contents to archive. Robots' logs shrink to a tenth; only zeros, and bombs, reach a thousandth.
RATIO_FROM_BYTES = 1 << 30  # Below this nobody's disk is in danger, whatever the proportion.
UNPACKED_BYTES_MAX = 16 << 40  # The largest published sets have 8 TiB.
ZIP, TAR = (".zip",), (".tar",)
PACKED: Mapping[str, str] = MappingProxyType(
    {
        ".tar.gz": "gzip",
        ".tgz": "gzip",
        ".tar.bz2": "bzip2",
        ".tbz2": "bzip2",
        ".tar.xz": "xz",
        ".txz": "xz",
        ".tar.zst": "zstd",
        ".tzst": "zstd",
    }
)
ARCHIVES = (*ZIP, *TAR, *PACKED)
_STAMP_LETTERS = 16
_OF_ITS_OWN = ".zarr.zip"  # A store that its reader reads as it is.
_BROKEN = (EOFError, OSError, lzma.LZMAError, zlib.error, zstandard.ZstdError, ValueError, tarfile.TarError)
_BACKSLASH, _UTF8_FLAG, _ENCRYPTED_FLAG = "\\", 0x800, 0x1
_LINK = "a link: pack the set again with what it leads to (tar -h, zip without -y)"


def archive_suffix(name: str) -> str:
    """Returns what a name ends with when it is an archive's, else "".

    Args:
        name: Of a file.
    """
    lower = name.lower()
    return "" if lower.endswith(_OF_ITS_OWN) else next((end for end in ARCHIVES if lower.endswith(end)), "")


class ZipRemote:
    """A zip archive on this machine; see `Remote`.

    Args:
        path: The archive.
        address: What it is called; its path when "".
    """

    ranged = False

    def __init__(self, path: Path, address: str = "") -> None:
        self._path = path
        self.address = address or str(path.absolute())
        self._zip: zipfile.ZipFile | None = None
        self._infos: dict[str, zipfile.ZipInfo] = {}

    @property
    def folder(self) -> str:
        """See `Remote.folder`."""
        return _stem(self.address)

    def first(self) -> Listing:
        """See `Remote.first`."""
        with reported("read an archive", str(self._path)):
            try:
                self._zip = zipfile.ZipFile(self._path)
            except (zipfile.BadZipFile, zipfile.LargeZipFile, ValueError, RuntimeError) as error:
                raise DamagedData(
                    "read an archive", on=self.address, got=str(error)[:200], wanted="a whole zip file"
                ) from error
            size_bytes = self._path.stat().st_size
        infos = self._zip.infolist()
        _in_proportion(self.address, sum(info.file_size for info in infos), size_bytes, len(infos))
        if sum(info.compress_size for info in infos) > size_bytes:
            raise DamagedData("read an archive", on=self.address, got="members that overlap", wanted="a zip file")
        found: list[Entry] = []
        refused: list[LeftOut] = []
        for info in infos:
            name = _named(info)
            if info.is_dir() or name.startswith("__MACOSX/"):  # What macOS adds to every archive.
                continue
            if reason := _refusal(info):
                refused.append(LeftOut(source=name, reason=reason))
                continue
            self._infos[PurePosixPath(name).as_posix()] = info
            found.append(
                Entry(
                    name=name,
                    size_bytes=info.file_size,
                    look=f"{info.CRC:08x} {info.compress_size} {info.compress_type} {info.date_time}",
                )
            )
        return sifted(found, refused)

    def rest(self, root: Path, named: Names) -> Listing:
        """See `Remote.rest`: an archive lists all at once."""
        return Listing(entries=())

    def stream(self, entry: Entry, offset: int) -> Iterator[bytes]:
        """See `Remote.stream`; the checksum is verified at the end of what is read from the beginning."""
        assert self._zip is not None
        try:
            with self._zip.open(self._infos[entry.name]) as file:
                file.seek(offset)
                while block := file.read(BLOCK_BYTES):
                    yield block
        except (zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError, RuntimeError, ValueError) as error:
            raise DamagedData("read an archive", on=f"{self.address} {entry.name}", got=str(error)[:200]) from error

    def close(self) -> None:
        """See `Remote.close`."""
        if self._zip:
            self._zip.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    """A file of a tar archive, and where it begins."""

    name: str
    size_bytes: int
    mtime: str
    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Index:
    """What a tar archive holds; kept for one that is compressed, since finding out takes reading all of it."""

    members: tuple[_Member, ...]
    refused: tuple[LeftOut, ...]


class TarRemote:
    """A tar archive on this machine; see `Remote`.

    Args:
        path: The archive; compressed when its name says so.
        stamp: Another text whenever the archive is another.
        address: What it is called; its path when "".
        work: Its own folder, for what a compressed one unpacks to.
    """

    ranged = False

    def __init__(self, path: Path, *, stamp: str, work: Path, address: str = "") -> None:
        self._path, self._stamp, self._work = path, stamp, work
        self.address = address or str(path.absolute())
        self._packed = archive_suffix(path.name) in PACKED
        self._unpacked = work / f"{blake3(stamp.encode()).hexdigest()[:_STAMP_LETTERS]}.tar"
        self._starts: dict[str, int] = {}
        self._unpacking = Lock()

    @property
    def folder(self) -> str:
        """See `Remote.folder`."""
        return _stem(self.address)

    def first(self) -> Listing:
        """See `Remote.first`."""
        kept = self._unpacked.with_suffix(".index")
        with reported("read an archive", self.address):
            if self._packed and kept.is_file():
                plain = json.loads(kept.read_bytes())  # Our own words; a member's name may be no proper text.
                index = _Index(
                    members=tuple(_Member(**member) for member in plain["members"]),
                    refused=tuple(LeftOut(**left) for left in plain["refused"]),
                )
            else:
                index = _indexed(self._plain(), self.address)
                if self._packed:
                    with whole_file(kept) as file:
                        file.write(json.dumps(asdict(index)).encode())
        self._starts = {PurePosixPath(member.name).as_posix(): member.start for member in index.members}
        found = [
            Entry(name=member.name, size_bytes=member.size_bytes, look=f"{member.mtime} {member.start} {self._stamp}")
            for member in index.members
        ]
        return sifted(found, index.refused)

    def rest(self, root: Path, named: Names) -> Listing:
        """See `Remote.rest`: an archive lists all at once."""
        return Listing(entries=())

    def stream(self, entry: Entry, offset: int) -> Iterator[bytes]:
        """See `Remote.stream`."""
        with reported("read an archive", self.address), open(self._plain(), "rb") as file:
            file.seek(self._starts[entry.name] + offset)
            left = entry.size_bytes - offset
            while left > 0 and (block := file.read(min(BLOCK_BYTES, left))):
                left -= len(block)
                yield block

    def close(self) -> None:
        """See `Remote.close`."""
        self._unpacked.unlink(missing_ok=True)

    def _plain(self) -> Path:
        """Returns the archive without compression, unpacked once it is asked for."""
        if not self._packed:
            return self._path
        with self._unpacking:
            if not self._unpacked.exists():
                _unpack(self._path, self._unpacked, self.address)
        return self._unpacked


def _indexed(path: Path, address: str) -> _Index:
    """Returns what a plain tar file holds; of one that is cut off, what comes before."""
    members: list[_Member] = []
    refused: list[LeftOut] = []
    with open(path, "rb") as file:
        size_bytes = os.fstat(file.fileno()).st_size
        try:
            with tarfile.open(fileobj=file, mode="r:") as tar:
                for info in tar:
                    if info.isdir():
                        continue
                    if reason := _tar_refusal(info, size_bytes):
                        refused.append(
                            LeftOut(
                                source=info.name.encode("utf-8", "replace").decode("utf-8")[:PATH_BYTES_MAX],
                                reason=reason,
                            )
                        )
                        continue
                    members.append(
                        _Member(name=info.name, size_bytes=info.size, mtime=str(info.mtime), start=info.offset_data)
                    )
                    if len(members) + len(refused) > ENTRIES_MAX:
                        raise InvalidInput("read an archive", on=address, got=f"over {ENTRIES_MAX:,} files")
        except (tarfile.TarError, EOFError, ValueError, OverflowError) as error:
            if not members:
                raise DamagedData(
                    "read an archive", on=address, got=str(error)[:200] or "an empty file", wanted="a whole tar file"
                ) from error
            reason = f"damaged after {len(members)} files, and what came then is lost: {str(error)[:120]}"
            refused.append(LeftOut(source=_stem(address), reason=reason))
    return _Index(members=tuple(members), refused=tuple(refused))


def _unpack(path: Path, target: Path, address: str) -> None:
    """Writes an archive's bytes without their compression; of other versions of it nothing stays."""
    size_bytes, done = path.stat().st_size, 0
    target.parent.mkdir(parents=True, exist_ok=True)
    for other in target.parent.iterdir():
        if other.stem != target.stem:
            other.unlink()
    draft = target.with_suffix(".part")
    room = shutil.disk_usage(target.parent).free - ROOM_BYTES_MIN
    try:
        with _decompressing(path) as packed, open(draft, "wb") as file:
            while block := packed.read(BLOCK_BYTES):
                done += len(block)
                _in_proportion(address, done, size_bytes, 0)
                if done > room:
                    got = f"{room >> 20:,} MiB of room, less than it unpacks to"
                    raise StorageFull("unpack an archive", on=address, got=got)
                file.write(block)
        os.replace(draft, target)
    except _BROKEN as error:
        if isinstance(error, OSError) and error.errno:  # The disk's own trouble, not the archive's.
            raise
        got = f"{str(error)[:200]} after {done:,} bytes"
        raise DamagedData("unpack an archive", on=address, got=got, wanted="a whole archive") from error
    finally:
        draft.unlink(missing_ok=True)


def _decompressing(path: Path) -> IO[bytes]:
    match PACKED[archive_suffix(path.name)]:
        case "gzip":
            return cast("IO[bytes]", gzip.open(path, "rb"))
        case "bzip2":
            return bz2.open(path, "rb")
        case "xz":
            return lzma.open(path, "rb")
        case kind:
            assert kind == "zstd", kind
            opened: IO[bytes] = zstandard.open(path, "rb")
            return opened


def _in_proportion(address: str, contents_bytes: int, size_bytes: int, count: int) -> None:
    too_much = contents_bytes > max(RATIO_FROM_BYTES, RATIO_MAX * size_bytes) or contents_bytes > UNPACKED_BYTES_MAX
    if too_much or count > ENTRIES_MAX:
        raise InvalidInput(
            "unpack an archive",
            on=address,
            got=f"{contents_bytes:,} bytes in {count:,} files out of {size_bytes:,}",
            wanted=f"at most {RATIO_MAX} times its own size, {ENTRIES_MAX:,} files",
        )


def _stem(address: str) -> str:
    name = address.rstrip("/").rpartition("/")[2]
    return name[: len(name) - len(archive_suffix(name))].lstrip(".") or "archive"


def _named(info: zipfile.ZipInfo) -> str:
    """Returns a member's name; many programs write UTF-8 and do not say so, and Windows' own way of joining parts."""
    name = info.filename
    if not info.flag_bits & _UTF8_FLAG:
        try:
            name = name.encode("cp437").decode("utf-8")
        except (UnicodeEncodeError, UnicodeDecodeError):
            name = info.filename
    return name.replace(_BACKSLASH, "/")


def _refusal(info: zipfile.ZipInfo) -> str:
    if info.external_attr >> 28 == 0xA and info.create_system == 3:  # A Unix mode of a symbolic link.
        return _LINK
    if info.flag_bits & _ENCRYPTED_FLAG:
        return "encrypted: unpack it with its password"
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        return f"compressed in a way that is not read (zip's number {info.compress_type})"
    if info.compress_type == zipfile.ZIP_STORED and info.compress_size != info.file_size:
        return "two lengths that contradict each other"
    return ""


def _tar_refusal(info: tarfile.TarInfo, size_bytes: int) -> str:
    if info.issym() or info.islnk():
        return _LINK
    if not info.isreg():
        return "a device or pipe"
    if info.issparse():
        return "a file with holes: pack it without --sparse"
    if info.offset_data + info.size > size_bytes:
        return "cut off: the archive ends before it does"
    return ""
