"""How the agent reaches the server: HTTP by urllib3, which python-tuf brings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import urllib3

from mainspring.domain.errors import InvalidInput, Unavailable
from mainspring.domain.wire.trust import is_private
from mainspring.robots.edge.ports import EdgeAnswer

ANSWER_S = 30.0  # For a connection, and for each piece of an answer: a thin line is no reason to give up.
ANSWER_BYTES_MAX = 16 << 20  # Of metadata, as python-tuf reads it at most; pieces of files are shorter.


@final
class UrlHttp:
    """See `EdgeHttp`.

    Args:
        url: Where the server is.
        certificate: File of the authority that signed its certificate, "" for the machine's own.
    """

    def __init__(self, url: str, certificate: str = "") -> None:
        if not is_private(url):
            raise InvalidInput("reach the server", on=url[:200], got="no https", wanted="https, or a loopback address")
        self._url = url.rstrip("/")
        self._pool = urllib3.PoolManager(
            maxsize=1,
            retries=False,
            timeout=urllib3.Timeout(connect=ANSWER_S, read=ANSWER_S),
            ca_certs=certificate or None,
        )

    def call(self, method: str, path: str, headers: Mapping[str, str], body: bytes = b"") -> EdgeAnswer:
        """See `EdgeHttp.call`."""
        try:
            answer = self._pool.request(
                method,
                f"{self._url}{path}",
                headers=dict(headers),
                body=body or None,
                redirect=False,
                preload_content=False,
            )
            try:
                data = answer.read(ANSWER_BYTES_MAX + 1)
            finally:
                answer.release_conn()
        except (urllib3.exceptions.HTTPError, OSError) as error:
            got = type(error).__name__
            raise Unavailable("call the server", on=self._url, got=got, next_step="again, later") from error
        if len(data) > ANSWER_BYTES_MAX:
            raise Unavailable("call the server", on=path[:200], got="an answer without end")
        return EdgeAnswer(status=answer.status, body=data)
