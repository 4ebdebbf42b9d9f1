"""Pages of robots and rollouts over HTTP, without scripts: what they show, and what people have a rollout do there."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import httpx
import pytest
import uvicorn

from mainspring.app.base.calls import PAGES
from mainspring.app.base.system import SystemClock, SystemDice
from mainspring.app.web.pages import create_pages
from mainspring.control import create_app, listen
from mainspring.domain.answers import NewRollout, RobotTally, RolloutRules, RolloutState
from mainspring.domain.answers.policies.rollouts import ROLLOUT_ACTS
from mainspring.domain.team import TeamRole
from tests.app.web.browsing import NARROW, browser_missing, chromium, watched
from tests.robots.fleet_world import FleetWorld

HOSTILE = "<img src=x onerror=alert(1)>"
ROBOTS = ("arm-0", "arm-1", "arm-2")
pytestmark = pytest.mark.slow


class Shown(FleetWorld):
    """Three robots that run arm@1, one of group `lab`; arm@2 is rolled out to that one, on which it is not healthy."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, now_s=time.time())
        for name in ROBOTS:
            self.robot(name, group="lab" if name == "arm-0" else "")
        self.publish(b"first")
        self.roll("all")
        self.turn()
        for robot in self.robots.values():
            robot.tallies = (RobotTally(target="releases/arm.1.json", episodes=40, successes=30),)
        self.turn()
        self.publish(b"bad")
        self.number = self.roll("lab", "all", note=HOSTILE)
        self.turn()
        app = create_app(self.control)
        app.mount(PAGES, create_pages(app, SystemClock(), SystemDice()))
        self.socket = listen("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        self.server = uvicorn.Server(uvicorn.Config(app, log_level="error", ws="none", lifespan="off"))
        self.thread = Thread(target=self.server.run, kwargs={"sockets": [self.socket]}, daemon=True)
        self.thread.start()

    def roll(self, *rings: str, note: str = "") -> int:
        rules = RolloutRules(hours=0.0, watch_s=0.0)
        number = self.control.rollouts.start(NewRollout(release="arm", rings=rings, rules=rules, note=note)).number
        self.control.rollouts.step()
        return number

    def turn(self) -> None:
        for robot in self.robots.values():
            robot.go(visits=2)
        self.control.rollouts.step()

    @contextmanager
    def browser(self, role: TeamRole = TeamRole.ADMIN) -> Iterator[httpx.Client]:
        """A browser without scripts in which somebody signed in."""
        with httpx.Client(base_url=f"{self.url}{PAGES}", trust_env=False, timeout=60.0) as client:
            assert client.post("/in", data={"token": self.world.token(role)}).status_code == 303
            yield client


@contextmanager
def served(folder: Path) -> Iterator[Shown]:
    made = Shown(folder)
    try:
        yield made
    finally:
        made.server.should_exit = True
        made.thread.join(10.0)
        made.socket.close()


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    """One for all tests that change nothing."""
    with served(tmp_path_factory.mktemp("shown")) as made:
        yield made


@pytest.fixture
def steered(tmp_path: Path) -> Iterator[Shown]:
    with served(tmp_path) as made:
        yield made


def rows(client: httpx.Client, path: str, grid: str) -> list[dict[str, object]]:
    answer = client.get(f"{path}{'&' if '?' in path else '?'}export={grid}.json")
    assert answer.status_code == 200, answer.text
    found: list[dict[str, object]] = answer.json()
    return found


def form(page: str) -> dict[str, str]:
    """The forms of a page: where each button leads by its name, and what they show to be ours."""
    csrf = re.search(r'name="csrf" value="(\w+)"', page)
    assert csrf
    return {"csrf": csrf[1], **{name: path for path, name in re.findall(r'formaction="([^"]+/(\w+))"', page)}}


def test_robots_are_listed_with_state_release_ring_contact_and_health(shown: Shown) -> None:
    with shown.browser() as client:
        page, listed = client.get("/robots").text, rows(client, "/robots", "robots")
        only = rows(client, "/robots?group=lab&after=aaa", "robots")
    assert [row["robot"] for row in listed] == list(ROBOTS)
    told = {name: listed[0][name] for name in ("state", "group", "runs", "ring", "health")}
    assert told == {"state": "active", "group": "lab", "runs": "arm@1", "ring": "lab", "health": "good"}
    assert str(listed[0]["called"]).startswith("20")
    assert [row["robot"] for row in only] == ["arm-0"]
    assert f'href="{PAGES}/robots/arm-0"' in page
    assert f'href="{PAGES}/rollouts/{shown.number}"' in page


def test_robot_is_shown_with_what_was_installed_on_it_and_what_it_counted(shown: Shown) -> None:
    with shown.browser() as client:
        page = client.get("/robots/arm-0").text
        (newest, oldest), (counted,) = (
            rows(client, "/robots/arm-0", "actions"),
            rows(client, "/robots/arm-0", "counted"),
        )
        assert client.get("/robots/arm-9").status_code == 404
    assert (newest["release"], newest["state"], oldest["state"]) == ("arm@2", "failed", "done")
    assert "while proving" in str(newest["words"])
    assert (counted["episodes"], counted["successes"]) == (40, 30)
    assert "of rollout" in page


def test_rollout_is_shown_with_rings_robots_and_events_and_nothing_in_it_is_markup(shown: Shown) -> None:
    path = f"/rollouts/{shown.number}"
    with shown.browser() as client:
        page, every = client.get(path).text, rows(client, "/rollouts", "rollouts")
        (lab, rest), robots = rows(client, path, "rings"), rows(client, path, "robots")
        sick = rows(client, f"{path}?standing=unhealthy", "robots")
        after = rows(client, f"{path}?ring=all&after=arm-1", "robots")
        wrong = [client.get(f"/rollouts/{asked}").status_code for asked in ("99", "x", f"{shown.number}?standing=ill")]
    assert [row["rollout"] for row in every] == [shown.number, shown.number - 1]
    assert (lab["ring"], lab["robots"], lab["unhealthy"], rest["opened"]) == ("lab", 1, 1, "")
    assert [(row["robot"], row["ring"], row["standing"]) for row in robots] == [
        ("arm-0", "lab", "unhealthy"),
        ("arm-1", "all", "ahead"),
        ("arm-2", "all", "ahead"),
    ]
    assert "while proving" in str(robots[0]["failure"])
    assert sick == robots[:1]
    assert after == robots[2:]
    assert wrong == [404, 404, 400]
    assert "&lt;img" in page
    assert "<img" not in page
    assert "data-dialog" not in page  # Its forms are there without a script.


def test_people_steer_a_rollout_by_plain_forms_with_a_reason_as_their_role_lets_them(steered: Shown) -> None:
    path, service = f"/rollouts/{steered.number}", steered.control.rollouts

    def state() -> RolloutState:
        return service.show(str(steered.number)).state

    with steered.browser(TeamRole.VIEWER) as client:
        page = client.get(path).text
        assert "formaction" not in page
        refused = client.post(f"{path}/pause", data={"csrf": form(page)["csrf"], "reason": "mine"})
        assert (refused.status_code, state()) == (403, RolloutState.RUNNING)
    with steered.browser(TeamRole.OPERATOR) as client:
        ours = form(client.get(path).text)
        right = {"csrf": ours["csrf"], "reason": "lunch =1"}
        assert list(ours) == ["csrf", "pause", "approve", "abort", "rollback"]
        wrong = [
            client.post(ours["pause"].removeprefix(PAGES), data={"reason": "x"}),
            client.post(f"{path}/pause", data=right, headers={"Origin": "https://elsewhere.example"}),
            client.post(f"{path}/pause", data=right | {"reason": " "}),
            client.post(f"{path}/explode", data=right),
        ]
        assert [answer.status_code for answer in wrong] == [403, 403, 400, 400]
        assert state() is RolloutState.RUNNING
        done = client.post(f"{path}/pause", data=right)
        assert (done.status_code, state()) == (303, RolloutState.PAUSED)
        page = client.get(done.headers["location"].removeprefix(PAGES)).text
        assert "It was paused." in page
        assert list(form(page)) == ["csrf", "resume", "abort", "rollback"]
        assert client.post(f"{path}/pause", data=right).status_code == 409
        assert client.post(f"{path}/resume", data={"csrf": ours["csrf"]}).status_code == 303
        assert state() is RolloutState.RUNNING
        assert client.post(f"{path}/approve", data=right).status_code == 303
        assert next(row["by"] for row in rows(client, path, "events")) == "ada"
        assert client.post(f"{path}/rollback", data=right).status_code == 303
    assert state() is RolloutState.GOING_BACK
    assert {act for act, states in ROLLOUT_ACTS.items() if state() in states} == {"abort"}


@pytest.mark.soak
@pytest.mark.skipif(bool(browser_missing()), reason=browser_missing())
def test_pages_of_robots_draw_without_a_fault_for_everybody(shown: Shown) -> None:
    with shown.browser() as client:
        bearer = {"Authorization": f"Bearer {shown.world.token(TeamRole.ADMIN)}"}
        code = client.post("/code", headers=bearer).json()["code"]
    entered = f"{shown.url}{PAGES}/enter?code={code}&next={PAGES}/robots"
    with chromium() as browser, watched(browser, entered, size=NARROW) as seen:
        for path in ("/robots", "/robots/arm-0", "/rollouts", f"/rollouts/{shown.number}"):
            seen.go(PAGES + path)
            assert seen.page.locator("h1").count() == 1, path
            assert not seen.wrong, path
            assert seen.overflow() <= 0, path
            assert not seen.serious(), path
