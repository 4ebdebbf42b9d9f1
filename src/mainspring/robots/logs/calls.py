"""The lab's server as a robot calls it to send clips: HTTP by the standard library, one connection that is kept."""

from __future__ import annotations

import http.client
import ssl
from typing import TypeVar, final
from urllib.parse import quote, urlencode, urlsplit

from mainspring.domain.answers import ArrivalView, ClipCatalog, ClipEntry, ClipsAsked
from mainspring.domain.answers.problems import Problem, error_of
from mainspring.domain.codec import decode, encode
from mainspring.domain.errors import InvalidInput, InvalidMessage, MainspringError, Unavailable

TIMEOUT_S = 60.0  # A server that checks a clip of a gigabyte takes a second.
ANSWER_BYTES_MAX = 8 << 20
Answer = TypeVar("Answer")


@final
class HttpClips:
    """See `ClipServer`. Used by one thread.

    Args:
        url: The server's, such as "https://lab.example:8443".
        token: Of the robot: of a holder of its name, who may send recordings.
        authority: File with the certificate of who signed the server's; "" for those that the system trusts.

    Raises:
        InvalidInput: The URL is none.
    """

    def __init__(self, url: str, token: str, *, authority: str = "") -> None:
        at = urlsplit(url)
        if at.scheme not in ("http", "https") or not at.hostname:
            raise InvalidInput("send clips", got=repr(url[:120]), wanted="https://HOST:PORT")
        self._below = at.path.rstrip("/") + "/v1"
        self._token = token
        self._line: http.client.HTTPConnection
        if at.scheme == "https":
            context = ssl.create_default_context(cafile=authority or None)
            self._line = http.client.HTTPSConnection(at.hostname, at.port, timeout=TIMEOUT_S, context=context)
        else:
            self._line = http.client.HTTPConnection(at.hostname, at.port, timeout=TIMEOUT_S)

    def tell(self, dataset: str, catalog: ClipCatalog) -> ClipsAsked:
        """See `ClipServer.tell`."""
        return self._call(ClipsAsked, "POST", f"/datasets/{quote(dataset)}/clips", encode(catalog))

    def look(self, dataset: str, clip: ClipEntry) -> ArrivalView:
        """See `ClipServer.look`."""
        return self._call(ArrivalView, "GET", _place(dataset, clip))

    def send(self, dataset: str, clip: ClipEntry, offset: int, piece: bytes) -> ArrivalView:
        """See `ClipServer.send`."""
        return self._call(ArrivalView, "PUT", f"{_place(dataset, clip)}&offset={offset}", piece)

    def _call(self, kind: type[Answer], method: str, path: str, body: bytes | None = None) -> Answer:
        kept = self._line.sock is not None
        try:
            status, data = self._asked(method, path, body)
        except (OSError, http.client.HTTPException) as error:
            self._line.close()  # Made anew by the next call.
            if kept and isinstance(error, ConnectionError):  # The server hangs up on who says nothing for seconds.
                return self._call(kind, method, path, body)
            raise Unavailable("send clips", on=self._line.host, got=str(error) or type(error).__name__) from error
        if status >= 400:
            raise _error(status, data)
        try:
            return decode(kind, data)
        except InvalidMessage as error:
            raise Unavailable("send clips", on=self._line.host, got="an answer that is none") from error

    def _asked(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        self._line.request(method, self._below + path, body, {"Authorization": f"Bearer {self._token}"})
        answer = self._line.getresponse()
        return answer.status, answer.read(ANSWER_BYTES_MAX)


def _place(dataset: str, clip: ClipEntry) -> str:
    said = urlencode({"id": clip.id, "size": clip.size_bytes})
    return f"/datasets/{quote(dataset)}/arrivals/{quote(clip.name)}?{said}"


def _error(status: int, data: bytes) -> MainspringError:
    try:
        return error_of(decode(Problem, data))
    except InvalidMessage:
        return Unavailable("send clips", got=f"status {status}")
