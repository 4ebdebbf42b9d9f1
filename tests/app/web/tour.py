"""Draws the pictures of docs/page.md: `python -m tests.app.web.tour [FOLDER]`, docs/page when left out.

The lab of the fleet, the queue and the teams is that of the tests; the job is a real one on a pretended cluster, of
which one rank is killed on its way.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, expect

from mainspring.app.base.calls import PAGES
from mainspring.app.base.home import Config
from mainspring.app.sdk.lab import Lab, job
from mainspring.domain.answers import JobView
from mainspring.domain.ids import ChipName, ClusterName
from mainspring.domain.life import JobState
from mainspring.engines.local.config import LocalCluster
from tests.app.conftest import kill, until
from tests.app.web.browsing import NARROW, WAIT_MS, Watched, chromium, watched
from tests.app.web.large_lab import large_lab
from tests.data.making import write_lerobot_v2

FOLDER = Path(__file__).parents[3] / "docs" / "page"
SIZE = (1200, 800)
JOBS = 2_500
KILLED_AT, STEPS = 60, 2_000
SHOWN_AT = 480  # Two windows of ranks' times, at least.
_PROGRAM = f"""
import threading
import numpy as np
import mainspring
from mainspring.session import Block

session = mainspring.join()
restored = session.restore()
step, weights = (0, np.zeros(8)) if restored is None else (restored.step, restored.array("weights/%d" % session.rank))
while step < {STEPS}:
    threading.Event().wait(0.05 if session.rank == 0 or step < 300 else 0.08)
    step, weights = step + 1, weights + 0.1
    loss = 2.3 / (1.0 + 0.04 * step) + 0.05 * np.cos(step)
    session.report(step, {{"loss": float(loss), "grad_norm": float(1.0 + 0.4 * np.sin(step / 40)), "steps": {STEPS}}})
    if step % 20 == 0:
        print(f"step {{step}} loss {{loss:.4f}}", flush=True)
        session.snapshot(step, [Block.whole("weights/%d" % session.rank, weights)], {{"step": step}})
"""


def draw(folder: Path) -> list[str]:
    """Draws every picture, and returns their names."""
    folder.mkdir(parents=True, exist_ok=True)
    with chromium() as browser, tempfile.TemporaryDirectory() as kept:
        drawn = _job(browser, Path(kept), folder)
        with large_lab(Path(kept), JOBS) as client:
            until(lambda: bool(client.ps(state=JobState.STARTING)), "jobs to be placed")
            until(lambda: bool(client.plan().reservations), "room to be kept")
            with watched(browser, client.page(), size=SIZE) as seen:
                drawn += [
                    _picture(seen, "fleet", "/fleet", folder),
                    _picture(seen, "queue", "/queue?try=1&cluster=cluster-0&nodes=100", folder),
                    _picture(seen, "teams", "/teams", folder),
                ]
            with watched(browser, client.page(), size=NARROW, dark=True) as seen:
                drawn.append(_picture(seen, "narrow", "/fleet", folder))
    return drawn


def _job(browser: Browser, kept: Path, folder: Path) -> list[str]:
    with _lab(kept / "home") as lab:
        spec = job("train-pi", [sys.executable, "-c", _PROGRAM], on=["h100", "v5e@0.5"], replicas=2)
        submitted = lab.run(spec)
        until(lambda: lab.status(submitted.id).step >= KILLED_AT, "the job to be on its way")
        kill(_pid_of(lab.status(submitted.id), 1))
        until(lambda: lab.status(submitted.id).step >= SHOWN_AT, "the job to have recovered", wait_s=240)
        until(lambda: len(lab.rank_times(submitted.id).from_s) > 2, "ranks' times to be written", wait_s=240)
        write_lerobot_v2(kept / "set", [80, 60, 70], video=True)
        lab.data.ingest(kept / "set", dataset="stack")
        lab.data.select("stack", "frames > 65", "stack-long")
        episode = lab.data.episodes("stack", limit=1)[0].id
        with watched(browser, lab.page(f"/jobs/{submitted.id}"), size=(SIZE[0], 1_330)) as seen:
            expect(seen.page.locator(".verdict")).to_contain_text("generation 2", timeout=WAIT_MS)
            return [
                _picture(seen, "job", f"/jobs/{submitted.id}", folder),
                _picture(seen, "curves", f"/jobs/{submitted.id}", folder, at="#chart-times"),
                _picture(seen, "data", "/data/stack", folder),
                _picture(seen, "episode", f"/data/stack/1/{episode}", folder),
            ]


def _pid_of(view: JobView, rank: int) -> int:
    return next(one.pid for one in view.attempts[-1].ranks if one.rank == rank)


@contextmanager
def _lab(home: Path) -> Iterator[Lab]:
    lab = Lab(home)
    chips = {"alpha": ("h100", 3.0), "beta": ("v5e", 1.2)}
    clusters = tuple(
        LocalCluster(
            name=ClusterName(name), chip=ChipName(chip), chips_per_node=1, nodes=2, dollars_per_chip_hour=price
        )
        for name, (chip, price) in chips.items()
    )
    lab.home.write_config(Config(clusters=clusters))
    lab.up(port=0)
    try:
        yield lab
        for view in lab.ps():
            lab.stop(view.id, reason="the picture is drawn")
        until(lambda: all(view.ended_s is not None for view in lab.ps()), "jobs to end")
    finally:
        lab.down()


def _picture(seen: Watched, name: str, path: str, folder: Path, *, at: str = "") -> str:
    seen.go(PAGES + path)
    if seen.page.locator("img.strip").count():
        until(seen.has_pictures, "pictures to be decoded")
    if at:
        seen.page.locator(at).evaluate("one => window.scrollTo(0, one.getBoundingClientRect().top + scrollY - 120)")
    seen.page.wait_for_timeout(500.0)  # Charts are drawn a moment after what they are drawn in.
    seen.page.screenshot(path=folder / f"{name}.png")
    assert not seen.wrong, seen.wrong
    return name


if __name__ == "__main__":
    print("\n".join(draw(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)))  # noqa: T201
