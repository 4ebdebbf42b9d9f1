"""HDF5 files as their own projects' tools write them, and as damage leaves them."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from tests.data.readers.pictures import jpegs, pixels_of

from mainspring.data.episode import Episode
from mainspring.data.options import IngestOptions
from mainspring.data.readers.episodes.hdf5 import hdf5_recordings
from mainspring.domain.errors import DamagedData, InvalidInput, MainspringError

STEPS = 12
VALUES = np.random.default_rng(7)
PICTURES = VALUES.integers(0, 256, (STEPS, 24, 32, 3), dtype=np.uint8)


def aloha(path: Path, **dataset: Any) -> dict[str, Any]:
    """One episode as ALOHA's recorder writes it."""
    said = {name: VALUES.normal(size=(STEPS, 14)) for name in ("qpos", "qvel", "effort")}
    action = VALUES.normal(size=(STEPS, 14))
    with h5py.File(path, "w") as file:
        file.attrs["sim"] = False
        file.create_dataset("action", data=action, **dataset)
        for name, values in said.items():
            file.create_dataset(f"observations/{name}", data=values, **dataset)
        file.create_dataset("observations/images/cam_high", data=PICTURES, chunks=(1, 24, 32, 3))
    return {"action": action, **said}


def robomimic(path: Path, demos: tuple[str, ...] = ("demo_0", "demo_2", "demo_10")) -> None:
    """Demonstrations as robomimic and robosuite write them."""
    robot = {"control_freq": 20, "reward_shaping": False, "robots": ["Panda"]}
    settings = {"env_name": "Lift", "type": 1, "env_kwargs": robot}
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["env_args"] = json.dumps(settings)
        for number, name in enumerate(demos):
            demo = data.create_group(name)
            demo.attrs["model_file"] = "<mujoco/>" * 10_000
            demo["actions"] = np.full((STEPS, 7), number, float)
            demo["states"] = VALUES.normal(size=(STEPS, 32))
            demo["rewards"] = np.arange(STEPS) == (STEPS - 1 if number else -1)
            for group in ("obs", "next_obs"):
                for key, dims in {
                    "robot0_gripper_qpos": 2,
                    "robot0_eef_quat": 4,
                    "robot0_eef_pos": 3,
                    "object": 10,
                }.items():
                    demo[f"{group}/{key}"] = VALUES.normal(size=(STEPS, dims))
            demo.create_dataset("obs/agentview_image", data=PICTURES, compression="gzip")
        file["mask/train"] = np.array([demos[0].encode()])


def read(path: Path, folder: Path, number: int = 0, **options: Any) -> Episode:
    into = folder / f"read-{len(list(folder.iterdir()))}"
    into.mkdir()
    return hdf5_recordings(path, path.name, IngestOptions(**options))[number].read(into)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "episode_0.hdf5"


def test_aloha_episode_has_its_values_pictures_and_the_conventions_rate(path: Path, tmp_path: Path) -> None:
    wanted = aloha(path)
    episode = read(path, tmp_path)
    assert np.array_equal(episode.columns["state"], wanted["qpos"])
    assert np.array_equal(episode.columns["action"], wanted["action"])
    assert np.array_equal(episode.columns["effort"], wanted["effort"])
    assert np.array_equal(pixels_of(episode.videos[0]), PICTURES)
    assert (episode.rate_hz, episode.time_ns[1], episode.metadata["sim"]) == (50.0, 20_000_000, "false")
    assert "50 Hz, the convention of ALOHA" in episode.note


def test_aloha_rate_given_is_taken_before_the_convention(path: Path, tmp_path: Path) -> None:
    aloha(path)
    assert read(path, tmp_path, rate_hz=30.0).rate_hz == 30.0


