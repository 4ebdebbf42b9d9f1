"""Clips of a robot come home to a real server: told, sent, read, labelled; killed in between."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from mainspring.app.sdk.lab import Lab
from mainspring.app.server.daemon import running
from mainspring.domain.answers import ClipCatalog, ClipsAsked, ClipWay
from mainspring.domain.codec import from_plain
from mainspring.domain.errors import InvalidInput, NotFound
from mainspring.robots.logs.calls import HttpClips
from mainspring.robots.logs.clips import Clips
from mainspring.robots.logs.rules import TriggerRule
from mainspring.robots.logs.sending import IDLE_S, Sender
from mainspring.testing import FakeClock
from tests.app.conftest import until
from tests.app.test_cli_data import Shell
from tests.robots.logs.making import recorded, rules_of

pytestmark = pytest.mark.slow


def test_a_failure_comes_home_by_itself_through_a_killed_server_and_becomes_data(lab: Lab, tmp_path: Path) -> None:
    folder, rules = tmp_path / "robot", rules_of()
    recorded(folder, rules)
    server = lab.home.server()
    assert server is not None
    clips, clock = Clips(folder / "clips", rules), FakeClock()
    sender = Sender(folder, clips, HttpClips(server.url, lab.home.token()), rules, clock)
    assert sender.step() == 0.0
    (clip,) = clips.all()
    assert clip.told
    assert sender.step() == 0.0  # It knows where to begin.
    os.kill(server.pid, signal.SIGKILL)
    until(lambda: not running(server, lab.home), "the server to be gone")
    assert sender.step() > 0.0
    assert sender.problem
    lab.up()
    again = lab.home.server()
    assert again is not None
    sender = Sender(folder, clips, HttpClips(again.url, lab.home.token()), rules, clock)
    until(lambda: sender.step() == IDLE_S, "the clip to be sent")
    assert [clip.sent for clip in clips.all()] == [True]
    until(lambda: bool(lab.data.datasets()), "the clip to be read")
    (row,) = lab.data.episodes("pick", limit=5)
    assert (row.metadata["release"], row.metadata["ring"], row.metadata["trigger"]) == ("arm@3", "canary", "failed")
    (annotation,) = lab.data.annotations("pick")
    assert (annotation.label, annotation.author) == ("intervention", "ada")
    with lab.client() as client:
        (view,) = client.clips(robot="arm-1")
        assert (view.way, view.clip.id, view.dataset) == (ClipWay.HERE, clip.entry.id, "pick")
        assert client.clips(robot="arm-2") == client.clips(dataset="place") == ()


def test_people_list_clips_ask_for_one_and_have_it_sent(shared_lab: Lab, tmp_path: Path) -> None:
    folder, ms = tmp_path / "robot", Shell(shared_lab.home.path)
    recorded(folder, rules_of(robot="arm-9", triggers={"failed": TriggerRule(when="failure", send=False)}))
    rules = tmp_path / "rules.yaml"
    rules.write_text("robot: arm-9\ndataset: asked\n")
    assert "No robot told of a clip yet" in ms.data("clips", "--robot", "arm-9")
    words = ("send-clips", str(folder), "--rules", str(rules))
    assert "1 clips told of, 0 sent" in ms.data(*words)
    ((view,),) = (ms.json("clips", "--robot", "arm-9"),)
    assert (view["way"], view["clip"]["triggers"]) == ("robot", ["failed"])
    assert "1 asked for" in ms.data("ask", view["clip"]["id"][:8])
    assert ms.json("clips", "--dataset", "asked")[0]["way"] == "coming"
    assert "1 clips told of, 1 sent" in ms.data(*words)
    for id, kind in (("f" * 64, NotFound), ("zz", InvalidInput)):
        with shared_lab.client() as client, pytest.raises(kind):
            client.ask_clips(ClipsAsked(ids=(id,)))
    with pytest.raises(InvalidInput, match="recorder"):
        ms.data("send-clips", str(tmp_path), "--rules", str(rules))


def test_clips_that_cannot_be_are_refused_at_the_door(shared_lab: Lab, tmp_path: Path) -> None:
    folder = tmp_path / "robot"
    (clip,) = recorded(folder, rules_of()).clips.all()
    told = json.loads((folder / "clips" / clip.entry.name).with_suffix(".json").read_text())
    with shared_lab.client() as client:
        for wrong in (
            {"id": "../x"},
            {"name": "../../x.mcap"},
            {"size_bytes": 0},
            {"robot": "A B"},
            {"begun_ns": 5, "ended_ns": 4},
            {"task": "x" * 1_000},
        ):
            with pytest.raises(InvalidInput):
                client.tell_clips("pick", from_plain(ClipCatalog, {"clips": [{**told, **wrong}]}))
        assert client.clips(robot="arm-1") == ()
