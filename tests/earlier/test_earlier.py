"""What an earlier version left behind is read by this one: frames, a home with its jobs, a checkpoint, a dataset."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.earlier.make import PRODUCER, batch_hash, frame_of, messages
from typer.testing import CliRunner

from mainspring.app.cli.main import app
from mainspring.app.sdk.lab import Lab
from mainspring.checkpoint import load
from mainspring.domain.codec import unframe
from mainspring.domain.ids import JobId
from mainspring.domain.life import JobState

HERE = Path(__file__).parent
STATES = {"trained": "succeeded", "failed": "failed", "running": "running", "queued": "queued"}
FRAMES = {json.loads(line)["type"]: line for line in (HERE / "frames.jsonl").read_text().splitlines()}


def holds(now: Any, then: Any) -> bool:
    """Returns whether all that was said then is said now; fields may have been added, and their order is nothing."""
    if isinstance(then, dict):
        return isinstance(now, dict) and all(name in now and holds(now[name], part) for name, part in then.items())
    if isinstance(then, list):
        return isinstance(now, list) and len(now) == len(then) and all(map(holds, now, then))
    return type(now) is type(then) and bool(now == then)


@pytest.mark.parametrize("name", sorted(FRAMES))
def test_frame_of_an_earlier_version_is_read_and_written_as_it_was(name: str) -> None:
    message = unframe(FRAMES[name].encode(), type(messages()[name]))
    assert holds(json.loads(frame_of(message)), json.loads(FRAMES[name]))


def test_frames_stay_as_they_were_whatever_their_classes_are_called() -> None:
    for name, message in messages().items():
        kind, frame = type(message), frame_of(message)
        was, kind.__name__ = kind.__name__, "Renamed"
        try:
            assert frame_of(message) == frame
            assert unframe(frame.encode(), kind) == message
            assert json.loads(frame)["type"] == name
        finally:
            kind.__name__ = was


class Left:
    """What an earlier version left, and `ms` in its home."""

    def __init__(self, folder: Path) -> None:
        with tarfile.open(HERE / "home.tar.xz") as archive:
            archive.extractall(folder, filter="data")
        self.folder, self.home = folder, folder / "home"
        self.facts: dict[str, Any] = json.loads((folder / "facts.json").read_text())
        self.lab = Lab(self.home)

    def ms(self, *words: str) -> str:
        """Returns what a command prints."""
        done = CliRunner().invoke(app, ["--home", str(self.home), *words], env={"COLUMNS": "400"})
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        assert done.exit_code == 0, done.output
        return done.stdout

    def json(self, *words: str) -> Any:
        """Returns what a command says to machines."""
        return json.loads(self.ms(*words, "--json"))


@pytest.fixture
def left(tmp_path: Path) -> Left:
    return Left(tmp_path)


@pytest.fixture
def lab(left: Left) -> Iterator[Lab]:
    left.lab.up()
    try:
        yield left.lab
    finally:
        left.lab.down()


@pytest.mark.slow
def test_home_of_an_earlier_version_shows_its_jobs_and_ends_those_that_wait(left: Left, lab: Lab) -> None:
    jobs = left.facts["jobs"]
    assert jobs["states"] == {jobs[name]: state for name, state in STATES.items()}
    for name in ("running", "queued"):
        ended = lab.wait(jobs[name], timeout_s=60)
        assert ended.state is JobState.SUCCEEDED, ended.reason
    assert "its turn has come" in left.ms("logs", jobs["queued"])
    assert "the end of rank 0" in left.ms("logs", jobs["trained"])
    shown = lab.status(jobs["trained"])
    assert (shown.state, shown.result, shown.step) == (JobState.SUCCEEDED, jobs["result"], 6)
    assert lab.status(jobs["failed"]).state is JobState.FAILED
    assert "about to fail" in left.ms("status", jobs["failed"])
    told = " ".join(word for name in STATES for word in left.ms("status", jobs[name]).split())
    assert [line for line in jobs["events"] if line not in told] == []
    assert len(jobs["events"]) > 20
    assert {view["spec"]["name"] for view in left.json("ps")} == set(STATES)
    assert set(left.json("goodput")["teams"]) == {"lab", "vision"}
    assert "vision" in left.ms("team", "ls")


@pytest.mark.slow
def test_checkpoint_of_an_earlier_version_is_verified_and_loaded(left: Left, tmp_path: Path) -> None:
    job = JobId(left.facts["jobs"]["trained"])
    loaded = load(left.lab.objects(), job)
    kernel = np.concatenate([np.arange(6.0).reshape(2, 3) * 6 + rank for rank in range(2)])
    assert loaded.step == 6
    assert loaded.state["who"] == "earlier"
    np.testing.assert_array_equal(loaded.arrays["params/kernel"], kernel)
    np.testing.assert_array_equal(loaded.arrays["params/bias"], np.full(5, 6, dtype=np.float32))
    left.ms("checkpoint", "verify", job)
    left.ms("checkpoint", "export", job, str(tmp_path / "out.safetensors"), "--format", "safetensors")
    left.ms("checkpoint", "import", str(tmp_path / "out.safetensors"), "--job", "again")
    again = load(left.lab.objects(), JobId("again"))
    np.testing.assert_array_equal(again.arrays["params/kernel"], kernel)


@pytest.mark.slow
def test_dataset_of_an_earlier_version_is_chosen_read_and_added_to(left: Left, tmp_path: Path) -> None:
    facts = left.facts["data"]
    assert left.json("data", "show", "stack")["version"]["id"] == facts["version"]
    assert left.json("data", "select", "stack", "--where", "frames > 20", "--as", "long")["episodes"] == 1
    assert batch_hash(f"file://{left.home}/objects", facts["view"], tmp_path / "cache") == facts["batch"]
    left.ms("data", "check", facts["view"])
    assert "a baseline" in left.ms("data", "show", "stack")
    assert {link["kind"] for link in left.json("data", "lineage", "stack")["descendants"]} >= {
        "version",
        "view",
        "layer",
    }

    producer = tmp_path / "motion.py"
    producer.write_text(PRODUCER)
    layer = left.json("data", "layer", "stack", f"{producer}:motion")
    assert (layer["layer"], layer["made"], layer["held"]) == (facts["layer"]["layer"], 0, 2)

    report = left.json("data", "ingest", str(left.folder / "source"), "--dataset", "stack")
    assert (report["added"], report["known"], report["refused"]) == (1, 2, 0)
