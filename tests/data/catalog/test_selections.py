from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.data.catalog.choose.compare import diff
from mainspring.data.catalog.choose.selections import choose, merge, select
from mainspring.data.catalog.choose.splits import split
from mainspring.data.catalog.fragments import mask_of
from mainspring.data.catalog.log import Origin
from mainspring.data.catalog.versions import (
    candidates,
    episode_rows,
    extend,
    publish,
    query,
    resolve,
)
from mainspring.data.episode import EpisodeRow
from mainspring.data.features import Column, Features
from mainspring.domain.errors import Conflict, InvalidInput
from mainspring.objects import ObjectStore, open_store

from .making import FEATURES, episode, episodes, packed, version_of

CONDITIONS: dict[str, Callable[[EpisodeRow], bool]] = {
    "success and frames > 22": lambda row: bool(row.success) and row.frames > 22,
    "not success": lambda row: row.success is False,
    "success is null": lambda row: row.success is None,
    "metadata['session'] = 'session-1'": lambda row: row.metadata["session"] == "session-1",
    "metadata['nothing'] = 'x'": lambda row: False,
    "TASK = 'pick' OR Seconds < 1.2": lambda row: row.task == "pick" or row.seconds < 1.2,
    "len(raw) = 1 and raw[1].name like '%3.mcap'": lambda row: row.raw[0].name.endswith("3.mcap"),
    "columns.size_bytes > 12": lambda row: row.columns.size_bytes > 12,
    "frames = (select max(frames) from episodes)": lambda row: row.frames == 39,
    "true -- everything": lambda row: True,
    "frames > 30 and true": lambda row: row.frames > 30,
}


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path / "store"))


@pytest.mark.parametrize("where", CONDITIONS)
def test_query_finds_what_the_condition_says(store: ObjectStore, where: str) -> None:
    version_of(store, range(12))
    version = version_of(store, range(12, 20))
    rows = episode_rows(store, version)
    assert query(store, version, where) == tuple(row.id for row in rows if CONDITIONS[where](row))


@pytest.mark.parametrize(
    "where",
    [
        "",
        "nothing > 1",
        "1; drop table episodes",
        "true); drop table episodes; --",
        "frames >",
        "id in (select column0 from read_csv('/etc/passwd'))",
        "id in (select * from duckdb_settings()",
        "x" * 20_000,
    ],
)
def test_query_that_is_no_condition_is_refused(store: ObjectStore, where: str) -> None:
    version = version_of(store, [1])
    with pytest.raises(InvalidInput):
        query(store, version, where)


def test_selection_is_frozen_and_remembers_how_it_was_made(store: ObjectStore) -> None:
    version_of(store, range(10))
    version = version_of(store, range(10, 30))
    chosen = select(store, version, "success", dataset="good")
    rows = tuple(row for row in episode_rows(store, version) if row.success)
    assert episode_rows(store, chosen) == rows
    assert (chosen.name, chosen.parent, chosen.origin.kind, chosen.origin.detail) == (
        "good@1",
        version.name,
        "filter",
        "success",
    )
    assert (chosen.episodes, chosen.frames) == (len(rows), sum(row.frames for row in rows))
    assert {part.table for part in chosen.fragments} <= {part.table for part in version.fragments}
    again = select(store, chosen, "frames > 40", dataset="good")
    assert episode_rows(store, again) == tuple(row for row in rows if row.frames > 40)
    assert (again.name, again.parent) == ("good@2", "good@1")
    assert extend(store, "fresh", [row for row in rows if row.frames > 40], FEATURES).id == again.id


def test_selection_of_the_same_is_the_same_version(store: ObjectStore) -> None:
    version = version_of(store, range(10))
    first = select(store, version, "success", dataset="good")
    assert select(store, version, "success and true", dataset="good") == first
    assert candidates(store, "good") == ()


def test_selection_of_none_is_refused(store: ObjectStore) -> None:
    with pytest.raises(InvalidInput, match="none"):
        select(store, version_of(store, range(3)), "frames > 10000", dataset="good")


