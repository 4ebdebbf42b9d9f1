"""Client of the controller: register, heartbeat. The controller may be away for as long as it likes."""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from typing import TypeVar, final

import httpx

from mainspring.domain import codec, wire
from mainspring.domain.errors import InvalidMessage, NotAllowed, OtherRelease, Unavailable
from mainspring.domain.ids import AttemptId
from mainspring.domain.ports import Clock
from mainspring.domain.release import RELEASE, RELEASE_HEADER, is_newer
from mainspring.domain.wire.addresses import passed_over
from mainspring.domain.wire.controller import ATTEMPT_HEADER
from mainspring.domain.wire.trust import trust

CONNECT_S = 3.0  # The next of several servers is called after that.
CALL_LIMIT_S = 10.0  # A heartbeat of the largest attempt is megabytes; a controller slower than this is away.
REFUSALS = (400, 401, 403, 404, 409, 410, 422)  # Asking again the same way would be answered the same way.

Reply = TypeVar("Reply")


@final
class ControllerClient:
    """The controller as an agent sees it: the server that answered last, and the next when it does not.

    Args:
        urls: Its servers, of which each serves any call.
        clock: Time, to compare with the controller's.
        attempt: Whose the token is: a controller that has forgotten it knows by that whose it must be.
        certificate: PEM text to trust besides the system's authorities.
    """

    def __init__(
        self, urls: tuple[str, ...], token: str, clock: Clock, *, attempt: AttemptId, certificate: str = ""
    ) -> None:
        self.clock_ahead_s = 0.0
        """How far our clock is ahead of the controller's, to the second, as its newest answer's date shows."""
        self._clock = clock
        self._urls = urls
        encrypted = [url for url in urls if url.startswith("https:")]
        self._client = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {token}", RELEASE_HEADER: RELEASE, ATTEMPT_HEADER: attempt},
            timeout=httpx.Timeout(CALL_LIMIT_S, connect=CONNECT_S),
            trust_env=False,
            verify=trust(encrypted[0], certificate) if encrypted else False,
        )

    async def register(self, message: wire.Register) -> wire.Orders:
        """Returns the agent's orders, as far as they are known.

        Raises:
            NotAllowed: The attempt is over, or never was.
            OtherRelease: The controller's release is too far from this one.
            Unavailable: The controller does not answer.
        """
        return await self._call("/v1/agents/register", message, wire.Orders)

    async def heartbeat(self, message: wire.Heartbeat) -> wire.HeartbeatReply:
        """Returns the controller's answer to a heartbeat.

        Raises:
            NotAllowed: The attempt is over, or never was.
            OtherRelease: The controller's release is too far from this one.
            Unavailable: The controller does not answer.
        """
        return await self._call("/v1/agents/heartbeat", message, wire.HeartbeatReply)

    async def store_credentials(self, message: wire.CredentialsWanted) -> wire.StoreCredentials:
        """Returns credentials of the object store.

        Raises:
            NotAllowed: The attempt is over, or the store gives it none.
            Unavailable: The controller does not answer, or has none to give now.
        """
        return await self._call("/v1/agents/store-credentials", message, wire.StoreCredentials)

    async def view_credentials(self, message: wire.ViewCredentialsWanted) -> wire.StoreCredentials:
        """Returns credentials to read a view by.

        Raises:
            NotAllowed: The attempt is over, its job does not name the view, or the store gives it none.
            Unavailable: The controller does not answer, or has none to give now.
        """
        return await self._call("/v1/agents/view-credentials", message, wire.StoreCredentials)

    async def close(self) -> None:
        """Hangs up."""
        await self._client.aclose()

    async def _call(self, path: str, message: object, kind: type[Reply]) -> Reply:
        for _ in self._urls[1:]:
            url = self._urls[0]
            try:
                return await self._ask(url, path, message, kind)
            except Unavailable:
                self._urls = passed_over(self._urls, url)
        return await self._ask(self._urls[0], path, message, kind)

    async def _ask(self, url: str, path: str, message: object, kind: type[Reply]) -> Reply:
        attempted = f"call the controller at {path}"
        try:
            answer = await self._client.post(
                url + path, content=codec.encode(message), headers={"Content-Type": "application/json"}
            )
            stated = answer.headers.get(RELEASE_HEADER)
            if stated is not None or answer.is_success:  # Else it may be that of a proxy.
                is_newer(stated, "the controller")
            self._compare(answer.headers.get("Date", ""))
            if answer.status_code in REFUSALS:
                raise NotAllowed(attempted, got=f"{answer.status_code} {answer.text[:500]}")
            if answer.status_code != httpx.codes.OK:
                raise Unavailable(attempted, got=f"{answer.status_code} {answer.text[:500]}")
            return codec.decode(kind, answer.content)
        except OtherRelease:
            raise
        except (httpx.HTTPError, InvalidMessage) as error:
            raise Unavailable(attempted, got=f"{type(error).__name__}: {error}") from error

    def _compare(self, date: str) -> None:
        try:
            self.clock_ahead_s = self._clock.now_s() - parsedate_to_datetime(date).timestamp()
        except ValueError:
            return  # No date, or none that can be read: the controller's time is not known.
