from __future__ import annotations

import json
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from blake3 import blake3
from tests.robots.logs.making import BASE, SECOND, rules_of

from mainspring.domain.answers import ArrivalView, ClipCatalog, ClipEntry, ClipsAsked, Standing
from mainspring.domain.codec import encode
from mainspring.domain.errors import Conflict, DamagedData, InvalidInput, MainspringError, Unavailable
from mainspring.domain.job import Tier
from mainspring.robots.logs.calls import HttpClips
from mainspring.robots.logs.clips import Clips
from mainspring.robots.logs.recorder import LogRecorder
from mainspring.robots.logs.rules import LogRules, TriggerRule
from mainspring.robots.logs.sending import IDLE_S, LOOK_S, PIECE_BYTES, Sender
from mainspring.testing import FakeClock

pytestmark = pytest.mark.slow  # Each records to a disk first.
PIECE = 4_000  # What the server below takes of one request.


class KeepingServer:
    """Keeps what it is sent, by content; breaks off, or answers with an error, whenever a test says so."""

    def __init__(self) -> None:
        self.files: dict[str, bytearray] = {}
        self.told: dict[str, ClipEntry] = {}
        self.asked: set[str] = set()
        self.order: list[str] = []
        self.fails: Callable[[], MainspringError | None] = lambda: None

    def tell(self, dataset: str, catalog: ClipCatalog) -> ClipsAsked:
        self._fail()
        self.told |= {clip.id: clip for clip in catalog.clips}
        return ClipsAsked(ids=tuple(clip.id for clip in catalog.clips if clip.id in self.asked))

    def look(self, dataset: str, clip: ClipEntry) -> ArrivalView:
        self._fail()
        return self._view(clip)

    def send(self, dataset: str, clip: ClipEntry, offset: int, piece: bytes) -> ArrivalView:
        held = self.files.setdefault(clip.id, bytearray())
        if offset != len(held):
            raise Conflict("receive", got=f"{offset}", wanted=f"{len(held)}")
        held += piece[:PIECE]
        self._fail()
        if len(held) == clip.size_bytes and blake3(held).hexdigest() != clip.id:
            held.clear()
            raise DamagedData("receive", on=clip.name)
        return self._view(clip)

    def _fail(self) -> None:
        if (error := self.fails()) is not None:
            raise error

    def _view(self, clip: ClipEntry) -> ArrivalView:
        here = len(self.files.get(clip.id, b""))
        whole = here == clip.size_bytes
        if whole and clip.id not in self.order:
            self.order.append(clip.id)
        return ArrivalView(standing=Standing.ARRIVED if whole else Standing.ARRIVING, offset=here)


