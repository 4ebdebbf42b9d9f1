"""How a person comes by an ID token of their lab's provider of identities: in a browser, on another device, or again.

Whether it is good and what it opens is the lab's server to say (`control.logins`). Sources: OpenID Connect
Core 1.0 and Discovery 1.0; RFC 8252 (programs on people's machines), 7636 (PKCE), 8628 (devices), 9207 (who answers).
"""

from __future__ import annotations

import base64
import hashlib
import json
import queue
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, quote, urlencode

import httpx

from mainspring.domain.answers import LoginOffer
from mainspring.domain.errors import NotAllowed, NotFound, Unavailable
from mainspring.domain.wire.trust import is_private, trust

LOGIN_S_MAX = 300.0  # How long a person has to log in.
ANSWER_BYTES_MAX = (
    1 << 20
)  # A provider's documents have a few KiB, those with a few hundred groups in tokens some more.
ASK_S = 5.0  # For one answer to go on; twice that for all of it.
INTERVAL_S = 5.0  # Between looks at whether a device's person is done, where the provider says nothing (RFC 8628, 3.2).
SLOWER_S = 5.0  # Source: RFC 8628, 3.5.
_RANDOM_BYTES = 32  # 43 letters of a verifier, the least that RFC 7636, 4.1, allows.
_ATTEMPTED = "log in by the provider of identities"
_DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
_PAGE = "<!doctype html><meta charset=utf-8><title>Mainspring</title><p style='font:1.2em sans-serif;margin:3em'>{}</p>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """What the provider gave.

    Args:
        id_token: What it says of the person, signed.
        refresh_token: What to ask for another with, "" where it gave none.
        nonce: What the ID token repeats, "" where nothing was asked to be.
    """

    id_token: str = field(repr=False)
    refresh_token: str = field(default="", repr=False)
    nonce: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginAsked:
    """What one log-in with a browser is known by: to us alone (the verifier), and in what comes back."""

    verifier: str = field(repr=False)
    state: str
    nonce: str

    @classmethod
    def drawn(cls) -> LoginAsked:
        """Returns one that nobody can guess."""
        verifier, state, nonce = (secrets.token_urlsafe(_RANDOM_BYTES) for _ in range(3))
        return cls(verifier=verifier, state=state, nonce=nonce)


def by_browser(offer: LoginOffer, show: Callable[[str], None]) -> Granted:
    """Returns what the provider gives once a person has logged in with a browser of this machine.

    Args:
        offer: Who the provider is.
        show: Called with the address at which they log in.

    Raises:
        NotAllowed: They, or the provider, did not want to.
        Unavailable: The provider does not answer, or nobody logged in within `LOGIN_S_MAX`.
    """
    asked = LoginAsked.drawn()
    with _Loopback(asked.state) as loopback:
        show(address_to_log_in(offer, asked, loopback.url))
        answer = loopback.wait()
    return taken(offer, asked, loopback.url, answer)


def address_to_log_in(offer: LoginOffer, asked: LoginAsked, back: str) -> str:
    """Returns the address at which a person logs in with a browser.

    Args:
        offer: Who the provider is.
        back: Where the provider sends the browser afterwards.

    Raises:
        Unavailable: The provider does not answer.
    """
    start = _endpoint(_discovered(offer.issuer), "authorization_endpoint")
    challenge = base64.urlsafe_b64encode(hashlib.sha256(asked.verifier.encode()).digest()).rstrip(b"=").decode()
    words = {
        "response_type": "code",
        "client_id": offer.client_id,
        "redirect_uri": back,
        "scope": " ".join(offer.scopes),
        "state": asked.state,
        "nonce": asked.nonce,
        "code_challenge": challenge,
        "code_challenge_method": "S256",
    }
    return f"{start}{'&' if '?' in start else '?'}{urlencode(words)}"


def taken(offer: LoginOffer, asked: LoginAsked, back: str, answer: Mapping[str, str]) -> Granted:
    """Returns what the provider gives for what it sent the browser back with.

    Args:
        offer: Who the provider is.
        asked: What it was asked by, and `back` as it was told then.
        answer: What it sent, whose state was compared before.

    Raises:
        NotAllowed: The person, or the provider, did not want to.
        Unavailable: The provider does not answer.
    """
    if "error" in answer:
        raise _denied(offer.issuer, answer)
    if answer.get("iss", offer.issuer) != offer.issuer or not answer.get("code"):
        raise NotAllowed(_ATTEMPTED, on=offer.issuer, got=f"an answer of {answer.get('iss', 'it')} without a code")
    words = {"grant_type": "authorization_code", "code": answer["code"], "redirect_uri": back}
    about = _discovered(offer.issuer)
    return _granted(offer, about, words | {"code_verifier": asked.verifier}, nonce=asked.nonce)


def has_device_flow(offer: LoginOffer) -> bool:
    """Returns whether a person may log in on another device than this."""
    return "device_authorization_endpoint" in _discovered(offer.issuer)


def by_device(offer: LoginOffer, show: Callable[[str, str], None]) -> Granted:
    """Returns what the provider gives once a person has logged in on any device that has a browser.

    Args:
        offer: Who the provider is.
        show: Called with the address at which they log in, and the code that they enter there.

    Raises:
        NotFound: The provider has no such way.
        NotAllowed: They, or the provider, did not want to.
        Unavailable: The provider does not answer, or nobody logged in in time.
    """
    about = _discovered(offer.issuer)
    if "device_authorization_endpoint" not in about:
        raise NotFound(_ATTEMPTED, on=offer.issuer, got="no flow for devices", next_step="ms login URL --browser")
    begun = _post(offer, _endpoint(about, "device_authorization_endpoint"), {"scope": " ".join(offer.scopes)})
    if "error" in begun:
        raise _denied(offer.issuer, begun)
    code, where = begun.get("device_code"), begun.get("verification_uri_complete") or begun.get("verification_uri")
    if not isinstance(code, str) or not isinstance(where, str):
        raise Unavailable(_ATTEMPTED, on=offer.issuer, got="no code for a device")
    show(where, str(begun.get("user_code", "")))
    deadline = time.monotonic() + min(_number(begun, "expires_in", LOGIN_S_MAX), LOGIN_S_MAX)
    pause_s = _number(begun, "interval", INTERVAL_S)
    while time.monotonic() + pause_s < deadline:
        time.sleep(pause_s)
        told = _post(offer, _endpoint(about, "token_endpoint"), {"grant_type": _DEVICE_GRANT, "device_code": code})
        if told.get("error") == "slow_down":
            pause_s += SLOWER_S
        elif told.get("error") != "authorization_pending":
            return _read(offer.issuer, told, nonce="")
    raise _nobody()


def again(offer: LoginOffer, refresh_token: str) -> Granted:
    """Returns what the provider gives somebody who logged in before, as it knows them now.

    Args:
        refresh_token: What it gave them then.

    Raises:
        NotAllowed: It gives nothing more: they are gone, or it has been too long.
        Unavailable: It does not answer.
    """
    about = _discovered(offer.issuer)
    words = {"grant_type": "refresh_token", "refresh_token": refresh_token}
    granted = _granted(offer, about, words, nonce="")
    return Granted(id_token=granted.id_token, refresh_token=granted.refresh_token or refresh_token)


# ---------------------------------------------------------------- the provider


def fetch(url: str) -> Mapping[str, Any]:
    """Returns a document of a provider.

    Raises:
        Unavailable: It does not answer in time, or with none.
    """
    return _ask("GET", url, error=False)


def _discovered(issuer: str) -> Mapping[str, Any]:
    about = fetch(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
    if about.get("issuer") != issuer:
        raise Unavailable(_ATTEMPTED, on=issuer, got=f"issuer {about.get('issuer')!r}"[:200], wanted="itself")
    return about


def _endpoint(about: Mapping[str, Any], name: str) -> str:
    url = about.get(name)
    if not isinstance(url, str) or not is_private(url):
        raise Unavailable(_ATTEMPTED, on=str(about.get("issuer")), got=f"{name} {url!r}"[:200], wanted="https")
    return url


def _granted(offer: LoginOffer, about: Mapping[str, Any], words: Mapping[str, str], *, nonce: str) -> Granted:
    return _read(offer.issuer, _post(offer, _endpoint(about, "token_endpoint"), words), nonce=nonce)


def _read(issuer: str, told: Mapping[str, Any], *, nonce: str) -> Granted:
    if "error" in told:
        raise _denied(issuer, told)
    id_token, refresh_token = told.get("id_token"), told.get("refresh_token", "")
    if not isinstance(id_token, str) or not isinstance(refresh_token, str):
        raise Unavailable(_ATTEMPTED, on=issuer, got="no ID token", wanted="one, as the scope openid asks")
    return Granted(id_token=id_token, refresh_token=refresh_token, nonce=nonce)


def _post(offer: LoginOffer, url: str, words: Mapping[str, str]) -> Mapping[str, Any]:
    secret = offer.client_secret
    # Source: RFC 6749, 2.3.1 and 3.2.1.
    who = {"auth": (quote(offer.client_id, safe=""), quote(secret, safe=""))} if secret else {}
    return _ask("POST", url, error=True, data={**words, "client_id": offer.client_id}, **who)


def _ask(method: str, url: str, *, error: bool, **given: Any) -> Mapping[str, Any]:
    """Returns what a provider answers, as JSON; with `error` also what it refuses with (RFC 6749, 5.2)."""
    if not is_private(url):
        raise NotAllowed(_ATTEMPTED, on=url, got="plain HTTP to another machine", wanted="https")
    deadline = time.monotonic() + 2 * ASK_S
    near = url.startswith("http:")  # No proxy reaches this machine's own addresses.
    parts, size = [], 0
    try:
        with (
            httpx.Client(timeout=ASK_S, verify=trust(url, ""), trust_env=not near) as client,
            client.stream(method, url, headers={"Accept": "application/json"}, **given) as answer,
        ):
            for part in answer.iter_bytes():
                size += len(part)
                if size > ANSWER_BYTES_MAX or time.monotonic() > deadline:
                    raise Unavailable(_ATTEMPTED, on=url, got=f"{size} bytes in {2 * ASK_S:.0f} s, and more to come")
                parts.append(part)
    except (httpx.HTTPError, httpx.InvalidURL) as failed:
        raise Unavailable(_ATTEMPTED, on=url, got=str(failed) or type(failed).__name__) from failed
    try:
        told = json.loads(b"".join(parts))
    except (ValueError, RecursionError):
        told = None
    good = answer.status_code == 200 or (error and 400 <= answer.status_code < 500)
    if not good or not isinstance(told, dict) or (answer.status_code != 200 and "error" not in told):
        raise Unavailable(_ATTEMPTED, on=url, got=f"HTTP {answer.status_code}", wanted="an answer in JSON")
    return told


def _number(told: Mapping[str, Any], name: str, default: float) -> float:
    value = told.get(name, default)
    return float(value) if isinstance(value, (int, float)) and 0 < value < LOGIN_S_MAX * 10 else default


def _denied(issuer: str, told: Mapping[str, Any]) -> NotAllowed:
    words = [str(told[name])[:200] for name in ("error", "error_description") if told.get(name)]
    return NotAllowed(_ATTEMPTED, on=issuer, got=": ".join(words), next_step="ms login URL")


def _nobody() -> Unavailable:
    return Unavailable(_ATTEMPTED, got=f"nobody who logged in within {LOGIN_S_MAX:.0f} s", next_step="ms login URL")


# ---------------------------------------------------------------- where the browser comes back to


class _Loopback:
    """A port of this machine's own to which the provider sends the browser, once."""

    def __init__(self, state: str) -> None:
        came: queue.Queue[dict[str, str]] = queue.Queue()

        class Handler(BaseHTTPRequestHandler):
            timeout = ASK_S  # Browsers open connections ahead, and say nothing on them.

            def do_GET(self) -> None:
                path, _, words = self.path.partition("?")
                answer = {name: values[0] for name, values in parse_qs(words).items()}
                ours = path == "/" and secrets.compare_digest(answer.get("state", "").encode(), state.encode())
                told = "You are back: go on in the terminal." if ours else "Nobody asked for this."
                if ours and "error" in answer:
                    told = f"The provider did not let you in: {answer.get('error_description') or answer['error']}"
                body = _PAGE.format(escape(told)).encode()
                self.send_response(200 if ours else 404)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Referrer-Policy", "no-referrer")
                self.end_headers()
                self.wfile.write(body)
                if ours:
                    came.put(answer)

            def log_message(self, *words: object) -> None:
                """Says nothing: the path holds the code."""

        self._came = came
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
        # By its name, though RFC 8252, 8.3, likes the number better: Dex and Entra take any port of that name alone,
        # and a code that somebody else gets is worth nothing without its verifier.
        self.url = f"http://localhost:{self._server.server_port}/"

    def __enter__(self) -> _Loopback:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def wait(self) -> dict[str, str]:
        """Returns what the provider sent."""
        try:
            return self._came.get(timeout=LOGIN_S_MAX)
        except queue.Empty:
            raise _nobody() from None
