from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.data.catalog.choose.selections import select
from mainspring.data.catalog.collect import GcReport, gc
from mainspring.data.catalog.condemned import confirm
from mainspring.data.catalog.keeping import GRACE_S_MIN, delete, pin
from mainspring.data.catalog.mixtures import freeze_mixture
from mainspring.data.catalog.versions import (
    candidates,
    episode_rows,
    extend,
    prepare,
    publish,
    resolve,
    versions,
)
from mainspring.domain.codec import encode
from mainspring.domain.errors import DamagedData, InvalidInput, NotFound, Unavailable
from mainspring.objects import Blob, ObjectStore, open_store, put_blob
from mainspring.testing.time_and_chance import FakeClock

from .making import FEATURES, GRACE_S, blobs_of, clock_of_now, episode, episodes, version_of
from .turns import AgingStore, Turns, TurnStore

TRIES_MAX = 20


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(clock: FakeClock) -> ObjectStore:
    return AgingStore(clock)


def there(store: ObjectStore, blobs: set[Blob]) -> set[Blob]:
    return {blob for blob in blobs if store.size(blob.key) is not None}


def check_whole(store: ObjectStore, dataset: str) -> None:
    """Checks that every blob of every version is there."""
    for version in versions(store, dataset):
        blobs = blobs_of(episode_rows(store, version))
        assert there(store, blobs) == blobs


def collected(store: ObjectStore, clock: FakeClock) -> GcReport:
    return gc(store, clock=clock, grace_s=GRACE_S)


def test_collection_deletes_what_nothing_names_and_keeps_the_rest(store: ObjectStore, clock: FakeClock) -> None:
    version = version_of(store, range(5))
    stray = {put_blob(store, b"stray %d" % number) for number in range(3)}
    clock.advance(2 * GRACE_S)
    young = put_blob(store, b"young")
    foretold = gc(store, clock=clock, grace_s=GRACE_S, dry_run=True)
    assert there(store, stray) == stray
    report = collected(store, clock)
    assert (report.garbage, report.young, report.alive) == (foretold.garbage, foretold.young, foretold.alive)
    assert (report.garbage.objects, report.young.objects) == (3, 1)
    assert report.garbage.size_bytes == sum(blob.size_bytes for blob in stray)
    assert there(store, {*stray, young}) == {young}
    check_whole(store, "pick")
    assert resolve(store, "pick") == version
    assert collected(store, clock).garbage.objects == 0


def test_collection_in_a_folder_goes_by_the_files_own_ages(tmp_path: Path) -> None:
    folder = open_store(str(tmp_path / "store"))
    version_of(folder, range(3))
    stray, clock = put_blob(folder, b"stray"), clock_of_now()
    assert gc(folder, clock=clock, grace_s=GRACE_S).garbage.objects == 0
    clock.advance(2 * GRACE_S)
    report = gc(folder, clock=clock, grace_s=GRACE_S)
    assert (report.garbage.objects, folder.size(stray.key)) == (1, None)
    check_whole(folder, "pick")


def test_version_deleted_is_freed_after_its_grace_unless_others_share_its_episodes(
    store: ObjectStore, clock: FakeClock
) -> None:
    version_of(store, range(4), "one")
    shared = version_of(store, range(3, 6), "two")
    clock.advance(2 * GRACE_S)
    delete(store, "one@1", clock=clock, by="ada", reason="room", grace_s=GRACE_S)
    assert collected(store, clock).freed == ()
    clock.advance(GRACE_S + 1)
    report = collected(store, clock)
    assert report.freed == ("one@1",)
    assert report.garbage.objects == 3 * 4 + 1  # Columns, index, video, raw of three episodes, and the table.
    assert resolve(store, "two") == shared
    check_whole(store, "two")


def test_selection_keeps_only_what_it_selects(store: ObjectStore, clock: FakeClock) -> None:
    version = version_of(store, range(9))
    dropped = blobs_of(row for row in episode_rows(store, version) if not row.success)
    select(store, version, "success", dataset="good")
    delete(store, "pick@1", clock=clock, by="ada", reason="room", grace_s=GRACE_S)
    clock.advance(2 * GRACE_S)
    collected(store, clock)
    check_whole(store, "good")
    assert there(store, dropped) == set()