def test_selection_waits_as_candidate_for_its_judges(store: ObjectStore) -> None:
    version = version_of(store, range(9))
    made = choose(store, version, "success", dataset="good")
    assert candidates(store, "good") == (made.id,)
    assert publish(store, made).episodes == made.episodes == len(query(store, version, "success"))


def test_selection_into_its_own_dataset_never_drops_what_others_added(store: ObjectStore) -> None:
    version = version_of(store, range(9))
    made = choose(store, version, "frames > 22", dataset="pick")
    version_of(store, [20])
    with pytest.raises(Conflict, match="pick@2 is the newest"):
        publish(store, made)
    chosen = select(store, resolve(store, "pick"), "frames > 22", dataset="pick")
    assert (chosen.name, chosen.parent) == ("pick@3", "pick@2")
    assert 20 + 20 in [row.frames for row in episode_rows(store, chosen)]


def test_selection_extended_holds_both(store: ObjectStore) -> None:
    version = version_of(store, range(9))
    select(store, version, "frames > 22", dataset="good")
    back = extend(store, "good", episodes(store, [0, 8, 50]), FEATURES)
    assert back.id == version_of(store, [0, *range(3, 9), 50], "same").id


def test_selection_by_joined_values_sees_them_as_columns(store: ObjectStore) -> None:
    version = version_of(store, range(6))
    rows = episode_rows(store, version)
    scores = pa.table({"id": [row.id for row in rows[:4]], "score": [0.1, 0.9, 0.8, 0.2]})
    joined = {"quality": scores}
    chosen = select(store, version, "quality.score > 0.5", dataset="good", joined=joined)
    assert [row.id for row in episode_rows(store, chosen)] == [rows[1].id, rows[2].id]
    missing = select(store, version, "quality.score is null and frames > 0", dataset="bare", joined=joined)
    assert [row.id for row in episode_rows(store, missing)] == [rows[4].id, rows[5].id]
    twice = pa.concat_tables([scores, scores])
    for name, table in (("quality", twice), ("frames", scores), ("quality", scores.drop(["id"])), ("a b", scores)):
        with pytest.raises(InvalidInput):
            select(store, version, "true", dataset="good", joined={name: table})


def test_selection_made_by_something_else_than_its_condition_says_by_what(store: ObjectStore) -> None:
    origin = Origin(kind="split", detail="train: 0.1 held out, by id")
    chosen = select(store, version_of(store, range(6)), "frames > 22", dataset="good", origin=origin)
    assert chosen.origin == origin


def test_merge_holds_each_episode_once(store: ObjectStore) -> None:
    one, two = version_of(store, range(6), "one"), version_of(store, range(4, 9), "two")
    both = merge(store, ["one", "two@1"], dataset="both")
    assert both.id == version_of(store, range(9), "whole").id
    assert both.origin.inputs == (one.name, two.name)
    other = Features(columns=(Column(name="state", names=("x",)),))
    extend(store, "other", [episode(store, 1)], other)
    for names in (["one", "other"], ["one"], ["one", "one@1"]):
        with pytest.raises(InvalidInput):
            merge(store, names, dataset="both")


@pytest.mark.slow
@settings(max_examples=40)
@given(st.sets(st.integers(0, 40), min_size=1), st.sets(st.integers(0, 40), min_size=1), st.integers(1, 40))
def test_difference_is_that_of_the_sets(one: set[int], two: set[int], cut: int) -> None:
    store = open_store("memory://")
    before = extend(store, "one", packed(store, one), FEATURES)
    if part := {seed for seed in two if seed < cut}:
        extend(store, "two", packed(store, part), FEATURES)
    after = extend(store, "two", packed(store, two), FEATURES)
    ids = {seed: row.id for seed, row in zip(range(41), packed(store, range(41)), strict=True)}
    found = diff(store, before, after)
    assert found.added["id"].to_pylist() == sorted(ids[seed] for seed in two - one)
    assert found.removed["id"].to_pylist() == sorted(ids[seed] for seed in one - two)
    assert found.kept == len(one & two)


