"""Logging in by the lab's provider of identities: whether an ID token is good, whose it is, and what they are here.

How people come by one is the clients' affair; what they get for it, an ordinary token for a few hours, is that of
`People`. Source: OpenID Connect Core 1.0, 3.1.3.7; JSON Web Token Best Current Practices, RFC 8725.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from threading import Lock
from typing import Any, final

import jwt

from mainspring.control.service.people import People
from mainspring.control.store.tokens import Caller
from mainspring.domain.answers import Login, LoginOffer, NewToken, TokenMade
from mainspring.domain.errors import NotAllowed, NotFound, TooManyRequests, Unavailable
from mainspring.domain.ids import checked_holder
from mainspring.domain.job import LAB
from mainspring.domain.ports import Clock
from mainspring.domain.team import GroupRole, Oidc, TeamRole
from mainspring.domain.wire.trust import is_private

ALGORITHMS = (
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
    "EdDSA",
)  # Of public keys.
LEEWAY_S = 60.0  # How far two machines' clocks may be apart.
FRESH_S = 600.0  # How old an ID token may be: clients get one to log in with, and whoever left keeps none that counts.
KEYS_S = 3_600.0  # How long the provider's keys count before they are asked for again: one it withdrew ends by then.
AGAIN_S = 10.0  # How often they are asked for at most, whatever strangers send.
KEYS_MAX = 64
_HOURS_A_DAY = 24.0
_TIME_S_MAX = 1e12  # Seconds; beyond it lies no date.
_TOLD_MAX = 10
_ATTEMPTED = "log in"
_AGAIN = "ms login"


@final
class Logins:
    """Lets people in whom one provider vouches for. Used by many threads, of which one at most waits for the provider.

    Args:
        oidc: Who the provider is, and what its groups are here.
        fetch: Gets a document of the provider as JSON; bounded in size and time, raises `Unavailable`.
    """

    def __init__(self, people: People, oidc: Oidc, fetch: Callable[[str], Mapping[str, Any]], clock: Clock) -> None:
        self._people = people
        self._oidc = oidc
        self._clock = clock
        self._keys = _Keys(oidc.issuer, fetch, clock)

    def offer(self) -> LoginOffer:
        """Returns how people log in."""
        oidc = self._oidc
        return LoginOffer(
            issuer=oidc.issuer, client_id=oidc.client_id, client_secret=oidc.client_secret, scopes=oidc.scopes
        )

    def log_in(self, login: Login, *, address: str) -> TokenMade:
        """Returns a token for whom an ID token stands for.

        Args:
            address: Where they are.

        Raises:
            NotAllowed: The ID token is not good, or its person is in no group that has a role here, or is blocked.
            Unavailable: The provider's keys are not at hand; TooManyRequests where they are being asked for.
        """
        claims = self._checked(login)
        holder = self._holder(claims)
        try:
            role = self._role(holder, _groups(claims.get(self._oidc.groups_claim)), login.team)
            asked = NewToken(holder=holder, team=role.team, role=role.role, days=self._oidc.hours / _HOURS_A_DAY)
            return self._people.let_in(asked, address=address)
        except (NotAllowed, NotFound) as error:
            somebody = Caller(role=TeamRole.VIEWER, team=LAB, holder=holder, address=address)
            self._people.refused(somebody, str(error), action=_ATTEMPTED, target=holder)
            raise

    def _checked(self, login: Login) -> Mapping[str, Any]:
        """Returns what an ID token says, once it is known to be the provider's, for this lab, and fresh."""
        oidc = self._oidc
        try:
            header = jwt.get_unverified_header(login.id_token)
            if header.get("alg") not in ALGORITHMS:
                raise _refused(f"one signed by {str(header.get('alg'))[:20]!r}", " or ".join(ALGORITHMS))
            claims: Mapping[str, Any] = jwt.decode(
                login.id_token,
                key=self._keys.of(header.get("kid")).key,
                algorithms=ALGORITHMS,
                audience=oidc.client_id,
                issuer=oidc.issuer,
                # Of time our own clock tells; see below.
                options={
                    "require": ["iss", "aud", "exp", "iat", "sub"],
                    "verify_exp": False,
                    "verify_iat": False,
                    "verify_nbf": False,
                },
            )
        except (jwt.PyJWTError, TypeError) as error:  # TypeError: of an algorithm that its key is not for.
            raise _refused(f"one that does not hold: {error}", f"one of {oidc.issuer}, for {oidc.client_id}") from error
        now_s, begins_s, ends_s = self._clock.now_s(), _time(claims, "iat"), _time(claims, "exp")
        begins_s = max(begins_s, _time(claims, "nbf")) if "nbf" in claims else begins_s
        if now_s >= ends_s + LEEWAY_S:
            raise _refused(f"one that ended {now_s - ends_s:.0f} s ago", "one that is good")
        if not begins_s - LEEWAY_S <= now_s <= begins_s + FRESH_S:
            raise _refused(
                f"one made {now_s - begins_s:.0f} s ago", f"one made in the last {FRESH_S:.0f} s, by our clock"
            )
        audience = claims["aud"]
        if (
            claims.get("azp", oidc.client_id if audience in (oidc.client_id, [oidc.client_id]) else "")
            != oidc.client_id
        ):
            raise _refused("one that another program asked for", f"one that {oidc.client_id} asked for")
        if login.nonce and claims.get("nonce") != login.nonce:
            raise _refused("one of another login", "one that repeats what this login began with")
        return claims

    def _holder(self, claims: Mapping[str, Any]) -> str:
        claim = self._oidc.holder_claim
        name = claims.get(claim)
        if not isinstance(name, str) or not name:
            raise _refused(
                f"one without {claim!r}", f"scopes that bring {claim!r}: oidc.scopes of the server's config.yaml"
            )
        if claim == "email" and claims.get("email_verified") is not True:
            raise _refused("an address of mail that the provider has not verified", "a verified one")
        return checked_holder(name.lower())

    def _role(self, holder: str, groups: tuple[str, ...], team: str) -> GroupRole:
        theirs = [role for role in self._oidc.roles if role.group in groups]
        if not theirs:
            told = ", ".join(groups[:_TOLD_MAX])
            raise NotAllowed(
                _ATTEMPTED,
                on=holder,
                got=f"nobody of a group that has a role here; theirs: {told or 'none'}",
                next_step="ask whoever runs the lab to name a group of yours in oidc.roles, or to put you into one",
            )
        found = next((role for role in theirs if team in ("", role.team)), None)
        if found is None:
            teams = ", ".join(sorted({role.team for role in theirs}))
            raise NotAllowed(_ATTEMPTED, on=holder, got=f"team {team!r}", wanted=f"a team of theirs: {teams}")
        return found


