"""Tokens of people who logged in by a provider of identities: made anew by themselves before they end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Generator
from dataclasses import replace
from typing import final

import httpx

from mainspring.app.base.client import Client
from mainspring.app.base.home import Home, LoginRecord, LoginRenewal
from mainspring.domain.answers import Login, LoginOffer, TokenMade
from mainspring.domain.errors import MainspringError

DUE = 0.8  # Of a token's time: what is left is room for a provider, or a network, that is away for a while.
AGAIN_S = 60.0  # After a renewal that failed, while the token is good.


def record_of(url: str, made: TokenMade, offer: LoginOffer, refresh_token: str, *, team: str) -> LoginRecord:
    """Returns what to keep of a login.

    Args:
        url: Where the lab's servers are.
        made: What it gave.
        refresh_token: What the provider gave, "" where it gave nothing to renew the login with.
        team: The team that was chosen, "" for none.
    """
    ends_s = made.token.expires_s
    if not refresh_token or ends_s is None:
        return LoginRecord(url=url, token=made.secret)
    good_s, now_s = ends_s - made.token.made_s, time.time()  # By the server's clock; this machine's may differ.
    renewal = LoginRenewal(
        offer=offer, refresh_token=refresh_token, team=team, due_s=now_s + DUE * good_s, ends_s=now_s + good_s
    )
    return LoginRecord(url=url, token=made.secret, renewal=renewal)


@final
class RenewedToken(httpx.Auth):
    """Shows a login's token with every request, and makes it anew when that is due: once, whichever process is first.

    Args:
        login: As the home has it.
    """

    def __init__(self, home: Home, login: LoginRecord, *, insecure: bool) -> None:
        self._home = home
        self._login = login
        self._insecure = insecure
        self._failed_s = 0.0

    def sync_auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Adds the token to a request."""
        request.headers["Authorization"] = f"Bearer {self._token()}"
        yield request

    async def async_auth_flow(self, request: httpx.Request) -> AsyncGenerator[httpx.Request, httpx.Response]:
        """Adds the token to a request, without holding up others."""
        request.headers["Authorization"] = f"Bearer {await asyncio.to_thread(self._token)}"
        yield request

    def _token(self) -> str:
        """Returns a token that is good.

        Raises:
            MainspringError: It has ended, and there is no other; says why.
        """
        if self._due(self._login):
            with self._home.lock("login.lock"):
                kept = self._home.login()
                if kept is not None and kept.url == self._login.url:
                    self._login = kept  # Another process may have been first.
                if self._due(self._login):
                    self._renew()
        return self._login.token

    def _due(self, login: LoginRecord) -> bool:
        now_s = time.time()
        return login.renewal is not None and now_s >= max(login.renewal.due_s, self._failed_s + AGAIN_S)

    def _renew(self) -> None:
        from mainspring.app.base import oidc

        before, renewal = self._login, self._login.renewal
        assert renewal is not None
        try:
            granted = oidc.again(renewal.offer, renewal.refresh_token)
            kept = replace(before, renewal=replace(renewal, refresh_token=granted.refresh_token))
            self._home.write_login(kept)  # The provider may take the one before no more.
            with Client(before.url, "", insecure=self._insecure) as client:
                made = client.log_in(Login(id_token=granted.id_token, team=renewal.team))
        except MainspringError as error:
            if time.time() < renewal.ends_s:
                self._failed_s = time.time()
                return
            again = f"ms login {before.url}"
            raise type(error)("stay logged in", on=before.url, got=str(error), next_step=again) from error
        self._login = record_of(before.url, made, renewal.offer, granted.refresh_token, team=renewal.team)
        self._home.write_login(self._login)
