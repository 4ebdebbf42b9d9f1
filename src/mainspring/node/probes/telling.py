"""Health events on their way to a controller: a bounded queue, sent in batches again and again until they are taken.

A controller may be away for as long as it likes. What is more than the queue holds is left out, the oldest first, and
how much that was is told with the next look.
"""

from __future__ import annotations

import logging
import ssl
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from threading import Condition, Thread
from typing import final
from urllib.parse import urlsplit

from mainspring.domain import codec
from mainspring.domain.errors import NotAllowed
from mainspring.domain.hardware.health import HealthEvent
from mainspring.domain.ports import Backoff, Clock, Dice
from mainspring.domain.release import RELEASE, RELEASE_HEADER
from mainspring.domain.wire.addresses import passed_over
from mainspring.domain.wire.trust import is_private, trust

ROUTE = "/v1/health/events"
BATCH_MAX = 500  # What a controller takes in one call.
QUEUE_MAX = 20_000  # Ten megabytes: hours of a node in trouble.
CALL_LIMIT_S = 15.0
ANSWER_BYTES_MAX = 1 << 16
WORDS_MAX = 300  # Letters of an answer that are shown.
AGAIN = Backoff(first_s=1.0, cap_s=60.0)
REFUSED = (400, 413, 422)  # Said again the same way, these events would be refused again.
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PostAnswer:
    """What came back.

    Args:
        status: Of HTTP.
        words: What it says, the beginning of it.
    """

    status: int
    words: str = ""


@final
class HttpPost:
    """Posts bodies to the first of a lab's servers that answers.

    Args:
        urls: Its servers, of which each serves any call.
        certificate: PEM text to trust besides the system's authorities.
        insecure: Whether the token may cross a network in the clear.

    Raises:
        NotAllowed: It would, and may not.
        InvalidInput: The certificate is none.
    """

    def __init__(self, urls: tuple[str, ...], token: str, *, certificate: str = "", insecure: bool = False) -> None:
        for url in urls:
            if token and not insecure and not is_private(url):
                raise NotAllowed(
                    "send a token",
                    on=url,
                    got="plain HTTP to another machine: whoever is on the way could read it",
                    wanted="https",
                    next_step="serve TLS there, or say --insecure where the network is yours alone",
                )
        self._urls = urls
        self._headers = {"Content-Type": "application/json", RELEASE_HEADER: RELEASE}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        encrypted = [url for url in urls if url.startswith("https:")]
        self._trust = trust(encrypted[0], certificate) if encrypted else False

    def __call__(self, body: bytes) -> PostAnswer:
        """Returns the answer.

        Raises:
            OSError: Nobody answered; the next of the servers is called next time.
        """
        url = self._urls[0]
        try:
            answered = self._post(url, body)
        except HTTPException as error:
            self._urls = passed_over(self._urls, url)
            raise OSError(f"no answer in HTTP from {url}: {error!r}") from error
        except OSError:
            self._urls = passed_over(self._urls, url)
            raise
        if answered.status >= 500:
            self._urls = passed_over(self._urls, url)
        return answered

    def _post(self, url: str, body: bytes) -> PostAnswer:
        parts = urlsplit(url)
        host = parts.hostname or ""
        if parts.scheme == "https":
            assert isinstance(self._trust, ssl.SSLContext)
            line: HTTPConnection = HTTPSConnection(host, parts.port, timeout=CALL_LIMIT_S, context=self._trust)
        else:
            line = HTTPConnection(host, parts.port, timeout=CALL_LIMIT_S)
        try:
            line.request("POST", parts.path.rstrip("/") + ROUTE, body, self._headers)
            answer = line.getresponse()
            words = " ".join(answer.read(ANSWER_BYTES_MAX).decode(errors="replace").split())
            return PostAnswer(status=answer.status, words=words[:WORDS_MAX])
        finally:
            line.close()


@final
class Outgoing:
    """Events on their way. A thread of its own sends them.

    Args:
        post: Sends a body, and returns the answer; raises OSError where there is none.
        most: How many events are kept.
    """

    def __init__(self, post: Callable[[bytes], PostAnswer], *, clock: Clock, dice: Dice, most: int = QUEUE_MAX) -> None:
        self._post = post
        self._clock = clock
        self._dice = dice
        self._most = most
        self._changed = Condition()
        self._waiting: deque[HealthEvent] = deque()
        self._sending: tuple[HealthEvent, ...] = ()
        self._left_out = 0
        self._closed = False
        self._trouble = ""
        self._thread = Thread(target=self._run, name="mainspring-health", daemon=True)
        self._thread.start()

    def add(self, events: Iterable[HealthEvent]) -> None:
        """Takes events to be sent, in place of the oldest where there are too many."""
        with self._changed:
            for event in events:
                if len(self._waiting) + len(self._sending) >= self._most and self._waiting:
                    self._waiting.popleft()
                    self._left_out += 1
                self._waiting.append(event)
            self._changed.notify_all()

    def take_left_out(self) -> int:
        """Returns how many events were left out since the last call."""
        with self._changed:
            count, self._left_out = self._left_out, 0
            return count

    def drain(self, limit_s: float) -> bool:
        """Returns whether all events were taken within a time.

        Args:
            limit_s: How long that may take.
        """
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._sending, limit_s)

    def close(self) -> None:
        """Sends nothing more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(CALL_LIMIT_S)

    @property
    def trouble(self) -> str:
        """Returns why events are not taken, "" as long as they are."""
        return self._trouble

    def _run(self) -> None:
        tries = 0
        while self._take():
            answered = self._send()
            refused = answered.status in REFUSED
            if refused or 200 <= answered.status < 300:
                if refused:
                    _log.error("the controller refuses %d events: %s", len(self._sending), answered.words)
                tries, self._trouble = 0, ""
                with self._changed:
                    self._left_out += len(self._sending) if refused else 0
                    self._sending = ()
                    self._changed.notify_all()
                continue
            tries, self._trouble = tries + 1, answered.words
            if tries == 1:
                _log.warning("the controller does not take events, which are kept and sent again: %s", answered.words)
            with self._changed:
                self._changed.wait_for(lambda: self._closed, AGAIN.wait_s(tries, self._dice))

    def _take(self) -> bool:
        """Returns whether there is a batch to send; waits for one."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._waiting or self._sending)
            if self._closed:
                return False
            if not self._sending:
                count = min(BATCH_MAX, len(self._waiting))
                self._sending = tuple(self._waiting.popleft() for _ in range(count))
            return True

    def _send(self) -> PostAnswer:
        try:
            answered = self._post(codec.encode({"events": self._sending}))
        except OSError as error:
            return PostAnswer(status=0, words=str(error))
        return PostAnswer(status=answered.status, words=f"HTTP {answered.status}: {answered.words}")