@final
class _Keys:
    """The provider's public keys, asked for again now and then, and when it signs with one that is not known."""

    def __init__(self, issuer: str, fetch: Callable[[str], Mapping[str, Any]], clock: Clock) -> None:
        self._issuer = issuer
        self._fetch = fetch
        self._clock = clock
        self._asking = Lock()
        self._known: tuple[jwt.PyJWK, ...] = ()
        self._known_s = self._asked_s = -inf

    def of(self, key_id: object) -> jwt.PyJWK:
        """Returns a key.

        Args:
            key_id: Which; None for the only one there is.
        """
        found = self._find(key_id)
        if found is None or self._clock.monotonic_s() - self._known_s > KEYS_S:
            self._ask()
            found = self._find(key_id)
        if found is None:
            raise _refused(f"one signed by a key {str(key_id)[:80]!r}", f"a key that {self._issuer} publishes")
        return found

    def _find(self, key_id: object) -> jwt.PyJWK | None:
        known = self._known
        if key_id is None:
            return known[0] if len(known) == 1 else None
        return next((key for key in known if key.key_id == key_id), None)

    def _ask(self) -> None:
        if not self._asking.acquire(blocking=False):
            raise TooManyRequests(_ATTEMPTED, on=self._issuer, got="its keys are being asked for", next_step=_AGAIN)
        try:
            now_s = self._clock.monotonic_s()
            if now_s - self._asked_s < AGAIN_S:  # Clients ask again until then, so nobody is kept out by strangers.
                raise TooManyRequests(_ATTEMPTED, on=self._issuer, got="its keys were just asked for", next_step=_AGAIN)
            self._asked_s = now_s
            self._known = _keys_in(self._fetch(_jwks_url(self._issuer, self._fetch)))
            self._known_s = now_s
        finally:
            self._asking.release()


def _jwks_url(issuer: str, fetch: Callable[[str], Mapping[str, Any]]) -> str:
    """Returns where a provider publishes its keys. Source: OpenID Connect Discovery 1.0, 4."""
    told = fetch(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
    url = told.get("jwks_uri")
    if told.get("issuer") != issuer or not isinstance(url, str) or not is_private(url):
        raise Unavailable(
            _ATTEMPTED,
            on=issuer,
            got=f"issuer {told.get('issuer')!r}"[:200] + f", keys at {url!r}"[:200],
            wanted="the issuer as config.yaml has it, to the letter, and keys at an https address",
        )
    return url


def _keys_in(document: Mapping[str, Any]) -> tuple[jwt.PyJWK, ...]:
    try:
        keys = jwt.PyJWKSet.from_dict(dict(document)).keys
    except (jwt.PyJWTError, TypeError, ValueError) as error:
        raise Unavailable(_ATTEMPTED, got=f"keys of the provider that cannot be read: {error}") from error
    return tuple(key for key in keys if key.key_type != "oct" and key.public_key_use in (None, "sig"))[:KEYS_MAX]


def _time(claims: Mapping[str, Any], name: str) -> float:
    told = claims.get(name)
    if isinstance(told, bool) or not isinstance(told, (int, float)) or not abs(told) < _TIME_S_MAX:
        raise _refused(f"one whose {name!r} is no time", "seconds since the Unix epoch")
    return float(told)


def _groups(told: object) -> tuple[str, ...]:
    groups = [told] if isinstance(told, str) else told if isinstance(told, list) else []
    return tuple(group for group in groups if isinstance(group, str))


def _refused(got: str, wanted: str) -> NotAllowed:
    return NotAllowed("accept an ID token", got=got, wanted=wanted, next_step=_AGAIN)
