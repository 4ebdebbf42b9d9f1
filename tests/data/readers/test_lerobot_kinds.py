from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pytest

from mainspring.data.gates.doctor import examined
from mainspring.data.options import IngestOptions
from mainspring.data.readers.episodes.lerobot import is_lerobot_set, lerobot_recordings
from mainspring.data.video.frames import frames_in
from mainspring.data.video.pictures import PngEncoder
from mainspring.domain.errors import DamagedData, InvalidInput

from .lerobot_sets import (
    FEATURES,
    FRONT,
    RATE_HZ,
    VIDEO,
    Rows,
    depth,
    episodes,
    gray_of,
    grays,
    lerobot_set,
    outcome,
    picture,
    rows,
    write_frames,
)

IMAGE = {"dtype": "image", "shape": [32, 48, 3], "names": ["height", "width", "channel"]}


def renamed(names: dict[str, str]) -> Any:
    return lambda _, columns: {names.get(name, name): values for name, values in columns.items()}


def features_of(names: dict[str, str]) -> dict[str, dict[str, Any]]:
    return {names.get(name, name): feature for name, feature in FEATURES.items()}


@pytest.mark.parametrize("version", ["v2.0", "v2.1", "v3.0", "2.1", "v3.1"])
def test_versions_in_use_are_read(tmp_path: Path, version: str) -> None:
    folder = "v3" if "3" in version else "v2"
    first, second = episodes(lerobot_set(tmp_path / "set", folder, info={"codebase_version": version}))
    assert np.array_equal(second.columns["state"], rows(1, 11)["observation.state"])
    assert (first.task, first.robot, first.note) == ("stack", "arm", "")


@pytest.mark.parametrize("version", ["v1.6", "v4.0", "nightly"])
def test_version_that_is_not_read_is_named_with_its_converter(tmp_path: Path, version: str) -> None:
    root = lerobot_set(tmp_path / "set", info={"codebase_version": version})
    with pytest.raises(InvalidInput, match="convert" if version == "v1.6" else version):
        lerobot_recordings(root)


def test_set_of_the_first_format_is_known_for_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "meta_data").mkdir()
    (tmp_path / "meta_data/info.json").write_text('{"codebase_version": "v1.6", "fps": 50}')
    assert is_lerobot_set(tmp_path)
    with pytest.raises(InvalidInput, match=r"LeRobot v1.*convert_dataset_v1_to_v2"):
        lerobot_recordings(tmp_path)


@pytest.mark.parametrize(
    "info",
    [
        {"data_path": None, "video_path": None},
        {"data_path": "data/{episode_index}.parquet", "video_path": "films/{episode_index:d}-{video_key}.mp4"},
        {"data_path": "rows/{chunk_index:02d}/{episode_index:010d}.parquet", "chunks_size": 5_000},
        {"fps": 20.0, "total_episodes": "2", "robot_type": None, "codebase_version": None},
        {"fps": "20", "chunks_size": 1_000.0, "splits": {"train": "0:2"}, "authors": [{"name": "A"}]},
    ],
)
def test_description_as_others_write_it_is_read(tmp_path: Path, info: dict[str, Any]) -> None:
    root = lerobot_set(tmp_path / "set", videos={FRONT: [8, 11]}, info=info)
    first, second = episodes(root)
    assert [len(first.time_ns), len(second.time_ns)] == [8, 11]
    assert grays(second)[3] == pytest.approx(gray_of(103), abs=2)


def test_description_with_a_mark_and_numbers_that_are_none_is_read(tmp_path: Path) -> None:
    root = lerobot_set(tmp_path / "set", info={"quality": float("nan")})
    path = root / "meta/info.json"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert len(episodes(root)) == 2


def test_description_with_several_faults_tells_all_of_them(tmp_path: Path) -> None:
    root = lerobot_set(tmp_path / "set", info={"fps": 0, "chunks_size": "many", "video_path": 7})
    with pytest.raises(InvalidInput, match=r"(?s)fps.*chunks_size.*video_path"):
        lerobot_recordings(root)


def test_description_without_a_rate_takes_the_one_that_is_said(tmp_path: Path) -> None:
    root = lerobot_set(tmp_path / "set", info={"fps": None})
    with pytest.raises(InvalidInput, match="--rate HZ"):
        lerobot_recordings(root)
    assert [episode.rate_hz for episode in episodes(root, IngestOptions(rate_hz=20.0))] == [20.0, 20.0]


