"""Pages in a real Chromium: each draws without a fault, can be used by everybody, and stays right."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Route, expect

from mainspring.app.base.calls import PAGES
from mainspring.app.base.client import Client
from mainspring.app.sdk.lab import Lab, job
from mainspring.app.web.look import has_charts
from mainspring.domain.life import JobState
from tests.app.conftest import counting, halted, until
from tests.app.web.browsing import AXE, NARROW, WAIT_MS, WIDE, browser_missing, chromium, watched
from tests.app.web.large_lab import large_lab
from tests.app.web.test_pages import HOSTILE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(browser_missing()), reason=browser_missing()),
    pytest.mark.skipif(not has_charts(), reason="what draws charts is not here: make install"),
]
JOBS = 2_500


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A lab of 12,500 nodes, all in use, with more jobs than they hold; some of its nodes are closed."""
    with large_lab(tmp_path_factory.mktemp("large"), JOBS) as client:
        until(lambda: bool(client.ps(state=JobState.STARTING)), "jobs to be placed")
        yield client


def paths_of(client: Client) -> list[str]:
    """Every page, with something on it."""
    newest = client.ps(limit=200)
    waits = next(view for view in newest if view.state is JobState.QUEUED)
    runs = next(view for view in client.ps(state=JobState.STARTING, limit=1))
    return [
        "/",
        "/jobs",
        "/jobs?state=queued&team=team-1",
        f"/jobs/{waits.id}",
        f"/jobs/{waits.id}?remedies=1",
        f"/jobs/{runs.id}",
        "/jobs/none-such",
        "/queue",
        "/queue?try=1&cluster=cluster-0&nodes=100",
        "/queue?try=1&on=nonsense",
        "/fleet",
        "/clusters/cluster-1",
        "/clusters/cluster-1?rack=r0",
        "/clusters/cluster-1/nodes/node-00010",
        "/teams",
        "/alerts",
        "/changes",
        "/in",
    ]


@pytest.mark.parametrize(
    ("dark", "size"),
    [
        (False, NARROW),
        pytest.param(False, WIDE, marks=pytest.mark.soak),
        pytest.param(True, WIDE, marks=pytest.mark.soak),
    ],
)
def test_every_page_of_a_large_lab_draws_without_a_fault_for_everybody(
    browser: Browser, large: Client, *, dark: bool, size: tuple[int, int]
) -> None:
    with watched(browser, large.page(), dark=dark, size=size) as seen:
        for path in paths_of(large):
            seen.go(PAGES + path)
            assert seen.page.locator("h1").count() == 1, path
            wrong = [one for one in seen.wrong if "404" not in one or "none-such" not in path]
            assert not wrong, path
            assert seen.overflow() <= 0, path
            assert not seen.serious(), path
            seen.wrong.clear()


def test_axe_is_what_finds_a_page_that_some_cannot_use(browser: Browser, large: Client) -> None:
    with watched(browser, large.page()) as seen:
        seen.page.evaluate("document.querySelector('h1').innerHTML = '<input><a href=\"#x\"></a>'")
        assert seen.serious()
    assert AXE.is_file()


def test_tables_are_sorted_and_filtered_by_keyboard(browser: Browser, large: Client) -> None:
    with watched(browser, large.page("/teams")) as seen:
        names = seen.page.locator("table[data-table=teams] tbody tr td:first-child")
        seen.page.get_by_role("button", name="Team", exact=True).focus()
        seen.page.keyboard.press("Enter")
        first = names.first.inner_text()
        seen.page.keyboard.press("Enter")
        expect(seen.page.locator("th[aria-sort=descending]")).to_have_count(1)
        assert names.first.inner_text() != first
        seen.page.get_by_role("searchbox", name="Filter Teams").press_sequentially("team-17")
        expect(names.filter(visible=True)).to_have_count(1)
        assert not seen.wrong


