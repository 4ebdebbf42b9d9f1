"""Zarr stores as diffusion policy and UMI write them, and as damage leaves them."""

from __future__ import annotations

import json
import shutil
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import imagecodecs.numcodecs
import numcodecs
import numpy as np
import pytest
import zarr
from tests.data.readers.pictures import pixels_of

from mainspring.data.episode import Episode
from mainspring.data.intake.ingest import ingest
from mainspring.data.options import IngestOptions
from mainspring.data.readers.episodes.zarr import ZarrRecording, is_zarr, zarr_recordings
from mainspring.domain.errors import DamagedData, InvalidInput, MainspringError
from mainspring.objects import open_store
from mainspring.testing.time_and_chance import FakeClock

ENDS = (10, 17, 25)
VALUES = np.random.default_rng(3)
PICTURES = VALUES.integers(0, 256, (25, 24, 32, 3), dtype=np.uint8)
ACTION = VALUES.normal(size=(25, 2)).astype(np.float32)


def push(path: Path, version: Any = 2, *, action: bool = True, images: Any = np.float32, **image: Any) -> Path:
    """A replay buffer of three episodes."""
    root: Any = zarr.open_group(str(path), mode="w", zarr_format=version)
    held: dict[str, Any] = {"data/state": np.arange(50.0).reshape(25, 2), "meta/episode_ends": np.array(ENDS)}
    held |= {"data/keypoint": np.zeros((25, 9, 2), np.float32) + 1, "data/action": ACTION} if action else {}
    for name, values in held.items():
        root.create_array(name, shape=values.shape, chunks=(4, *values.shape[1:]), dtype=values.dtype)[:] = values
    shape = {"shape": PICTURES.shape, "chunks": (3, 24, 32, 3), "dtype": images}
    root.create_array("data/img", **shape, **image)[:] = PICTURES
    return path


def grown(path: Path, array: str) -> Any:
    """One array of a store, to write to."""
    return zarr.open_group(str(path), mode="a")[array]


def zipped(folder: Path) -> Path:
    path = folder.parent / f"{folder.name}.zip"
    with zipfile.ZipFile(path, "w") as file:
        for inner in sorted(folder.rglob("*")):
            file.write(inner, inner.relative_to(folder))
    return path


def read(path: Path, folder: Path, number: int = 0, **options: Any) -> Episode:
    into = folder / f"read-{len(list(folder.iterdir()))}"
    into.mkdir()
    said = {"rate_hz": 10.0, **options}
    return list(zarr_recordings(path, path.name, IngestOptions(**said)))[number].read(into)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("as_zip", [False, True])
def test_replay_buffer_gives_its_episodes_exact(tmp_path: Path, version: int, as_zip: bool) -> None:
    path = push(tmp_path / "push.zarr", version)
    path = zipped(path) if as_zip else path
    assert is_zarr(path)
    assert [one.name.rpartition("/")[2] for one in zarr_recordings(path, "p")] == [f"episode_{n:06d}" for n in range(3)]
    episode = read(path, tmp_path, 1)
    assert np.array_equal(episode.columns["action"], ACTION[10:17])
    assert episode.columns["state"][0].tolist() == [20.0, 21.0]
    assert episode.columns["keypoint"].shape == (7, 18)
    assert np.array_equal(pixels_of(episode.videos[0]), PICTURES[10:17])
    assert (episode.rate_hz, episode.note.split("; ")[1]) == (10.0, "10 Hz, as said by --rate")


def test_umi_store_in_jpeg_xl_has_a_state_and_no_action_until_asked(tmp_path: Path) -> None:
    imagecodecs.numcodecs.register_codecs(verbose=False)
    root: Any = zarr.open_group(str(tmp_path / "umi.zarr"), mode="w", zarr_format=2)
    parts = {"robot0_eef_rot_axis_angle": 3, "robot0_gripper_width": 1, "robot0_eef_pos": 3}
    for name, dims in parts.items():
        values = np.full((25, dims), dims, np.float32)
        root.create_array(f"data/{name}", shape=values.shape, chunks=(25, dims), dtype="f4")[:] = values
    root.create_array("meta/episode_ends", shape=(3,), chunks=(3,), dtype="i8")[:] = ENDS
    codec = imagecodecs.numcodecs.Jpegxl(lossless=True, level=99)
    camera = {"shape": PICTURES.shape, "chunks": (1, 24, 32, 3), "dtype": "u1", "compressors": codec}
    root.create_array("data/camera0_rgb", **camera)[:] = PICTURES
    path = zipped(tmp_path / "umi.zarr")
    episode = read(path, tmp_path, 2, rate_hz=60.0)
    assert episode.columns["state"][0].tolist() == [3, 3, 3, 3, 3, 3, 1]
    assert "state is robot0_eef_pos + robot0_eef_rot_axis_angle + robot0_gripper_width" in episode.note
    assert "there is no action" in episode.note
    assert np.array_equal(pixels_of(episode.videos[0]), PICTURES[17:])
    assert read(path, tmp_path, 2, action="next:state").columns["action"].shape == (8, 7)


