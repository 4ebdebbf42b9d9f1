"""The API of a cluster: one call at a time, a collection in pages, and what changes in it from then on.

No call waits longer than its bound for the next bytes, and every answer is bounded in size. "No" (`ApiRefusal`) and "no
answer" (`Unavailable`) are told apart: what the API says of itself (busy, starting, timed out) is no answer. A
connection whose other end is gone is noticed: a watched collection sends a bookmark a minute, so a silence of
`SILENT_S_MAX` is an end.
Source: kubernetes.io/docs/reference/using-api/api-concepts; the status codes of apimachinery's `pkg/api/errors`.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Lock
from typing import Any, final

import httpx

from mainspring.domain.errors import MainspringError, Unavailable
from mainspring.engines.kubernetes.api.access import Access

CALL_S_MAX = 10.0
SILENT_S_MAX = 100.0  # Over the minute between bookmarks, which the API server spreads by a quarter.
WATCH_S = 290  # The server ends a watch then, so that its connections spread over its replicas again.
PAGE_ITEMS = 500  # What client-go's pagers ask for: some megabytes of pods.
ANSWER_BYTES_MAX = 64 << 20  # A page of 500 pods of 100 KiB; etcd keeps no object over 1.5 MiB.
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
_NOT_NOW = frozenset({401, 408, 429})  # Credentials renew, time passes, a queue empties.
_GONE = 410
# A peer that is gone without a word is noticed within half a minute while nothing is asked of it.
_KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
)


class ApiRefusal(MainspringError):
    """The API understood, and said no; `got` holds its words, `reason` its reason ("NotFound", "Forbidden")."""

    def __init__(
        self, attempted: str, *, on: str = "", got: str = "", reason: str = "", wanted: str = "", next_step: str = ""
    ) -> None:
        super().__init__(attempted, on=on, got=got, wanted=wanted, next_step=next_step)
        self.reason = reason


class VersionGone(MainspringError):
    """What a collection was at a version, or how it went on from there, is not known any more: list it anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A part of a collection.

    Args:
        version: The version of the whole collection, from which on it can be watched.
    """

    items: list[dict[str, Any]]
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What happened to one object of a collection.

    Args:
        kind: "ADDED", "MODIFIED", "DELETED"; "BOOKMARK" where nothing did, and only the version has moved on.
        object: As it is now, or last was.
        version: The collection's, from which on it can be watched again.
    """

    kind: str
    object: dict[str, Any]
    version: str