def test_job_page_follows_its_job_while_the_server_restarts(browser: Browser, shared_lab: Lab, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.mkdir()
    submitted = shared_lab.run(counting(gate, 10, 20, name="followed"))
    halted(shared_lab, submitted.id, gate, 10)
    with watched(browser, shared_lab.page(f"/jobs/{submitted.id}")) as seen:
        expect(seen.page.locator(".verdict")).to_contain_text("step 10", timeout=WAIT_MS)
        shared_lab.down()
        expect(seen.page.locator("#stale")).to_be_visible(timeout=WAIT_MS)
        (gate / "go-10").touch()
        shared_lab.up()
        halted(shared_lab, submitted.id, gate, 20)
        expect(seen.page.locator(".verdict")).to_contain_text("step 20", timeout=WAIT_MS)
        expect(seen.page.locator("#stale")).to_be_hidden(timeout=WAIT_MS)
        seen.page.get_by_role("button", name="Stop").click()
        seen.page.locator("#act-stop input[name=reason]").fill("seen enough")
        seen.page.get_by_role("button", name="Stop it").click()
        (gate / "go-20").touch()
        expect(seen.page.locator("h1 .badge")).to_contain_text("cancelled", timeout=WAIT_MS)
    assert "seen enough" in shared_lab.status(submitted.id).reason


def test_page_that_was_on_its_way_does_not_close_what_somebody_has_opened(browser: Browser, shared_lab: Lab) -> None:
    running = shared_lab.run(job("undisturbed", ["sleep", "600"], on=["h100"])).id
    until(lambda: shared_lab.status(running).state is JobState.RUNNING, "the job to run", wait_s=WAIT_MS / 1e3)
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    with watched(browser, shared_lab.page(f"/jobs/{running}")) as seen:
        page, where = seen.page, f"**{PAGES}/jobs/{running}"
        page.route(where, hold)
        for _ in range(600):
            if held:
                break
            page.wait_for_timeout(100)
        page.get_by_role("button", name="Stop").click()
        page.locator("#act-stop input[name=reason]").fill("on my way")
        with page.expect_response(where) as answered:
            held[0].continue_()
        answered.value.finished()
        page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        page.wait_for_timeout(500)
        assert page.locator("#act-stop").evaluate("dialog => dialog.open")
        assert page.locator("#act-stop input[name=reason]").input_value() == "on my way"
        page.unroute(where)
        page.get_by_role("button", name="Stop it").click()
        expect(page.locator("h1 .badge")).to_contain_text("cancelled", timeout=WAIT_MS)
        assert not seen.wrong


def test_output_is_shown_as_text_searched_and_followed(browser: Browser, shared_lab: Lab) -> None:
    program = (
        f"import threading; [print(i, {HOSTILE!r}, flush=True) for i in range(9_000)]; threading.Event().wait(600)"
    )
    submitted = shared_lab.run(job("talks", [sys.executable, "-c", program], on=["h100"]))
    until(lambda: b"8999" in b"".join(shared_lab.logs(submitted.id)), "the job to have said all")
    with watched(browser, shared_lab.page(f"/jobs/{submitted.id}")) as seen:
        output = seen.page.locator("#log")
        expect(output).to_contain_text("8999 <img src=x onerror=alert(1)>")
        assert "\u202e" not in output.inner_text()
        assert output.locator("img, script").count() == 0
        seen.page.get_by_role("searchbox", name="Search the output").fill("17 <img")
        expect(output.locator("mark").first).to_contain_text("17 <img")
        expect(seen.page.locator("#log-state")).to_contain_text("lines with it")
        seen.page.get_by_role("searchbox", name="Search the output").fill("")
        seen.page.get_by_role("button", name="Follow").click()
        expect(seen.page.locator("#log-state")).to_contain_text("Following")
        shared_lab.stop(submitted.id, reason="over")
        expect(seen.page.locator("#log-state")).to_contain_text("there is no more", timeout=WAIT_MS)
        assert not seen.wrong