def test_timestamps_of_the_buffer_are_the_times(tmp_path: Path) -> None:
    path = push(tmp_path / "real.zarr")
    root: Any = zarr.open_group(str(path), mode="a")
    times = 1.7e9 + np.arange(25) / 8
    root.create_array("data/timestamp", shape=(25,), chunks=(25,), dtype="f8")[:] = times
    episode = read(path, tmp_path, 1, rate_hz=None)
    assert episode.rate_hz == 8.0
    assert episode.time_ns[:2].tolist() == [1_700_000_001_250_000_000, 1_700_000_001_375_000_000]


def test_rate_nobody_says_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="--rate HZ"):
        read(push(tmp_path / "push.zarr"), tmp_path, rate_hz=None)


def test_pictures_of_fractions_are_refused_by_name(tmp_path: Path) -> None:
    path = push(tmp_path / "push.zarr")
    grown(path, "data/img")[12, 0, 0, 0] = 0.25
    with pytest.raises(InvalidInput, match=r"0\.25.*--without-camera img"):
        read(path, tmp_path, 1)
    assert read(path, tmp_path, 1, without_cameras=("img",)).videos == ()


def test_missing_pictures_are_counted_and_zeros_left_out_by_version_three_are_said(tmp_path: Path) -> None:
    path = push(tmp_path / "push.zarr", images=np.uint8)
    (path / "data/img/4.0.0.0").unlink()
    (loss,) = read(path, tmp_path, 1).losses
    assert (loss.subject, loss.lost, loss.total) == ("camera img", 3, 7)
    three = push(tmp_path / "three.zarr", 3)
    grown(three, "data/action")[8:16] = 0
    episode = read(three, tmp_path, 1)
    assert episode.losses == ()
    assert "6 of 7 steps of action are in no file" in episode.note


def test_rows_of_no_episode_and_ends_that_lie_are_named(tmp_path: Path) -> None:
    path = push(tmp_path / "push.zarr")
    ends = grown(path, "meta/episode_ends")
    ends[2] = 22
    assert "3 of 25 rows belong to no episode" in getattr(list(zarr_recordings(path, "push"))[-1], "reason", "")
    ends[:] = [10, 5, 25]
    with pytest.raises(DamagedData, match="ends that do not advance"):
        read(path, tmp_path)
    ends[:] = [10, 17, 1_000_000_000]
    with pytest.raises(DamagedData, match="do not advance"):
        read(path, tmp_path)


def test_array_whose_description_is_gone_is_not_passed_over(tmp_path: Path) -> None:
    path = push(tmp_path / "push.zarr")
    (path / "data/img/.zarray").unlink()
    for broken in (path, zipped(path)):
        with pytest.raises(DamagedData, match="data/img, which no description"):
            read(broken, tmp_path)


def test_pickles_are_not_opened(tmp_path: Path) -> None:
    path = push(tmp_path / "push.zarr")
    said = json.loads((path / "data/state/.zarray").read_text())
    said["filters"] = [numcodecs.Pickle().get_config()]
    (path / "data/state/.zarray").write_text(json.dumps(said))
    with pytest.raises(InvalidInput, match="pickle"):
        read(path, tmp_path)


def test_flipped_bytes_of_a_zip_file_are_found_by_its_checksums(tmp_path: Path) -> None:
    path = zipped(push(tmp_path / "push.zarr", images=np.uint8, compressors=None))
    data = bytearray(path.read_bytes())
    place = data.find(PICTURES[:3].tobytes())
    data[place + 100] ^= 4
    path.write_bytes(data)
    with pytest.raises(DamagedData, match="CRC"):
        read(path, tmp_path)


def test_episodes_of_a_folder_name_only_the_files_that_hold_them(tmp_path: Path) -> None:
    path = push(tmp_path / "push.zarr")
    first, _, last = zarr_recordings(path, "push.zarr")
    names = [{file.name for file in one.files} for one in (first, last) if isinstance(one, ZarrRecording)]
    assert "push.zarr/data/action/0.0" in names[0] - names[1]
    assert "push.zarr/data/action/6.0" in names[1] - names[0]
    assert "push.zarr/data/action/.zarray" in names[0] & names[1]


def test_store_among_others_is_taken_in(tmp_path: Path) -> None:
    push(tmp_path / "in" / "push.zarr")
    store = open_store(str(tmp_path / "store"))
    report = ingest(tmp_path / "in", store, "push", clock=FakeClock(), options=IngestOptions(rate_hz=10.0))
    assert (report.episodes, report.refused) == (3, 0)


@pytest.mark.slow
def test_damage_anywhere_gives_a_reason_or_an_episode(tmp_path: Path) -> None:
    whole = push(tmp_path / "push.zarr", images=np.uint8)
    files = sorted(file for file in whole.rglob("*") if file.is_file())
    for seed in range(24):
        dice = np.random.default_rng(seed)
        path = tmp_path / f"{seed}.zarr"
        shutil.copytree(whole, path)
        for file in dice.choice(np.array(files, object), 4, replace=False):
            inner = path / file.relative_to(whole)
            data = bytearray(inner.read_bytes())
            data = data[: dice.integers(0, len(data))] if seed % 3 == 0 else data
            for place in dice.integers(0, max(len(data), 1), 2 if data else 0):
                data[place] ^= 1 << int(dice.integers(8))
            inner.write_bytes(data)
        for number in range(3):
            with suppress(MainspringError, IndexError):
                read(path, tmp_path, number)
