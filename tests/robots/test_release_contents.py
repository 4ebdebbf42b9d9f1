"""What a release of a checkpoint holds: equal weights are equal files, gates are asked by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load, save_file

from mainspring.checkpoint import open_checkpoint
from mainspring.checkpoint.exchange import import_source
from mainspring.checkpoint.safetensors import SafetensorsSource
from mainspring.domain.answers.policies.releases import (
    CameraPort,
    Embodiment,
    GateStanding,
    ReleaseFile,
    ReleaseReference,
    RobotChannel,
    artifact_key,
)
from mainspring.domain.errors import InvalidInput
from mainspring.domain.ids import JobId
from mainspring.objects import ObjectStore, open_store
from mainspring.robots.evaluation.keeping import keep_gate
from mainspring.robots.evaluation.report import GateRecord
from mainspring.robots.evaluation.statistics import GateVerdict
from mainspring.robots.releases.contents import ReleaseContents, gates_seen, make_contents

VLA = JobId("vla")


def adapted(folder: Path, store: ObjectStore, step: int) -> None:
    """A checkpoint whose base is the same at every step, and whose adapters are not."""
    base, thin = np.random.default_rng(0), np.random.default_rng(step)
    arrays = {f"weights/{layer}/w": base.normal(size=(64, 64)).astype(np.float32) for layer in range(4)}
    arrays |= {f"adapters/{layer}/a": thin.normal(size=(64, 2)).astype(np.float32) for layer in range(4)}
    arrays["optimizer/mu"] = thin.normal(size=(64, 64)).astype(np.float32)
    save_file(arrays, folder / f"{step}.safetensors")
    import_source(store, SafetensorsSource(folder / f"{step}.safetensors"), job=VLA, step=step, now_s=0.0)


def contents(folder: Path, store: ObjectStore, step: int, dtype: str = "") -> ReleaseContents:
    return make_contents(store, open_checkpoint(store, VLA, step), dtype=dtype, cache=folder / "cache")


def test_release_of_adapters_alone_moves_adapters_alone(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/objects")
    for step in (1, 2):
        adapted(tmp_path, store, step)
    first, second = contents(tmp_path, store, 1), contents(tmp_path, store, 2)
    base_bytes, thin_bytes = 4 * 64 * 64 * 4, 4 * 64 * 2 * 4
    assert first.moved_bytes >= base_bytes + thin_bytes
    assert thin_bytes <= second.moved_bytes < base_bytes / 8  # And its lineage, and a header.
    assert not any("optimizer" in file.path for file in second.files)
    assert contents(tmp_path, store, 2).moved_bytes == 0


def test_weights_are_released_in_the_type_that_was_asked(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/objects")
    adapted(tmp_path, store, 1)
    made = contents(tmp_path, store, 1, "float16")
    file = next(file for file in made.files if file.path.startswith("weights/weights/"))
    arrays = load(store.get(artifact_key(file.sha256)))
    wanted = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32).astype(np.float16)
    np.testing.assert_array_equal(arrays["weights/0/w"], wanted)
    with pytest.raises(InvalidInput, match="int4"):
        contents(tmp_path, store, 1, "int4")


def test_gates_that_nobody_asked_are_undecided_and_waived_by_name(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/objects")
    (unasked,) = gates_seen(store, VLA, 1, (), {})
    assert (unasked.name, unasked.standing) == ("evaluation", GateStanding.UNDECIDED)
    gate = GateRecord(
        checkpoint="vla@1",
        name="pick",
        verdict=GateVerdict.FAILED,
        wanted="",
        seen="0.2",
        evaluation="e",
        decided_s=0.0,
    )
    keep_gate(store, VLA, 1, gate)
    (kept,) = gates_seen(store, VLA, 1, (), {"pick": "a demo"})
    assert (kept.standing, kept.waived) == (GateStanding.FAILED, "a demo")
    assert [gate.standing for gate in gates_seen(store, VLA, 1, ("place",), {})] == [GateStanding.UNDECIDED]
    with pytest.raises(InvalidInput, match="place"):
        gates_seen(store, VLA, 1, (), {"place": "a demo"})


def test_embodiment_tells_in_words_what_does_not_fit() -> None:
    wanted = Embodiment(
        state=(RobotChannel(name="hand", unit="m"),),
        rate_hz=50,
        cameras=(CameraPort(name="wrist", width=640, height=480),),
    )
    assert wanted.mismatches(wanted) == ()
    robot = Embodiment(state=(RobotChannel(name="hand", unit="mm"),), rate_hz=30, controller="2")
    assert [words.partition(":")[0] for words in wanted.mismatches(robot)] == ["state 0", "rate", "cameras"]
    unsaid = Embodiment(state=(RobotChannel(name="hand"),), cameras=wanted.cameras)
    assert wanted.mismatches(unsaid) == ()
    swapped = Embodiment(action=(RobotChannel(name="a"), RobotChannel(name="b")))
    assert swapped.mismatches(Embodiment(action=(RobotChannel(name="b"), RobotChannel(name="a"))))


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../up", "a/../b", "a//b", ".hidden", "a" * 300, "a\nb"])
def test_file_that_would_leave_its_folder_is_refused(path: str) -> None:
    with pytest.raises(InvalidInput):
        ReleaseFile(path=path, sha256="0" * 64, size_bytes=1)


@pytest.mark.parametrize("text", ["arm@", "arm@x", "@1", "arm@1@2", "arm@-1"])
def test_name_that_is_no_release_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        ReleaseReference.read(text)
