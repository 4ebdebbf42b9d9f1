"""Pages of what was measured: curves of a job with hostile names, stacks on a button, data with pictures."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from mainspring.app.base.calls import PAGES
from mainspring.app.sdk.lab import Lab, job
from mainspring.app.web.look import has_charts
from tests.app.conftest import until
from tests.app.web.browsing import NARROW, WAIT_MS, browser_missing, chromium, watched
from tests.data.making import write_lerobot_v2

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(browser_missing()), reason=browser_missing()),
    pytest.mark.skipif(not has_charts(), reason="what draws charts is not here: make install"),
]
HOSTILE = "<img src=x onerror=alert(1)>\"'&\x1b[31m\u202e</script><script>alert(2)</script>"
PROGRAM = f"""
import threading
import mainspring as ms

session = ms.join()
for step in range(1, 100_000):
    threading.Event().wait(0.12)
    loss = 1.0 / step if step != 7 else float("nan")
    session.report(step, {{"loss": loss, {HOSTILE!r}: float(step % 5), "never": float("inf"), "flat": 1.0}})
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def running(shared_lab: Lab) -> Iterator[str]:
    view = shared_lab.run(job("measured", [sys.executable, "-c", PROGRAM], on=["h100"], replicas=2))
    until(lambda: len(shared_lab.job_samples(view.id).names) > 0, "samples to be written", wait_s=200)
    yield view.id
    shared_lab.stop(view.id)


def test_job_shows_its_curves_beside_anothers_and_nothing_of_it_is_markup(
    shared_lab: Lab, browser: Browser, running: str
) -> None:
    with watched(browser, shared_lab.page()) as seen:
        seen.go(f"{PAGES}/jobs/{running}?beside=measured")
        page = seen.page
        figures = page.locator('[data-chart="curve"] figcaption')
        expect(figures.first).to_contain_text("loss", timeout=WAIT_MS)
        expect(figures.first).to_contain_text("no finite number at step 7")
        assert any("<img src=x" in words for words in figures.all_inner_texts())
        expect(page.locator("#sheet-metrics")).to_contain_text("time/step")
        expect(page.locator("#sheet-differences")).to_contain_text("equal")
        assert page.locator("img").count() == 0
        assert (seen.wrong, seen.serious()) == ([], [])
        seen.go(f"{PAGES}/jobs/{running}")
        expect(page.locator("#sheet-differences")).to_have_count(0)
        expect(page.locator("#sheet-metrics")).to_be_visible()
        seen.go(f"{PAGES}/jobs/{running}?beside=no-such-job")
        expect(page.locator(".note.warn").last).to_contain_text("no-such-job")


def test_stacks_come_on_a_button_with_a_reason_and_are_audited(shared_lab: Lab, browser: Browser, running: str) -> None:
    with watched(browser, shared_lab.page()) as seen:
        seen.go(f"{PAGES}/jobs/{running}")
        page = seen.page
        page.get_by_role("button", name="Stacks").click()
        page.locator("#act-stacks input[name=reason]").fill("looks slow")
        page.locator("#act-stacks button.main").click()
        until(
            lambda: any(one.kind == "stacks_seen" for one in shared_lab.events(running)), "ranks to answer", wait_s=120
        )
        seen.go(f"{PAGES}/jobs/{running}")
        stacks = page.locator("#stacks")
        expect(stacks).to_contain_text("ranks 0-1", timeout=WAIT_MS)
        expect(stacks.locator("pre").first).to_contain_text("most recent call first")
        assert seen.serious() == []
    asked = next(one for one in shared_lab.events(running) if one.kind == "stacks_asked")
    assert asked.detail["reason"] == "looks slow"
    assert any(line.action == "ask where ranks stand" for line in shared_lab.audit(newest=True))
    found = shared_lab.stacks(running)
    assert sum(int(one.detail["count"]) for one in found) == 2


def test_data_is_shown_with_lineage_episodes_pictures_and_curves(
    shared_lab: Lab, browser: Browser, tmp_path: Path
) -> None:
    write_lerobot_v2(tmp_path / "set", [20, 30, 25], video=True)
    shared_lab.data.ingest(tmp_path / "set", dataset="stack")
    shared_lab.data.select("stack", "frames > 22", "stack-long")
    with watched(browser, shared_lab.page(), size=NARROW) as seen:
        page = seen.page
        seen.go(f"{PAGES}/data")
        expect(page.locator("#sheet-datasets")).to_contain_text("stack-long", timeout=WAIT_MS)
        page.get_by_role("link", name="stack", exact=True).click()
        expect(page.locator("svg.lineage")).to_contain_text("stack-long@1")
        expect(page.locator("#sheet-candidates")).to_contain_text("Every gate is open")
        assert (seen.serious(), seen.overflow() <= 0) == ([], True)
        page.locator("#sheet-versions a", has_text="stack@1").click()
        page.locator("#sheet-episodes tbody a").first.click()
        expect(page.locator("h1")).to_contain_text("stack")
        until(seen.has_pictures, "pictures to be decoded")
        expect(page.locator('[data-chart="columns"]')).to_have_count(2)
        assert (seen.wrong, seen.serious(), seen.overflow() <= 0) == ([], [], True)
        for path, words in {"/data/nope": "nope", "/data/stack/9": "stack@9", "/data/stack/1/zz": "zz"}.items():
            page.goto(f"{seen.base}{PAGES}{path}")
            expect(page.locator("main")).to_contain_text(re.compile(words))
