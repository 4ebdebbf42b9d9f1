from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mainspring.data.catalog.versions import datasets, episode_rows, newest_versions, query, resolve, versions
from mainspring.data.ingest.intake import ingest
from mainspring.domain.errors import InvalidInput, NotFound
from mainspring.objects import ObjectStore, open_store

from .making import record, record_many, version_of


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path / "store"))


def test_versions_are_numbered_and_resolved_by_name(store: ObjectStore, tmp_path: Path) -> None:
    first = version_of(store, record_many(tmp_path / "raw", 2))
    second = version_of(store, record_many(tmp_path / "more", 1, first_seed=50))
    version_of(store, record_many(tmp_path / "other", 1), "place")
    assert resolve(store, "pick@1") == first
    assert resolve(store, "pick@2") == resolve(store, "pick") == second
    assert versions(store, "pick") == (first, second)
    assert datasets(store) == ("pick", "place")
    assert [version.name for version in newest_versions(store)] == ["pick@2", "place@1"]


def test_version_once_frozen_never_changes(store: ObjectStore, tmp_path: Path) -> None:
    first = version_of(store, record_many(tmp_path / "raw", 2))
    rows = episode_rows(store, first)
    version_of(store, record_many(tmp_path / "more", 1, first_seed=50))
    assert episode_rows(store, resolve(store, "pick@1")) == rows


@pytest.mark.parametrize("name", ["pick@0", "pick@x", "pick@", "pick@1@1", "../pick", "", "pick@9999999999"])
def test_name_of_another_form_is_refused(store: ObjectStore, tmp_path: Path, name: str) -> None:
    version_of(store, record_many(tmp_path / "raw", 1))
    with pytest.raises(InvalidInput):
        resolve(store, name)


def test_name_of_nothing_says_what_there_is(store: ObjectStore, tmp_path: Path) -> None:
    version_of(store, record_many(tmp_path / "raw", 1), "pick-place")
    with pytest.raises(NotFound, match="did you mean 'pick-place'"):
        resolve(store, "pick-plaec")
    with pytest.raises(NotFound, match="pick-place@1"):
        resolve(store, "pick-place@2")


@pytest.mark.slow
def test_committers_that_race_lose_no_episode(store: ObjectStore, tmp_path: Path) -> None:
    sources = [record(tmp_path / f"raw{seed}" / "a.mcap", seed=seed).parent for seed in range(8)]
    with ThreadPoolExecutor(8) as pool:
        reports = list(pool.map(lambda source: ingest(source, store, "pick"), sources))
    assert all(report.version is not None for report in reports)
    assert resolve(store, "pick").episodes == 8
    assert [version.number for version in versions(store, "pick")] == list(range(1, 9))


def test_query_filters_episodes_by_their_columns(store: ObjectStore, tmp_path: Path) -> None:
    version = version_of(store, record_many(tmp_path / "raw", 6))
    rows = episode_rows(store, version)
    assert set(query(store, version, "success and frames > 22")) == {
        row.id for row in rows if row.success and row.frames > 22
    }
    assert query(store, version, "task = 'nothing'") == ()
    assert len(query(store, version, "true")) == 6


@pytest.mark.parametrize(
    "where",
    ["", "nothing > 1", "1; drop table episodes", "frames >", "id in (select column0 from read_csv('/etc/passwd'))"],
)
def test_query_that_is_no_condition_is_refused(store: ObjectStore, tmp_path: Path, where: str) -> None:
    version = version_of(store, record_many(tmp_path / "raw", 1))
    with pytest.raises(InvalidInput):
        query(store, version, where)
