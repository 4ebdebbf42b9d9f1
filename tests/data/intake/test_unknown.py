"""What is not read is named for what it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainspring.data.intake.sources import survey_of, units_in
from mainspring.domain.errors import InvalidInput

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 5\n"


def said_of(source: Path) -> str:
    with pytest.raises(InvalidInput) as caught:
        survey_of(source, None)
    return str(caught.value)


def reasons_in(source: Path) -> list[str]:
    return [mapped.reason for unit in units_in(source, None) for mapped in unit.read(source)]


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("demo.hdf5", POINTER, "git lfs pull"),
        ("run.mcap", POINTER, "git lfs pull"),
        ("model.bin", POINTER, "git lfs pull"),
        ("demo.pkl", "x", "a pickle"),
        ("demo.npy", "x", "NumPy arrays"),
        ("demo.pth", "x", "a PyTorch file"),
        ("pick-train.tfrecord-00000-of-00001", "x", "without the features.json"),
        ("more.tar.gz", "x", "name it as a source of its own"),
        ("run.bag.active", "x", "rosbag reindex"),
    ],
)
def test_file_is_left_out_with_what_it_is_and_what_would_work(
    tmp_path: Path, name: str, text: str, reason: str
) -> None:
    (tmp_path / name).write_text(text)
    (tmp_path / "README.md").write_text("plain words are no recording")
    (only,) = reasons_in(tmp_path)
    assert reason in only


def test_folders_without_their_descriptions_are_named(tmp_path: Path) -> None:
    (tmp_path / "push.zarr" / "data").mkdir(parents=True)
    rlds = tmp_path / "pick"
    rlds.mkdir()
    (rlds / "dataset_info.json").write_text("{}")
    (rlds / "pick-train.tfrecord-00000-of-00001").write_bytes(b"")
    one, two = reasons_in(tmp_path)
    assert "RLDS folder without its features.json" in one
    assert "Zarr folder without its .zgroup" in two


@pytest.mark.parametrize(
    ("mark", "name"), [("meta/info.json", "LeRobot"), (".zgroup", "Zarr"), ("features.json", "RLDS")]
)
def test_folder_inside_a_dataset_leads_back_to_it(tmp_path: Path, mark: str, name: str) -> None:
    (tmp_path / "set" / "data" / "chunk-000").mkdir(parents=True)
    (tmp_path / "set" / mark).parent.mkdir(exist_ok=True)
    (tmp_path / "set" / mark).write_text("{}")
    for inner in ("data", "data/chunk-000"):
        said = said_of(tmp_path / "set" / inner)
        assert name in said
        assert said.endswith(f"one folder too deep: try {tmp_path / 'set'}")


def test_folder_without_recordings_is_told_by_what_it_holds(tmp_path: Path) -> None:
    assert "an empty folder" in said_of(tmp_path)
    (tmp_path / ".hidden").write_text("x")
    assert "only hidden files" in said_of(tmp_path)
    (tmp_path / "notes.txt").write_text("x")
    assert "1 .txt" in said_of(tmp_path)
    (tmp_path / "front.mp4").write_text("x")
    assert "videos alone" in said_of(tmp_path)
    (tmp_path / "states.csv").write_text("a,b\n")
    assert "tables without a recipe (1 .csv)" in said_of(tmp_path)
