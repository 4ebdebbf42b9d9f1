from __future__ import annotations

from pathlib import Path

import pytest

from mainspring.data.catalog.choose.selections import merge, select
from mainspring.data.catalog.keeping import GRACE_S_MIN, delete, pin, pins, undelete, unpin
from mainspring.data.catalog.lineage import Link, ancestors, descendants, record_use
from mainspring.data.catalog.mixtures import delete_mixture, freeze_mixture, mixture, mixtures
from mainspring.data.catalog.versions import datasets, episode_rows, resolve, versions
from mainspring.domain.errors import Conflict, InvalidInput, NotFound
from mainspring.objects import ObjectStore, open_store

from .making import GRACE_S, clock_of_now, version_of


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path / "store"))


def test_lineage_is_followed_up_and_down(store: ObjectStore) -> None:
    version_of(store, range(6))
    pick = version_of(store, range(9))
    place = version_of(store, range(20, 25), "place")
    good = select(store, pick, "frames > 22", dataset="good")
    both = merge(store, ["good", "place"], dataset="both")
    freeze_mixture(store, "mix", {"both": 1.0, "pick": 3.0})
    record_use(store, both.name, "view", "ab12")
    record_use(store, both.name, "view", "ab12")
    record_use(store, both.name, "checkpoint", "job-1/000400")
    assert ancestors(store, both) == (
        Link(of="both@1", kind="version", id="good@1", depth=1),
        Link(of="both@1", kind="version", id="place@1", depth=1),
        Link(of="good@1", kind="version", id="pick@2", depth=2),
        Link(of="pick@2", kind="version", id="pick@1", depth=3),
    )
    assert {(link.of, link.kind, link.id, link.depth) for link in descendants(store, pick)} == {
        ("pick@2", "version", "good@1", 1),
        ("pick@2", "mixture", "mix", 1),
        ("good@1", "version", "both@1", 2),
        ("both@1", "view", "ab12", 3),
        ("both@1", "checkpoint", "job-1/000400", 3),
        ("both@1", "mixture", "mix", 3),
    }
    assert {link.id for link in descendants(store, place)} == {"both@1", "ab12", "job-1/000400", "mix"}
    assert good.name == "good@1"


def test_use_of_a_number_that_another_took_is_passed_over(store: ObjectStore) -> None:
    one, two = version_of(store, [1], "one"), version_of(store, [2], "two")
    record_use(store, two.name, "version", "good@1")  # What a writer leaves that loses the race for the number.
    select(store, one, "true", dataset="good")
    assert descendants(store, two) == ()
    assert [link.id for link in descendants(store, one)] == ["good@1"]


@pytest.mark.parametrize(
    ("version", "kind", "id"), [("pick", "run", "a"), ("pick@1", "A", "a"), ("pick@1", "run", "../a")]
)
def test_use_that_cannot_be_named_is_refused(store: ObjectStore, version: str, kind: str, id: str) -> None:
    with pytest.raises(InvalidInput):
        record_use(store, version, kind, id)


def test_mixture_is_frozen_with_shares_that_sum_to_one(store: ObjectStore) -> None:
    version_of(store, [1], "one")
    version_of(store, [2], "two")
    made = freeze_mixture(store, "mix", {"two": 30, "one": 10})
    assert [(part.version, part.share) for part in made.components] == [("one@1", 0.25), ("two@1", 0.75)]
    version_of(store, [3], "two")
    assert mixture(store, "mix") == made
    assert mixtures(store) == ("mix",)
    assert freeze_mixture(store, "mix", {"two@1": 3, "one@1": 1}) == made
    with pytest.raises(Conflict):
        freeze_mixture(store, "mix", {"two": 3, "one": 1})


@pytest.mark.parametrize("weights", [{}, {"one": 0.0}, {"one": -1.0}, {"one": float("nan")}, {"one": 1, "one@1": 1}])
def test_mixture_of_no_weight_is_refused(store: ObjectStore, weights: dict[str, float]) -> None:
    version_of(store, [1], "one")
    with pytest.raises(InvalidInput):
        freeze_mixture(store, "mix", weights)


