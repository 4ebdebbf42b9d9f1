"""A real browser for tests: Debian's Chromium, driven by playwright, which tells of whatever goes wrong on a page."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, Response, sync_playwright

import mainspring.app.web.look as look

AXE = Path(look.__file__).parent / "npm" / "node_modules" / "axe-core" / "axe.min.js"
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)
WIDE, NARROW = (1360, 900), (390, 844)
WAIT_MS = 60_000.0


def browser_missing() -> str:
    """Returns why there is no browser to test with, "" where there is one."""
    if shutil.which("chromium") is None:
        return "no chromium here: apt-get install --no-install-recommends chromium fonts-dejavu-core"
    return ""


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser that is closed afterwards."""
    with sync_playwright() as playwright:
        os.environ.setdefault("XDG_CACHE_HOME", "/tmp")  # Else it warns where the user has no home.
        found = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=[*FLAGS])
        try:
            yield found
        finally:
            found.close()


class Watched:
    """A page, and all that went wrong on it: errors, refused content, and requests to anybody but its server."""

    def __init__(self, context: BrowserContext, base: str) -> None:
        self.base = base
        self.wrong: list[str] = []
        self.page: Page = context.new_page()
        self.page.set_default_timeout(WAIT_MS)
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        self.page.on("dialog", lambda dialog: self.wrong.append(f"dialog: {dialog.message}"))
        self.page.on("request", self._request)
        self.page.on("response", self._response)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.wrong.append(f"{message.type}: {message.text}")

    def _request(self, request: Request) -> None:
        if urlsplit(request.url).netloc != urlsplit(self.base).netloc:
            self.wrong.append(f"asked {request.url}")

    def _response(self, response: Response) -> None:
        if response.status >= 500:
            self.wrong.append(f"{response.status} for {response.url}")

    def go(self, path: str) -> None:
        """Shows one of the server's pages, drawn to the end."""
        self.page.goto(self.base + path)
        self.page.wait_for_load_state("load")
        if self.page.locator("[data-chart] .canvas").count():
            self.page.wait_for_function("!!window.echarts && !!document.querySelector('.canvas canvas')")

    def has_pictures(self) -> bool:
        """Returns whether an episode's pictures are drawn; asked, as pages let no string be run that would wait."""
        return bool(self.page.evaluate("document.querySelector('img.strip').naturalWidth > 0"))

    def serious(self) -> list[str]:
        """Returns what axe finds that keeps people from using the page."""
        self.page.evaluate(AXE.read_text())
        found = self.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        return [
            f"{one['id']}: {one['help']}: {one['nodes'][0]['html'][:200]}"
            for one in found["violations"]
            if one["impact"] in ("serious", "critical")
        ]

    def overflow(self) -> int:
        """Returns by how many pixels the page is wider than its window."""
        return int(self.page.evaluate("document.documentElement.scrollWidth - innerWidth"))


@contextmanager
def watched(browser: Browser, address: str, *, dark: bool = False, size: tuple[int, int] = WIDE) -> Iterator[Watched]:
    """A page of a reader in Berlin, let in by an address that is good once."""
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme="dark" if dark else "light",
        timezone_id="Europe/Berlin",
        locale="en-GB",
    )
    parts = urlsplit(address)
    page = Watched(context, f"{parts.scheme}://{parts.netloc}")
    try:
        page.page.goto(address)
        yield page
    finally:
        context.close()
