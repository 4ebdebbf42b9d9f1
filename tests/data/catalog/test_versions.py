from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.data.catalog.fragments import FRAGMENT_ROWS_MAX, WHOLE_BYTES_MAX
from mainspring.data.catalog.log import Origin, Waiver
from mainspring.data.catalog.versions import (
    candidate,
    candidates,
    datasets,
    episode_rows,
    episode_table,
    extend,
    newest_version,
    newest_versions,
    prepare,
    publish,
    resolve,
    versions,
)
from mainspring.data.features import Column, Features
from mainspring.domain.errors import DamagedData, InvalidInput, NotFound
from mainspring.domain.ids import EpisodeId
from mainspring.objects import ObjectStore, open_store

from .making import FEATURES, blobs_of, episode, episodes, packed, version_of, wide_table


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path / "store"))


def test_versions_are_numbered_and_resolved_by_name(store: ObjectStore) -> None:
    first, second = version_of(store, range(2)), version_of(store, range(5))
    version_of(store, [9], "place")
    assert resolve(store, "pick@1") == first
    assert resolve(store, "pick@2") == resolve(store, "pick") == newest_version(store, "pick") == second
    assert versions(store, "pick") == (first, second)
    assert datasets(store) == ("pick", "place")
    assert [version.name for version in newest_versions(store)] == ["pick@2", "place@1"]


@pytest.mark.parametrize("name", ["pick@0", "pick@x", "pick@", "pick@1@1", "../pick", "", "pick@9999999999"])
def test_name_of_another_form_is_refused(store: ObjectStore, name: str) -> None:
    version_of(store, [1])
    with pytest.raises(InvalidInput):
        resolve(store, name)


def test_name_of_nothing_says_what_there_is(store: ObjectStore) -> None:
    version_of(store, [1], "pick-place")
    with pytest.raises(NotFound, match="did you mean 'pick-place'"):
        resolve(store, "pick-plaec")
    with pytest.raises(NotFound, match="pick-place@1"):
        resolve(store, "pick-place@2")


def test_version_has_the_rows_that_were_put_in(store: ObjectStore) -> None:
    rows = episodes(store, range(7))
    version = extend(store, "pick", rows, FEATURES)
    assert episode_rows(store, version) == tuple(sorted(rows, key=lambda row: row.id))
    assert (version.episodes, version.frames) == (7, sum(row.frames for row in rows))
    assert version.seconds == pytest.approx(sum(row.seconds for row in rows))
    indexes = {row.videos[0].index.blob for row in rows}
    assert version.size_bytes == sum(blob.size_bytes for blob in blobs_of(rows) - indexes)
    assert version.tasks == ("pick", "place", "pour")
    assert episode_table(store, version, ["frames", "id"]).column_names == ["frames", "id"]


def test_version_once_frozen_never_changes(store: ObjectStore) -> None:
    first = version_of(store, range(3))
    rows = episode_rows(store, first)
    version_of(store, range(50, 60))
    assert resolve(store, "pick@1") == first
    assert episode_rows(store, first) == rows


def test_version_of_equal_content_has_one_id_however_it_came_together(store: ObjectStore) -> None:
    for seeds in ([3, 4], [0]):
        version_of(store, seeds, "parts")
    in_parts = version_of(store, [1, 2], "parts")
    at_once = version_of(store, range(5), "whole")
    assert in_parts.id == at_once.id
    assert episode_rows(store, in_parts) == episode_rows(store, at_once)
    assert version_of(store, range(4), "other").id != at_once.id


def test_extending_by_what_is_there_freezes_nothing(store: ObjectStore) -> None:
    first = version_of(store, range(4))
    assert version_of(store, [1, 2]) == first
    second = version_of(store, [2, 3, 4])
    assert (second.number, second.episodes, second.parent) == (2, 5, "pick@1")


def test_episode_held_already_stays_as_it_is(store: ObjectStore) -> None:
    first = version_of(store, [1])
    (row,) = episode_rows(store, first)
    second = extend(store, "pick", [replace(row, source="again"), episode(store, 2)], FEATURES)
    assert row in episode_rows(store, second)


def test_episode_given_twice_is_one(store: ObjectStore) -> None:
    row = episode(store, 1)
    version = extend(store, "pick", [row, replace(row, source="again")], FEATURES)
    assert episode_rows(store, version) == (row,)


@pytest.mark.slow
def test_commits_leave_few_fragments_and_rewrite_little(store: ObjectStore) -> None:
    written = 0
    version = extend(store, "pick", packed(store, range(2_000)), FEATURES)
    for start in range(2_000, 2_320, 10):
        before = set(version.fragments)
        version = extend(store, "pick", packed(store, range(start, start + 10)), FEATURES)
        written += sum(part.episodes for part in set(version.fragments) - before)
    assert version.episodes == 2_320
    assert version.fragments[0].episodes == 2_000
    assert len(version.fragments) <= 1 + 6
    assert written <= 320 * 6