def test_mixture_of_nothing_known_is_told(store: ObjectStore) -> None:
    with pytest.raises(NotFound):
        freeze_mixture(store, "mix", {"one": 1.0})
    with pytest.raises(NotFound):
        mixture(store, "mix")


def test_version_deleted_is_out_of_sight_and_its_number_is_never_given_again(store: ObjectStore) -> None:
    clock = clock_of_now()
    version_of(store, [1])
    gone = version_of(store, [1, 2])
    assert delete(store, "pick@2", clock=clock, by="ada", reason="wrong robot") == gone
    assert resolve(store, "pick").name == "pick@1"
    assert [version.name for version in versions(store, "pick")] == ["pick@1"]
    with pytest.raises(NotFound, match="deleted"):
        resolve(store, "pick@2")
    with pytest.raises(NotFound):
        delete(store, "pick@2", clock=clock, by="ada", reason="again")
    new = version_of(store, [3])
    assert (new.name, new.parent, new.episodes) == ("pick@3", "pick@1", 2)
    assert new.id == version_of(store, [1, 3], "same").id


def test_dataset_without_a_living_version_is_gone_but_its_numbers_are_not(store: ObjectStore) -> None:
    version_of(store, [1])
    delete(store, "pick@1", clock=clock_of_now(), by="ada", reason="wrong")
    assert datasets(store) == ()
    with pytest.raises(NotFound):
        resolve(store, "pick")
    assert version_of(store, [2]).name == "pick@2"


def test_version_undeleted_within_its_grace_is_back(store: ObjectStore) -> None:
    clock = clock_of_now()
    version = version_of(store, [1, 2])
    rows = episode_rows(store, version)
    with pytest.raises(NotFound):
        undelete(store, "pick@1", clock=clock)
    delete(store, "pick@1", clock=clock, by="ada", reason="wrong", grace_s=GRACE_S)
    clock.advance(GRACE_S / 2)
    assert undelete(store, "pick@1", clock=clock) == version
    assert episode_rows(store, resolve(store, "pick")) == rows
    delete(store, "pick@1", clock=clock, by="ada", reason="wrong", grace_s=GRACE_S)
    clock.advance(GRACE_S - 60)
    with pytest.raises(Conflict, match="grace"):
        undelete(store, "pick@1", clock=clock)


def test_version_that_is_kept_is_not_deleted(store: ObjectStore) -> None:
    clock = clock_of_now()
    version_of(store, [1])
    pin(store, "pick", owner="ada", reason="the paper's")
    pin(store, "pick@1", owner="bob", reason="mine too")
    assert [one.owner for one in pins(store, "pick@1")] == ["ada", "bob"]
    with pytest.raises(Conflict, match=r"the paper's.* ms data unpin pick@1 --by ada"):
        delete(store, "pick@1", clock=clock, by="eve", reason="room")
    for owner in ("ada", "bob", "bob"):
        unpin(store, "pick@1", owner=owner)
    freeze_mixture(store, "mix", {"pick": 1})
    with pytest.raises(Conflict, match=r"mixture mix.* ms data rm mix, or"):
        delete(store, "pick@1", clock=clock, by="eve", reason="room")
    delete_mixture(store, "mix")
    delete(store, "pick@1", clock=clock, by="eve", reason="room")
    with pytest.raises(NotFound):
        pin(store, "pick@1", owner="ada", reason="too late")
    assert pins(store, "pick@1") == ()


def test_deletion_without_a_number_or_time_to_think_is_refused(store: ObjectStore) -> None:
    version_of(store, [1])
    with pytest.raises(InvalidInput, match="pick@1"):
        delete(store, "pick", clock=clock_of_now(), by="ada", reason="")
    with pytest.raises(InvalidInput, match="at least"):
        delete(store, "pick@1", clock=clock_of_now(), by="ada", reason="", grace_s=GRACE_S_MIN - 1)
