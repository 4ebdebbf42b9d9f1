"""A real provider of identities for tests, Dex (`dex/main.go`), and a person with a browser."""

from __future__ import annotations

import json
import re
import subprocess
from html import unescape
from pathlib import Path
from types import TracebackType
from urllib.parse import urljoin

import httpx

DEX = Path(__file__).parents[2] / "build" / "dex"
NO_DEX = "" if DEX.exists() else "Dex is needed, and Go 1.22 or newer to build it: make build/dex"
PASSWORD = "correct horse"
_STEPS_MAX = 8


class Provider:
    """Dex at work on a port of its own, with people who come and go."""

    def __init__(self, folder: Path) -> None:
        self._people = folder / "people.json"
        self.people()
        with (folder / "dex.log").open("wb") as log:
            self._process = subprocess.Popen(
                [DEX, "-people", self._people], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            )
        assert self._process.stdout is not None
        self.issuer = self._process.stdout.readline().decode().strip()
        assert self.issuer, (folder / "dex.log").read_text()

    def __enter__(self) -> Provider:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()  # It ends with its input.

    def people(self, **groups: list[str]) -> None:
        """Makes these the people whom the provider knows, with their groups."""
        known = {f"{name}@example.org": {"password": PASSWORD, "groups": theirs} for name, theirs in groups.items()}
        draft = self._people.with_suffix(".new")
        draft.write_text(json.dumps(known))
        draft.rename(self._people)

    def rotate(self) -> None:
        """Has it sign with a new key from now on."""
        httpx.post(urljoin(self.issuer, "/rotate")).raise_for_status()

    def keys(self) -> list[str]:
        """The names of the keys that it publishes."""
        return [key["kid"] for key in httpx.get(f"{self.issuer}/keys").json()["keys"]]

    def granted(self, name: str, *, client: str = "mainspring") -> str:
        """An ID token for another program, or without one of ours."""
        redirect = "http://localhost:1/"
        words = {
            "client_id": client,
            "redirect_uri": redirect,
            "response_type": "code",
            "scope": "openid email groups",
        }
        code = httpx.URL(walk(f"{self.issuer}/auth?{httpx.QueryParams(words)}", name, until=redirect)).params["code"]
        given = {"grant_type": "authorization_code", "code": code, "redirect_uri": redirect, "client_id": client}
        token: str = httpx.post(f"{self.issuer}/token", data=given).raise_for_status().json()["id_token"]
        return token


def walk(url: str, name: str, *, until: str = "") -> str:
    """Does with a browser what a person does who is to log in; returns where they end, or what the last page says.

    Args:
        until: Where the browser is not to go: what an address begins with.
    """
    with httpx.Client(timeout=120) as browser:
        answer = browser.get(url)
        for _ in range(_STEPS_MAX):
            while answer.is_redirect:
                url = urljoin(str(answer.url), answer.headers["location"])
                if until and url.startswith(until):
                    return url
                answer = browser.get(url)
            form = re.search(r'<form method="post"(?: action="([^"]*)")?.*?</form>', answer.text, re.DOTALL)
            if form is None:
                break
            given = dict(re.findall(r'<input[^>]* name="(\w+)"[^>]* value="([^"]*)"', form[0]))
            if 'name="login"' in form[0]:
                given = {"login": f"{name}@example.org", "password": PASSWORD}
            answer = browser.post(urljoin(str(answer.url), unescape(form[1] or "")), data=given)
    return answer.text
