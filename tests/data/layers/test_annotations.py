from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.data.making import PERIOD_NS, record_many, version_of

from mainspring.data import ViewRecipe, build_view, episode_rows, open_view, select
from mainspring.data.catalog.log import Version
from mainspring.data.episode import EpisodeRow
from mainspring.data.layers.annotations import (
    ANNOTATIONS_MAX,
    LABEL_LENGTH_MAX,
    Annotation,
    annotation_table,
    annotations_of,
    freeze_labels,
    put_annotations,
    stretch_of,
    verdict_of,
)
from mainspring.domain.errors import DamagedData, InvalidInput
from mainspring.domain.ids import EpisodeId
from mainspring.objects import ObjectStore, open_store

EPISODE = EpisodeId("e1")


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path / "store"))


@pytest.fixture
def version(store: ObjectStore, tmp_path: Path) -> Version:
    return version_of(store, record_many(tmp_path / "raw", 3))


def said(made_ns: int, label: str = "", **more: Any) -> Annotation:
    return replace(Annotation(episode=EPISODE, author="ada", made_ns=made_ns, label=label or "x"), label=label, **more)


def standing(store: ObjectStore, *each: Annotation) -> tuple[Annotation, ...]:
    for one in each:
        put_annotations(store, [one])
    return annotations_of(store, [EPISODE]).get(EPISODE, ())


def test_annotations_fold_in_the_order_of_time_whatever_order_they_came_in(store: ObjectStore) -> None:
    old, new = said(1, success=True), said(2, "slipped", success=False, begin_ns=3, end_ns=5)
    assert standing(store, new, old) == (old, new)
    assert verdict_of((old, new)) is False
    assert verdict_of(()) is None


def test_annotations_said_again_are_one_layer(store: ObjectStore) -> None:
    first = put_annotations(store, [said(1, "a"), said(1, "b")])
    assert put_annotations(store, [said(1, "b"), said(1, "a")]) == first
    assert standing(store, said(1, "a")) == (said(1, "a"), said(1, "b"))


@pytest.mark.parametrize(
    ("withdrawal", "left"),
    [
        (said(9, withdraws=True), []),
        (said(9, "a", withdraws=True), ["b"]),
        (said(9, "a", begin_ns=1, end_ns=2, withdraws=True), ["a", "b"]),
        (said(0, "a", withdraws=True), ["a", "a", "b"]),
    ],
)
def test_withdrawals_take_back_what_was_said_before(
    store: ObjectStore, withdrawal: Annotation, left: list[str]
) -> None:
    before = [said(1, "a", begin_ns=1, end_ns=2), said(2, "a"), said(3, "b")]
    assert [one.label for one in standing(store, *before, withdrawal)] == left


@pytest.mark.parametrize(
    "wrong",
    [
        {"label": "two\nlines"},
        {"label": "x" * (LABEL_LENGTH_MAX + 1)},
        {"label": ""},
        {"author": "no such name!"},
        {"begin_ns": 5, "end_ns": 4},
        {"begin_ns": -1, "end_ns": 4},
        {"begin_ns": 5},
    ],
)
def test_annotations_that_say_nothing_sensible_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        Annotation(**{"episode": EPISODE, "author": "ada", "made_ns": 1, "label": "x", **wrong})


def test_acts_of_none_and_of_too_many_are_refused(store: ObjectStore) -> None:
    for many in (0, ANNOTATIONS_MAX + 1):
        with pytest.raises(InvalidInput, match="1 to"):
            put_annotations(store, [said(1, "x")] * many)


def test_damaged_annotations_are_told_by_their_place(store: ObjectStore) -> None:
    store.put_if_absent("annotations/bad.parquet", b"PAR1")
    with pytest.raises(DamagedData, match=r"annotations/bad\.parquet"):
        annotations_of(store, [EPISODE])


def test_stretches_stay_within_their_episode(store: ObjectStore, version: Version) -> None:
    row = episode_rows(store, version)[0]
    assert stretch_of(row, None, None) is None
    assert stretch_of(row, 0.5, None) == (500_000_000, round(row.seconds * 1e9))
    for begin_s, end_s in ((-0.1, 0.2), (0.3, 0.2), (0.1, row.seconds + 0.1), (float("nan"), 0.2)):
        with pytest.raises(InvalidInput):
            stretch_of(row, begin_s, end_s)


def labelled(store: ObjectStore, row: EpisodeRow) -> None:
    stretch = {"begin_ns": 4 * PERIOD_NS, "end_ns": 6 * PERIOD_NS}
    put_annotations(store, [replace(said(1, "It slipped!", **stretch), episode=row.id, success=False)])


def test_conditions_ask_for_what_was_said(store: ObjectStore, version: Version) -> None:
    rows = episode_rows(store, version)
    labelled(store, rows[1])
    joined = {"annotation": annotation_table(store, [row.id for row in rows])}
    for where in (
        "annotation.success = false",
        "list_contains(annotation.labels, 'It slipped!')",
        "list_contains(annotation.authors, 'ada') and annotation.spans[1].from_s = 0.2",
    ):
        chosen = select(store, version, where, dataset="slipped", joined=joined)
        assert [row.id for row in episode_rows(store, chosen)] == [rows[1].id]


@pytest.mark.slow
def test_frozen_labels_are_columns_of_views(store: ObjectStore, version: Version, tmp_path: Path) -> None:
    rows = episode_rows(store, version)
    labelled(store, rows[1])
    layer = freeze_labels(store, version, ["It slipped!"])
    assert freeze_labels(store, version, ["It slipped!"]) == layer
    recipe = ViewRecipe(columns=("action", "it-slipped", "state"), layers=(layer.id,), holdout_fraction=0.0)
    manifest = build_view(store, version, recipe, scratch_dir=tmp_path / "scratch")
    view = open_view(store, manifest.id, tmp_path / "views", "train")
    marks = view.take("it-slipped", np.arange(view.rows))
    assert np.flatnonzero(marks[:, 0]).size == 3
    put_annotations(store, [replace(said(2, "It slipped!"), episode=rows[0].id)])
    assert freeze_labels(store, version, ["It slipped!"]).id != layer.id


def test_labels_that_nobody_gave_are_not_frozen(store: ObjectStore, version: Version) -> None:
    labelled(store, episode_rows(store, version)[0])
    for labels, word in ((["late"], "It slipped!"), ([], "1 to"), (["a b", "a-b"], "each once"), (["?"], "letter")):
        with pytest.raises(InvalidInput, match=word):
            freeze_labels(store, version, labels)
