from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.session.agent import Agent

from mainspring.domain import wire
from mainspring.domain.errors import DamagedData, InvalidInput, InvalidMessage, NotFound, Unavailable
from mainspring.session import Region, Restored
from mainspring.session.line import AgentConnection


def lay(agent: Agent, whole: np.ndarray[Any, Any], cuts: list[int], *, path: str = "x", here: frozenset[int]) -> None:
    """Cuts an array by rows; the parts numbered in `here` lie in a file of this node, the others far away."""
    bounds = [0, *cuts, len(whole)]
    for number, (low, high) in enumerate(pairwise(bounds)):
        part = np.ascontiguousarray(whole[low:high])
        shard = wire.Shard(
            path=path,
            dtype=part.dtype.name,
            global_shape=whole.shape,
            start=(low,) + (0,) * (whole.ndim - 1),
            shape=part.shape,
            offset=len(agent.far_bytes),
            size_bytes=part.nbytes,
        )
        if number in here:
            file = agent.folder / f"near-{path}-{number}"
            file.write_bytes(bytes(64) + part.tobytes())
            agent.here += (replace(shard, file=str(file), offset=64),)
        else:
            agent.elsewhere += (shard,)
            agent.far_bytes += part.tobytes() + bytes(-part.nbytes % 64)
    agent.plan_step = 7


def restored(agent: Agent) -> Restored:
    found = agent.session().restore()
    assert found is not None
    return found


def test_restore_of_a_fresh_start_is_none(agent: Agent) -> None:
    assert agent.session().restore() is None


WHOLE = np.arange(60, dtype=np.int32).reshape(10, 6)


def test_restore_of_what_lies_here_asks_for_nothing_else(agent: Agent) -> None:
    lay(agent, WHOLE, [3, 5, 6, 8], here=frozenset(range(5)))
    state = restored(agent)
    np.testing.assert_array_equal(state.array("x"), WHOLE)
    np.testing.assert_array_equal(state.array("x", (2, 1), (5, 3)), WHOLE[2:7, 1:4])
    assert not agent.all(wire.FetchPieces)
    requests = agent.all(wire.RestoreRequest)
    assert [request.since for request in requests] == [0, 3]
    assert not any(request.everywhere for request in requests)


@pytest.mark.parametrize("here", [set(), {0}, {1, 2}])
def test_restore_mixes_what_lies_here_with_what_is_fetched(agent: Agent, here: set[int]) -> None:
    lay(agent, WHOLE, [3, 5], here=frozenset(here))
    lay(agent, WHOLE * 2.5, [1], path="y", here=frozenset({1}))
    state = restored(agent)
    x, y, row = state.arrays([Region(path="x"), Region(path="y"), Region(path="x", start=(4, 0), shape=(1, 6))])
    np.testing.assert_array_equal(x, WHOLE)
    np.testing.assert_array_equal(y, WHOLE * 2.5)
    np.testing.assert_array_equal(row, WHOLE[4:5])
    assert len(agent.all(wire.FetchPieces)) == 1, "all that is elsewhere comes in one message"
    assert sum(request.everywhere and request.since == 0 for request in agent.all(wire.RestoreRequest)) == 1


def test_restore_prefers_what_lies_here(agent: Agent) -> None:
    lay(agent, WHOLE, [3], here=frozenset({1}))
    lay(agent, WHOLE, [3], here=frozenset({0}))
    state = restored(agent)
    np.testing.assert_array_equal(state.array("x"), WHOLE)
    assert state.paths == ("x",)
    np.testing.assert_array_equal(state.array("x"), WHOLE)
    assert not agent.all(wire.FetchPieces)


def test_restore_fetches_only_the_rows_it_needs(agent: Agent) -> None:
    whole = np.random.default_rng(0).normal(size=(1000, 1000))
    lay(agent, whole, [500], here=frozenset())
    state = restored(agent)
    np.testing.assert_array_equal(state.array("x", (400, 0), (200, 1000)), whole[400:600])
    pieces = agent.all(wire.FetchPieces)[0].pieces
    assert sum(piece.size_bytes for piece in pieces) == 200 * 1000 * 8


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_restored_any_region_of_any_cut_equals_the_region_of_the_whole(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 7), min_size=1, max_size=3)))
    whole = np.random.default_rng(0).integers(0, 1000, shape, dtype=np.int16)
    cuts = sorted(data.draw(st.sets(st.integers(1, max(shape[0] - 1, 1)), max_size=3)) - {shape[0]})
    here = data.draw(st.frozensets(st.integers(0, 3)))
    agent = Agent(tmp_path_factory.mktemp("agent"))
    lay(agent, whole, cuts, here=here)
    low = tuple(data.draw(st.integers(0, size)) for size in shape)
    high = tuple(data.draw(st.integers(start, size)) for start, size in zip(low, shape, strict=True))
    extent = tuple(b - a for a, b in zip(low, high, strict=True))
    region = Region(path="x", start=low, shape=extent)
    private, view = (restored(agent).arrays([region], copy=copy)[0] for copy in (True, False))
    wanted = whole[tuple(slice(a, b) for a, b in zip(low, high, strict=True))]
    np.testing.assert_array_equal(private, wanted)
    np.testing.assert_array_equal(view, wanted)
    agent.hang_up()


