"""Signing in by a provider of identities in a browser: Dex and Chromium are real."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.sync_api import expect

from mainspring.app.base.calls import PAGES
from mainspring.app.base.home import Config
from mainspring.app.sdk.lab import Lab
from mainspring.domain.ids import TeamName
from mainspring.domain.team import GroupRole, Oidc
from tests.app.conftest import clusters
from tests.app.provider import NO_DEX, PASSWORD, Provider
from tests.app.web.browsing import WAIT_MS, Watched, browser_missing, chromium

VLA = TeamName("vla")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.skipif(bool(NO_DEX), reason=NO_DEX)]


@pytest.fixture(scope="module")
def dex(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Provider]:
    with Provider(tmp_path_factory.mktemp("dex")) as provider:
        provider.people(ada=["vla"], eve=["nothing"])
        yield provider


@pytest.fixture(scope="module")
def base(dex: Provider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a server's pages are, by the name that the provider sends browsers back to."""
    lab = Lab(tmp_path_factory.mktemp("lab") / "home")
    oidc = Oidc(issuer=dex.issuer, client_id="mainspring", roles=(GroupRole(group="vla", team=VLA),))
    lab.home.write_config(Config(clusters=clusters(), oidc=oidc, shared_account=True))
    lab.up(port=0)
    lab.set_team(VLA)
    record = lab.home.server()
    assert record is not None
    yield f"http://localhost:{urlsplit(record.url).port}"
    lab.down()


@pytest.mark.skipif(bool(browser_missing()), reason=browser_missing())
def test_browser_signs_in_by_the_provider_and_ends_where_it_wanted_to_go(base: str) -> None:
    with chromium() as browser:
        for name, told in {"ada": "Queue", "eve": "Sign in"}.items():
            context = browser.new_context()
            page = Watched(context, base).page
            page.goto(f"{base}{PAGES}/queue?try=1")
            page.get_by_role("link", name=re.compile("Sign in by")).click()
            page.fill("input[name=login]", f"{name}@example.org")
            page.fill("input[name=password]", PASSWORD)
            page.click("button[type=submit]")
            if page.get_by_role("button", name=re.compile("Grant")).count():
                page.get_by_role("button", name=re.compile("Grant")).click()
            expect(page.locator("h1").first).to_contain_text(told, timeout=WAIT_MS)
            cookies = {one["name"].partition("-")[0]: one for one in context.cookies()}
            if name == "ada":
                expect(page).to_have_url(f"{base}{PAGES}/queue?try=1")
                expect(page.locator(".who")).to_contain_text("ada")
                assert cookies["mainspring"].get("sameSite") == "Strict"
                assert cookies["mainspring"].get("httpOnly")
            else:
                expect(page.locator(".note.bad")).to_be_visible()
            assert not any(one["name"].startswith("mainspring-login") for one in context.cookies())
            context.close()


def test_answers_that_this_browser_did_not_ask_for_let_nobody_in(base: str, dex: Provider) -> None:
    with httpx.Client(base_url=base) as client:
        begun = client.get(f"{PAGES}/provider", params={"next": "//elsewhere.example"})
        where = httpx.URL(begun.headers["location"])
        assert str(where).startswith(f"{dex.issuer}/")
        assert where.params["code_challenge_method"] == "S256"
        kept = begun.headers["set-cookie"]
        assert "HttpOnly" in kept
        assert "SameSite=lax" in kept
        assert f"Path={PAGES}/back" in kept
        state = where.params["state"]
        refused = [
            httpx.get(f"{base}{PAGES}/back", params={"code": "x", "state": state}),
            client.get(f"{PAGES}/back", params={"code": "x", "state": "other"}),
            client.get(f"{PAGES}/back", params={"code": "x", "state": state}),
            client.get(f"{PAGES}/back", params={"error": "access_denied", "state": state}),
        ]
        assert [answer.status_code for answer in refused] == [403] * 4
        assert not any("mainspring-" + str(httpx.URL(base).port) in str(answer.cookies) for answer in refused)


def test_lab_without_a_provider_offers_none(shared_lab: Lab) -> None:
    with httpx.Client(base_url=shared_lab.client().servers.url) as client:
        assert "provider of identities</h2>" not in client.get(f"{PAGES}/in").text
        assert client.get(f"{PAGES}/provider").status_code == 400
