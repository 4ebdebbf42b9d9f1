"""Folders of tables and videos, by a recipe."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.data.readers.pictures import jpegs
from tests.data.video.making import number_of, stamped, write_movie

from mainspring.data.episode import Episode
from mainspring.data.intake.ingest import ingest
from mainspring.data.intake.logs.recipe import MappingRecipe, recipe_from_plain, recipe_from_yaml
from mainspring.data.options import IngestOptions
from mainspring.data.readers.episodes.table.episode import table_recordings
from mainspring.data.readers.episodes.table.proposal import propose_table
from mainspring.data.readers.episodes.table.recipe import TableRecipe
from mainspring.data.video.frames import frames_in
from mainspring.domain.errors import DamagedData, InvalidInput, InvalidSpec
from mainspring.objects import open_store
from mainspring.testing.time_and_chance import FakeClock

ROWS = 12
PLAIN: Mapping[str, Any] = {
    "kind": "table",
    "table": "{episode}/states.csv",
    "columns": {"state": ["j*"], "action": ["cmd_1", "cmd_0"]},
    "time": "timestamp",
    "cameras": {"front": {"path": "{episode}/front.mp4"}},
    "task": {"text": "stack"},
    "success": {"column": "done"},
    "metadata": {"operator": {"file": "{episode}/meta.json", "key": "who.name"}},
}


def recipe(**changed: Any) -> TableRecipe:
    made = recipe_from_plain({**PLAIN, **changed})
    assert isinstance(made, TableRecipe)
    return made


def episode(
    folder: Path, *, frames: int = ROWS, time: Any = lambda row: f"{1_700_000_000_000_000_000 + row * 10**8}"
) -> Path:
    """One episode: a table, a video of as many frames, a file that says who made it."""
    folder.mkdir(parents=True)
    with open(folder / "states.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["timestamp", "j0", "j1", "j2", "cmd_0", "cmd_1", "done", "note"])
        for row in range(ROWS):
            writer.writerow(
                [time(row), row, 0.1 * row, len(folder.name), row + 1, -row, str(row == ROWS - 1).lower(), "a, b"]
            )
    write_movie(folder / "front.mp4", [stamped(number, height=48, width=64) for number in range(frames)])
    (folder / "meta.json").write_text('{"who": {"name": "Ada"}}')
    return folder


def read(root: Path, made: TableRecipe, number: int = 0, **options: Any) -> Episode:
    into = root.parent / f"read-{len(list(root.parent.iterdir()))}"
    into.mkdir()
    return list(table_recordings(root, made, IngestOptions(**options)))[number].read(into)


def shown(found: Episode) -> list[int]:
    """The numbers that a camera's pictures show at each step."""
    (video,) = found.videos
    assert video.index is not None
    numbers = [number_of(frame.to_ndarray(format="gray")) for frame in frames_in(video.path, video.index)]
    return numbers if video.shown is None else [numbers[step] for step in video.shown]


def test_tables_become_episodes_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for number in (10, 2):
        episode(tmp_path / "in" / f"run_{number}")
    assert [one.name for one in table_recordings(tmp_path / "in", recipe())] == [
        "run_2/states.csv",
        "run_10/states.csv",
    ]
    found = read(tmp_path / "in", recipe())
    assert found.columns["state"][3].tolist() == [3.0, 0.1 * 3, 5.0]
    assert found.columns["action"][3].tolist() == [-3.0, 4.0]
    assert (found.task, found.success, found.metadata["operator"], found.rate_hz) == ("stack", True, "Ada", 10.0)
    assert found.time_ns[:2].tolist() == [1_700_000_000_000_000_000, 1_700_000_000_100_000_000]
    assert found.features.names("action") == ("cmd_1", "cmd_0")
    assert shown(found) == list(range(ROWS))


@pytest.mark.parametrize(
    ("time", "unit"),
    [(lambda row: 0.1 * row, ""), (lambda row: 100 * row, "ms"), (lambda row: f"2026-01-02T03:04:{row:02d}Z", "")],
)
def test_times_of_any_form_are_read(tmp_path: Path, time: Any, unit: str) -> None:
    episode(tmp_path / "in" / "a", time=time)
    steps = np.diff(read(tmp_path / "in", recipe(unit=unit)).time_ns)
    assert set(steps.tolist()) in ({100_000_000}, {1_000_000_000})


def test_camera_of_another_rate_shows_the_nearest_frame(tmp_path: Path) -> None:
    folder = episode(tmp_path / "in" / "a", frames=2 * ROWS)
    camera = {"path": "{episode}/front.mp4", "fps": 20}
    assert shown(read(tmp_path / "in", recipe(cameras={"front": camera}))) == list(range(0, 2 * ROWS, 2))
    (folder / "frames.csv").write_text(
        "n,at\n" + "".join(f"{n},{1.7e9 + n * 0.05 + 0.5:.3f}\n" for n in range(2 * ROWS))
    )
    camera = {"path": "{episode}/front.mp4", "times": "{episode}/frames.csv", "time": "at"}
    with pytest.raises(DamagedData, match=r"begin or end 0\.500 s inside"):
        read(tmp_path / "in", recipe(cameras={"front": camera}))


