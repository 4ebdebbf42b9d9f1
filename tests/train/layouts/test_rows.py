from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mainspring.domain.errors import InvalidInput
from mainspring.train.layouts.rows import Layout, LayoutRow, weights_from, weights_to

ROWS = (
    LayoutRow(theirs="embed", ours=("embedding",), padded=True),
    LayoutRow(theirs="blocks.{}.heads", ours=("blocks/query",), pattern="(N H) D -> L D N H"),
    LayoutRow(theirs="both", ours=("blocks/key", "blocks/value"), pattern="L P N D H -> L D N H"),
    LayoutRow(theirs="place", ours=("place",), pattern="1 T D -> T D"),
)
LAYOUT = Layout(rows=ROWS, instead={"head": "embed"}, unused=("idle",))
LAYERS, WIDTH, HEADS, HEAD = 2, 5, 3, 4
LIKE = {
    "embedding": np.zeros((7, WIDTH)),
    "blocks": {name: np.zeros((LAYERS, WIDTH, HEADS, HEAD)) for name in ("query", "key", "value")},
    "place": np.zeros((6, WIDTH)),
}


def theirs() -> dict[str, NDArray[np.float32]]:
    shapes: dict[str, tuple[int, ...]] = {
        "embed": (7, WIDTH),
        **{f"blocks.{layer}.heads": (HEADS * HEAD, WIDTH) for layer in range(LAYERS)},
        "both": (LAYERS, 2, HEADS, WIDTH, HEAD),
        "place": (1, 6, WIDTH),
    }
    numbers = np.random.default_rng(0)
    return {name: np.asarray(numbers.normal(size=shape), np.float32) for name, shape in shapes.items()}


def test_axes_come_where_the_pattern_says() -> None:
    given = theirs()
    weights = weights_from(LAYOUT, given, LIKE)
    for layer, width, head, feature in np.ndindex(LAYERS, WIDTH, HEADS, HEAD):
        place = (layer, width, head, feature)
        assert weights["blocks"]["query"][place] == given[f"blocks.{layer}.heads"][head * HEAD + feature, width]
        assert weights["blocks"]["key"][place] == given["both"][layer, 0, head, width, feature]
        assert weights["blocks"]["value"][place] == given["both"][layer, 1, head, width, feature]
    assert (weights["place"] == given["place"][0]).all()


def test_arrays_come_back_as_they_were() -> None:
    given = theirs()
    back = weights_to(LAYOUT, weights_from(LAYOUT, given, LIKE))
    assert sorted(back) == sorted(given)
    assert all(back[name].shape == array.shape and (back[name] == array).all() for name, array in given.items())


def test_weights_of_half_precision_become_float32() -> None:
    half: dict[str, Any] = {name: array.astype(np.float16) for name, array in theirs().items()}
    assert weights_from(LAYOUT, half, LIKE)["embedding"].dtype == np.float32


def test_arrays_missing_and_left_over_are_named() -> None:
    given = theirs()
    given["blocks.2.heads"] = given.pop("blocks.1.heads")
    with pytest.raises(InvalidInput, match=r"1 arrays missing \(blocks\.1\.heads\), 1 left over \(blocks\.2\.heads\)"):
        weights_from(LAYOUT, given, LIKE)


def test_array_of_another_shape_is_named_with_the_one_wanted() -> None:
    given = theirs()
    given["both"] = given["both"][:, :1]
    with pytest.raises(InvalidInput, match=r"both.*\(2, 1, 3, 5, 4\).*\(2, 2, 3, 5, 4\)"):
        weights_from(LAYOUT, given, LIKE)


def test_layout_of_another_model_names_the_arrays_that_it_lacks() -> None:
    with pytest.raises(InvalidInput, match=r"1 left over \(head\)"):
        weights_to(LAYOUT, {**weights_from(LAYOUT, theirs(), LIKE), "head": np.zeros(3)})
    with pytest.raises(InvalidInput, match=r"1 left over \(head\)"):
        weights_from(LAYOUT, theirs(), {**LIKE, "head": np.zeros(3)})


def test_array_that_has_two_names_may_come_under_either() -> None:
    given = theirs()
    given["head"] = given.pop("embed")
    assert (weights_from(LAYOUT, given, LIKE)["embedding"] == given["head"]).all()
    assert "head" not in weights_to(LAYOUT, weights_from(LAYOUT, given, LIKE))


def test_array_that_serves_nothing_is_passed_over() -> None:
    assert weights_from(LAYOUT, {**theirs(), "idle": np.zeros(3)}, LIKE).keys() == LIKE.keys()


def test_kept_weights_stay_whether_the_checkpoint_has_them_or_not() -> None:
    given = theirs()
    for more in (given, {name: array for name, array in given.items() if name != "place"}):
        weights = weights_from(LAYOUT, more, LIKE, keep=("place", "blocks/query"))
        assert not weights["place"].any()
        assert not weights["blocks"]["query"].any()
        assert (weights["embedding"] == given["embed"]).all()
    with pytest.raises(InvalidInput, match=r"1 arrays missing \(place\)"):
        weights_from(LAYOUT, more, LIKE, keep=("embedding",))


def test_kept_weights_stay_where_one_array_holds_them_and_others() -> None:
    given = theirs()
    weights = weights_from(LAYOUT, given, LIKE, keep=("blocks/key",))
    assert not weights["blocks"]["key"].any()
    assert (weights["blocks"]["value"] == given["both"][:, 1].transpose(0, 2, 1, 3)).all()


@pytest.mark.parametrize("pattern", ["blocks/qeury", "blocks", "place("])
def test_pattern_that_keeps_nothing_is_named(pattern: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(repr(pattern))):
        weights_from(LAYOUT, theirs(), LIKE, keep=("place", pattern))


@pytest.mark.parametrize(("value", "level"), [(0.0, "INFO"), (2.0, "WARNING")])
def test_rows_that_pad_a_table_are_cut_off_and_said(value: float, level: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    given = theirs()
    padded = {**given, "embed": np.concatenate([given["embed"], np.full((64, WIDTH), value, np.float32)])}
    assert (weights_from(LAYOUT, padded, LIKE)["embedding"] == given["embed"]).all()
    assert [record.levelname for record in caplog.records] == [level]
    assert "embed: of 71 rows the last 64 are left out" in caplog.text


@pytest.mark.parametrize(("name", "more"), [("embed", 65), ("embed", -1), ("place", 1)])
def test_rows_that_are_no_padding_are_refused(name: str, more: int) -> None:
    given = theirs()
    given[name] = np.resize(given[name], (len(given[name]) + more, *given[name].shape[1:]))
    with pytest.raises(InvalidInput, match=rf"{name}.*shape"):
        weights_from(LAYOUT, given, LIKE)