def test_pointer_of_git_lfs_is_named(tmp_path: Path) -> None:
    root = lerobot_set(tmp_path / "set", videos={FRONT: [8, 11]})
    path = root / f"videos/chunk-000/{FRONT}/episode_000001.mp4"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 12\n")
    assert "git lfs pull" in str(outcome(root)["episode_000001"])


@pytest.mark.parametrize("version", ["v2.0", "v3.0"])
def test_names_of_openpi_are_known(tmp_path: Path, version: str) -> None:
    names = {"observation.state": "state", "action": "actions"}
    features = {**features_of(names), "image": IMAGE, "wrist_image": IMAGE}

    def change(episode: int, columns: Rows) -> Rows:
        length = len(columns["timestamp"])
        pictures = [{"bytes": picture(number, "mjpeg"), "path": f"{number}.jpg"} for number in range(length)]
        return {**renamed(names)(episode, columns), "image": pictures, "wrist_image": pictures}

    first, second = episodes(lerobot_set(tmp_path / "set", version, features=features, change=change))
    assert [camera.name for camera in first.features.cameras] == ["image", "wrist_image"]
    assert first.features.names("state") == ("x", "y", "z")
    assert np.array_equal(second.columns["action"], rows(1, 11)["action"])
    assert "actions taken as the action" in first.note
    assert grays(second) == pytest.approx([gray_of(number) for number in range(11)], abs=2)


def test_columns_of_other_names_are_refused_with_the_option_that_says_which(tmp_path: Path) -> None:
    names = {"observation.state": "joint_position", "action": "command"}
    root = lerobot_set(tmp_path / "set", features=features_of(names), change=renamed(names))
    with pytest.raises(InvalidInput, match=r"(?s)--map observation.state=joint_position.*--map action=command"):
        lerobot_recordings(root)
    options = IngestOptions(names={"observation.state": "joint_position", "action": "command"})
    first, _ = episodes(root, options)
    assert [column.name for column in first.features.columns] == ["action", "state"]


def test_mapped_columns_are_joined_and_cameras_renamed(tmp_path: Path) -> None:
    names = {"observation.state": "arm", "action": "actions"}
    features = {**features_of(names), "hand": {"dtype": "float64", "shape": [1], "names": None}}
    change = lambda episode, columns: (  # noqa: E731
        renamed(names)(episode, columns) | {"hand": np.arange(len(columns["timestamp"]), dtype=np.float64)}
    )
    root = lerobot_set(tmp_path / "set", features=features, change=change, videos={"image": [8, 11]})
    first, _ = episodes(root, IngestOptions(names={"state": "arm+hand", FRONT: "image"}))
    assert first.features.names("state") == ("x", "y", "z", "hand_0")
    assert first.columns["state"][:, 3].tolist() == list(range(8))
    assert [camera.name for camera in first.features.cameras] == [FRONT]
    with pytest.raises(InvalidInput, match=r"--map state=leg: no leg among arm \(3\)"):
        lerobot_recordings(root, IngestOptions(names={"state": "leg"}))


def test_set_without_actions_takes_the_next_state_when_told_to(tmp_path: Path) -> None:
    features = {"observation.state": FEATURES["observation.state"]}
    root = lerobot_set(tmp_path / "set", features=features)
    with pytest.raises(InvalidInput, match=r"--action next:observation\.state"):
        lerobot_recordings(root)
    first, _ = episodes(root, IngestOptions(action="next:observation.state"))
    state = first.columns["state"]
    assert np.array_equal(first.columns["action"], np.concatenate([state[1:], state[-1:]]))
    assert first.features.names("action") == ("x", "y", "z")


def test_camera_that_no_episode_has_is_left_out_and_told(tmp_path: Path) -> None:
    root = lerobot_set(tmp_path / "set", videos={FRONT: [8, 11], "observation.images.top": [0, 0]})
    first, _ = episodes(root)
    assert [camera.name for camera in first.features.cameras] == [FRONT]
    assert "observation.images.top" in first.note


def test_set_without_any_film_is_refused_until_it_is_said_to_have_none(tmp_path: Path) -> None:
    root = lerobot_set(tmp_path / "set", videos={FRONT: [0, 0], "top": [0, 0]})
    assert f"--without-camera {FRONT} --without-camera top lets it in" in str(outcome(root)["episode_000000"])
    assert len(episodes(root, IngestOptions(without_cameras=(FRONT, "top")))) == 2


