"""The page of a large lab under a hundred readers: 99 clients that ask exactly what pages ask, and one Chromium.

Run as `python -m benchmarks.web_load [--quick]`. 100,000 jobs, 12,500 nodes of 5 clusters, 40 teams; 50 changes a
second. Clients follow the events of their page and ask for it again as `page.js` does; each has a token of its own,
and they come one after the other in the first third of the time. Figures: `page_p95_s`, a page's answer in whole;
`paint_p95_s`, in Chromium from navigation to the first content; `lag_p95_s`, from a change's answer until Chromium
shows it; `cores` and `rss_gib`, the server's less the same server's with the same changes and no reader; `loop_s`,
the time of 6,000,000 turns of `total += i * i % 7`. Wanted: page_p95_s <= 1, paint_p95_s <= 2.5, lag_p95_s <= 2,
cores <= 0.5, rss_gib <= 0.5, at a `loop_s` of 0.20 and with nothing else at work.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Coroutine, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any

import httpx
from benchmarks.control_submit import loop_s
from benchmarks.metrics_scrape import TEAMS, filled
from playwright.async_api import Page, async_playwright

from mainspring.app.base.calls import PAGES
from mainspring.app.base.client import Client
from mainspring.app.base.system import tune_for_serving
from mainspring.app.web.serving import add_pages
from mainspring.control.connections import listen
from mainspring.control.server import Server
from mainspring.domain.answers import NewPriority, NewToken, QueuePlace
from mainspring.domain.ids import TeamName
from mainspring.domain.job import LAB
from mainspring.domain.life import JobState
from mainspring.domain.team import TeamRole

NODES, JOBS, READERS, CHANGES_PER_S = 12_500, 100_000, 99, 50.0
PAUSE_S, PAUSE_S_MAX, COST = 1.0, 15.0, 20.0  # As in `page.js`.
SHARES = (("job", 0.5), ("/", 0.2), ("/queue", 0.1), ("/fleet", 0.1), ("/jobs", 0.1))  # What people have open.
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def serve(told: Connection, folder: str, jobs: int) -> None:
    """The server, in a process of its own."""
    control = filled(Path(folder), NODES, jobs)
    admin = control.people.new_token(NewToken(holder="root", team=LAB, role=TeamRole.ADMIN)).secret
    dice = Random(2)
    tokens = []
    for number in range(READERS):
        team = TeamName(f"team-{dice.randrange(TEAMS)}")
        asked = NewToken(holder=f"reader-{number}", team=team, role=TeamRole.VIEWER)
        tokens.append((control.people.new_token(asked).secret, team))
    listener = listen("127.0.0.1", 0)
    server = Server(control, listener)
    add_pages(server)
    tune_for_serving()  # As `ms up` does.
    server.start()
    told.send((listener.getsockname()[1], admin, tokens))
    told.recv()
    server.stop()
    control.store.close()


def spent_s(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / _TICKS_PER_S


def rss_gib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 30)


async def reader(base: str, token: str, path: str, after_s: float, until_s: float, took_s: list[float]) -> None:
    """One page that somebody has open: its answers are timed, its events followed.

    Args:
        took_s: Of all who have such a page open.
    """
    await asyncio.sleep(after_s)
    cookies = {f"mainspring-{base.rpartition(':')[2]}": token}
    changed = asyncio.Event()
    async with httpx.AsyncClient(base_url=base, cookies=cookies, timeout=60.0) as client:

        async def ask() -> float:
            begun_s = time.monotonic()
            try:
                answer = await client.get(PAGES + path)
            except httpx.TransportError:  # A kept connection that the server was just closing, as browsers meet them.
                answer = await client.get(PAGES + path)
            answer.raise_for_status()
            took_s.append(time.monotonic() - begun_s)
            return took_s[-1]

        async def follow() -> None:
            events = f"/v1{path}/events" if path.startswith("/jobs/") else "/v1/events"
            newest = await client.get(f"{PAGES}/api/v1/events", params={"newest": "true", "limit": 1})
            asked = {"follow": "true", "since": str(newest.json()[-1]["sequence"] if newest.json() else 0)}
            async with client.stream("GET", f"{PAGES}/api{events}", params=asked) as stream:
                async for line in stream.aiter_lines():
                    if line.startswith("data:"):
                        changed.set()

        cost_s = await ask()
        following = asyncio.create_task(follow())
        try:
            while (left_s := until_s - time.monotonic()) > 0:
                await asyncio.sleep(min(left_s, max(PAUSE_S, min(PAUSE_S_MAX, COST * cost_s))))
                try:
                    await asyncio.wait_for(changed.wait(), max(0.01, until_s - time.monotonic()))
                except TimeoutError:
                    break
                changed.clear()
                cost_s = await ask()
        finally:
            following.cancel()


async def changes(base: str, admin: str, jobs: Sequence[str], until_s: float) -> int:
    """Ranks jobs that wait, so many a second: each is an event, and nothing is planned otherwise for it."""
    count, begun_s = 0, time.monotonic()
    headers, places = {"Authorization": f"Bearer {admin}"}, ("first", "last")
    transport = httpx.AsyncHTTPTransport(limits=httpx.Limits(keepalive_expiry=1.0))
    async with httpx.AsyncClient(base_url=base, headers=headers, timeout=60.0, transport=transport) as client:
        while (now_s := time.monotonic()) < until_s:
            due = int((now_s - begun_s) * CHANGES_PER_S) - count
            body = {"place": places[count // len(jobs) % 2], "reason": "measured"}
            some = [f"/v1/jobs/{jobs[(count + each) % len(jobs)]}/priority" for each in range(min(due, 16))]
            await asyncio.gather(*(client.put(path, json=body) for path in some))
            count += len(some)
            await asyncio.sleep(0.02)
    return count


async def chromium(base: str, admin: str, jobs: Sequence[str], until_s: float) -> tuple[list[float], list[float]]:
    """Paints and lags of a real browser."""
    paints: list[float] = []
    lags: list[float] = []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        )
        context = await browser.new_context()
        name = f"mainspring-{base.rpartition(':')[2]}"
        await context.add_cookies([{"name": name, "value": admin, "url": base}])
        page = await context.new_page()
        while time.monotonic() < until_s:
            for path in ("/", "/queue", "/fleet", f"/jobs/{jobs[0]}"):
                await page.goto(f"{base}{PAGES}{path}")
                paints.append(await _painted_s(page))
            lags.append(await _lag_s(page, base, admin, jobs[0], len(lags)))
        await browser.close()
    return paints, lags


async def _painted_s(page: Page) -> float:
    script = """() => new Promise(done => new PerformanceObserver(list => {
        const found = list.getEntriesByName('first-contentful-paint')[0]; if (found) done(found.startTime / 1000);
    }).observe({type: 'paint', buffered: true}))"""
    return float(await page.evaluate(script))


async def _lag_s(page: Page, base: str, admin: str, job: str, number: int) -> float:
    word = f"lag-{number}-"
    priority = NewPriority(place=(QueuePlace.FIRST, QueuePlace.LAST)[number % 2], reason=word)

    def change() -> None:
        with Client(base, admin) as client:
            client.priority(job, priority)

    await asyncio.to_thread(change)
    begun_s = time.monotonic()
    await page.wait_for_function(
        "word => document.body.textContent.includes(word)", arg=word, timeout=60_000, polling=50
    )
    return time.monotonic() - begun_s


async def measured(
    base: str, pid: int, admin: str, tokens: Sequence[tuple[str, TeamName]], seconds: float
) -> dict[str, Any]:
    with Client(base, admin) as client:
        jobs = [view.id for view in client.ps(state=JobState.QUEUED, limit=500)]
        own = {team: [view.id for view in client.ps(team=team, limit=20)] for team in {team for _, team in tokens}}
    begun_s, cpu_s = time.monotonic(), spent_s(pid)
    count = await changes(base, admin, jobs[1:], begun_s + seconds)
    alone = (spent_s(pid) - cpu_s) / (time.monotonic() - begun_s)
    alone_gib = rss_gib(pid)
    dice, by_page = Random(3), {name: list[float]() for name, _ in SHARES}
    names, weights = [name for name, _ in SHARES], [share for _, share in SHARES]
    begun_s, cpu_s = time.monotonic(), spent_s(pid)
    until_s = begun_s + seconds
    readers: list[Coroutine[Any, Any, None]] = []
    for token, team in tokens:
        wanted = dice.choices(names, weights)[0]
        path = f"/jobs/{dice.choice(own[team])}" if wanted == "job" else wanted
        readers.append(reader(base, token, path, len(readers) / len(tokens) * seconds / 3.0, until_s, by_page[wanted]))
    watching = asyncio.gather(*readers)
    (paints, lags), more = await asyncio.gather(
        chromium(base, admin, jobs, until_s), changes(base, admin, jobs[1:], until_s)
    )
    await watching
    watched = (spent_s(pid) - cpu_s) / (time.monotonic() - begun_s)
    took_s = [each for some in by_page.values() for each in some]
    return {
        "page_p95_s": _p95(took_s),
        "p95_s_by_page": {name: round(_p95(some), 3) for name, some in by_page.items() if some},
        "page_median_s": statistics.median(took_s),
        "pages": len(took_s),
        "paint_p95_s": _p95(paints),
        "lag_p95_s": _p95(lags),
        "cores": watched - alone,
        "cores_without": alone,
        "rss_gib": rss_gib(pid) - alone_gib,
        "changes_per_s": (count + more) / (2 * seconds),
    }


def _p95(values: Sequence[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(0.95 * len(values)))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the jobs, for half a minute")
    quick = parser.parse_args().quick
    here, there = multiprocessing.Pipe()
    with tempfile.TemporaryDirectory() as folder:
        process = multiprocessing.get_context("spawn").Process(
            target=serve, args=(there, folder, JOBS // 10 if quick else JOBS)
        )
        process.start()
        port, admin, tokens = here.recv()
        assert process.pid is not None
        seconds = 30.0 if quick else 180.0
        found = asyncio.run(measured(f"http://127.0.0.1:{port}", process.pid, admin, tokens, seconds))
        here.send("end")
        process.join(60.0)
    print(json.dumps({**found, "loop_s": loop_s()}), file=sys.stdout)


if __name__ == "__main__":
    main()
