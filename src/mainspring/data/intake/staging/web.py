"""HTTPS as a source: a LeRobot dataset by what its `meta/` says, files that a list names, or a single file.

A server is asked for nothing but what the address leads to: no password is sent, redirects are few, never to plain
HTTP, and never from a public host to one inside a private network.
"""

from __future__ import annotations

import ipaddress
import json
import socket
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath
from urllib.parse import quote, unquote, urljoin, urlsplit, urlunsplit

import httpx

from mainspring.data.intake.report import LeftOut
from mainspring.data.intake.staging.port import BLOCK_BYTES, ENTRIES_MAX, Entry, Listing, Names, Wait, sifted, why_not
from mainspring.data.pool import mapped
from mainspring.domain.errors import Conflict, InvalidInput, NotAllowed, NotFound, Unavailable
from mainspring.domain.ports import Backoff

TIMEOUT_S = 60.0  # Without a single byte; as of object stores.
REDIRECTS_MAX = 5  # Hugging Face needs two, to its store and on to a mirror of that.
LIST_BYTES_MAX = 256 << 20  # 2 million names of 128 letters.
TRIES_MAX = 5
AGAIN = Backoff(first_s=0.5)
AT_ONCE = 16  # Questions under way: an answer takes tens of milliseconds.
EPISODE_FILES_MAX = 10_000  # Under meta/episodes: each lists thousands.
_LISTS = (".txt", ".json", ".lst", ".list")
_FIRST = "meta/info.json"
_TOLD = ("meta/episodes.jsonl", "meta/tasks.jsonl", "meta/episodes_stats.jsonl", "meta/stats.json")
_TOLD_V3 = ("meta/tasks.parquet", "meta/stats.json", "meta/tasks.jsonl")
_EPISODES_V3 = "meta/episodes/chunk-{:03d}/file-{:03d}.parquet"
_HUB = "https://huggingface.co/datasets/"
_REDIRECTS = (301, 302, 303, 307, 308)