def test_version_named_by_pin_or_mixture_is_kept_though_it_was_deleted(store: ObjectStore, clock: FakeClock) -> None:
    for dataset, seed in (("one", 1), ("two", 2)):
        version_of(store, [seed], dataset)
    pin(store, "one", owner="ada", reason="paper")
    freeze_mixture(store, "mix", {"two": 1})
    for dataset in ("one", "two"):  # As a race of deletion and pin may leave it.
        grave = b'{"deleted_s":0.0,"free_after_s":1.0,"by":"","reason":""}'
        store.put(f"catalog/{dataset}/000001.deleted.json", grave)
    clock.advance(2 * GRACE_S)
    report = collected(store, clock)
    assert (report.garbage.objects, report.freed) == (0, ())


def test_candidate_keeps_its_episodes_while_it_is_young(store: ObjectStore, clock: FakeClock) -> None:
    rows = episodes(store, range(3))
    clock.advance(2 * GRACE_S)
    made = prepare(store, "pick", rows, FEATURES)
    assert collected(store, clock).garbage.objects == 0
    clock.advance(2 * GRACE_S)
    report = collected(store, clock)
    assert report.documents == (f"candidates/pick/{made.id}.json",)
    assert there(store, blobs_of(rows)) == set()
    assert candidates(store, "pick") == ()
    with pytest.raises((Unavailable, NotFound)):
        publish(store, made)
    assert versions(store, "pick") == ()
    extend(store, "pick", episodes(store, range(3)), FEATURES)
    check_whole(store, "pick")


def test_view_lives_as_long_as_its_version(store: ObjectStore, clock: FakeClock) -> None:
    version, other = version_of(store, [1]), version_of(store, [2], "other")
    shards = {name: put_blob(store, name.encode()) for name in ("mine", "others", "of nobody", "of no version")}
    for name, made_of in (("mine", version.id), ("others", other.id), ("of nobody", "f" * 32), ("of no version", 7)):
        document = {"id": name, "version": made_of, "splits": {"train": {"shards": [{"columns": shards[name]}]}}}
        store.put(f"views/{name.replace(' ', '-')}.json", encode(document))
    delete(store, "other@1", clock=clock, by="ada", reason="room", grace_s=GRACE_S)
    assert collected(store, clock).documents == ()
    clock.advance(2 * GRACE_S)
    assert collected(store, clock).documents == ("views/of-nobody.json", "views/others.json")
    assert there(store, set(shards.values())) == {shards["mine"], shards["of no version"]}


def test_layers_journals_and_extra_roots_keep_what_they_name(store: ObjectStore, clock: FakeClock) -> None:
    table = extend(store, "aside", [episode(store, 5)], FEATURES).fragments[0].table
    inner = blobs_of(episode_rows(store, resolve(store, "aside")))
    named = {name: put_blob(store, name.encode()) for name in ("layer", "journal", "extra", "stray")}
    store.put(
        "layers/flow/1.json", encode({"values": named["layer"], "of": [{"table": table, "rows": 1, "keep": None}]})
    )
    store.put("intake/pick/a.json", encode({"rows": [named["journal"]]}))
    store.put("intake/pick/b.json", encode({"rows": [named["layer"]]}))
    delete(store, "aside@1", clock=clock, by="ada", reason="", grace_s=GRACE_S_MIN)
    clock.advance(GRACE_S - 10)
    assert collected(store, clock).garbage.objects == 0
    clock.advance(20)
    report = gc(store, clock=clock, grace_s=GRACE_S, extra_roots=[named["extra"].id])
    assert report.documents == ("intake/pick/a.json",)  # The other still saves work: all it names is there.
    assert there(store, {*named.values(), *inner, table}) == {named["layer"], named["extra"], *inner, table}


def test_collection_deletes_nothing_when_it_cannot_tell_what_is_alive(store: ObjectStore, clock: FakeClock) -> None:
    version = version_of(store, range(3))
    select(store, version, "frames > 20", dataset="good")
    stray = put_blob(store, b"stray")
    clock.advance(2 * GRACE_S)
    table = version.fragments[0].table
    store.put(table.key, b"something else")
    with pytest.raises(DamagedData):
        collected(store, clock)
    store.delete(table.key)
    with pytest.raises(NotFound, match=r"on good@1 \(fragment 1 of 1\), pick@1 \(fragment 1 of 1\);") as caught:
        collected(store, clock)
    assert table.key in caught.value.got
    assert "ms data rm" in caught.value.next_step
    assert store.size(stray.key) is not None
    with pytest.raises(InvalidInput, match="grace"):
        gc(store, clock=clock, grace_s=GRACE_S_MIN - 1)


