"""`ms demo --loop`: what its parts decide and do by themselves, and, as soak tests, all of it with three arms and
with twenty.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("metaworld", reason="the sim extra is not installed")

from websockets.sync.server import ServerConnection, serve

from mainspring.app.cli.demos.loop.arms import PORTS, free_ports, ring_names
from mainspring.app.cli.demos.loop.outcome import (
    LoopReport,
    PlaceResult,
    committed_s,
    each_of,
    failures_at,
    ran_s,
    span_s,
)
from mainspring.app.cli.demos.loop.physics import LOCK, ArmAtWork
from mainspring.app.cli.demos.loop.site import (
    ArmSite,
    Place,
    Played,
    PlayedLog,
    Site,
    Work,
    read_site,
    read_work,
    share_of,
    write_plain,
)
from mainspring.app.cli.demos.loop.story import rings_of
from mainspring.domain.answers import RolloutEvent
from mainspring.domain.answers.policies.robots import RobotTally
from mainspring.domain.answers.policies.rollouts import RolloutEventKind
from mainspring.domain.codec import decode, encode
from mainspring.robots.edge.agent import JOURNAL
from mainspring.robots.edge.machine import Journal, Phase
from mainspring.robots.environments.metaworld import metaworld_shelf, metaworld_table
from mainspring.robots.logs.clips import Clips
from mainspring.robots.serving.wire import OURS, pack
from tests.app.ready_ms import path_with_ready_ms

PAGE = (Path(__file__).parents[2] / "docs" / "loop.md").read_text()
PROGRAM = str(Path(sys.executable).parent / "ms")
TARGET = "releases/arm.1.json"


def arm_of(folder: Path, number: int = 1, port: int = 1) -> ArmSite:
    name = f"arm-{number:02}"
    agent, log = str(folder / name / "agent"), str(folder / name / "log")
    return ArmSite(name=name, ring="lab", agent=agent, log=log, port=port, token="a token", seed=number)


def site_of(*arms: ArmSite) -> Site:
    return Site(url="http://127.0.0.1:1", dataset="shelf", helper="ada", failures_each=2, arms=arms)


def played(robot: str, *, place: Place = Place.SHELF, release: str = "arm@1", **words: bool) -> Played:
    return Played(at_s=1.0, robot=robot, release=release, place=place, **{"solved": False, **words})


def test_what_all_arms_are_to_bring_is_shared_by_them() -> None:
    for arms in (3, 20, 40, 100):
        assert 60 <= each_of(60, arms) * arms < 60 + arms


def test_failures_are_those_of_a_release_at_a_place_that_nobody_helped_with() -> None:
    found = [
        played("one"),
        played("two", solved=True),
        played("three", shown=True),
        played("four", place=Place.TABLE),
        played("five", release="arm@2"),
    ]
    assert [each.robot for each in failures_at(Place.SHELF, found, "arm@1")] == ["one"]


def test_time_lost_is_from_each_robots_commit_to_its_return() -> None:
    told = [("a", "committed", 10.0), ("b", "committed", 12.0), ("a", "returned", 25.0), ("b", "returned", 30.0)]
    told += [("c", "committed", 13.0), ("d", "returned", 99.0)]  # One that runs it still, and one that never did.
    events = [RolloutEvent(kind=RolloutEventKind(kind), at_s=at_s, robot=robot) for robot, kind, at_s in told]
    assert committed_s(events) == {"a": 10.0, "b": 12.0, "c": 13.0}
    assert ran_s(events) == {"a": 15.0, "b": 18.0}
    assert (span_s(events), span_s([])) == (20.0, 0.0)


def measured(after: float, gain: float, low: float) -> PlaceResult:
    return PlaceResult(before=after - gain, after=after, gain=gain, low=low, high=1.0)


def report_of(shelf: PlaceResult, table: PlaceResult) -> LoopReport:
    words: dict[str, Any] = {"failures": 12, "clips": 72, "corrections": 60, "fixed_s": 90.0, "bad_why": "it loses"}
    return LoopReport(
        home="home", arms=3, starts=100, shelf=shelf, table=table, bad_robots=1, bad_s=14.0, lost_s=14.0, **words
    )


@pytest.mark.parametrize(
    ("shelf", "table", "missed"),
    [
        (measured(0.9, 0.8, 0.7), measured(0.95, -0.05, -0.1), []),
        (measured(0.89, 0.8, 0.7), measured(1.0, 0.0, -0.04), ["success at the shelf 0.89"]),
        (measured(0.95, 0.35, 0.3), measured(1.0, 0.0, -0.04), ["gain at 95 % at least 0.30"]),
        (measured(0.95, 0.8, 0.7), measured(0.94, -0.06, -0.1), ["table 6 points worse"]),
    ],
)
def test_show_that_missed_its_end_says_which(shelf: PlaceResult, table: PlaceResult, missed: list[str]) -> None:
    told = report_of(shelf, table).missed
    assert len(told) == len(missed)
    assert all(words in one for words, one in zip(missed, told, strict=True))


@pytest.mark.parametrize("arms", [3, 4, 20])
def test_every_ring_that_is_named_has_a_robot_of_its_group(arms: int) -> None:
    rings = [ring.partition(":")[0] for ring in rings_of(arms)]
    groups = [name for name in ring_names(arms) if name]
    assert rings == [*groups, "10%", "all"]
    assert len(ring_names(arms)) == arms


def test_ports_of_arms_are_free_and_their_own() -> None:
    found = free_ports(40)
    assert len(set(found)) == 40
    assert set(found) <= set(PORTS)


def test_what_is_told_is_read_as_it_was(tmp_path: Path) -> None:
    site, work = site_of(arm_of(tmp_path, 1), arm_of(tmp_path, 2)), Work(place=Place.SHELF, shows_each=3)
    write_plain(tmp_path, "site.json", site)
    write_plain(tmp_path, "work.json", work)
    assert (read_site(tmp_path), read_work(tmp_path)) == (site, work)
    assert (tmp_path / "site.json").stat().st_mode & 0o777 == 0o600  # There are tokens in it.


def test_arms_are_shared_by_processes_each_once(tmp_path: Path) -> None:
    arms = [arm_of(tmp_path, number) for number in range(5)]
    shares = [share_of(arms, share, 2) for share in range(2)]
    assert sorted(arm.name for share in shares for arm in share) == [arm.name for arm in arms]


def test_line_that_is_not_whole_is_read_once_it_is(tmp_path: Path) -> None:
    path, line = tmp_path / "played-0.jsonl", encode(played("arm-01")) + b"\n"
    log = PlayedLog([path, tmp_path / "never"])
    assert log.read() == []
    path.write_bytes(line + line[:10])
    assert [each.robot for each in log.read()] == ["arm-01"]
    path.write_bytes(line + line)
    assert [each.robot for each in log.read()] == ["arm-01", "arm-01"]


@contextmanager
def lazy_policy() -> Iterator[int]:
    """A policy server whose arm does nothing; yields its port."""

    def answer(line: ServerConnection) -> None:
        line.send(pack({OURS: {"policy": "arm@1"}}))
        for _ in line:
            line.send(pack({"actions": np.zeros((8, 4), np.float32), OURS: {"policy": "arm@1"}}))

    with serve(answer, "127.0.0.1", 0, compression=None) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server.socket.getsockname()[1]
        finally:
            server.shutdown()
            thread.join(10.0)


def agent_says(arm: ArmSite, journal: Journal) -> None:
    Path(arm.agent).mkdir(parents=True, exist_ok=True)
    (Path(arm.agent) / JOURNAL).write_bytes(encode(journal))


@pytest.mark.slow
def test_arm_fails_is_shown_how_and_keeps_both_as_clips_of_its_own(tmp_path: Path) -> None:
    worlds = {Place.TABLE: metaworld_table(), Place.SHELF: metaworld_shelf()}
    with lazy_policy() as port:
        arm = arm_of(tmp_path, port=port)
        Path(arm.log).mkdir(parents=True)
        site, work = site_of(arm), Work(place=Place.SHELF, shows_each=1)
        committed = Journal(committed="a", slots={"a": TARGET, "b": ""})
        agent_says(arm, committed)
        at_work = ArmAtWork(site, arm, worlds)
        assert [(each.solved, each.shown) for each in at_work.turn(work)] == [(False, False), (True, True)]
        assert [(each.solved, each.shown) for each in at_work.turn(work)] == [(False, False)]  # It was shown once.
        for phase in (Phase.WAITING, Phase.RESTARTING, Phase.PROVING):  # The agent wants the arm to be still.
            agent_says(arm, replace(committed, phase=phase))
            assert at_work.turn(work) == []
        agent_says(arm, Journal())
        assert at_work.turn(work) == []  # Nothing runs yet.
        agent_says(arm, committed)
    assert at_work.turn(work) == []  # Its policy server is gone.
    assert not (Path(arm.agent) / LOCK).exists()
    at_work.close()
    clips = [clip.entry for clip in Clips(Path(arm.log) / "clips", site.rules(arm)).all()]
    assert [(clip.triggers, clip.success, clip.interventions) for clip in clips] == [
        (("failed",), False, 0),
        (("shown",), True, 1),
        (("failed",), False, 0),
    ]
    assert {(clip.robot, clip.release, clip.ring) for clip in clips} == {("arm-01", "arm@1", "lab")}
    (tally,) = decode(tuple[RobotTally, ...], (Path(arm.agent) / "tallies.json").read_bytes())
    assert (tally.target, tally.episodes, tally.successes) == (TARGET, 2, 0)  # What was shown counts for nobody.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--arms", "3"], "--arms without --loop"),
        (["--loop", "--recipe", "vla_tiny"], "--recipe"),
        (["--loop", "--arms", "2"], "3 to 40"),
        (["--loop", "--starts", "39"], "40 or more"),
    ],
)
def test_words_that_are_not_of_the_loop_are_refused(tmp_path: Path, words: list[str], told: str) -> None:
    command = [PROGRAM, "--home", str(tmp_path / "home"), "demo", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert told in " ".join(done.stderr.split())
    assert not (tmp_path / "home").exists()


def left_over(home: Path) -> list[str]:
    """Command lines of processes that name the show's home."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if any(str(home).encode() in word for word in words):
            found.append(b" ".join(words).decode(errors="replace"))
    return found