def test_videos_under_another_folder_than_is_said_are_found_and_told(tmp_path: Path) -> None:
    root = lerobot_set(tmp_path / "set", videos={FRONT: (8, 11)})
    wanted = [grays(episode) for episode in episodes(root)]
    (root / "videos").rename(root / "video")
    found = episodes(root)
    assert [grays(episode) for episode in found] == wanted
    assert all("its video lies under video" in episode.note for episode in found)


def test_lines_of_json_that_git_lfs_keeps_are_named(tmp_path: Path) -> None:
    root = lerobot_set(tmp_path / "set", version="v2.1")
    (root / "meta" / "episodes.jsonl").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 9\n")
    with pytest.raises(DamagedData, match=r"episodes.jsonl.*git lfs pull"):
        lerobot_recordings(root)


def test_camera_that_some_episodes_lack_costs_them_alone_until_it_is_left_out(tmp_path: Path) -> None:
    root = lerobot_set(tmp_path / "set", videos={FRONT: [8, 11], "top": [8, 0]})
    found = outcome(root)
    assert "--without-camera top lets it in" in str(found["episode_000001"])
    assert len(found["episode_000000"].videos) == 2  # type: ignore[union-attr]
    for options in (IngestOptions(without_cameras=("top",)), IngestOptions(cameras=(FRONT,))):
        assert [len(episode.videos) for episode in episodes(root, options)] == [1, 1]
    with pytest.raises(InvalidInput, match="--camera side: no such camera"):
        lerobot_recordings(root, IngestOptions(cameras=("side",)))


@pytest.mark.parametrize(
    "said", [{"shape": [3, 32, 48], "names": ["channels", "height", "width"]}, {"shape": [3, 32, 48]}, {}]
)
def test_cameras_have_the_size_of_their_files_however_it_is_declared(tmp_path: Path, said: dict[str, Any]) -> None:
    features = {**FEATURES, FRONT: {"dtype": "video", **said}}
    root = lerobot_set(tmp_path / "set", features=features, lengths=[8])
    write_frames(root / f"videos/chunk-000/{FRONT}/episode_000000.mp4", 8)
    (first,) = episodes(root)
    assert (first.features.cameras[0].height, first.features.cameras[0].width, first.note) == (32, 48, "")


def test_camera_declared_of_another_size_is_told(tmp_path: Path) -> None:
    root = lerobot_set(tmp_path / "set", features={**FEATURES, FRONT: {**VIDEO, "shape": [480, 640, 3]}}, lengths=[8])
    write_frames(root / f"videos/chunk-000/{FRONT}/episode_000000.mp4", 8)
    (first,) = episodes(root)
    assert "48x32, declared 640x480" in first.note


@pytest.mark.parametrize("kept", ["bytes", "struct", "files", "paths", "lists"])
def test_pictures_beside_the_rows_become_frames(tmp_path: Path, kept: str) -> None:
    root = tmp_path / "set"

    def change(episode: int, columns: Rows) -> Rows:
        count = len(columns["timestamp"])
        path = "images/cam/episode_{:06d}/frame_{:06d}.png"
        cells: dict[str, list[Any]] = {
            "bytes": [picture(number) for number in range(count)],
            "struct": [{"bytes": picture(number), "path": None} for number in range(count)],
            "paths": [{"bytes": None, "path": path.format(episode, number)} for number in range(count)],
            "lists": [np.full((3, 32, 48), gray_of(number)).tolist() for number in range(count)],
        }
        for number in range(count) if kept in ("files", "paths") else ():
            place = root / path.format(episode, number)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(picture(number))
        return columns | ({"cam": cells[kept]} if kept in cells else {})

    lerobot_set(root, features={**FEATURES, "cam": IMAGE}, change=change)
    _, second = episodes(root)
    assert grays(second) == [gray_of(number) for number in range(11)]


