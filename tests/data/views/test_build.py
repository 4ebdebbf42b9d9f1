"""Views that keep video: each frame in its place, and what a build takes over from others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.data.making import CAMERA, ROBOTS, copy_humanoid, record, record_many, version_of
from tests.data.views.making import FRAMES_EACH, built, numbers_of, opened, stamped_version

from mainspring.data import ViewProgress, ViewRecipe, build_view, open_view
from mainspring.data.catalog.lineage import Link, descendants
from mainspring.data.catalog.versions import Version, episode_rows
from mainspring.data.views.moments import QUANTILES
from mainspring.data.views.ready import steps_at
from mainspring.data.views.shards import ends_shard
from mainspring.data.views.view import MappedRanges
from mainspring.domain.errors import DamagedData, InvalidInput, NotFound
from mainspring.objects import Blob, ObjectStore, fetch_blob, open_store

LENGTHS = [23, 40, 7, 31]
CODED = ViewRecipe(image_size=32, codec="h264", gop=5, holdout_fraction=0.0)
PLAIN = ViewRecipe(image_size=32, holdout_fraction=0.0)
TABLES = ViewRecipe(holdout_fraction=0.0, shard_bytes=3_000)  # A few episodes of `record_many` a shard.


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path / "store"))


class Stopped(Exception):
    """A build that is killed."""


def progress_of(store: ObjectStore, version: Version, recipe: ViewRecipe, tmp_path: Path) -> ViewProgress:
    """Builds a view and returns its last progress."""
    told: list[ViewProgress] = []
    build_view(store, version, recipe, scratch_dir=tmp_path / "scratch", progress=told.append)
    return told[-1]


def shards_of(store: ObjectStore, version: Version, recipe: ViewRecipe, tmp_path: Path) -> int:
    return len(built(store, version, recipe, tmp_path).splits["train"].shards)


@pytest.mark.parametrize(
    "recipe", [CODED, PLAIN, replace(CODED, shard_bytes=4_000), replace(CODED, codec="jpeg", gop=7)]
)
def test_view_frames_are_each_in_their_place(store: ObjectStore, tmp_path: Path, recipe: ViewRecipe) -> None:
    view = opened(store, stamped_version(store, tmp_path / "raw", LENGTHS), recipe, tmp_path)
    found = numbers_of(view)
    assert sorted(found) == [[FRAMES_EACH * e + f for f in range(length)] for e, length in enumerate(LENGTHS)]
    assert view.has_images == (recipe.codec == "raw")
    assert view.gop == (5 if recipe.codec == "h264" else 1)


def test_view_at_another_rate_shows_the_nearest_step(store: ObjectStore, tmp_path: Path) -> None:
    version = stamped_version(store, tmp_path / "raw", LENGTHS)  # At 20 Hz.
    whole = opened(store, version, CODED, tmp_path)
    half = opened(store, version, replace(CODED, rate_hz=10.0), tmp_path)
    twice = opened(store, version, replace(CODED, rate_hz=40.0), tmp_path)
    assert numbers_of(half) == [numbers[::2] for numbers in numbers_of(whole)]
    assert [numbers[::2] for numbers in numbers_of(twice)] == numbers_of(whole)
    states = whole.take("state", np.arange(whole.rows))
    picked = np.concatenate([np.arange(a, b, 2) for a, b in zip(whole.episode_starts, whole.episode_ends, strict=True)])
    assert np.array_equal(half.take("state", np.arange(half.rows)), states[picked])


@given(st.lists(st.integers(1, 200_000_000), min_size=0, max_size=60), st.sampled_from([0.5, 3.0, 7.0, 29.97, 60.0]))
def test_steps_at_a_rate_are_the_nearest_in_time(gaps: list[int], rate_hz: float) -> None:
    times = 1_700_000_000_000_000_000 + np.cumsum([0, *gaps])
    steps = steps_at(times, rate_hz)
    wanted = times[0] + (np.arange(len(steps)) * (1e9 / rate_hz)).round().astype(np.int64)
    apart = np.abs(times[None, :] - wanted[:, None])
    assert (np.abs(times[steps] - wanted) <= apart.min(axis=1) + 2).all()  # The formula here rounds, theirs floors.
    assert (np.diff(steps) >= 0).all()
    assert times[-1] - wanted[-1] < 1e9 / rate_hz + 2


def test_view_of_some_columns_and_cameras_has_just_these(store: ObjectStore, tmp_path: Path) -> None:
    version = stamped_version(store, tmp_path / "raw", LENGTHS)
    blind = opened(store, version, replace(CODED, cameras=(), columns=("state",)), tmp_path)
    assert blind.cameras == ()
    assert blind.gop == 1
    assert set(blind.manifest.statistics) == {"state"}
    with pytest.raises(InvalidInput, match="action"):
        blind.take("action", np.arange(3))
    with pytest.raises(InvalidInput):
        blind.packets(CAMERA, 0, 1)
    for lacking in (replace(CODED, cameras=("left",)), replace(CODED, columns=("force",))):
        with pytest.raises(InvalidInput):
            built(store, version, lacking, tmp_path)


def test_view_s_quantiles_are_near_those_of_its_rows(store: ObjectStore, tmp_path: Path) -> None:
    view = opened(store, version_of(store, record_many(tmp_path / "raw", 12)), TABLES, tmp_path)
    assert len(view.manifest.splits["train"].shards) > 3
    for column, statistics in view.manifest.statistics.items():
        values = view.take(column, np.arange(view.rows)).astype(np.float64)
        wanted = np.quantile(values, QUANTILES, axis=0, method="lower")
        np.testing.assert_allclose(statistics.quantiles, wanted, rtol=0.004)


def test_view_of_a_grown_version_is_that_built_from_nothing(store: ObjectStore, tmp_path: Path) -> None:
    small, large = LENGTHS, [*LENGTHS, 12, 9]
    built(store, stamped_version(store, tmp_path / "small", small), CODED, tmp_path)
    grown = stamped_version(store, tmp_path / "large", large)
    assert grown.episodes == len(large)
    told = progress_of(store, grown, CODED, tmp_path)
    assert (told.done, told.total) == (6, 6)
    assert told.reused == 4
    fresh = open_store("memory://")
    assert progress_of(fresh, stamped_version(fresh, tmp_path / "large", large), CODED, tmp_path).reused == 0
    scratch = built(fresh, stamped_version(fresh, tmp_path / "large", large), CODED, tmp_path)
    assert built(store, grown, CODED, tmp_path) == scratch
    assert sorted(map(len, numbers_of(opened(store, grown, CODED, tmp_path)))) == sorted(large)


@pytest.mark.slow
@pytest.mark.parametrize("change", ["grown", "shrunk", "both"])
def test_view_of_a_changed_version_keeps_most_shards_and_is_that_built_from_nothing(
    store: ObjectStore, tmp_path: Path, change: str
) -> None:
    folder = record_many(tmp_path / "raw", 60)
    before = built(store, version_of(store, folder, "before"), TABLES, tmp_path)
    if change != "grown":
        (folder / "017.mcap").unlink()
    if change != "shrunk":
        record_many(folder / "more", 2, first_seed=500)
    after = version_of(store, folder, "after")
    told = progress_of(store, after, TABLES, tmp_path)
    shards = built(store, after, TABLES, tmp_path).splits["train"].shards
    kept = [shard for shard in shards if shard in before.splits["train"].shards]
    assert len(shards) > 20
    assert len(kept) >= len(shards) - 8
    assert told.reused > 0.7 * told.total
    fresh = open_store("memory://")
    assert built(fresh, version_of(fresh, folder, "fresh"), TABLES, tmp_path) == built(store, after, TABLES, tmp_path)


@pytest.mark.parametrize("recipe", [TABLES, replace(TABLES, holdout_fraction=0.3)])
def test_build_killed_anywhere_goes_on_where_it_was(store: ObjectStore, tmp_path: Path, recipe: ViewRecipe) -> None:
    version = version_of(store, record_many(tmp_path / "raw", 30))
    done, manifest = 0, None
    for _ in range(100):
        told: list[ViewProgress] = []

        def stop(progress: ViewProgress, told: list[ViewProgress] = told) -> None:
            told.append(progress)
            if progress.done - progress.reused == 8:
                raise Stopped

        try:
            manifest = build_view(store, version, recipe, scratch_dir=tmp_path / "scratch", progress=stop)
            break
        except Stopped:
            assert not list((tmp_path / "scratch").iterdir())
            assert told[-1].reused >= done
            done = told[-1].reused
    fresh = open_store("memory://")
    again = version_of(fresh, tmp_path / "raw")
    assert done > 0
    assert build_view(fresh, again, recipe, scratch_dir=tmp_path / "scratch") == manifest


def test_shard_whose_bytes_are_gone_is_made_again(store: ObjectStore, tmp_path: Path) -> None:
    version = version_of(store, record_many(tmp_path / "raw", 8))
    manifest = built(store, version, TABLES, tmp_path)
    store.delete(f"views/{manifest.id}.json")
    store.delete(manifest.splits["train"].shards[0].columns["state"].key)
    assert progress_of(store, version, TABLES, tmp_path).reused < 8
    assert built(store, version, TABLES, tmp_path) == manifest


def test_view_is_recorded_as_a_use_of_its_version(store: ObjectStore, tmp_path: Path) -> None:
    version = version_of(store, record_many(tmp_path / "raw", 3))
    manifest = built(store, version, TABLES, tmp_path)
    assert descendants(store, version) == (Link(of=version.name, kind="view", id=manifest.id, depth=1),)


def test_view_splits_by_group_leave_each_group_whole(store: ObjectStore, tmp_path: Path) -> None:
    tasks = [f"task {number % 5}" for number in range(15)]
    for number, task in enumerate(tasks):
        record(tmp_path / "raw" / f"{number}.mcap", steps=5 + number, seed=number, task=task)
    version = version_of(store, tmp_path / "raw")
    recipe = replace(TABLES, holdout_fraction=0.4, holdout_group="task")
    sides = [opened(store, version, recipe, tmp_path, side) for side in ("train", "holdout")]
    tasks_of = [side.episodes["task"].to_pylist() for side in sides]
    assert not set(tasks_of[0]) & set(tasks_of[1])
    assert sorted(tasks_of[0] + tasks_of[1]) == sorted(tasks)


def test_episode_whose_video_is_damaged_is_named(store: ObjectStore, tmp_path: Path) -> None:
    version = stamped_version(store, tmp_path / "raw", LENGTHS)
    row = episode_rows(store, version)[2]
    blob = row.videos[0].blob
    data = bytearray(store.get(blob.key))
    data[len(data) // 2] ^= 255
    store.put(blob.key, bytes(data))
    with pytest.raises(DamagedData, match=row.id):
        built(store, version, CODED, tmp_path)
    assert not list((tmp_path / "scratch").iterdir())
    with pytest.raises(NotFound):
        open_view(store, "0" * 32, tmp_path / "cache", "train")


def test_packets_can_be_read_by_ranges_without_fetching_the_video(store: ObjectStore, tmp_path: Path) -> None:
    manifest = built(store, stamped_version(store, tmp_path / "raw", LENGTHS), CODED, tmp_path)
    asked: list[int] = []

    def ranges(blob: Blob, offset: int, size_bytes: int) -> memoryview:
        asked.append(size_bytes)
        return memoryview(store.get_range(blob.key, offset=offset, size_bytes=size_bytes))

    view = open_view(store, manifest.id, tmp_path / "cache", "train", ranges=ranges)
    video = manifest.splits["train"].shards[0].videos[CAMERA].data
    assert not (tmp_path / "cache" / video.id).exists()
    assert sum(map(len, numbers_of(view))) == sum(LENGTHS)
    assert max(asked) < video.size_bytes / 4


def test_range_behind_a_blob_s_end_is_refused(store: ObjectStore, tmp_path: Path) -> None:
    manifest = built(store, stamped_version(store, tmp_path / "raw", LENGTHS), CODED, tmp_path)
    video = manifest.splits["train"].shards[0].videos[CAMERA].data
    ranges = MappedRanges(lambda blob: fetch_blob(store, blob, tmp_path / "cache"))
    with pytest.raises(DamagedData):
        ranges(video, video.size_bytes - 3, 4)


@given(st.lists(st.integers(1, 400), min_size=1, max_size=300), st.randoms(use_true_random=False))
def test_shards_end_between_half_and_twice_their_size(sizes: list[int], names: object) -> None:
    held = episodes = 0
    for number, size in enumerate(sizes):
        held, episodes = held + size, episodes + 1
        ended = ends_shard(
            f"{names}{number}", episode_bytes=size, held_bytes=held, episodes=episodes, shard_bytes=1_000
        )
        assert held <= 2_000
        if ended:
            assert held >= 500
            held = episodes = 0


def test_shards_are_one_size_on_average() -> None:
    held, ends = 0, 0
    for number in range(50_000):
        held += 10
        if ends_shard(f"episode {number}", episode_bytes=10, held_bytes=held, episodes=1, shard_bytes=1_000):
            held, ends = 0, ends + 1
    assert 850 < 500_000 / ends < 1_050


@pytest.mark.skipif(not ROBOTS.exists(), reason="the shared robot recordings are not here")
@pytest.mark.slow
def test_humanoid_view_is_a_fraction_of_the_pixels(store: ObjectStore, tmp_path: Path) -> None:
    version = version_of(store, copy_humanoid(tmp_path / "raw", 2), "bottle")
    recipe = replace(CODED, image_size=224, gop=10)
    (shard,) = built(store, version, recipe, tmp_path).splits["train"].shards
    (video,) = shard.videos.values()
    assert shard.rows == version.frames
    assert video.data.size_bytes / shard.rows < 1_200  # JPEG of a quality of 90 takes 12,700.
