"""RLDS datasets as TFDS writes them, made here without TensorFlow, and as damage leaves them."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.data.readers.pictures import jpegs

from mainspring.data.episode import Episode
from mainspring.data.intake.ingest import ingest
from mainspring.data.options import IngestOptions
from mainspring.data.readers.episodes.rlds import is_rlds, rlds_recordings
from mainspring.data.readers.episodes.tfrecord import features_of, masked_crc32c
from mainspring.domain.errors import DamagedData, InvalidInput, MainspringError
from mainspring.objects import open_store
from mainspring.testing.time_and_chance import FakeClock

STEPS = 12
FEATURES = "tensorflow_datasets.core.features."


def varint(number: int) -> bytes:
    out = bytearray()
    number &= (1 << 64) - 1
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def feature(values: Any, *, packed: bool = True) -> bytes:
    if isinstance(values, list):
        return field(1, b"".join(field(1, value) for value in values))
    flat = np.asarray(values).reshape(-1)
    if flat.dtype.kind == "f":
        one_by_one = b"".join(b"\x0d" + struct.pack("<f", value) for value in flat)
        return field(2, field(1, flat.astype("<f4").tobytes()) if packed else one_by_one)
    numbers = [varint(int(value)) for value in flat]
    return field(3, field(1, b"".join(numbers)) if packed else b"".join(b"\x08" + number for number in numbers))


def example(features: Mapping[str, Any], *, packed: bool = True) -> bytes:
    entries = (field(1, name.encode()) + field(2, feature(value, packed=packed)) for name, value in features.items())
    return field(1, b"".join(field(1, entry) for entry in entries))


def framed(records: Sequence[bytes]) -> bytes:
    out = b""
    for record in records:
        length = struct.pack("<Q", len(record))
        out += length + struct.pack("<I", masked_crc32c(length)) + record + struct.pack("<I", masked_crc32c(record))
    return out


def tensor(dtype: str, *shape: int, encoding: str = "none") -> dict[str, Any]:
    said = {"shape": {"dimensions": [str(dim) for dim in shape]} if shape else {}, "dtype": dtype, "encoding": encoding}
    return {"pythonClassName": f"{FEATURES}tensor_feature.Tensor", "tensor": said}


def group(**features: Any) -> dict[str, Any]:
    return {"pythonClassName": f"{FEATURES}features_dict.FeaturesDict", "featuresDict": {"features": features}}


TEXT = {"pythonClassName": f"{FEATURES}text_feature.Text", "text": {}}
SHAPE = {"dimensions": ["24", "32", "3"]}
IMAGE = {"pythonClassName": f"{FEATURES}image_feature.Image"}
IMAGE["image"] = {"shape": SHAPE, "dtype": "uint8", "encodingFormat": "jpeg"}  # type: ignore[assignment]


def described(action: Any) -> dict[str, Any]:
    observation = group(image=IMAGE, state=tensor("float32", 8), ticks=tensor("int64"))
    marks = {name: tensor("bool") for name in ("is_first", "is_last", "is_terminal")}
    steps = group(
        observation=observation,
        action=action,
        reward=tensor("float32"),
        exact=tensor("float64", 2, encoding="zlib"),
        language_instruction=TEXT,
        language_embedding=tensor("float32", 512),
        **marks,
    )
    sequence = {"feature": steps, "length": "-1"}
    return group(
        steps={"pythonClassName": f"{FEATURES}dataset_feature.Dataset", "sequence": sequence},
        episode_metadata=group(file_path=TEXT, success=tensor("bool"), tags=tensor("string", 3)),
    )


def episode_of(number: int, **changed: Any) -> dict[str, Any]:
    values = np.random.default_rng(number)
    marks = np.zeros((2, STEPS), np.int64)
    marks[0, 0] = marks[1, -1] = 1
    made = {
        "steps/observation/image": jpegs(STEPS),
        "steps/observation/state": values.normal(size=(STEPS, 8)).astype(np.float32),
        "steps/observation/ticks": np.arange(STEPS) * 1_000 - 3_000,
        "steps/action": values.normal(size=(STEPS, 7)).astype(np.float32),
        "steps/reward": marks[1].astype(np.float32),
        "steps/exact": [zlib.compress(np.array([step, 0.1]).tobytes()) for step in range(STEPS)],
        "steps/language_instruction": [f"pick {number}".encode()] * STEPS,
        "steps/language_embedding": np.ones((STEPS, 512), np.float32),
        "steps/is_first": marks[0],
        "steps/is_last": marks[1],
        "steps/is_terminal": marks[1],
        "episode_metadata/file_path": [b"/logs/7.h5"],
        "episode_metadata/success": np.array([1]),
        "episode_metadata/tags": [b"a", b"b", b"c"],
    }
    return made | changed


def dataset(
    folder: Path, shards: Sequence[Sequence[Mapping[str, Any]]], *, action: Any = None, packed: bool = True
) -> Path:
    folder.mkdir(parents=True)
    for number, episodes in enumerate(shards):
        path = folder / f"pick-train.tfrecord-{number:05d}-of-{len(shards):05d}"
        path.write_bytes(framed([example(episode, packed=packed) for episode in episodes]))
    (folder / "features.json").write_text(json.dumps(described(action or tensor("float32", 7))))
    lengths = [str(len(episodes)) for episodes in shards]
    info = {"name": "pick", "fileFormat": "tfrecord", "splits": [{"name": "train", "shardLengths": lengths}]}
    (folder / "dataset_info.json").write_text(json.dumps(info))
    return folder


def read(folder: Path, into: Path, number: int = 0, **options: Any) -> Episode:
    place = into / f"read-{len(list(into.iterdir()))}"
    place.mkdir()
    said = {"rate_hz": 5.0, **options}
    return list(rlds_recordings(folder, "", IngestOptions(**said)))[number].read(place)


@pytest.mark.parametrize("packed", [True, False])
def test_episodes_have_their_values_pictures_and_facts(tmp_path: Path, packed: bool) -> None:
    folder = dataset(tmp_path / "1.0.0", [[episode_of(0), episode_of(1)], [episode_of(2)]], packed=packed)
    assert is_rlds(folder)
    episode, wanted = read(folder, tmp_path, 2), episode_of(2)
    assert np.array_equal(episode.columns["state"], wanted["steps/observation/state"])
    assert np.array_equal(episode.columns["action"], wanted["steps/action"])
    assert np.array_equal(episode.columns["ticks"][:, 0], wanted["steps/observation/ticks"])
    assert episode.columns["exact"][3].tolist() == [3.0, 0.1]
    assert episode.columns["language_embedding"].shape == (STEPS, 512)
    assert episode.videos[0].path.read_bytes() == b"".join(wanted["steps/observation/image"])
    assert (episode.task, episode.success, episode.rate_hz) == ("pick 2", True, 5.0)
    assert dict(episode.metadata) == {"file_path": "/logs/7.h5", "tags": "a, b, c"}
    assert "is_first" not in episode.columns


def test_episode_that_was_broken_off_says_so(tmp_path: Path) -> None:
    folder = dataset(tmp_path / "1", [[episode_of(0, **{"steps/is_terminal": np.zeros(STEPS, np.int64)})]])
    assert read(folder, tmp_path).metadata["is_terminal"] == "false"


def test_action_in_parts_is_joined_in_name_order(tmp_path: Path) -> None:
    parts = {"world_vector": 3, "rotation_delta": 3, "gripper": 1}
    action = group(**{name: tensor("float32", dims) for name, dims in parts.items()})
    made = episode_of(0)
    made |= {f"steps/action/{name}": np.full((STEPS, dims), dims, np.float32) for name, dims in parts.items()}
    del made["steps/action"]
    episode = read(dataset(tmp_path / "1", [[made]], action=action), tmp_path)
    assert episode.columns["action"][0].tolist() == [1, 3, 3, 3, 3, 3, 3]
    assert "action is action/gripper + action/rotation_delta + action/world_vector" in episode.note


def test_rate_nobody_says_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="--rate HZ"):
        read(dataset(tmp_path / "1", [[episode_of(0)]]), tmp_path, rate_hz=None)


def test_flipped_byte_costs_its_episode_alone(tmp_path: Path) -> None:
    folder = dataset(tmp_path / "1", [[episode_of(0), episode_of(1), episode_of(2)]])
    (path,) = folder.glob("*.tfrecord*")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedData, match="checksum disagrees"):
        read(folder, tmp_path, 1)
    assert read(folder, tmp_path, 0).task == "pick 0"
    assert read(folder, tmp_path, 2).task == "pick 2"


def test_shards_cut_off_or_missing_are_counted(tmp_path: Path) -> None:
    folder = dataset(tmp_path / "1", [[episode_of(0), episode_of(1)], [episode_of(2)]])
    first, second = sorted(folder.glob("*.tfrecord*"))
    first.write_bytes(first.read_bytes()[:-9])
    second.unlink()
    reasons = [getattr(one, "reason", "") for one in rlds_recordings(folder, "")]
    assert reasons == [
        "",
        "cut off in record 1; 1 of 2 episodes that dataset_info.json counts",
        "no such file, and with it 1 episodes",
    ]


def test_length_that_lies_is_no_record(tmp_path: Path) -> None:
    folder = dataset(tmp_path / "1", [[episode_of(0)]])
    (path,) = folder.glob("*.tfrecord*")
    path.write_bytes(b"\xff" * 7 + path.read_bytes()[7:])
    (only,) = rlds_recordings(folder, "")
    assert "a length that its checksum disagrees with" in getattr(only, "reason", "")


def test_example_that_lies_about_lengths_is_refused() -> None:
    for data in (b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\x03\x0a\x01", b"\xff" * 30, b"\x0b\x01"):
        with pytest.raises(DamagedData):
            features_of(data, on="record")


def test_dataset_at_any_depth_is_taken_in_and_other_files_are_named(tmp_path: Path) -> None:
    folder = dataset(tmp_path / "in" / "pick" / "1.0.0", [[episode_of(0)], [episode_of(1)]])
    (folder / "loose.tfrecord").write_bytes(b"")
    store = open_store(str(tmp_path / "store"))
    report = ingest(tmp_path / "in", store, "pick", clock=FakeClock(), options=IngestOptions(rate_hz=5.0))
    assert (report.episodes, report.refused) == (2, 1)
    assert report.left_out[0].source == "pick/1.0.0/loose.tfrecord"


@pytest.mark.slow
def test_damage_anywhere_gives_a_reason_or_an_episode(tmp_path: Path) -> None:
    folder = dataset(tmp_path / "1", [[episode_of(0), episode_of(1)]])
    (path,) = folder.glob("*.tfrecord*")
    whole = path.read_bytes()
    for seed in range(30):
        dice = np.random.default_rng(seed)
        data = bytearray(whole[: dice.integers(len(whole))] if seed % 3 == 0 else whole)
        for place in dice.integers(0, max(len(data), 1), 3 if data else 0):
            data[place] ^= 1 << int(dice.integers(8))
        path.write_bytes(data)
        for number in range(2):
            with suppress(MainspringError, IndexError):
                read(folder, tmp_path, number)
