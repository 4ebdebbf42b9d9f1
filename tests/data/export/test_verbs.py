"""`ms data export` and `lab.data.export` as people call them, in a home folder of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.data.making import write_lerobot_v2
from typer.testing import CliRunner, Result

from mainspring.app.cli.main import app
from mainspring.app.sdk.lab import Lab
from mainspring.domain.errors import Conflict, InvalidInput

pytestmark = pytest.mark.slow


def ms(home: Path, *words: str) -> Result:
    done = CliRunner().invoke(app, ["--home", str(home), "data", *words], env={"COLUMNS": "200"})
    if isinstance(done.exception, InvalidInput | Conflict):
        raise done.exception
    return done


@pytest.fixture
def home(tmp_path: Path) -> Path:
    lab = Lab(tmp_path / "home")
    lab.data.ingest(write_lerobot_v2(tmp_path / "source", [9, 7], video=True), dataset="pick")
    return lab.home.path


def test_export_lists_what_is_not_held_before_it_writes_and_counts_at_the_end(home: Path, tmp_path: Path) -> None:
    done = ms(home, "export", "pick", str(tmp_path / "out"), "--to", "rlds")
    assert done.exit_code == 0, done.output
    assert "rlds does not hold:" in done.stderr
    assert "0 copied, 16 encoded again" in done.stdout
    assert (tmp_path / "out" / "features.json").is_file()
    folders = sorted(path.name for path in (tmp_path / "out").iterdir() if path.is_dir())
    assert folders == []  # Neither a journal nor a place for temporary files is left.


def test_export_says_the_same_to_machines_whenever_it_is_repeated(home: Path, tmp_path: Path) -> None:
    words = ("export", "pick@1", str(tmp_path / "out"), "--to", "lerobot-v3", "--where", "frames < 9", "--json")
    first = json.loads(ms(home, *words).stdout)
    assert (first["episodes"], first["copied"], first["again"], first["lost"]) == (1, 7, 0, [])
    assert json.loads(ms(home, *words).stdout) == first


def test_export_that_must_hold_everything_writes_nothing_when_it_cannot(home: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="PNG of the RGB pixels"):
        ms(home, "export", "pick", str(tmp_path / "out"), "--to", "rlds", "--strict")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("words", [(), ("--to", "lerobot"), ("--to", "mcap", "--rerun")])
def test_export_to_no_format_or_one_that_is_not_known_names_those_that_are(
    home: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    with pytest.raises(InvalidInput, match=r"lerobot-v3, lerobot-v2\.1, mcap, rlds, hdf5"):
        ms(home, "export", "pick", str(tmp_path / "out"), *words)


def test_sdk_exports_to_a_relative_folder_of_the_caller(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lab = Lab(home)
    assert lab.data.prepare_export("pick", "mcap").lost  # MPEG-4 Part 2 is no video of Foxglove's.
    report = lab.data.export("pick", "mcap", "here", without_cameras=["observation.images.front"], strict=True)
    assert report.files == 3
    assert sorted(path.name for path in (tmp_path / "here").iterdir()) == [
        "episode_000000.mcap",
        "episode_000001.mcap",
        "mainspring-export.json",
        "recipe.yaml",
    ]
    with pytest.raises(InvalidInput, match="one of lerobot-v3"):
        lab.data.export("pick", "lerobot", "there")