@pytest.mark.slow
@settings(max_examples=15)
@given(st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=12), min_size=1, max_size=8))
def test_commits_in_any_order_hold_each_episode_once(commits: list[list[int]]) -> None:
    store = open_store("memory://")
    every: set[int] = set()
    for seeds in commits:
        every |= set(seeds)
        assert extend(store, "pick", packed(store, seeds), FEATURES).episodes == len(every)
    ids = [row.id for row in episode_rows(store, resolve(store, "pick"))]
    assert ids == sorted(row.id for row in packed(store, sorted(every)))
    whole = extend(store, "whole", packed(store, sorted(every)), FEATURES)
    assert whole.id == resolve(store, "pick").id


def test_candidate_is_no_version_until_it_is_published(store: ObjectStore) -> None:
    version_of(store, [0])
    made = prepare(store, "pick", episodes(store, [1, 2]), FEATURES, Origin(kind="ingest", detail="inbox"))
    assert resolve(store, "pick").episodes == 1
    assert candidates(store, "pick") == (made.id,)
    assert candidate(store, "pick", made.id) == made
    assert (made.episodes, made.parent) == (2, "pick@1")
    assert {row.source for row in episode_rows(store, made)} == {"000001.mcap", "000002.mcap"}
    waiver = Waiver(gate="doctor", by="ada", reason="known lag")
    version = publish(store, candidate(store, "pick", made.id), waivers=[waiver])
    assert (version.episodes, version.waivers, version.origin.detail) == (3, (waiver,), "inbox")
    assert resolve(store, "pick") == version
    assert candidates(store, "pick") == ()
    with pytest.raises(NotFound):
        candidate(store, "pick", made.id)


def test_candidate_published_twice_is_one_version(store: ObjectStore) -> None:
    made = prepare(store, "pick", episodes(store, [1, 2]), FEATURES)
    assert publish(store, made) == publish(store, made)
    assert candidates(store, "pick") == ()


def test_candidate_published_after_others_adds_to_theirs(store: ObjectStore) -> None:
    made = prepare(store, "pick", episodes(store, [1, 2]), FEATURES)
    theirs = version_of(store, [2, 3])
    version = publish(store, made)
    assert (version.episodes, version.parent) == (3, theirs.name)


def test_dataset_refuses_other_features_and_no_rows(store: ObjectStore) -> None:
    other = Features(columns=(Column(name="state", names=("x",)),))
    made = prepare(store, "pick", episodes(store, [5]), other)
    version_of(store, [1])
    with pytest.raises(InvalidInput, match="extend a dataset"):
        extend(store, "pick", episodes(store, [2]), other)
    with pytest.raises(InvalidInput, match="extend a dataset"):
        publish(store, made)
    with pytest.raises(InvalidInput, match="no episodes"):
        extend(store, "pick", [], FEATURES)
    with pytest.raises(InvalidInput, match="dataset"):
        extend(store, "../pick", episodes(store, [2]), FEATURES)
    assert resolve(store, "pick").number == 1


def test_episode_id_that_is_no_hash_is_refused(store: ObjectStore) -> None:
    with pytest.raises(InvalidInput, match="hexadecimal"):
        extend(store, "pick", [replace(episode(store, 1), id=EpisodeId("z" * 32))], FEATURES)
    with pytest.raises(InvalidInput, match="32 letters"):
        extend(store, "pick", [replace(episode(store, 1), id=EpisodeId("abc"))], FEATURES)


def test_column_that_is_none_is_refused(store: ObjectStore) -> None:
    with pytest.raises(InvalidInput, match="nothing"):
        episode_table(store, version_of(store, [1]), ["nothing"])


def test_damaged_table_is_told_whether_it_is_read_whole_or_by_ranges(store: ObjectStore) -> None:
    version = extend(store, "pick", packed(store, range(3_000)), FEATURES)
    table = version.fragments[0].table
    data = bytearray(store.get(table.key))
    data[len(data) // 3] ^= 1
    store.put(table.key, data)
    with pytest.raises(DamagedData):
        episode_table(store, version)


@pytest.mark.slow
def test_large_table_is_read_by_ranges_and_checked_by_pages(store: ObjectStore) -> None:
    rows = wide_table(store, 60_000)
    version = extend(store, "pick", rows, FEATURES)
    table = version.fragments[0].table
    assert table.size_bytes > WHOLE_BYTES_MAX
    assert episode_table(store, version).equals(rows.sort_by("id"))
    data = bytearray(store.get(table.key))
    data[len(data) // 3] ^= 1
    store.put(table.key, data)
    with pytest.raises(DamagedData):
        episode_table(store, version)


@pytest.mark.slow
def test_rows_beyond_one_fragment_are_spread_over_several(store: ObjectStore) -> None:
    rows = wide_table(store, FRAGMENT_ROWS_MAX + 1_000, letters=1)
    version = extend(store, "pick", pa.concat_tables([rows, rows.slice(0, 500)]), FEATURES)
    assert [fragment.episodes for fragment in version.fragments] == [FRAGMENT_ROWS_MAX, 1_000]
    assert extend(store, "pick", rows.slice(7, 100_000), FEATURES) == version
    assert episode_table(store, version, ["id"])["id"].equals(rows.sort_by("id")["id"])
