"""`ms top`: what is drawn, wide and narrow, for people and machines; and a screen that goes on through what happens."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from mainspring.app.cli.metrics.watch import ALERTS_MAX, firing
from mainspring.app.render.live.top import BARS_FROM, CONCERNS_SHOWN, Concern, Top, concerns_of, top_screen
from mainspring.app.render.terminal import SafeConsole
from mainspring.app.sdk.lab import Lab, job
from mainspring.domain.answers import (
    ClusterGlance,
    FailedGlance,
    Glance,
    Health,
    HealthCheck,
    HealthStatus,
    JobGlance,
    QueueGlance,
)
from mainspring.domain.ids import AttemptId, ClusterName, JobId, TeamName
from mainspring.domain.job import Tier
from tests.app.conftest import WAIT_S, until
from tests.app.test_secrets import ms

EVIL = "\x1b]0;a title\x07\x1b[2Jred\x9b1A\u202eback"


def cluster(name: str = "alpha", **fields: object) -> ClusterGlance:
    known = ClusterGlance(
        cluster=ClusterName(name),
        simulated=False,
        answering=True,
        silent_s=0.0,
        nodes=4,
        nodes_closed=1,
        chips=32.0,
        chips_healthy=24.0,
        chips_held={"critical": 8.0, "opportunistic": 0.5},
        chips_foreign=2.0,
    )
    return replace(known, **fields)  # type: ignore[arg-type]


def holder(number: int, **fields: object) -> JobGlance:
    known = JobGlance(
        job=JobId(f"job-{number:012}"),
        name=f"train-a-long-name-{number}",
        team=TeamName("arms"),
        owner="ada@robots.example",
        tier=Tier.STANDARD,
        cluster=ClusterName("alpha"),
        attempt=AttemptId("attempt-1"),
        attempt_number=1,
        chips=8.0,
        held_s=7_200.0,
        step=1_200,
        goodput=0.93,
    )
    return replace(known, **fields)  # type: ignore[arg-type]


def glance(count: int = 3, **fields: object) -> Glance:
    known = Glance(
        at_s=1_700_000_000.0,
        planned_s=1_699_999_998.0,
        clusters=(cluster(), cluster("beta", simulated=True)),
        queue=tuple(QueueGlance(tier=tier, jobs=3, kept=1, oldest_s=7_300.0) for tier in Tier),
        jobs=tuple(holder(number) for number in range(count)),
        running=count,
        failed=(),
        failed_count=0,
    )
    return replace(known, **fields)  # type: ignore[arg-type]


def healthy(*checks: HealthCheck) -> Health:
    return Health(status=HealthStatus.OK, leader_epoch=1, checks=checks, release="0.3.0")


def drawn(top: Top, *, width: int, height: int | None = None, trouble: str = "") -> list[str]:
    console = SafeConsole(stderr=False, width=width)
    console.file = io.StringIO()
    console.print(top_screen(top, height=height, width=width, trouble=trouble))
    return console.file.getvalue().splitlines()


def top_of(seen: Glance, *concerns: Concern) -> Top:
    return Top(server="http://127.0.0.1:7077", status=HealthStatus.OK, glance=seen, concerns=concerns)


def test_screen_shows_chips_queue_and_jobs() -> None:
    text = "\n".join(drawn(top_of(glance()), width=160))
    assert re.search(r"^alpha +######-oox+\.+ +32 +24 +8\.5 +2 +1 of 4$", text, re.MULTILINE)
    assert "beta (simulated)" in text
    assert re.search(r"^opportunistic +3 +2\.0 h +1$", text, re.MULTILINE)
    assert re.search(
        r"^job-0+1 +train-a-long-name-1 +arms +ada@robots.example +standard +alpha +8 +2\.0 h +1200 +93%$",
        text,
        re.MULTILINE,
    )
    assert "\x1b" not in text


@pytest.mark.parametrize("width", [200, 120, BARS_FROM, 60])
def test_screen_is_no_wider_than_its_terminal_and_keeps_the_numbers(width: int) -> None:
    lines = drawn(top_of(glance(), Concern(grave=True, words="word " * 60, look="ms status job-1")), width=width)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert "93%" in text
    assert "train-a-long-name-2" in text
    assert ("######" in text) is (width >= BARS_FROM)


def test_screen_is_no_higher_than_its_terminal_and_says_what_it_leaves_out() -> None:
    concerns = [Concern(grave=False, words=f"concern {number}") for number in range(20)]
    lines = drawn(top_of(glance(50, running=700), *concerns), width=120, height=40)
    assert len(lines) <= 40
    shown = sum("train-a-long" in line for line in lines)
    assert f"the {shown} largest of 700" in "\n".join(lines)
    assert f"and {20 - CONCERNS_SHOWN} more" in "\n".join(lines)


def test_screen_of_an_empty_lab_and_one_of_what_steers_terminals_do_no_harm() -> None:
    empty = glance(0, clusters=(), queue=())
    assert "No job holds chips." in drawn(top_of(empty), width=80)[-1]
    evil = Concern(grave=True, words=EVIL, look=EVIL)
    text = "\n".join(drawn(top_of(glance(clusters=(cluster(chips=0.0),)), evil), width=100, trouble=EVIL))
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)


def test_concerns_are_the_gravest_first_and_each_says_where_to_look() -> None:
    failed = FailedGlance(job=JobId("job-9"), name="fold", team=TeamName("arms"), ended_s=1.0, reason="a\nb: boom")
    seen = glance(
        clusters=(cluster("beta", answering=False, silent_s=400.0),),
        failed=(failed,),
        failed_count=3,
        jobs=(holder(1, attempt_number=4),),
    )
    checks = (
        HealthCheck(name="cluster beta", status=HealthStatus.DEGRADED, words="does not answer"),
        HealthCheck(name="store", status=HealthStatus.FAILING, words="takes nothing"),
        HealthCheck(name="loop", status=HealthStatus.OK, words=""),
    )
    told = concerns_of(seen, healthy(*checks), (), ())
    assert [(one.grave, one.words, one.look) for one in told] == [
        (True, "store: takes nothing", "ms status"),
        (True, "cluster beta has not answered for 7 min", "ms cluster check beta"),
        (False, "3 jobs failed within the hour; the last, fold: a\nb: boom", "ms status job-9"),
        (False, "train-a-long-name-1, of 8 chips, is on attempt 4", "ms events job-000000000001"),
    ]


def test_alerts_that_fire_are_told_pages_first_and_garbage_as_none() -> None:
    def alert(name: str, severity: str, state: str = "firing") -> dict[str, object]:
        labels = {"alertname": name, "severity": severity}
        return {"labels": labels, "annotations": {"summary": f"{name} is so"}, "state": state}

    alerts = [
        alert("A", "ticket"),
        alert("B", "page"),
        alert("C", "page", "pending"),
        alert("MainspringDeadMan", "none"),
    ]
    told = list(firing({"data": {"alerts": alerts}}))
    assert [(one.grave, one.words, one.look) for one in told] == [
        (True, "B: B is so", "ms alerts B"),
        (False, "A: A is so", "ms alerts A"),
    ]
    garbage: tuple[object, ...] = (
        None,
        [],
        {},
        {"data": []},
        {"data": {"alerts": 7}},
        {"data": {"alerts": [1, {}, {"labels": 3}]}},
    )
    for each in garbage:
        assert list(firing(each)) == []
    assert len(list(firing({"data": {"alerts": [alert("A", "page")] * 9_000}}))) == ALERTS_MAX


class Screen:
    """`ms top` on a terminal of its own."""

    def __init__(self, lab: Lab, *words: str) -> None:
        self.ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 110, 0, 0))
        self.before = termios.tcgetattr(theirs)
        self.theirs = theirs
        known = {**os.environ, "MAINSPRING_HOME": str(lab.home.path), "TERM": "xterm"}
        known.pop("COLUMNS", None)
        command = [f"{os.path.dirname(sys.executable)}/ms", "top", "--every", "1", *words]
        self.process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=known)
        self.shown = ""

    def until(self, seen: Callable[[str], bool], what: str) -> None:
        deadline = time.monotonic() + WAIT_S
        while not seen(self.shown):
            assert time.monotonic() < deadline, f"waited for {what}; it shows {self.shown[-3_000:]}"
            if select.select([self.ours], [], [], 0.2)[0]:
                self.shown += os.read(self.ours, 1 << 16).decode(errors="replace")

    def end(self, letter: bytes = b"q") -> int:
        os.write(self.ours, letter)
        self.until(lambda shown: self.process.poll() is not None, "it to end")
        return self.process.returncode


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_screen_goes_on_while_jobs_come_and_the_server_is_away_and_q_ends_it(lab: Lab) -> None:
    screen = Screen(lab)
    screen.until(lambda shown: "No job holds chips." in shown, "the first look")
    view = lab.run(job("steady", ["sleep", "600"], on="h100"))
    screen.until(lambda shown: view.id in shown, "the job to be shown")
    lab.down()
    screen.until(lambda shown: "As of " in shown, "it to say that the server is away")
    lab.up()
    marks = len(screen.shown)
    screen.until(lambda shown: "planned" in shown[marks:] and "As of" not in shown[-1_500:], "it to go on")
    assert screen.end() == 0
    assert termios.tcgetattr(screen.theirs) == screen.before
    assert screen.shown.rstrip().endswith("\x1b[?1049l") or "\x1b[?1049l" in screen.shown


@pytest.mark.slow
def test_what_is_no_terminal_is_told_once_and_without_colours(lab: Lab) -> None:
    lab.run(job("steady", ["sleep", "600"], on="h100", tier="critical"))
    until(lambda: bool(lab.glance().jobs), "the job to hold its chip")
    done = ms(lab, "top")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert re.search(r"^alpha \(simulated\) +#+\.+ +2 +2 +1 ", done.stdout, re.MULTILINE)
    told = json.loads(ms(lab, "top", "--json").stdout)
    assert [one["cluster"] for one in told["glance"]["clusters"]] == ["alpha", "beta"]
    assert told["glance"]["jobs"][0]["tier"] == "critical"
    refused = ms(lab, "top", "--prometheus", "localhost:9090")
    assert refused.returncode == 2
    away = json.loads(ms(lab, "top", "--json", "--prometheus", "http://127.0.0.1:9").stdout)
    assert "Prometheus does not tell" in away["concerns"][0]["words"]
