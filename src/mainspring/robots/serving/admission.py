"""Who may call a policy server: whoever shows a token that it was given, or a ticket made from its own secret."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Sequence
from typing import final

from mainspring.domain.wire.tickets import is_ticket

KINDS = ("Api-Key", "Bearer")  # openpi's clients say the first.


@final
class Admission:
    """Says who may come in.

    Args:
        tokens: One of them must be shown.
        secret: Of a replica of a service; a ticket made from it will do, too. "" where there is none.
        now_s: The time, by which tickets end.
    """

    def __init__(self, *, tokens: Sequence[str] = (), secret: str = "", now_s: Callable[[], float]) -> None:
        self._tokens = [_hashed(token) for token in tokens]
        self._secret = secret
        self._now_s = now_s

    @property
    def open(self) -> bool:
        """Returns whether everybody may."""
        return not self._tokens and not self._secret

    @property
    def by_ticket(self) -> bool:
        """Returns whether tickets are taken."""
        return bool(self._secret)

    def admits(self, shown: Sequence[str]) -> bool:
        """Returns whether somebody may.

        Args:
            shown: Every value of their header `Authorization`.
        """
        if self.open:
            return True
        kind, _, token = shown[0].partition(" ") if len(shown) == 1 else ("", "", "")
        token = token.strip()
        known = [hmac.compare_digest(_hashed(token), each) for each in self._tokens]  # All of them, whichever it is.
        called = self.by_ticket and is_ticket(self._secret, token, self._now_s())
        return kind in KINDS and (any(known) or called)


def _hashed(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
