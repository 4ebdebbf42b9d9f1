"""Repeats: calls that do something each time are done once for each key that their callers drew for them.

The key, what the call does and its answer are written in one transaction: there is no instant at which one is there
without the others. The header is that of draft-ietf-httpapi-idempotency-key-header.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable
from typing import final

import sqlalchemy as sa
from cryptography.fernet import Fernet

from mainspring.control.store.schema import KEY_LENGTH_MAX, repeats
from mainspring.control.store.store import Store
from mainspring.control.store.tokens import Caller
from mainspring.domain.errors import InvalidInput, KeyReused
from mainspring.domain.ports import Clock

KEPT_S = 86_400.0  # As long as anybody tries the same call again.
KEPT_MAX = 1_000  # Of one token; the oldest go first.


@final
class Repeats:
    """Calls and their answers, by key. Used by many threads.

    Args:
        secret: The controller's own: with it, a key encrypts the answer that is kept, for some tell secrets.
        wake: Told that there is something to plan.
    """

    def __init__(self, store: Store, clock: Clock, secret: str, wake: Callable[[], None]) -> None:
        self._store = store
        self._clock = clock
        self._secret = secret
        self._wake = wake

    def once(
        self,
        caller: Caller,
        key: str,
        request: bytes,
        act: Callable[[], bytes],
        *,
        before: Callable[[], object] | None = None,
    ) -> bytes:
        """Returns the answer to a call, which is made unless its key was used before.

        Args:
            key: As the caller drew it; a quoted string, or bare.
            request: All that the call says, where it goes included.
            act: Makes it, in a transaction of its own thread. When it raises, nothing is kept.
            before: Asks others than the store, before that begins, unless there is an answer by then.

        Raises:
            InvalidInput: The key is empty, too long, or not of printable ASCII.
            KeyReused: It was used for another call.
        """
        bare = bare_key(key)
        now_s, named = self._clock.now_s(), hashlib.sha256(bare.encode()).hexdigest()
        fingerprint = hashlib.sha256(request).hexdigest()
        own = (repeats.c.token == caller.token, repeats.c.key_sha256 == named, repeats.c.made_s > now_s - KEPT_S)
        lock = self._lock(caller, bare)

        def answered(connection: sa.Connection) -> bytes | None:
            known = connection.execute(sa.select(repeats).where(*own)).one_or_none()
            if known is not None and known.fingerprint != fingerprint:
                raise KeyReused(
                    "make a call",
                    on=f"Idempotency-Key {bare!r}",
                    got="another call than the one it was used for",
                    next_step="draw a key for each call",
                )
            return None if known is None else lock.decrypt(known.answer)

        if before is not None:
            with self._store.read() as connection:
                answer = answered(connection)
            if answer is not None:
                return answer
            before()
        with self._store.joined() as connection:
            connection.execute(sa.delete(repeats).where(repeats.c.made_s <= now_s - KEPT_S))
            answer = answered(connection)
            if answer is not None:
                return answer
            answer = act()
            _make_room(connection, caller)
            connection.execute(
                sa.insert(repeats).values(
                    token=caller.token,
                    key_sha256=named,
                    fingerprint=fingerprint,
                    answer=lock.encrypt_at_time(answer, int(now_s)).decode(),
                    made_s=now_s,
                )
            )
        self._wake()
        return answer

    def _lock(self, caller: Caller, key: str) -> Fernet:
        """Returns what encrypts one answer: whoever has the store alone, or the key alone, reads none.

        Source: HMAC, RFC 2104, with SHA-256; Fernet's specification, version 0x80.
        """
        made = hmac.new(self._secret.encode(), f"answer for {caller.token} under {key}".encode(), hashlib.sha256)
        return Fernet(base64.urlsafe_b64encode(made.digest()))


def bare_key(key: str) -> str:
    """Returns a key without the quotes that RFC 8941 puts around strings.

    Raises:
        InvalidInput: It is empty, too long, or not of printable ASCII.
    """
    bare = key[1:-1] if len(key) > 1 and key[0] == key[-1] == '"' else key
    if not 0 < len(bare) <= KEY_LENGTH_MAX or not (bare.isascii() and bare.isprintable()):
        wanted = f"1 to {KEY_LENGTH_MAX} printable letters of ASCII"
        raise InvalidInput("make a call", on="Idempotency-Key", got=repr(bare[:80]), wanted=wanted)
    return bare


def _make_room(connection: sa.Connection, caller: Caller) -> None:
    """Forgets the oldest answers to a token, where there are as many as are kept."""
    own = repeats.c.token == caller.token
    newest = sa.select(repeats.c.made_s).where(own).order_by(repeats.c.made_s.desc())
    oldest_s = connection.execute(newest.offset(KEPT_MAX - 1).limit(1)).scalar()
    if oldest_s is not None:
        connection.execute(sa.delete(repeats).where(own, repeats.c.made_s <= oldest_s))