def test_blob_collected_is_told_to_who_names_it_later(store: ObjectStore, clock: FakeClock) -> None:
    stray, kept = put_blob(store, b"stray"), put_blob(store, b"kept")
    version_of(store, [1])
    confirm(store, [stray.id])
    clock.advance(2 * GRACE_S)
    gc(store, clock=clock, grace_s=GRACE_S, extra_roots=[kept.id])
    confirm(store, [kept.id])
    with pytest.raises(Unavailable, match="collected as garbage"):
        confirm(store, [kept.id, stray.id])
    put_blob(store, b"stray")
    confirm(store, [kept.id, stray.id])
    clock.advance(2 * GRACE_S)
    put_blob(store, b"once more, so that there is a collection")
    collected(store, clock)
    clock.advance(2 * GRACE_S)
    collected(store, clock)
    assert len(store.list("gc")) <= 1  # Records go when they are older than any writer under way.


def test_collection_that_was_killed_is_ended_by_the_next(store: ObjectStore, clock: FakeClock) -> None:
    stray = put_blob(store, b"stray")
    clock.advance(2 * GRACE_S)
    dead = AgingStore(clock)
    store.put("gc/open/000000000001-000", bytes.fromhex(stray.id)[:8][::-1])
    with pytest.raises(Unavailable, match="garbage collection that is deleting"):
        confirm(store, [stray.id])
    clock.advance(GRACE_S)
    collected(store, clock)
    assert [entry.key.split("/")[1] for entry in store.list("gc")].count("open") == 0
    assert store.size(stray.key) is None
    assert dead.size(stray.key) is None


def until_it_lasts(work: Callable[[], None]) -> None:
    for _ in range(TRIES_MAX):
        try:
            return work()
        except (Unavailable, NotFound):
            continue
    raise AssertionError(f"in vain {TRIES_MAX} times")


@pytest.mark.soak
@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 40)), max_size=40), st.integers(0, 3))
def test_commits_beside_collections_lose_nothing_in_any_order(bursts: list[tuple[int, int]], mixed: int) -> None:
    """Old garbage is stored anew by two writers while two collections delete it."""
    clock, turns = FakeClock(), Turns()
    store = AgingStore(clock)
    old = prepare(store, "pick", episodes(store, [1, 2]), FEATURES)
    episodes(store, range(8))
    version_of(store, [20], "gone")
    delete(store, "gone@1", clock=clock, by="ada", reason="", grace_s=GRACE_S)
    clock.advance(2 * GRACE_S)
    if mixed % 2:
        version_of(store, [9])

    def writes(name: str, seeds: list[int]) -> Callable[[], None]:
        mine = TurnStore(store, turns, name)

        def write() -> None:
            extend(mine, "pick", episodes(mine, seeds), FEATURES)

        return lambda: until_it_lasts(write)

    def publishes() -> None:
        mine = TurnStore(store, turns, "publisher")
        try:
            publish(mine, old)
        except (Unavailable, NotFound):
            extend(mine, "aside", episodes(store, [30]), FEATURES)

    def collects(name: str) -> Callable[[], None]:
        return lambda: void(gc(TurnStore(store, turns, name), clock=clock, grace_s=GRACE_S))

    turns.run(
        {
            "writer 1": writes("writer 1", [0, 3, 4]),
            "writer 2": writes("writer 2", [4, 5, 20] if mixed > 1 else [5]),
            "publisher": publishes,
            "collector 1": collects("collector 1"),
            "collector 2": collects("collector 2"),
        },
        [actor for actor, steps in bursts for _ in range(steps)],
    )
    ids = {row.id for row in episode_rows(store, resolve(store, "pick"))}
    assert {episode(AgingStore(clock), seed).id for seed in (0, 3, 4, 5)} <= ids
    check_whole(store, "pick")
    clock.advance(2 * GRACE_S)
    collected(store, clock)
    check_whole(store, "pick")
    assert collected(store, clock).garbage.objects == 0


def void(_: object) -> None:
    return None