def test_restored_arrays_are_private(agent: Agent) -> None:
    lay(agent, WHOLE, [5], here=frozenset({0}))
    lay(agent, WHOLE, [], path="y", here=frozenset({0}))
    state = restored(agent)
    for path in ("x", "y"):
        first = state.array(path)
        first[:] = -1
        np.testing.assert_array_equal(state.array(path), WHOLE)
        (agent.folder / f"near-{path}-0").write_bytes(bytes(64 + WHOLE.nbytes))
        assert set(first.ravel()) == {-1}


def test_restored_without_copy_shares_memory_where_it_lies_in_one_piece(agent: Agent) -> None:
    lay(agent, WHOLE, [5], here=frozenset({0}))
    state = restored(agent)
    near, far, both = state.arrays(
        [Region(path="x", start=(1, 0), shape=(4, 6)), Region(path="x", start=(5, 0), shape=(5, 6)), Region(path="x")],
        copy=False,
    )
    assert not near.flags.writeable
    assert not far.flags.writeable
    assert both.flags.writeable
    np.testing.assert_array_equal(np.concatenate([WHOLE[:1], near, far]), both)
    (agent.folder / "near-x-0").write_bytes(bytes(64) + bytes(WHOLE.nbytes))
    assert not near.any(), "a view shows what becomes of the memory"


def test_restore_of_much_comes_in_turns_of_bounded_size(agent: Agent) -> None:
    whole = np.random.default_rng(0).normal(size=(100, 20))
    lay(agent, whole, list(range(5, 100, 5)), here=frozenset({2, 7}))
    line = AgentConnection(agent.path)
    plan = line.ask(wire.RestoreRequest(), wire.RestorePlan)
    much = Restored(plan, line.ask, nullcontext, turn_bytes=1000)
    np.testing.assert_array_equal(much.array("x"), whole)
    line.close()
    sizes = [sum(piece.size_bytes for piece in fetch.pieces) for fetch in agent.all(wire.FetchPieces)]
    assert sizes == [800] * 18


def test_restore_with_a_part_missing_everywhere_raises_damaged_data(agent: Agent) -> None:
    lay(agent, WHOLE, [3, 5], here=frozenset({0}))
    agent.elsewhere = agent.elsewhere[:1]
    state = restored(agent)
    np.testing.assert_array_equal(state.array("x", (0, 0), (5, 6)), WHOLE[:5])
    with pytest.raises(DamagedData, match="cover"):
        state.array("x")


def test_restore_of_an_unknown_array_names_what_there_is(agent: Agent) -> None:
    lay(agent, WHOLE, [3], here=frozenset({0}))
    lay(agent, WHOLE, [], path="far", here=frozenset())
    with pytest.raises(NotFound, match="far, x"):
        restored(agent).array("z")


@pytest.mark.parametrize(("start", "shape"), [((0, 0), (11, 6)), ((-1, 0), (1, 6)), ((0,), (1,)), ((3, 3), (3, 4))])
def test_restore_of_a_region_outside_its_array_is_refused(
    agent: Agent, start: tuple[int, ...], shape: tuple[int, ...]
) -> None:
    lay(agent, WHOLE, [], here=frozenset({0}))
    with pytest.raises(InvalidInput, match=r"inside shape \(10, 6\)"):
        restored(agent).array("x", start, shape)


@pytest.mark.parametrize(
    "damage",
    [
        {"size_bytes": 8},
        {"offset": -1},
        {"offset": 4096},
        {"shape": (10, -6)},
        {"start": (0,)},
        {"dtype": "object"},
        {"dtype": "nonsense"},
        {"global_shape": (10, 7)},
        {"dtype": "float32"},
    ],
)
def test_restore_of_shards_that_make_no_sense_is_damaged(agent: Agent, damage: dict[str, Any]) -> None:
    lay(agent, WHOLE, [5], here=frozenset({0, 1}))
    agent.here = (agent.here[0], replace(agent.here[1], **damage))
    with pytest.raises(DamagedData):
        restored(agent).array("x")


def test_restore_from_a_file_that_is_gone_is_unavailable(agent: Agent) -> None:
    lay(agent, WHOLE, [], here=frozenset({0}))
    state = restored(agent)
    Path(agent.here[0].file).unlink()
    with pytest.raises(Unavailable, match="near-x-0"):
        state.array("x")


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (wire.FetchFailed(reason="bits flipped", corrupt=True), DamagedData),
        (wire.FetchFailed(reason="peer is gone", corrupt=False), Unavailable),
        (wire.PiecesFetched(file="/nowhere", offsets=(0,)), Unavailable),
        (wire.PiecesFetched(file="/dev/null", offsets=(0,)), DamagedData),
        (wire.PiecesFetched(file="/dev/null", offsets=()), InvalidMessage),
        (wire.Done(), InvalidMessage),
    ],
)
def test_restore_whose_pieces_cannot_be_had_says_why(agent: Agent, answer: object, error: type[Exception]) -> None:
    lay(agent, WHOLE, [], here=frozenset())
    agent.fetched = lambda _: answer
    with pytest.raises(error):
        restored(agent).array("x")


def test_restore_whose_list_is_shorter_than_promised_is_refused(agent: Agent) -> None:
    lay(agent, WHOLE, [5], here=frozenset({0, 1}))
    agent.more = 1
    with pytest.raises(InvalidMessage, match="all 3 of step 7"):
        restored(agent)


def test_restore_whose_step_changes_under_way_is_unavailable(agent: Agent) -> None:
    lay(agent, WHOLE, [5], here=frozenset({0}))
    state = restored(agent)
    agent.plan_step = 9
    with pytest.raises(Unavailable, match="step 9"):
        state.array("x")