@pytest.mark.parametrize("how", ["padded", "vlen", "fixed"])
def test_compressed_pictures_however_they_lie_keep_their_bytes(path: Path, tmp_path: Path, how: str) -> None:
    coded = jpegs(STEPS)
    aloha(path)
    with h5py.File(path, "a") as file:
        file.attrs["compress"] = True
        name = "observations/images/cam_low"
        if how == "padded":
            rows = np.zeros((STEPS, max(map(len, coded)) + 5), np.uint8)
            for row, data in zip(rows, coded, strict=True):
                row[: len(data)] = np.frombuffer(data, np.uint8)
            file[name] = rows
        elif how == "vlen":
            there = file.create_dataset(name, (STEPS,), h5py.vlen_dtype(np.uint8))
            for step, data in enumerate(coded):
                there[step] = np.frombuffer(data, np.uint8)
        else:
            file[name] = np.array(coded, f"S{max(map(len, coded))}")
    episode = read(path, tmp_path, cameras=("cam_low",))
    (video,) = episode.videos
    assert video.index is not None
    assert video.index.codec == "mjpeg"
    assert video.path.read_bytes() == b"".join(coded)


def test_robomimic_demonstrations_come_by_number_with_settings_and_success(tmp_path: Path) -> None:
    robomimic(tmp_path / "low_dim.hdf5")
    recordings = hdf5_recordings(tmp_path / "low_dim.hdf5", "low_dim.hdf5")
    assert [one.name for one in recordings] == [f"low_dim.hdf5/data/demo_{number}" for number in (0, 2, 10)]
    first, last = read(tmp_path / "low_dim.hdf5", tmp_path, 0), read(tmp_path / "low_dim.hdf5", tmp_path, 2)
    assert (first.task, first.robot, first.rate_hz, first.success) == ("Lift", "Panda", 20.0, False)
    assert (last.success, last.columns["action"][0, 0]) == (True, 2.0)
    assert first.metadata["filter_keys"] == "train"
    assert "filter_keys" not in last.metadata
    assert json.loads(first.metadata["env_args"])["type"] == 1
    parts = ["robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos"]
    assert np.array_equal(first.columns["state"], np.concatenate([first.columns[part] for part in parts], axis=1))
    assert "next_obs is left out" in first.note
    assert "kept file only: model_file" in first.note


def test_libero_task_is_its_instruction(tmp_path: Path) -> None:
    path = tmp_path / "task.hdf5"
    robomimic(path)
    with h5py.File(path, "a") as file:
        file["data"].attrs["problem_info"] = json.dumps({"language_instruction": "open the drawer"})
        file["data"].attrs["bddl_file_name"] = b"drawer.bddl"
    episode = read(path, tmp_path)
    assert (episode.task, episode.metadata["bddl_file_name"]) == ("open the drawer", "drawer.bddl")
    assert "read as LIBERO" in episode.note


def test_unknown_layout_lists_what_it_holds_and_comes_in_by_map(tmp_path: Path) -> None:
    path = tmp_path / "trajectory.h5"
    with h5py.File(path, "w") as file:
        for name in ("master", "puppet"):
            file[f"{name}/joint_position"] = np.ones((STEPS, 7), ">f4")
            file[f"{name}/gripper"] = np.arange(STEPS)
        file["time"] = 1.7e9 + np.arange(STEPS) / 10
        file["language_raw"] = [b"pour water"]
    with pytest.raises(InvalidInput, match=r"puppet/joint_position >f4\[12,7\].*--map state=puppet/joint_position"):
        read(path, tmp_path)
    names = {"observation.state": "puppet/joint_position+puppet/gripper", "action": "master/joint_position"}
    episode = read(path, tmp_path, names=names)
    assert episode.columns["state"].shape == (STEPS, 8)
    assert episode.columns["state"][5, 7] == 5.0
    assert (episode.rate_hz, episode.task) == (10.0, "pour water")
    assert episode.time_ns[0] == 1_700_000_000_000_000_000


def test_observations_one_longer_than_actions_lose_the_last(tmp_path: Path) -> None:
    path = tmp_path / "maniskill.h5"
    with h5py.File(path, "w") as file:
        file["traj_0/actions"] = np.ones((STEPS, 4))
        file["traj_0/obs/agent/qpos"] = np.ones((STEPS + 1, 9))
        file["traj_0/success"] = np.arange(STEPS) > 9
    episode = read(path, tmp_path, rate_hz=20.0)
    assert (len(episode.time_ns), episode.success) == (STEPS, True)
    assert "the last step of obs/agent/qpos is left out" in episode.note


