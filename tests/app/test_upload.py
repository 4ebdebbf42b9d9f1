"""Recordings sent to a real server: broken off, repeated, damaged; each arrives whole and takes effect once."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from mainspring.app.base.client import Client
from mainspring.app.base.system import SystemClock
from mainspring.app.sdk.lab import Lab
from mainspring.app.server.arrivals import RECORDING_BYTES_MIN, REFUSED, Inboxes
from mainspring.app.server.daemon import running
from mainspring.app.server.programs.take_in import ABANDONED_S, take_in
from mainspring.control.api_arrivals import PIECE_BYTES
from mainspring.domain.answers import RecordingClaim, Standing
from mainspring.domain.errors import DamagedData, InvalidInput, LimitReached, MainspringError, NotAllowed
from mainspring.domain.job import LAB
from mainspring.objects import Blob, blob_of_file, open_store
from mainspring.testing import FakeClock
from tests.app.conftest import until
from tests.data.making import record

WAIT_S = 60.0
LONG = 20_000  # Steps: over two pieces of what a server keeps of a broken request.
RECIPE = """
rate_hz: 20
columns:
  state: [{topic: /observation/state, field: values, tolerance_ms: 25}]
  action: [{topic: TOPIC, field: values, tolerance_ms: 25}]
task: {text: pick}
"""


def _send_part(lab: Lab, path: Path, count: int, *, then: Callable[[], None]) -> None:
    """Begins to send a whole recording and breaks the connection after some bytes."""
    server = lab.home.server()
    assert server is not None
    blob = blob_of_file(path)
    host, _, port = server.url.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=120) as connection:
        connection.sendall(
            f"PUT /v1/datasets/pick/arrivals/{path.name}?id={blob.id}&size={blob.size_bytes}&offset=0 HTTP/1.1\r\n"
            f"Host: {host}\r\nAuthorization: Bearer {lab.home.token()}\r\n"
            f"Content-Length: {blob.size_bytes}\r\n\r\n".encode()
        )
        connection.sendall(path.read_bytes()[:count])
        then()


def _said(blob: Blob) -> dict[str, Any]:
    return {"id": blob.id, "size": blob.size_bytes}


def _here(lab: Lab, path: Path) -> int:
    with lab.client() as client:
        return client.arrival("pick", path.name, **_said(blob_of_file(path))).offset


@pytest.mark.slow
def test_upload_cut_in_the_middle_goes_on_where_it_was_and_takes_effect_once(lab: Lab, tmp_path: Path) -> None:
    path = record(tmp_path / "one.mcap", steps=LONG)
    half = path.stat().st_size // 2
    assert half > PIECE_BYTES
    _send_part(lab, path, half, then=lambda: until(lambda: _here(lab, path) > 0, "the first piece to be kept"))
    sent: list[int] = []
    assert lab.data.upload(path, "pick", progress=sent.append).standing is not Standing.ARRIVING
    assert PIECE_BYTES <= sent[0] <= half
    assert lab.data.upload(path, "pick", wait_s=WAIT_S).standing is Standing.TAKEN
    (version,) = lab.data.history("pick")
    assert version.episodes == 1
    assert lab.data.upload(path, "pick").standing is Standing.TAKEN
    assert len(lab.data.history("pick")) == 1
    assert not [file for file in (lab.home.arrivals / "pick").iterdir() if not file.name.startswith(".")]


@pytest.mark.slow
def test_upload_survives_the_death_of_the_server(lab: Lab, tmp_path: Path) -> None:
    path = record(tmp_path / "two.mcap", steps=LONG)

    def kill_it() -> None:
        until(lambda: _here(lab, path) > 0, "the first piece to be kept")
        server = lab.home.server()
        assert server is not None
        os.kill(server.pid, signal.SIGKILL)
        until(lambda: not running(server, lab.home), "the server to be gone")

    _send_part(lab, path, path.stat().st_size - 1, then=kill_it)
    lab.up()
    sent: list[int] = []
    assert lab.data.upload(path, "pick", wait_s=WAIT_S, progress=sent.append).standing is Standing.TAKEN
    assert sent[0] >= PIECE_BYTES
    assert [version.episodes for version in lab.data.history("pick")] == [1]


@pytest.mark.slow
def test_damaged_recording_is_refused_with_its_reason_and_kept_for_people(lab: Lab, tmp_path: Path) -> None:
    path = tmp_path / "noise.mcap"
    path.write_bytes(bytes(range(256)) * 40)
    view = lab.data.upload(path, "pick", wait_s=WAIT_S)
    assert view.standing is Standing.REFUSED
    assert "MCAP" in view.reason
    (kept,) = (lab.home.arrivals / "pick" / REFUSED).iterdir()
    assert kept.read_bytes() == path.read_bytes()
    assert lab.data.datasets() == ()
    assert [(line.action, line.target) for line in lab.audit(newest=True, limit=1)] == [
        ("send a recording", "noise.mcap to pick")
    ]


@pytest.mark.slow
def test_only_members_send_and_only_what_they_said(lab: Lab, tmp_path: Path) -> None:
    path = record(tmp_path / "one.mcap")
    blob = blob_of_file(path)
    server = lab.home.server()
    assert server is not None
    with Client(server.url, "guess") as stranger, pytest.raises(NotAllowed):
        stranger.arrival("pick", path.name, **_said(blob))
    with lab.client() as client:
        with pytest.raises(DamagedData, match="from the beginning"):
            client.send("pick", path.name, iter([bytes(blob.size_bytes)]), **_said(blob))
        with pytest.raises(InvalidInput, match="within"):
            client.send("pick", path.name, iter([bytes(blob.size_bytes + 1)]), **_said(blob))
        with pytest.raises(MainspringError):
            client.arrival("pick", "..", **_said(blob))
        with pytest.raises(InvalidInput, match="ending in"):
            client.arrival("pick", "passwd", **_said(blob))
        with pytest.raises(InvalidInput):
            client.arrival("No such name", path.name, **_said(blob))
        huge = Blob(id=blob.id, size_bytes=1 << 50)
        with pytest.raises(InvalidInput, match="bytes"):
            client.send("pick", path.name, iter([b""]), **_said(huge))
        assert client.arrival("pick", path.name, **_said(blob)).offset == 0
        headers = {"Authorization": f"Bearer {lab.home.token()}"}
        answer = httpx.put(f"{server.url}/v1/datasets/pick/arrivals/{path.name}?id=../x&size=1", headers=headers)
        assert answer.status_code == 400


@pytest.mark.slow
def test_recordings_refused_by_a_recipe_are_read_again_by_the_next(lab: Lab, tmp_path: Path) -> None:
    path, recipe = record(tmp_path / "one.mcap"), tmp_path / "recipe.yaml"
    recipe.write_text("rate_hz: fast")
    with pytest.raises(InvalidInput, match="rate_hz"):
        lab.data.send_recipe(recipe, "pick")
    recipe.write_text(RECIPE.replace("TOPIC", "/actoin"))
    lab.data.send_recipe(recipe, "pick")
    view = lab.data.upload(path, "pick", wait_s=WAIT_S)
    assert view.standing is Standing.REFUSED
    assert "/action" in view.reason
    recipe.write_text(RECIPE.replace("TOPIC", "/action"))
    lab.data.send_recipe(recipe, "pick")
    assert lab.data.upload(path, "pick", wait_s=WAIT_S).standing is Standing.TAKEN
    assert lab.data.version("pick").features.names("action") != ()


def test_recording_counts_as_its_senders_from_before_its_first_byte_until_it_is_in_a_dataset(tmp_path: Path) -> None:
    inboxes, clock = Inboxes(tmp_path / "arrivals"), FakeClock()
    clock.advance(SystemClock().now_s() - clock.now_s())
    taken, refused, abandoned = (tmp_path / f"{name}.mcap" for name in ("taken", "refused", "abandoned"))
    for path in (taken, abandoned):
        record(path, seed=len(path.name))
    refused.write_bytes(bytes(range(256)) * 40)
    told: list[tuple[int, int]] = []

    def claim(path: Path, size_bytes: int = 1) -> None:
        one = RecordingClaim(holder="ada", team=LAB, size_bytes=size_bytes)
        inboxes.claim("pick", path.name, blob_of_file(path), one, lambda all, more: told.append((len(all), more)))

    def full(_: object, more: int) -> None:
        raise LimitReached("send a recording", got=str(more))

    for path in (taken, taken, refused, abandoned):
        claim(path, RECORDING_BYTES_MIN + 1)
    assert told == [(number, RECORDING_BYTES_MIN + 1) for number in range(3)]
    one = RecordingClaim(holder="ada", team=LAB, size_bytes=1)
    with pytest.raises(LimitReached, match=str(RECORDING_BYTES_MIN)):
        inboxes.claim("pick", "other.mcap", Blob(id="0" * 64, size_bytes=1), one, full)
    for path in (taken, refused):
        inboxes.append("pick", path.name, blob_of_file(path), 0, path.read_bytes())
    store = open_store(f"file://{tmp_path / 'objects'}")
    list(take_in(inboxes.folder / "pick", store, clock))
    assert len(inboxes.claimed()) == 2  # What was refused lies there, and the last may still come.
    clock.advance(ABANDONED_S + 1.0)
    list(take_in(inboxes.folder / "pick", store, clock))
    assert len(inboxes.claimed()) == 1
    claim(taken)
    assert len(told) == 3  # Whole and taken: it is nobody's any more.
    assert len(Inboxes(inboxes.folder).claimed()) == 1


def test_reading_an_inbox_that_was_left_in_the_middle_has_the_same_effect(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "home")
    inboxes = Inboxes(tmp_path / "arrivals")
    paths = [record(tmp_path / f"{seed}.mcap", seed=seed) for seed in range(3)]

    def arrive() -> None:
        for path in paths:
            blob = blob_of_file(path)
            inboxes.append("pick", path.name, blob, 0, path.read_bytes())

    def waiting() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in inbox.iterdir() if not path.name.startswith(".")}

    inbox = tmp_path / "arrivals" / "pick"
    arrive()
    before = waiting()
    assert len(before) == 3
    (report,) = take_in(inbox, lab.objects(), SystemClock())
    assert (report.added, report.refused) == (3, 0)
    assert waiting() == {}
    for name, content in before.items():  # As if it had been killed before it could tidy up.
        (inbox / name).write_bytes(content)
    (again,) = take_in(inbox, lab.objects(), SystemClock())
    assert (again.added, again.known) == (0, 3)
    assert len(lab.data.history("pick")) == 1
    arrive()
    assert waiting() == {}


def test_episodes_that_a_gate_keeps_back_wait_as_a_candidate_and_their_files_are_kept(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "home")
    inboxes = Inboxes(tmp_path / "arrivals")
    inbox = tmp_path / "arrivals" / "pick"

    def send(path: Path) -> Standing:
        blob = blob_of_file(path)
        inboxes.append("pick", path.name, blob, 0, path.read_bytes())
        list(take_in(inbox, lab.objects(), SystemClock()))
        return inboxes.view("pick", path.name, blob).standing

    assert send(record(tmp_path / "good.mcap", steps=1_200)) is Standing.TAKEN
    odd = record(tmp_path / "odd.mcap", steps=1_200, seed=1, scale=50.0)
    assert send(odd) is Standing.REFUSED
    (candidate,) = lab.data.candidates("pick")
    reason = inboxes.view("pick", odd.name, blob_of_file(odd)).reason
    assert f"ms data publish pick {candidate.id}" in reason
    assert len(lab.data.history("pick")) == 1