def test_difference_of_a_selection_is_what_it_left_out(store: ObjectStore) -> None:
    version_of(store, range(6))
    version = version_of(store, range(20))
    chosen = select(store, version, "success", dataset="good")
    found = diff(store, version, chosen)
    assert found.added.num_rows == 0
    assert found.removed["id"].to_pylist() == list(query(store, version, "success is not true"))
    assert found.kept == chosen.episodes
    assert mask_of(store, chosen.fragments[0]) is not None


@pytest.mark.parametrize(("episodes", "fraction", "held"), [(93, 0.1, 9), (40, 0.25, 10), (10, 0.05, 1), (30, 1.0, 30)])
def test_split_holds_out_just_its_share(store: ObjectStore, episodes: int, fraction: float, held: int) -> None:
    assert split(store, version_of(store, range(episodes)), fraction).held_out == held


def test_split_of_several_tasks_holds_out_a_share_of_each(store: ObjectStore) -> None:
    tasks = ["stack"] * 60 + ["pour"] * 20 + ["wipe"] * 10
    rows = [replace(row, task=task) for row, task in zip(packed(store, range(90)), tasks, strict=True)]
    sides = split(store, extend(store, "pick", rows, FEATURES), 0.1)
    task_of = {row.id: row.task for row in rows}
    held = [task_of[id] for id in sides.ids_held_out.to_pylist()]
    assert {task: held.count(task) for task in task_of.values()} == {"stack": 6, "pour": 2, "wipe": 1}


def test_split_of_a_growing_dataset_moves_nobody_and_stays_balanced(store: ObjectStore) -> None:
    before: dict[str, bool] = {}
    for count in (7, 20, 21, 55, 93):
        sides = split(store, version_of(store, range(count)), 0.1, keep=True)
        now = {row["id"]: row["held_out"] for row in sides.episodes.to_pylist()}
        assert before.items() <= now.items()
        assert abs(sides.held_out - count / 10) <= 1
        before = now
    assert split(store, resolve(store, "pick@2"), 0.1).ids_held_out.to_pylist() == sorted(
        id for id in before if before[id] and id in query(store, resolve(store, "pick@2"), "true")
    )


def test_split_kept_by_several_at_once_gives_each_group_one_side(store: ObjectStore) -> None:
    versions = [version_of(store, range(first, first + 30), f"part-{first}") for first in (0, 10, 20, 30)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda version: split(store, version, 0.3, keep=True), versions))
    for sides, version in zip(found, versions, strict=True):
        assert split(store, version, 0.3).ids_held_out.equals(sides.ids_held_out)


def test_split_by_group_keeps_sessions_together(store: ObjectStore) -> None:
    version = version_of(store, range(60))
    sides = split(store, version, 0.3, group="metadata['session']", keep=True)
    assert sides.episodes["id"].to_pylist() == [row.id for row in episode_rows(store, version)]
    sessions = {row.id: row.metadata["session"] for row in episode_rows(store, version)}
    by_session: dict[str, set[bool]] = {}
    for row in sides.episodes.to_pylist():
        assert row["group"] == sessions[row["id"]]
        by_session.setdefault(row["group"], set()).add(row["held_out"])
    assert all(len(held) == 1 for held in by_session.values())
    assert 0 < sides.held_out < 60
    grown = split(store, version_of(store, range(80)), 0.3, group="metadata['session']")
    kept = {row["id"]: row["held_out"] for row in grown.episodes.to_pylist()}
    assert all(kept[row["id"]] == row["held_out"] for row in sides.episodes.to_pylist())


def test_split_without_the_group_keeps_episodes_alone(store: ObjectStore) -> None:
    sides = split(store, version_of(store, range(5)), 0.5, group="metadata['nothing']")
    assert sides.episodes["group"].to_pylist() == sides.episodes["id"].to_pylist()
    with pytest.raises(InvalidInput, match="split episodes"):
        split(store, resolve(store, "pick"), 0.5, group="nothing +")


def test_split_that_leaks_one_recording_is_refused(store: ObjectStore) -> None:
    rows = packed(store, range(40))
    twins = [replace(row, columns=rows[0].columns) for row in rows]
    version = extend(store, "pick", twins, FEATURES)
    with pytest.raises(InvalidInput, match="one recording on both sides"):
        split(store, version, 0.5)
    assert split(store, version, 0.5, group='columns."check"').held_out in (0, 40)