def show(home: Path, *words: str, timeout_s: float) -> dict[str, Any]:
    """Runs the show; returns its report, once it showed what it is to show and left no process."""
    command = [PROGRAM, "--home", str(home), "demo", "--loop", "--json", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
    assert done.returncode == 0, done.stderr[-6_000:]
    assert left_over(home) == []
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["shelf"]["after"] >= 0.9
    assert report["shelf"]["low"] > 0.3
    assert report["table"]["gain"] >= -0.05
    assert report["corrections"] >= 54
    assert report["fixed_s"] > 0.0
    assert report["bad_robots"] >= 1
    assert report["lost_s"] > 0.0
    return report


@pytest.mark.soak
@pytest.mark.timeout(1_800)
def test_three_arms_fail_are_shown_how_and_do_better_and_a_bad_release_comes_back(tmp_path: Path) -> None:
    show(tmp_path / "loop", "--arms", "3", "--starts", "40", timeout_s=1_700)


@pytest.mark.soak
@pytest.mark.timeout(3_000)
def test_twenty_arms_do_so_too_and_commands_of_the_page_run_in_what_they_leave(tmp_path: Path) -> None:
    home = tmp_path / "loop"
    show(home, timeout_s=2_500)
    (block,) = re.findall(r"\n\n((?:    (?:export|ms) .*\n)+)", PAGE.partition("## Afterwards")[2])
    script = block.replace("$PWD/.mainspring/demo", str(home)).replace("ms up\n", "ms up --port 0\n")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAINSPRING_")}
    environment |= {"PATH": path_with_ready_ms(), "COLUMNS": "200"}
    done = subprocess.run(
        ["bash", "-c", f"set -eux -o pipefail; trap 'ms down' EXIT\n{script}"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4_000:] + done.stdout[-2_000:]
    for words in ("arm-20", "went back", "intervention"):
        assert words in done.stdout


@pytest.mark.soak
@pytest.mark.timeout(1_800)
def test_interrupted_show_leaves_no_process(tmp_path: Path) -> None:
    home = tmp_path / "loop"
    command = [PROGRAM, "--home", str(home), "demo", "--loop", "--arms", "3"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("failures at the shelf"):
                break
        else:
            pytest.fail("it never came to the shelf")
        os.kill(process.pid, signal.SIGINT)
        process.stderr.read()
        assert process.wait(300.0) != 0
    assert left_over(home) == []
