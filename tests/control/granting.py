"""What gives credentials of an object store, without one."""

from __future__ import annotations

from mainspring.domain.wire import StoreCredentials
from mainspring.objects import Access


class Given:
    """Gives credentials to everybody, and keeps what for."""

    def __init__(self) -> None:
        self.asked: list[Access] = []

    def grant(self, access: Access, *, holder: str) -> StoreCredentials:
        self.asked.append(access)
        return StoreCredentials(access_key_id="a", secret_access_key="b", session_token="c", lasts_s=60.0)

    def check(self, access: Access) -> None:
        """Whatever it is, it may be given."""