class WebRemote:
    """See `Remote`.

    Args:
        address: A folder's, with LeRobot's `meta/info.json` below it; that of a text or JSON file that lists names
            relative to its own folder; or a single file's.
        single: Whether it is a single recording's or archive's.
        wait: Waits so many seconds before something is asked again.
    """

    ranged = True

    def __init__(self, address: str, *, single: bool, wait: Wait) -> None:
        self._address, self._query = _bare(address)
        path = urlsplit(self._address).path
        self._single = PurePosixPath(unquote(path)).name if single else ""
        self._list = PurePosixPath(path).suffix.lower() in _LISTS and not single
        self._base = self._address.rpartition("/")[0] + "/" if single or self._list else self._address.rstrip("/") + "/"
        self._client = httpx.Client(timeout=TIMEOUT_S, follow_redirects=False)
        self._wait = wait
        self._public = _is_public(urlsplit(self._address).hostname or "")

    @property
    def address(self) -> str:
        """See `Remote.address`; without what is behind the question mark, which may be a secret."""
        return self._address

    @property
    def folder(self) -> str:
        """See `Remote.folder`."""
        parts = [part for part in unquote(urlsplit(self._base).path).split("/") if part not in ("", ".", "..")]
        names = [part for part in parts if why_not(part) == ""]
        return "" if self._single else (names or ["files"])[-1]

    def first(self) -> Listing:
        """See `Remote.first`."""
        if self._single:
            return sifted([self._needed(self._single)])
        if self._list:
            return self._looked_at(self._listed())
        wanted = f"{_FIRST} below it, which LeRobot datasets have, or the address of a .txt or .json list of names"
        try:
            known = [self._needed(_FIRST)]
        except NotFound as error:
            raise NotFound("read a source", on=self._address, got=f"no {_FIRST} there", wanted=wanted) from error
        version = self._version()
        known += [entry for name in (_TOLD if version < "v3" else _TOLD_V3) if (entry := self._seen(name))]
        if version >= "v3":
            known += self._episode_files()
        return sifted(known)

    def rest(self, root: Path, named: Names) -> Listing:
        """See `Remote.rest`."""
        if self._single or self._list:
            return Listing(entries=())
        names = [path.relative_to(root).as_posix() for path in named(root)]
        return self._looked_at(name for name in dict.fromkeys(names) if not name.startswith("meta/"))

    def stream(self, entry: Entry, offset: int) -> Iterator[bytes]:
        """See `Remote.stream`."""
        if offset >= entry.size_bytes:
            return
        with self._answer("GET", entry.name, {"Range": f"bytes={offset}-", "Accept-Encoding": "identity"}) as answer:
            here = _length(answer, offset)
            seen = _look(answer, _length_told(answer))
            if here is None or (entry.look and seen and seen != entry.look):
                raise Conflict(
                    "fetch a file",
                    on=self._base + entry.name,
                    got="another file than when it was listed",
                    next_step="the same command again",
                )
            skipped = 0
            for block in answer.iter_raw():  # As it comes: what waits for a larger block is lost when it breaks.
                start = min(len(block), max(0, here - skipped))  # A server without ranges sends all from the start.
                skipped += start
                yield block[start:]

    def close(self) -> None:
        """See `Remote.close`."""
        self._client.close()

    def _version(self) -> str:
        try:
            return str(json.loads(self._whole(_FIRST, LIST_BYTES_MAX))["codebase_version"])
        except (ValueError, LookupError, TypeError) as error:
            got, wanted = f"no JSON with a codebase_version ({str(error)[:80]})", "LeRobot's description"
            raise InvalidInput("read a source", on=self._base + _FIRST, got=got, wanted=wanted) from error

    def _episode_files(self) -> Iterator[Entry]:
        """Yields the files that list a v3 dataset's episodes: numbered without a gap, chunk by chunk."""
        for chunk in range(EPISODE_FILES_MAX):
            number = 0
            while number < EPISODE_FILES_MAX and (entry := self._seen(_EPISODES_V3.format(chunk, number))):
                number += 1
                yield entry
            if not number:
                return

    def _listed(self) -> list[str]:
        """Returns the names in a list: a line each, or a JSON array of names or of objects that have one."""
        data = self._whole(PurePosixPath(urlsplit(self._address).path).name, LIST_BYTES_MAX)
        try:
            text = data.decode("utf-8")
            if not self._address.lower().endswith(".json"):
                return [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
            plain = json.loads(text)
            if isinstance(plain, dict):
                plain = next((value for value in plain.values() if isinstance(value, list)), [])
            return [name for name in [_name_in(item) for item in plain] if name]
        except (ValueError, RecursionError) as error:
            got, wanted = str(error)[:200], "a name on each line, or a JSON array of names"
            raise InvalidInput("read a list of files", on=self._address, got=got, wanted=wanted) from error

    def _looked_at(self, names: Iterable[str]) -> Listing:
        """Returns what the server says of files by name, with what it has not."""
        refused: list[LeftOut] = []
        asked: list[str] = []
        for name in names:
            reason = "not relative to its list" if "://" in name else why_not(name)
            if reason:
                refused.append(LeftOut(source=name[:2_048], reason=reason))
            else:
                asked.append(name)
        if len(asked) > ENTRIES_MAX:
            raise InvalidInput("read a source", on=self._address, got=f"over {ENTRIES_MAX:,} files", wanted="fewer")
        found: list[Entry] = []
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="stage") as pool:
            for name, entry in zip(asked, mapped(pool, self._seen, asked, ahead=2 * AT_ONCE), strict=True):
                if entry:
                    found.append(entry)
                elif self._list:
                    refused.append(LeftOut(source=name, reason="named by the list, and not there"))
        return sifted(found, refused)

    def _seen(self, name: str) -> Entry | None:
        """Returns what the server says of a file; None when it has none."""
        try:
            return self._needed(name)
        except NotFound:
            return None

    def _needed(self, name: str) -> Entry:
        """Returns what the server says of a file, asked again when it is too busy to say."""
        for tries in range(1, TRIES_MAX + 1):
            try:
                return self._told(name)
            except Unavailable:
                if tries == TRIES_MAX:
                    raise
            self._wait(AGAIN.wait_s(tries))
        raise AssertionError(name)

    def _told(self, name: str) -> Entry:
        try:
            with self._answer("HEAD", name, {"Accept-Encoding": "identity"}) as answer:
                if (size_bytes := _length_told(answer)) is not None:
                    return _entry(name, answer, size_bytes)
        except (NotAllowed, InvalidInput):
            pass  # Some servers, and signed addresses, allow nothing but GET.
        with self._answer("GET", name, {"Range": "bytes=0-0", "Accept-Encoding": "identity"}) as answer:
            if (size_bytes := _length_told(answer)) is not None:
                return _entry(name, answer, size_bytes)
        raise InvalidInput(
            "look at a file", on=self._base + name, got="no length", wanted="a server that says how long its files are"
        )

    def _whole(self, name: str, most_bytes: int) -> bytes:
        data = bytearray()
        with self._answer("GET", name, {"Accept-Encoding": "identity"}) as answer:
            for block in answer.iter_raw(BLOCK_BYTES):
                data += block
                if len(data) > most_bytes:
                    raise InvalidInput(
                        "read a list of files", on=self._base + name, got=f"over {most_bytes:,} bytes", wanted="fewer"
                    )
        return bytes(data)

    @contextmanager
    def _answer(self, method: str, name: str, headers: dict[str, str]) -> Iterator[httpx.Response]:
        """Gives a server's answer, redirects followed; everything but success is raised."""
        url = self._base + quote(name, safe="/~") + self._query
        with ExitStack() as closing:
            try:
                linked: httpx.Response | None = None
                for _ in range(REDIRECTS_MAX + 1):
                    answer = closing.enter_context(self._client.stream(method, url, headers=headers))
                    if answer.status_code not in _REDIRECTS:
                        break
                    linked = answer if "x-linked-etag" in answer.headers else linked
                    url = self._next(url, answer.headers.get("location", ""))
                else:
                    raise InvalidInput("fetch a file", on=self._base + name, got=f"over {REDIRECTS_MAX} redirects")
                _refused(answer.status_code, self._base + name)
                if linked is not None:  # The hub's own name of the content; its store's may differ from day to day.
                    answer.headers["etag"] = linked.headers["x-linked-etag"]
                    answer.extensions["sha256"] = linked.headers["x-linked-etag"].strip('"')
                yield answer
            except httpx.HTTPError as error:
                raise Unavailable(
                    "fetch a file", on=self._base + name, got=f"{type(error).__name__}: {str(error)[:200]}"
                ) from error

    def _next(self, url: str, location: str) -> str:
        """Returns where a redirect leads, if one may follow it."""
        target = urljoin(url, location)
        parts = urlsplit(target)
        host = parts.hostname or ""
        inward = self._public and not _is_public(host)
        if not location or parts.scheme not in ("http", "https") or inward or (parts.scheme == "http" and _plain(host)):
            raise InvalidInput(
                "fetch a file",
                on=self._base,
                got=f"a redirect to {parts.scheme}://{host}"[:200],
                wanted="one to HTTPS, and not into a private network",
            )
        return target