def test_action_from_the_next_state_when_asked(tmp_path: Path) -> None:
    path = tmp_path / "states.h5"
    with h5py.File(path, "w") as file:
        file["observations/state"] = np.arange(STEPS * 2.0).reshape(STEPS, 2)
    assert "there is no action" in read(path, tmp_path, rate_hz=5.0).note
    action = read(path, tmp_path, rate_hz=5.0, action="next:observation.state").columns["action"]
    assert action[0, 0] == 2.0
    assert np.array_equal(action[-1], action[-2])


def test_sixteen_bit_depth_is_kept_and_fractions_are_refused_by_name(path: Path, tmp_path: Path) -> None:
    aloha(path)
    depth = VALUES.integers(0, 65_536, (STEPS, 24, 32), dtype=np.uint16)
    with h5py.File(path, "a") as file:
        file["observations/depth_images/cam_wrist"] = depth
    assert np.array_equal(pixels_of(read(path, tmp_path, cameras=("cam_wrist",)).videos[0]), depth)
    with h5py.File(path, "a") as file:
        file["observations/depth_images/cam_metres"] = depth[..., None] / 1_000
    with pytest.raises(InvalidInput, match=r"whole numbers from 0 to 65535.*--without-camera cam_metres"):
        read(path, tmp_path)
    assert len(read(path, tmp_path, without_cameras=("cam_metres",)).videos) == 2


def test_rate_nobody_says_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "plain.h5"
    with h5py.File(path, "w") as file:
        file["observation/state"], file["action"] = np.ones((STEPS, 3)), np.ones((STEPS, 3))
    with pytest.raises(InvalidInput, match="--rate HZ"):
        read(path, tmp_path)


def test_flipped_bit_under_a_checksum_is_named(path: Path, tmp_path: Path) -> None:
    wanted = aloha(path, fletcher32=True, chunks=(STEPS, 14))
    data = path.read_bytes()
    place = data.find(wanted["qpos"].tobytes())
    path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
    with pytest.raises(DamagedData, match=r"qpos.*filter returned failure"):
        read(path, tmp_path)


def test_file_cut_off_or_of_other_bytes_is_refused_with_the_reason(path: Path, tmp_path: Path) -> None:
    aloha(path)
    path.write_bytes(path.read_bytes()[:-1_000])
    with pytest.raises(DamagedData, match="truncated file"):
        read(path, tmp_path)
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(DamagedData, match="wanted HDF5"):
        read(path, tmp_path)


def test_values_never_written_or_elsewhere_are_no_zeros(path: Path, tmp_path: Path) -> None:
    aloha(path)
    with h5py.File(path, "a") as file:
        del file["action"]
        file.create_dataset("action", (STEPS, 14), float, chunks=(4, 14))
        file["action"][:8] = 1.0
    with pytest.raises(DamagedData, match="2 of 3 chunks"):
        read(path, tmp_path)
    with h5py.File(path, "a") as file:
        del file["action"]
        file.create_dataset("action", (STEPS, 14), "u1", external=[(str(tmp_path / "else"), 0, STEPS * 14)])
    (tmp_path / "else").write_bytes(bytes(STEPS * 14))
    with pytest.raises(DamagedData, match="another file"):
        read(path, tmp_path)


def test_length_that_lies_takes_no_memory(path: Path, tmp_path: Path) -> None:
    aloha(path)
    with h5py.File(path, "a") as file:
        del file["action"], file["observations"]
        for name in ("action", "observations/qpos"):
            file.create_dataset(name, (9_000_000, 4_000), float, chunks=(1_000, 4_000))
    with pytest.raises(DamagedData, match="bytes of numbers"):
        read(path, tmp_path)


@pytest.mark.slow
def test_damage_anywhere_gives_a_reason_or_an_episode(path: Path, tmp_path: Path) -> None:
    aloha(path)
    whole = path.read_bytes()
    for seed in range(24):
        dice = np.random.default_rng(seed)
        data = bytearray(whole[: dice.integers(1, len(whole))] if seed % 4 == 0 else whole)
        for place in dice.integers(0, min(len(data), 20_000), 8):
            data[place] ^= 1 << int(dice.integers(8))
        path.write_bytes(data)
        with suppress(MainspringError):
            read(path, tmp_path)