@pytest.mark.parametrize("codec", ["png", "tiff"])
def test_depth_of_sixteen_bits_keeps_every_value(tmp_path: Path, codec: str) -> None:
    def change(_: int, columns: Rows) -> Rows:
        count = len(columns["timestamp"])
        coded = [PngEncoder().encode(depth(n)) if codec == "png" else picture(n, "tiff") for n in range(count)]
        return columns | {"depth": [{"bytes": data, "path": None} for data in coded]}

    features = {**FEATURES, "depth": {"dtype": "image", "shape": [32, 48, 1], "names": None}}
    _, second = episodes(lerobot_set(tmp_path / "set", "v3.0", features=features, change=change))
    video = second.videos[0]
    assert video.index is not None
    frames = [frame.to_ndarray() for frame in frames_in(video.path, video.index)]
    assert all(np.array_equal(frame, depth(number)) for number, frame in enumerate(frames))


def test_film_of_depth_keeps_every_value_under_another_ending(tmp_path: Path) -> None:
    root = lerobot_set(tmp_path / "set", lengths=[8], features={**FEATURES, "depth": {**VIDEO, "shape": [32, 48, 1]}})
    path = root / "videos/chunk-000/depth/episode_000000.mkv"
    path.parent.mkdir(parents=True)
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("ffv1", rate=RATE_HZ)
        stream.width, stream.height, stream.pix_fmt = 48, 32, "gray16le"
        for number in range(8):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(depth(number), format="gray16le")))
        container.mux(stream.encode())
    (first,) = episodes(root)
    assert first.videos[0].path == path
    index = first.videos[0].index
    assert index is not None
    frames = [frame.to_ndarray() for frame in frames_in(path, index)]
    assert all(np.array_equal(frame, depth(number)) for number, frame in enumerate(frames))
    assert len(frames) == 8
    assert examined(first).reasons == ()


def test_picture_that_is_none_is_refused_with_its_step(tmp_path: Path) -> None:
    def change(episode: int, columns: Rows) -> Rows:
        cells = [{"bytes": picture(number), "path": None} for number in range(len(columns["timestamp"]))]
        cells[4] = {"bytes": None, "path": None} if episode else cells[4]
        return columns | {"cam": cells}

    found = outcome(lerobot_set(tmp_path / "set", features={**FEATURES, "cam": IMAGE}, change=change))
    assert "cam, step 4; got an empty cell" in str(found["episode_000001"])
    assert "--without-camera cam" in str(found["episode_000001"])


def test_columns_of_every_kind_of_number_come_in(tmp_path: Path) -> None:
    features: dict[str, dict[str, Any]] = {
        **FEATURES,
        "pair": {"dtype": "float32", "shape": [2, 2], "names": None},
        "named": {"dtype": "float32", "shape": [2, 2], "names": [["left", "right"], ["pan", "tilt"]]},
        "half": {"dtype": "float16", "shape": [1], "names": None},
        "flag": {"dtype": "bool", "shape": [], "names": None},
        "large": {"dtype": "int64", "shape": [1], "names": None},
        "absent": {"dtype": "float32", "shape": [1], "names": None},
    }

    def change(_: int, columns: Rows) -> Rows:
        count = len(columns["timestamp"])
        return columns | {
            "pair": np.arange(4 * count, dtype=np.float32).reshape(count, 2, 2),
            "named": np.arange(4 * count, dtype=np.float32).reshape(count, 2, 2),
            "half": np.arange(count, dtype=np.float16),
            "flag": np.arange(count) % 2 == 1,
            "large": np.full(count, (1 << 53) + 2),
            "undeclared": np.arange(count),
        }

    first, _ = episodes(lerobot_set(tmp_path / "set", features=features, change=change))
    assert first.features.names("pair") == ("pair_0_0", "pair_0_1", "pair_1_0", "pair_1_1")
    assert first.features.names("named") == ("left.pan", "left.tilt", "right.pan", "right.tilt")
    assert first.columns["pair"][1].tolist() == [4, 5, 6, 7]
    assert (first.columns["half"][3, 0], first.columns["flag"][3, 0]) == (3, 1)
    for said in ("large: whole numbers beyond", "not in its files: absent", "not declared, left out: undeclared"):
        assert said in first.note


def test_column_that_cannot_be_read_costs_no_episode_once_it_is_left_out(tmp_path: Path) -> None:
    features = {**FEATURES, "boxes": {"dtype": "float32", "shape": [4]}, "mesh": {"dtype": "sequence", "shape": [1]}}

    def change(_: int, columns: Rows) -> Rows:
        count = len(columns["timestamp"])
        ragged = [[1.0] * (1 + step % 3) for step in range(count)]
        return columns | {"boxes": pa.array(ragged), "mesh": pa.array(ragged)}

    root = lerobot_set(tmp_path / "set", features=features, change=change)
    assert "--without-camera boxes leaves that column out" in str(outcome(root)["episode_000000"])
    first, _ = episodes(root, IngestOptions(without_cameras=("boxes",)))
    assert [column.name for column in first.features.columns] == ["action", "state"]
    assert first.note == "neither numbers nor words, left out: mesh (sequence)"