class Robot:
    """A robot with a clip of each priority, sender and server."""

    def __init__(self, folder: Path, **more: Any) -> None:
        kinds = {"a": Tier.OPPORTUNISTIC, "b": Tier.CRITICAL, "c": Tier.STANDARD}
        values = tuple(kinds)
        triggers = {
            name: TriggerRule(when=f"{name} > 0", before_s=1.0, after_s=0.1, priority=tier, send=name != "c")
            for name, tier in kinds.items()
        }
        self.folder = folder
        self.rules: LogRules = rules_of(triggers=triggers, values=values, **more)
        recorder = LogRecorder(folder, self.rules)
        for turn, name in enumerate(kinds):
            at_ns = BASE + 10 * turn * SECOND
            for step in range(40):
                recorder.step(at_ns + step * SECOND // 20, [step * 0.1234567, turn], [0.0] * 50)
            recorder.tell(at_ns + 2 * SECOND, **{name: 1.0})
            recorder.tick(at_ns + 3 * SECOND)
        recorder.close()
        self.server, self.clock = KeepingServer(), FakeClock()
        self.sender = self.started()

    def started(self) -> Sender:
        self.clips = Clips(self.folder / "clips", self.rules)
        return Sender(self.folder, self.clips, self.server, self.rules, self.clock)

    def run(self, steps: int = 500) -> None:
        """Steps until nothing is left to do."""
        for _ in range(steps):
            wait_s = self.sender.step()
            if wait_s == IDLE_S:
                return
            self.clock.advance(wait_s)
        raise AssertionError(self.sender.problem)

    def arrived(self) -> list[str]:
        """Returns the triggers of what arrived, in that order."""
        return [self.server.told[id].triggers[0] for id in self.server.order]


def test_the_catalog_goes_first_then_the_most_urgent_and_the_rest_when_it_is_asked_for(tmp_path: Path) -> None:
    robot = Robot(tmp_path)
    robot.sender.step()
    assert len(robot.server.told) == 3
    assert not robot.server.files
    robot.run()
    assert robot.arrived() == ["b", "a"]
    robot.server.asked = {id for id, clip in robot.server.told.items() if clip.triggers == ("c",)}
    robot.run()
    assert robot.arrived() == ["b", "a"]
    robot.clock.advance(LOOK_S)
    robot.run()
    assert robot.arrived() == ["b", "a", "c"]
    for clip in robot.clips.all():
        assert bytes(robot.server.files[clip.entry.id]) == robot.clips.path(clip).read_bytes()


def test_whatever_breaks_off_is_gone_on_with_and_nothing_is_lost(tmp_path: Path) -> None:
    robot = Robot(tmp_path)
    calls = iter(range(10_000))
    robot.server.fails = lambda: Unavailable("answer") if next(calls) % 3 else None
    for _ in range(400):
        robot.clock.advance(robot.sender.step())
        if next(calls) % 5 == 0:
            robot.sender = robot.started()  # The robot's power was gone.
    robot.server.fails = lambda: None
    robot.run()
    assert sorted(robot.arrived()) == ["a", "b"]


def test_a_budget_holds_over_restarts_and_lets_the_next_day_begin_anew(tmp_path: Path) -> None:
    robot = Robot(tmp_path, day_mib={Tier.CRITICAL: 100, Tier.OPPORTUNISTIC: 0})
    day = int(robot.clock.now_s() // 86_400)
    (tmp_path / "spent.json").write_text(json.dumps({"day": day, "size_bytes": {"opportunistic": 1}}))
    robot.sender = robot.started()
    robot.run()
    assert robot.arrived() == ["b"]
    robot.clock.advance(86_400)
    robot.run()
    assert robot.arrived() == ["b", "a"]


def test_a_clip_that_the_disk_changed_is_given_up_and_others_go_on(tmp_path: Path) -> None:
    robot = Robot(tmp_path)
    (clip,) = [clip for clip in robot.clips.all() if clip.entry.triggers == ("b",)]
    whole = robot.clips.path(clip).read_bytes()
    robot.clips.path(clip).write_bytes(whole[:-1] + b"?")
    robot.run()
    assert robot.arrived() == ["a"]


def test_clips_that_made_room_meanwhile_are_passed_over(tmp_path: Path) -> None:
    robot = Robot(tmp_path)
    robot.sender.step()
    robot.sender.step()
    for path in (tmp_path / "clips").glob("*.mcap"):
        path.unlink()
    robot.run()
    assert robot.arrived() == []


def test_a_server_that_hung_up_on_who_said_nothing_is_called_anew(tmp_path: Path) -> None:
    told = encode(ArrivalView(standing=Standing.ARRIVING, offset=7))
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(told), told)
    clip = Robot(tmp_path).clips.all()[0].entry
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = HttpClips(f"http://127.0.0.1:{listener.getsockname()[1]}", "secret")

        def serve() -> None:
            for _ in range(2):  # Each connection is good for one call, of which the first does not say so.
                line, _ = listener.accept()
                with line:
                    assert line.recv(65_536)
                    line.sendall(answer)
            line, _ = listener.accept()
            line.close()  # Who is not even heard once is told.

        serving = Thread(target=serve, daemon=True)
        serving.start()
        assert [server.look("pick", clip).offset for _ in range(2)] == [7, 7]
        with pytest.raises(Unavailable):
            server.look("pick", clip)
        serving.join(60)


def test_addresses_that_are_none_are_refused() -> None:
    for url in ("", "ftp://x", "https://", "lab.example"):
        with pytest.raises(InvalidInput, match="HOST"):
            HttpClips(url, "secret")
    assert PIECE_BYTES > PIECE
    assert replace(rules_of(), robot="x").robot == "x"