def _bare(address: str) -> tuple[str, str]:
    parts = urlsplit(address)
    host = parts.hostname or ""
    if not host or (parts.scheme == "http" and _plain(host)):
        raise InvalidInput(
            "read a source",
            on=f"{parts.scheme}://{host}",
            got=parts.scheme,
            wanted="https://host/path; plain http only to this machine",
        )
    if parts.username or parts.password:
        raise InvalidInput(
            "read a source", on=f"{parts.scheme}://{host}{parts.path}", got="a password in the address", wanted="none"
        )
    port = f":{parts.port}" if parts.port else ""
    bare = urlunsplit((parts.scheme, (f"[{host}]" if ":" in host else host) + port, parts.path, "", ""))
    if bare.startswith(_HUB) and "/resolve/" not in bare:  # The page of a dataset, as people copy it.
        bare = f"{_HUB}{'/'.join(bare.removeprefix(_HUB).strip('/').split('/')[:2])}/resolve/main/"
    return bare, f"?{parts.query}" if parts.query else ""


def _plain(host: str) -> bool:
    """Returns whether plain HTTP to a host would cross a network."""
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host != "localhost"


def _is_public(host: str) -> bool:
    """Returns whether a host is one that everybody reaches; of one whose address is not known here, it is."""
    try:
        found = {ipaddress.ip_address(entry[4][0]) for entry in socket.getaddrinfo(host, None)}
    except (OSError, ValueError, UnicodeError):
        return True
    return all(address.is_global for address in found)


def _refused(status: int, on: str) -> None:
    if status in (404, 410):
        raise NotFound("fetch a file", on=on, got=f"HTTP {status}")
    if status in (401, 403):
        raise NotAllowed(
            "fetch a file", on=on, got=f"HTTP {status}", next_step="fetch it with its own tools, and take in the folder"
        )
    if status == 416:
        raise Conflict("fetch a file", on=on, got="a file that is shorter than when it was listed")
    if status in (408, 425, 429) or status >= 500:
        raise Unavailable("fetch a file", on=on, got=f"HTTP {status}")
    if status not in (200, 206):
        raise InvalidInput("fetch a file", on=on, got=f"HTTP {status}", wanted="the file")


def _length_told(answer: httpx.Response) -> int | None:
    """Returns how long a file is in all; None when the server does not say."""
    told = answer.headers.get("content-range", "").rpartition("/")[2]
    if answer.status_code == 206:
        return int(told) if told.isdecimal() else None
    told = answer.headers.get("content-length", "")
    return int(told) if told.isdecimal() else None


def _length(answer: httpx.Response, offset: int) -> int | None:
    """Returns how many bytes of an answer come before those asked for; None when it begins too late."""
    if answer.status_code != 206:
        return offset
    told = answer.headers.get("content-range", "").removeprefix("bytes ").partition("-")[0]
    begins = int(told) if told.isdecimal() else offset
    return offset - begins if begins <= offset else None


def _look(answer: httpx.Response, size_bytes: int | None) -> str:
    said = answer.headers.get("etag", "").removeprefix("W/") or answer.headers.get("last-modified", "")
    return f"{size_bytes} {said}" if said else ""


def _entry(name: str, answer: httpx.Response, size_bytes: int) -> Entry:
    said = str(answer.extensions.get("sha256", ""))
    return Entry(
        name=name,
        size_bytes=size_bytes,
        look=_look(answer, size_bytes),
        digest=f"sha256:{said}" if len(said) == 64 else "",
    )


def _name_in(item: object) -> str:
    if isinstance(item, dict):
        found = next((item[key] for key in ("path", "name", "rfilename") if isinstance(item.get(key), str)), "")
        return "" if item.get("type") == "directory" else str(found)
    return item if isinstance(item, str) else ""