@final
class Api:
    """One cluster's API. Safe to use from several threads at once.

    Args:
        name: The cluster's, for messages.
        access: Reads how it is reached. It is read anew after a refusal of what proves who we or they are.
        call_s: How long a call waits for the API, and for each part of its answer.
        silent_s: How long a watch may say nothing.
        page_items: How much of a collection is asked for at once.
    """

    def __init__(
        self,
        name: str,
        access: Callable[[], Access],
        *,
        call_s: float = CALL_S_MAX,
        silent_s: float = SILENT_S_MAX,
        page_items: int = PAGE_ITEMS,
    ) -> None:
        self._name = name
        self._access = access
        self._call_s = call_s
        self._silent_s = silent_s
        self._page_items = page_items
        self._lock = Lock()
        self._opened: tuple[Access, httpx.Client] | None = None

    def close(self) -> None:
        """Closes its connections; nobody may call any more."""
        with self._lock:
            if self._opened is not None:
                self._opened[1].close()

    def call(
        self,
        method: str,
        path: str,
        *,
        attempted: str,
        body: Mapping[str, Any] | None = None,
        kind: str = "application/json",
        query: Mapping[str, str] | None = None,
    ) -> Any:
        """Returns what the API answers.

        Args:
            path: "/api/v1/nodes".
            attempted: What it is for, as a clause, for messages.
            body: What is sent, as JSON.
            kind: Its media type; of a patch, which sort it is.
            query: Words after the path.

        Raises:
            ApiRefusal: It said no.
            VersionGone: It does not know that version of a collection any more.
            Unavailable: No answer in time, or one that cannot be read.
        """
        content = None if body is None else json.dumps(body).encode()
        headers = {"Accept": "application/json", **({} if content is None else {"Content-Type": kind})}
        with self._asked(method, path, attempted, query or {}, content=content, headers=headers) as answer:
            return self._json(b"".join(self._bounded(answer, attempted, path)), attempted, path)

    def text(self, path: str, *, attempted: str, query: Mapping[str, str]) -> bytes:
        """Returns what the API answers with that is no JSON, such as the log of a container.

        Raises:
            ApiRefusal: It said no.
            Unavailable: No answer in time, or one that is too long.
        """
        with self._asked("GET", path, attempted, query) as answer:
            return b"".join(self._bounded(answer, attempted, path))

    def pages(self, path: str, *, attempted: str, query: Mapping[str, str]) -> Iterator[Page]:
        """Yields a collection as it is at one instant, in pages.

        Args:
            path: "/api/v1/pods".
            attempted: What it is for, for messages.
            query: Such as a fieldSelector.

        Raises:
            VersionGone: It took so long that the instant is forgotten.
            ApiRefusal: The API said no.
            Unavailable: No answer in time.
        """
        token = ""
        while True:
            more = {"limit": str(self._page_items), **({"continue": token} if token else {})}
            found = self.call("GET", path, attempted=attempted, query={**query, **more})
            try:
                token, version = found["metadata"].get("continue", ""), found["metadata"]["resourceVersion"]
                yield Page(items=found["items"], version=version)
            except (KeyError, TypeError, AttributeError) as error:
                raise self._unreadable(attempted, path, found) from error
            if not token:
                return

    def watch(self, path: str, version: str, *, attempted: str, query: Mapping[str, str]) -> Iterator[Change]:
        """Yields what happens to a collection after a version, until the server ends it, as it does every few minutes.

        The first thing yielded is a bookmark of that version, once the API has taken the question.

        Args:
            version: Of the collection, from a page or a change.

        Raises:
            VersionGone: It is too old.
            ApiRefusal: The API said no.
            Unavailable: The connection broke, or nothing came for `silent_s`.
        """
        words = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_S),
            "resourceVersion": version,
        }
        with self._asked("GET", path, attempted, {**query, **words}, silent_s=self._silent_s) as answer:
            yield Change(kind="BOOKMARK", object={}, version=version)
            rest = b""
            for piece in answer.iter_bytes():
                *lines, rest = (rest + piece).split(b"\n")
                if len(rest) > ANSWER_BYTES_MAX:
                    raise Unavailable(attempted, on=f"{self._name}, {path}", got="a line without an end")
                for line in lines:
                    yield self._change(line, attempted, path)

    def _change(self, line: bytes, attempted: str, path: str) -> Change:
        said = self._json(line, attempted, path)
        try:
            kind, found = said["type"], said["object"]
            if kind == "ERROR":
                raise self._refusal(int(found.get("code") or 500), found, attempted, path)
            return Change(kind=kind, object=found, version=found["metadata"]["resourceVersion"])
        except (KeyError, TypeError, AttributeError) as error:
            raise self._unreadable(attempted, path, said) from error

    @contextmanager
    def _asked(
        self,
        method: str,
        path: str,
        attempted: str,
        query: Mapping[str, str],
        *,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        silent_s: float | None = None,
    ) -> Iterator[httpx.Response]:
        """Yields the answer to a request that the API took, its body still to be read.

        Args:
            silent_s: How long it may say nothing; None for no longer than a call may take.
        """
        on = f"{self._name}, {method} {path}"
        access, client = self._open()
        try:
            with client.stream(
                method,
                path,
                params=dict(query),
                content=content,
                headers=dict(headers or {}),
                timeout=httpx.Timeout(self._call_s, read=silent_s or self._call_s),
                extensions={"sni_hostname": access.server_name} if access.server_name else {},
            ) as answer:
                if answer.is_error:
                    said: Any = None
                    with suppress(ValueError):
                        said = json.loads(b"".join(self._bounded(answer, attempted, path)))
                    if answer.status_code == httpx.codes.UNAUTHORIZED:
                        self._renew()
                    raise self._refusal(answer.status_code, said, attempted, on)
                yield answer
        except httpx.TimeoutException as error:
            raise Unavailable(attempted, on=on, got=f"no answer within {silent_s or self._call_s:g} s") from error
        except httpx.HTTPError as error:
            # A certificate may have been renewed, theirs or ours: files are read again next time.
            if isinstance(error, httpx.ConnectError):
                self._renew()
            raise Unavailable(attempted, on=on, got=str(error) or type(error).__name__) from error

    def _open(self) -> tuple[Access, httpx.Client]:
        with self._lock:
            if self._opened is None:
                access = self._access()
                transport = httpx.HTTPTransport(
                    verify=access.trust, proxy=access.proxy or None, socket_options=_KEEPALIVE, trust_env=False
                )
                self._opened = (
                    access,
                    httpx.Client(base_url=access.url, auth=access.auth, transport=transport, trust_env=False),
                )
            return self._opened

    def _renew(self) -> None:
        """Reads the access anew for the next call; what is under way by the old one goes on to its end."""
        with self._lock:
            self._opened = None

    def _bounded(self, answer: httpx.Response, attempted: str, path: str) -> Iterator[bytes]:
        count = 0
        for piece in answer.iter_bytes():
            count += len(piece)
            if count > ANSWER_BYTES_MAX:
                raise Unavailable(
                    attempted, on=f"{self._name}, {path}", got=f"over {ANSWER_BYTES_MAX >> 20} MiB", wanted="less"
                )
            yield piece

    def _json(self, text: bytes, attempted: str, path: str) -> Any:
        try:
            return json.loads(text)
        except ValueError as error:
            raise self._unreadable(attempted, path, text) from error

    def _unreadable(self, attempted: str, path: str, got: object) -> Unavailable:
        return Unavailable(attempted, on=f"{self._name}, {path}", got=repr(got)[:200], wanted="an answer of Kubernetes")

    def _refusal(self, code: int, said: Any, attempted: str, on: str) -> MainspringError:
        """Returns what an error of the API means."""
        status = said if isinstance(said, dict) else {}
        got = str(status.get("message") or f"HTTP status {code}")[:1_000]
        if code == _GONE:
            return VersionGone(attempted, on=on, got=got)
        if code in _NOT_NOW or code >= 500:
            return Unavailable(attempted, on=on, got=got)
        return ApiRefusal(attempted, on=on, got=got, reason=str(status.get("reason") or ""))