def test_video_of_no_known_codec_is_damage(tmp_path: Path) -> None:
    root = lerobot_set(tmp_path / "set", videos={FRONT: [8, 11]})
    path = root / f"videos/chunk-000/{FRONT}/episode_000001.mp4"
    path.write_bytes(path.read_bytes().replace(b"avc1", b"xxxx"))
    found = outcome(root)
    assert "camera observation.images.front" in str(found["episode_000001"])
    assert not isinstance(found["episode_000000"], str)


def test_words_and_facts_of_an_episode_come_in(tmp_path: Path) -> None:
    features = {
        **FEATURES,
        "language_instruction": {"dtype": "string", "shape": [1], "names": None},
        "subtask": {"dtype": "string", "shape": [1], "names": None},
        "is_episode_successful": {"dtype": "bool", "shape": [1], "names": None},
        "next.reward": {"dtype": "float32", "shape": [1], "names": None},
    }

    def change(episode: int, columns: Rows) -> Rows:
        count = len(columns["timestamp"])
        return columns | {
            "language_instruction": ["put it there"] * count,
            "subtask": ["reach"] * 3 + ["grasp"] * (count - 3),
            "is_episode_successful": [episode == 1] * count,
            "next.reward": np.arange(count, dtype=np.float32),
        }

    def said(episode: int, told: dict[str, Any]) -> dict[str, Any]:
        return {**told, "tasks": [], "operator": "ada", "scene": {"table": 3}, "success": None if episode else True}

    first, second = episodes(lerobot_set(tmp_path / "set", features=features, change=change, said=said, tasks=["-"]))
    assert (first.success, second.success) == (True, True)
    assert first.metadata["operator"] == "ada"
    assert json.loads(first.metadata["scene"]) == {"table": 3}
    assert first.metadata["language_instruction"] == "put it there"
    assert json.loads(first.metadata["subtask"]) == [[0, "reach"], [150_000_000, "grasp"]]
    assert "next.reward" in first.columns


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_several_tasks_of_an_episode_keep_their_steps(tmp_path: Path, version: str) -> None:
    def change(_: int, columns: Rows) -> Rows:
        return columns | {"task_index": (np.arange(len(columns["timestamp"])) < 4).astype(np.int64)}

    said = lambda _, told: {**told, "tasks": ["place", "pick", "valid"]}  # noqa: E731
    root = lerobot_set(tmp_path / "set", version, change=change, said=said, tasks=("place", "pick", "valid"))
    first, _ = episodes(root)
    assert first.task == "pick; place"
    assert json.loads(first.metadata["task_steps"]) == [[0, "pick"], [200_000_000, "place"]]
    assert json.loads(first.metadata["tasks"]) == ["place", "pick", "valid"]


def test_everything_wrong_with_an_episode_is_told_at_once(tmp_path: Path) -> None:
    def change(episode: int, columns: Rows) -> Rows:
        columns["action"] = pa.array([None, *columns["action"].tolist()[1:]])
        return columns | {"timestamp": columns["timestamp"][::-1]}

    found = outcome(lerobot_set(tmp_path / "set", change=change, videos={FRONT: [8, 11]}))
    assert "1 empty cells, the first at 0" in str(found["episode_000001"])
    assert "do not advance" in str(found["episode_000001"])


def test_unit_key_changes_with_what_is_said_of_an_episode_alone(tmp_path: Path) -> None:
    def parts(name: str, **changes: Any) -> list[str]:
        return [recording.part for recording in lerobot_recordings(lerobot_set(tmp_path / name, **changes))]

    plain = parts("a")
    assert plain == parts("b")
    assert parts("c", lengths=[8, 11, 9])[:2] == plain
    assert parts("d", said=lambda number, told: {**told, "operator": "ada"} if number else told)[0] == plain[0]
    assert parts("e", said=lambda number, told: {**told, "operator": "ada"} if number else told)[1] != plain[1]
    assert parts("f", info={"fps": RATE_HZ + 1})[0] != plain[0]
