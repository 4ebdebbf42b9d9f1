from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

from mainspring.data.sketch import ERROR, Sketch, sketch_from_bytes, sketch_to_bytes
from mainspring.domain.errors import DamagedData, InvalidInput

SHARES = (0.0, 0.01, 0.02, 0.1, 0.25, 0.5, 0.9, 0.98, 0.99, 1.0)
LEAST = 2.0**-1022 / ERROR  # Below it doubles thin out, and the error is a share of the least of them.
Rows = NDArray[np.float64]

numbers = st.floats(allow_nan=False, allow_infinity=False, width=64)
tame = st.floats(-1e3, 1e3).map(lambda value: round(value, 3))


def rows(elements: st.SearchStrategy[float] = numbers, *, least: int = 1) -> st.SearchStrategy[Rows]:
    return npst.arrays(np.float64, st.tuples(st.integers(least, 40), st.just(3)), elements=elements)


def same(one: Sketch, other: Sketch) -> bool:
    return sketch_to_bytes(one) == sketch_to_bytes(other)


def close(found: Rows, wanted: Rows) -> bool:
    with np.errstate(over="ignore"):
        return bool((np.abs(found - wanted) <= np.abs(wanted) * ERROR + LEAST * ERROR).all())


@given(rows(least=0), rows(least=0), rows(least=0))
def test_sketches_merged_in_any_order_are_the_sketch_of_all_rows(one: Rows, two: Rows, three: Rows) -> None:
    whole = Sketch.of(np.concatenate([one, two, three]))
    a, b, c = Sketch.of(one), Sketch.of(two), Sketch.of(three)
    assert same(a.merged(b).merged(c), whole)
    assert same(a.merged(b.merged(c)), whole)
    assert same(c.merged(a).merged(b), whole)


@given(rows() | rows(tame))
def test_quantiles_are_within_the_error_of_the_rows_own(values: Rows) -> None:
    found = Sketch.of(values).quantiles(SHARES)
    assert close(found, np.quantile(values, SHARES, axis=0, method="lower"))


@pytest.mark.parametrize("kind", ["normal", "lognormal", "integers", "two far apart", "constant", "tiny", "rising"])
def test_quantiles_of_many_rows_are_within_the_error(kind: str) -> None:
    dice = np.random.default_rng(0)
    values = {
        "normal": dice.normal(size=(20_000, 2)),
        "lognormal": -np.exp(dice.normal(size=(20_000, 2)) * 20),
        "integers": dice.integers(-5, 6, (20_000, 2)).astype(np.float64),
        "two far apart": np.where(dice.random((20_000, 2)) < 0.5, -1e300, 1e-300),
        "constant": np.full((1_000, 2), 3.7),
        "tiny": dice.normal(size=(20_000, 2)) * 1e-310,
        "rising": np.arange(40_000.0).reshape(-1, 2),
    }[kind]
    parts = [Sketch.of(part) for part in np.array_split(values, 7)]
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.merged(part)
    assert close(whole.quantiles(SHARES), np.quantile(values, SHARES, axis=0, method="lower"))


@given(rows(), rows())
def test_fractions_count_the_rows_up_to_the_edge_s_bucket(values: Rows, edges: Rows) -> None:
    found = Sketch.of(values).fractions(edges)
    surely = (values[None] <= edges[:, None]).mean(axis=1)
    with np.errstate(over="ignore"):
        wide = np.abs(edges) * 2 * ERROR + LEAST * 2 * ERROR
        perhaps = (values[None] <= edges[:, None] + wide[:, None]).mean(axis=1)
    assert ((surely <= found) & (found <= perhaps)).all()


@given(rows())
def test_fractions_at_values_seen_are_never_below_their_share(values: Rows) -> None:
    sketch = Sketch.of(values)
    assert (sketch.fractions(sketch.quantiles(SHARES)) >= np.array(SHARES)[:, None] - 1 / len(values)).all()
    assert sketch.fractions(np.array([-np.inf, np.inf])).tolist()[1] == [1.0, 1.0, 1.0]
    assert np.array_equal(sketch.fractions(np.zeros(1))[0], (values <= 0).mean(axis=0))


def test_sketch_of_zeros_gives_zero() -> None:
    sketch = Sketch.of(np.array([[0.0, -0.0]] * 9))
    assert sketch.quantiles(SHARES).tolist() == [[0.0, 0.0]] * len(SHARES)
    assert len(sketch.buckets) == 2


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_sketch_of_what_is_no_number_is_refused(bad: float) -> None:
    with pytest.raises(InvalidInput):
        Sketch.of(np.array([[1.0, bad]]))


def test_quantiles_without_rows_or_out_of_range_are_refused() -> None:
    empty = Sketch.of(np.zeros((0, 2)))
    with pytest.raises(InvalidInput):
        empty.quantiles((0.5,))
    with pytest.raises(InvalidInput):
        empty.fractions(np.zeros(1))
    with pytest.raises(InvalidInput):
        Sketch.of(np.zeros((1, 2))).quantiles((1.5,))


@given(rows(least=0))
def test_sketch_comes_back_from_its_bytes(values: Rows) -> None:
    sketch = Sketch.of(values)
    again = sketch_from_bytes(sketch_to_bytes(sketch))
    assert (again.dims, again.rows) == (sketch.dims, sketch.rows)
    assert np.array_equal(again.buckets, sketch.buckets)
    assert np.array_equal(again.counts, sketch.counts)


@given(st.data())
def test_sketch_of_damaged_bytes_is_refused(data: st.DataObject) -> None:
    good = bytearray(sketch_to_bytes(Sketch.of(np.arange(30.0).reshape(-1, 3))))
    match data.draw(st.sampled_from(["cut", "changed", "other"])):
        case "cut":
            good = good[: data.draw(st.integers(0, len(good) - 1))]
        case "changed":
            at = data.draw(st.integers(0, len(good) - 1))
            good[at] ^= data.draw(st.integers(1, 255))
        case _:
            good = bytearray(data.draw(st.binary(max_size=50)))
    try:
        found = sketch_from_bytes(bytes(good))
    except DamagedData:
        return
    assert same(found, Sketch.of(np.arange(30.0).reshape(-1, 3)))  # A deflated stream ends in bits that mean nothing.
