"""The readers that others use read what goes out: LeRobot's dataset classes, TFDS, Rerun."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.data.export import readers
from tests.data.export.making import go_out, in_order, logged
from tests.data.making import CAMERA, version_of, write_lerobot_v2
from tests.data.video.making import number_of, stamped, write_movie

from mainspring.data.catalog.log import Version
from mainspring.data.layers.episode import read_recorded
from mainspring.objects import ObjectStore, open_store

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3_600)]
LENGTHS = [40, 25, 31]
SIDE = 64
VIDEO_V2 = "videos/chunk-000/observation.images.front/episode_{:06d}.mp4"
LEROBOT = """
import json, sys
import numpy as np
from lerobot.datasets.lerobot_dataset import LeRobotDataset
found = LeRobotDataset("somebody/something", root=sys.argv[1], video_backend="pyav")
rows = [found[place] for place in range(len(found))]
keys = [key for key in rows[0] if hasattr(rows[0][key], "numpy")]
np.savez(sys.argv[2], **{key: np.stack([row[key].numpy() for row in rows]) for key in keys})
stats = {key: np.asarray(one["mean"]).tolist() for key, one in found.meta.stats.items()}
print(json.dumps({"tasks": [row["task"] for row in rows], "fps": found.fps, "stats": stats}))
"""
TFDS = """
import json, sys
import numpy as np
import tensorflow_datasets as tfds
builder = tfds.builder_from_directory(sys.argv[1])
kept, said = {}, []
for number, episode in enumerate(builder.as_dataset(split="train")):
    steps = list(episode["steps"])
    for key in ("action", "time_ns", "is_last"):
        kept[f"{number} {key}"] = np.stack([step[key].numpy() for step in steps])
    for key in steps[0]["observation"]:
        kept[f"{number} {key}"] = np.stack([step["observation"][key].numpy() for step in steps])
    facts = (steps[0]["language_instruction"], episode["episode_metadata"]["success"])
    said.append([fact.numpy().decode() for fact in facts])
np.savez(sys.argv[2], **kept)
print(json.dumps({"said": said, "examples": builder.info.splits["train"].num_examples}))
"""
EXPORT = """
import sys
from pathlib import Path
from tests.data.export.making import go_out
from mainspring.data.catalog.log import resolve
from mainspring.objects import open_store
store = open_store(sys.argv[1])
print(go_out(store, resolve(store, "pick"), "rerun", Path(sys.argv[2])).files)
"""


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path / "store"))


@pytest.fixture
def version(store: ObjectStore, tmp_path: Path) -> Version:
    source = write_lerobot_v2(tmp_path / "source", LENGTHS, video=True)
    info = source / "meta" / "info.json"
    plain = json.loads(info.read_text())
    plain["features"][CAMERA]["shape"] = [SIDE, SIDE, 3]
    info.write_text(json.dumps(plain))
    for episode, length in enumerate(LENGTHS):
        pictures = [stamped(100 * episode + frame, height=SIDE, width=SIDE) for frame in range(length)]
        write_movie(source / VIDEO_V2.format(episode), pictures)
    return version_of(store, source)


@pytest.mark.parametrize("to", ["lerobot-v3", "lerobot-v2.1"])
def test_lerobot_s_own_class_reads_each_step_with_its_picture(
    store: ObjectStore, version: Version, tmp_path: Path, to: str
) -> None:
    newer = readers.environment("lerobot-0.4.4", readers.TORCH, readers.LEROBOT_044, ("--no-deps", "lerobot==0.4.4"))
    python = newer
    if to == "lerobot-v2.1":
        older = (readers.LEROBOT_033, ("--no-deps", "lerobot==0.3.3"))
        python = readers.environment("lerobot-0.3.3", *older, beneath=newer)
    assert go_out(store, version, to, tmp_path / "out").again == 0
    home = {"HF_HOME": str(tmp_path / "hub"), "HF_LEROBOT_HOME": str(tmp_path / "lerobot")}
    said = json.loads(readers.run(python, LEROBOT, tmp_path / "out", tmp_path / "rows.npz", **home).splitlines()[-1])
    with np.load(tmp_path / "rows.npz") as rows:
        found = dict(rows)
    assert said["tasks"] == ["stack"] * sum(LENGTHS)
    assert said["fps"] == 20
    assert np.shape(said["stats"][CAMERA]) == (3, 1, 1)
    place = 0
    for episode, row in enumerate(in_order(store, version)):
        here = slice(place, place + row.frames)
        place = here.stop
        columns = read_recorded(store, row, (), tmp_path / "local").columns
        assert np.array_equal(found["observation.state"][here], columns["state"])
        assert np.array_equal(found["action"][here], columns["action"])
        assert found["episode_index"][here].tolist() == [episode] * row.frames
        pictures = (found[CAMERA][here] * 255).round().astype(np.uint8).transpose(0, 2, 3, 1)
        assert [number_of(one) for one in pictures] == [100 * episode + frame for frame in range(row.frames)]


def test_tfds_reads_steps_pictures_and_facts(store: ObjectStore, tmp_path: Path) -> None:
    python = readers.environment("tfds", readers.TFDS)
    version = logged(store, tmp_path)
    go_out(store, version, "rlds", tmp_path / "out")
    said = json.loads(readers.run(python, TFDS, tmp_path / "out", tmp_path / "steps.npz").splitlines()[-1])
    assert said == {"said": [["reach ☂", "true"]], "examples": 1}
    (row,) = in_order(store, version)
    read = read_recorded(store, row, (), tmp_path / "local")
    with np.load(tmp_path / "steps.npz") as steps:
        assert np.array_equal(steps["0 time_ns"], read.time_ns)
        assert np.array_equal(steps["0 state"], read.columns["state"])  # Doubles, to the last bit.
        assert np.array_equal(steps["0 action"], read.columns["action"])
        assert steps["0 is_last"].tolist() == [False] * (row.frames - 1) + [True]
        assert np.array_equal(steps["0 side"], np.stack(list(read.frames("side"))))
        assert steps["0 depth"].dtype == np.uint16
        assert steps["0 front"].shape == (row.frames, 32, 48, 3)


def test_rerun_opens_what_was_written_for_it(store: ObjectStore, tmp_path: Path) -> None:
    python = readers.environment("rerun", readers.RERUN)
    logged(store, tmp_path)
    (site,) = (python.parents[1] / "lib").glob("python*/site-packages")
    ours = os.pathsep.join([*sys.path, str(site / "rerun_sdk"), str(site)])  # Numbers and tables are then ours.
    assert (
        readers.run(Path(sys.executable), EXPORT, tmp_path / "store", tmp_path / "out", PYTHONPATH=ours).strip() == "1"
    )
    verify = "import subprocess, sys; sys.exit(subprocess.run([sys.argv[1], 'rrd', 'verify', sys.argv[2]]).returncode)"
    readers.run(python, verify, python.parent / "rerun", tmp_path / "out" / "episode_000000.rrd")
