"""Which of a lab's servers a client calls, and for how long it makes one call again."""

from __future__ import annotations

import time
from typing import final

import httpx

from mainspring.app.base.system import SystemDice
from mainspring.domain.errors import Busy, MainspringError, NotAllowed, TooManyRequests, Unavailable
from mainspring.domain.ports import Backoff
from mainspring.domain.wire.addresses import addresses_of, passed_over

RECONNECT_S_MAX = 30.0  # A server that is started anew, or a database that fails over, takes a few seconds.
ROUNDS_MAX = 5  # Of calls whose answers are lost, to servers of which none has answered yet.
AGAIN = Backoff(first_s=0.2, factor=1.5, cap_s=2.0)
_LOST = (httpx.ReadError, httpx.RemoteProtocolError)  # It was reached, and may have done what it was asked.
_DISTRUST = "CERTIFICATE_VERIFY_FAILED"  # OpenSSL's own word for it.


@final
class Servers:
    """The servers of one lab: the one that answered last is called, and the next when it does not.

    Args:
        text: Their addresses, "URL[,URL...]".

    Raises:
        InvalidInput: It is no such list.
    """

    def __init__(self, text: str) -> None:
        self.urls = addresses_of(text)
        self.answered = False

    @property
    def url(self) -> str:
        """Returns the address to call."""
        return self.urls[0]

    def pass_over(self, url: str) -> None:
        """Has the next one called from now on, unless another call has seen to that."""
        self.urls = passed_over(self.urls, url)


@final
class Patience:
    """How one call is made again: at each server at once, and after a pause at each once more.

    Servers of which one has answered are given time to start again. Of others, only an answer that was on its way is
    worth another round.

    Args:
        again: Whether it may be made again when its answer was lost.
        known: Whether one has answered; None to ask `servers`.
    """

    def __init__(self, servers: Servers, *, again: bool, known: bool | None = None) -> None:
        self.url = servers.url
        """Where the call is to be made now."""
        self._servers = servers
        self._again = again
        self._known = servers.answered if known is None else known
        self._deadline = time.monotonic() + RECONNECT_S_MAX
        self._failed = 0

    def spend(self, error: httpx.HTTPError | MainspringError) -> float:
        """Returns how long to wait before the call is made again, at `url`.

        Raises:
            MainspringError: It is not to be made again; says why.
        """
        if isinstance(error, httpx.HTTPError) and is_distrust(error):
            raise distrusted(self.url, error) from error
        self._servers.pass_over(self.url)
        self._failed += 1
        rounds, others = divmod(self._failed, len(self._servers.urls))
        if self._over(error, rounds):
            if isinstance(error, MainspringError):
                raise error
            told, on = str(error) or type(error).__name__, ", ".join(sorted(self._servers.urls))
            raise Unavailable("reach the Mainspring server", on=on, got=told, next_step="ms up") from error
        self.url = self._servers.url
        return 0.0 if others else AGAIN.wait_s(rounds, SystemDice())

    def _over(self, error: httpx.HTTPError | MainspringError, rounds: int) -> bool:
        late = rounds > 0 and time.monotonic() >= self._deadline
        if isinstance(error, TooManyRequests):  # Nothing was done.
            return late
        if late or not self._again:
            return True
        if isinstance(error, MainspringError):  # Another server may have what this one has not.
            return not (isinstance(error, Busy) or (isinstance(error, Unavailable) and not rounds))
        return not self._known and rounds >= (ROUNDS_MAX if isinstance(error, _LOST) else 1)


def is_distrust(error: httpx.HTTPError) -> bool:
    """Returns whether a server was reached whose certificate is not trusted."""
    return _DISTRUST in str(error)


def distrusted(url: str, error: httpx.HTTPError) -> NotAllowed:
    """Returns the error of a server whose certificate is not trusted."""
    return NotAllowed(
        "trust the Mainspring server",
        on=url,
        got=str(error),
        next_step="the URL must have a name that the certificate holds; SSL_CERT_FILE names one to trust (PEM)",
    )