def test_frames_that_are_one_fewer_cost_the_last_row_and_many_fewer_the_episode(tmp_path: Path) -> None:
    episode(tmp_path / "in" / "a", frames=ROWS - 1)
    found = read(tmp_path / "in", recipe())
    assert (len(found.time_ns), len(shown(found))) == (ROWS - 1, ROWS - 1)
    assert "the last row is left out" in found.note
    episode(tmp_path / "on" / "a", frames=ROWS - 3)
    with pytest.raises(DamagedData, match=r"12 rows; frames of front 9.*fps or times"):
        read(tmp_path / "on", recipe())


def test_pictures_of_a_folder_are_a_camera(tmp_path: Path) -> None:
    folder = episode(tmp_path / "in" / "a")
    pictures = jpegs(ROWS)
    for number, data in enumerate(pictures):
        (folder / f"img_{number}.jpg").write_bytes(data)
    found = read(tmp_path / "in", recipe(cameras={"front": {"path": "{episode}/img_*.jpg"}}))
    assert found.videos[0].path.read_bytes() == b"".join(pictures)


def test_parquet_with_vectors_and_a_rate(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    table = pa.table({"q": [[1.0, 2.0]] * ROWS, "a": np.arange(ROWS)})
    pq.write_table(table, tmp_path / "in" / "one.parquet")
    columns = {"state": ["q"], "action": ["a"]}
    made = TableRecipe(table="{episode}.parquet", columns={k: tuple(v) for k, v in columns.items()}, rate_hz=15.0)
    found = read(tmp_path / "in", made)
    assert found.features.names("state") == ("q_0", "q_1")
    assert (found.rate_hz, found.columns["state"].shape) == (15.0, (ROWS, 2))


@pytest.mark.parametrize(
    ("text", "got"),
    [
        ("", "Empty CSV"),
        ("timestamp,j0\n1,2\n", "no column 'cmd_1'"),
        ("timestamp,j0,cmd_0,cmd_1,done\n1,x,2,3,0\n", "'x'"),
    ],
)
def test_tables_that_do_not_fit_are_refused_with_the_reason(tmp_path: Path, text: str, got: str) -> None:
    folder = episode(tmp_path / "in" / "a")
    (folder / "states.csv").write_text(text)
    with pytest.raises(DamagedData, match=got):
        read(tmp_path / "in", recipe())


def test_files_that_are_missing_or_elsewhere_are_named(tmp_path: Path) -> None:
    folder = episode(tmp_path / "in" / "a")
    (folder / "front.mp4").unlink()
    with pytest.raises(DamagedData, match=r"no file a/front\.mp4"):
        read(tmp_path / "in", recipe())
    (tmp_path / "secret.mp4").write_bytes(b"x")
    (folder / "front.mp4").symlink_to(tmp_path / "secret.mp4")
    with pytest.raises(DamagedData, match="leads out of the source"):
        read(tmp_path / "in", recipe())
    with pytest.raises(InvalidInput, match="inside the source"):
        recipe(table="../{episode}.csv")


def test_recipes_of_both_kinds_are_told_apart(tmp_path: Path) -> None:
    part = {"topic": "/joints", "field": "position", "tolerance_ms": 10}
    assert isinstance(recipe_from_plain({"rate_hz": 10, "columns": {"state": [part]}}), MappingRecipe)
    (tmp_path / "r.yaml").write_text("kind: tables\ntable: x\n")
    with pytest.raises(InvalidSpec, match=r"'tables'.*wanted table"):
        recipe_from_yaml(tmp_path / "r.yaml")
    (tmp_path / "r.yaml").write_text("kind: table\ntable: '{e}.csv'\ncolumns: {state: [a]}\ntimes: t\n")
    with pytest.raises(InvalidSpec, match="time"):
        recipe_from_yaml(tmp_path / "r.yaml")


def test_proposed_recipe_is_taken_by_ingest(tmp_path: Path) -> None:
    for name in ("a", "bb"):
        episode(tmp_path / "in" / name)
    proposal = propose_table(tmp_path / "in")
    (tmp_path / "proposed.yaml").write_text(proposal.text)
    made = recipe_from_yaml(tmp_path / "proposed.yaml")
    assert made == proposal.recipe
    assert proposal.recipe.cameras["front"].path == "{episode}/front.mp4"
    assert dict(proposal.recipe.columns) == {"state": ("j0", "j1", "j2"), "action": ("cmd_0", "cmd_1")}
    store = open_store(str(tmp_path / "store"))
    report = ingest(tmp_path / "in", store, "stack", clock=FakeClock(), recipe=made)
    assert (report.episodes, report.refused) == (proposal.episodes, 0)
