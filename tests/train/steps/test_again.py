"""Work done again: verdicts, checksums, and steps that went wrong once and not again."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

from mainspring.data import View
from mainspring.data.views.manifest import Split
from mainspring.domain import wire
from mainspring.session import Session
from mainspring.train.inputs.fitting import Fitting
from mainspring.train.inputs.measured import statistics_of
from mainspring.train.inputs.sources import Sources
from mainspring.train.models.shapes import Signature
from mainspring.train.recipe import GuardRecipe, Recipe, changed
from mainspring.train.state.sharding import make_mesh, place_batch
from mainspring.train.steps.again import Trials, check_of
from mainspring.train.steps.checks import Checks
from mainspring.train.steps.state import TrainState, initial_state
from mainspring.train.steps.stepping import Over, Stepping
from mainspring.train.steps.update import NOT_FINITE
from mainspring.train.steps.verdicts import NEVER_MAX, Again, Look, Neighbours, compared, verdict
from mainspring.train.trainer import lowered_look, shapes_of
from tests.train.making import DIMS, Desk, small_recipe

RECIPE = changed(small_recipe(steps=6), {"guard": {"not_finite": "skip"}})
BAD = 3

# ---------------------------------------------------------------- verdicts


def seen(size: int, looks: int, **wrong: tuple[int, ...]) -> list[list[tuple[int, ...]]]:
    """Returns what so many devices make of rows, of which device N of `dN=(looks...)` is wrong in some looks."""
    found = list[list[tuple[int, ...]]]()
    for distance in range(looks):
        sums: list[tuple[int, ...]] = [((device + distance) % size, 7) for device in range(size)]
        for name, looks_of in wrong.items():
            if distance in looks_of:
                sums[int(name[1:])] = (1_000 + int(name[1:]), distance)
        found.append(sums)
    return found


@pytest.mark.parametrize("size", [2, 3, 8])
def test_devices_that_come_to_the_same_are_all_right(size: int) -> None:
    assert verdict(seen(size, 2)) == Neighbours(equal=True)


@pytest.mark.parametrize("size", [3, 4, 8])
@pytest.mark.parametrize(
    ("once", "again"), [((0,), (0,)), ((2,), (0, 2)), ((0, 1, 2), (0, 1, 2)), ((0, 1, 2), ()), ((0,), (1, 2))]
)
def test_device_that_stands_alone_again_or_often_while_others_are_steady_is_at_fault_beyond_doubt(
    size: int, once: tuple[int, ...], again: tuple[int, ...]
) -> None:
    found = verdict(seen(size, 3, d1=once), seen(size, 3, d1=again))
    assert (found.equal, found.suspects, found.certain) == (False, (1,), True)
    assert not verdict(seen(size, 3, d1=once)).certain, "a single round shows nobody to be steady"


@pytest.mark.parametrize("size", [3, 4, 8])
@pytest.mark.parametrize(("once", "again"), [((1,), ()), ((0, 2), ()), ((1,), (2,))])
def test_device_that_stands_alone_once_or_twice_and_otherwise_each_time_is_a_suspect_only(
    size: int, once: tuple[int, ...], again: tuple[int, ...]
) -> None:
    found = verdict(seen(size, 3, d1=once), seen(size, 3, d1=again))
    assert found == Neighbours(equal=False, suspects=(1,), unsteady=(1,))


@pytest.mark.parametrize("other", [3, 5])
def test_nobody_is_at_fault_beyond_doubt_where_others_give_two_answers(other: int) -> None:
    always = (0, 1, 2)
    found = verdict(seen(8, 3, d1=always), seen(8, 3, d1=always, **{f"d{other}": (2,)}))
    assert (found.certain, found.suspects, found.unsteady) == (False, (1, other), (other,))
    assert not verdict(seen(3, 3, d0=always), seen(3, 3, d0=always, d1=(1,))).certain


def test_two_devices_that_stand_alone_are_both_at_fault() -> None:
    rounds = seen(8, 3, d1=(0, 1, 2), d5=(0, 2)), seen(8, 3, d1=(0, 1, 2), d5=(0, 2))
    assert verdict(*rounds) == Neighbours(equal=False, suspects=(1, 5), certain=True)


def test_of_two_devices_that_disagree_both_are_suspects() -> None:
    assert verdict(*[seen(2, 2, d1=(0, 1))] * 2) == Neighbours(equal=False, suspects=(0, 1))


def test_nobody_is_at_fault_beyond_doubt_where_two_of_three_are_wrong_or_nothing_repeats() -> None:
    assert verdict(*[seen(3, 3, d0=(0, 1, 2), d1=(0, 1, 2))] * 2) == Neighbours(equal=False, suspects=(0, 1, 2))
    never = [[[(device, look) for device in range(4)] for look in looks] for looks in (range(3), range(3, 6))]
    assert verdict(*never) == Neighbours(equal=False, suspects=(0, 1, 2, 3), unsteady=(0, 1, 2, 3))


def test_step_done_again_is_steady_or_not_and_wrong_or_not() -> None:
    one, other = Look(sums=((1, 2), (3, 4)), upset=0.0), Look(sums=((1, 2), (3, 5)), upset=0.0)
    assert compared(one, one).passed
    assert compared(one, other) == Again(unsteady=(1,), upset=False)
    assert not compared(one, other).passed
    wrong = Look(sums=one.sums, upset=float(NOT_FINITE))
    assert not compared(wrong, wrong).passed


def test_checksum_changes_with_any_bit_and_with_places() -> None:
    tree = {"a": jnp.arange(64, dtype=jnp.float32), "b": jnp.ones((3, 5), jnp.bfloat16)}
    own = check_of(tree).tolist()
    assert check_of({"a": tree["a"] + 0, "b": tree["b"]}).tolist() == own
    for bit in (0, 13, 31):
        bits = np.asarray(tree["a"]).view(np.uint32).copy()
        bits[40] ^= np.uint32(1 << bit)
        assert check_of({**tree, "a": jnp.asarray(bits.view(np.float32))}).tolist() != own
    assert check_of({**tree, "a": tree["a"][::-1]}).tolist() != own


# ---------------------------------------------------------------- checks, told of or not

Answers = Callable[[int, int], list[tuple[int, ...]]]
CHECKED = changed(small_recipe(steps=100), {"guard": {"check_every": 2}})


def sound(distance: int, number: int, size: int = 4) -> list[tuple[int, ...]]:
    return [((device + distance) % size, 7) for device in range(size)]


def never_the_same(distance: int, number: int) -> list[tuple[int, ...]]:
    return [(number, device) for device in range(4)]


def asked(answers: Answers, *, size: int = 4) -> Trials:
    """Returns trials of devices of which each look is answered so, by its distance and how many there were before."""
    trials, numbers = Trials(CHECKED, make_mesh(None, jax.devices()[:1] * size)), count()

    def look(state: TrainState, batch: Any, step: int, distance: int = 0) -> Look:
        return Look(sums=tuple(answers(distance, next(numbers))), upset=0.0)

    trials.look = look  # type: ignore[method-assign]
    return trials


def told_of(trials: Trials, folder: Path, steps: int) -> list[wire.StepTried]:
    """Returns what the lead is told of so many steps."""
    desk = Desk(folder, every=5)
    checks = Checks(desk.join(), trials, None)
    for step in range(1, steps + 1):
        if checks.due(step):
            checks.check(cast(TrainState, None), {}, step)
    said = desk.said(wire.StepTried)
    desk.close()
    return said


def test_program_that_never_repeats_itself_is_checked_three_times_and_then_that_is_told_once(tmp_path: Path) -> None:
    trials = asked(never_the_same)
    assert told_of(trials, tmp_path, 20) == [wire.StepTried(step=2 * NEVER_MAX, equal=False, given_up=True)]
    assert not trials.due(22)


def test_of_two_devices_one_of_which_is_wrong_from_the_start_both_are_suspected(tmp_path: Path) -> None:
    def answers(distance: int, number: int) -> list[tuple[int, ...]]:
        return [sound(distance, number, 2)[0], (1_000, distance)]

    names = "device 0 of rank 0 (cpu), device 0 of rank 0 (cpu)"
    assert told_of(asked(answers, size=2), tmp_path, 8) == [
        wire.StepTried(step=step, equal=False, ranks=(0,), device=names) for step in (2, 4, 6, 8)
    ]


def test_device_that_differs_once_is_suspected_and_the_run_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    def answers(distance: int, number: int) -> list[tuple[int, ...]]:
        return [*sound(distance, number)[:3], (99, 99) if number == 1 else sound(distance, number)[3]]

    checks = Checks(Session("", pid=1, stopwatch=lambda: 0.0), asked(answers), None)
    checks.check(cast(TrainState, None), {}, 2)
    assert "device 0 of rank 0 (cpu) did not come to the same when step 2 was done again" in capsys.readouterr().err
    checks.check(cast(TrainState, None), {}, 4)
    assert capsys.readouterr().err == "", "all is well"
    assert checks.facts == {"agreed_step": 3}


def test_run_without_a_lead_says_that_devices_are_not_checked_any_more_and_how_they_would_be(
    capsys: pytest.CaptureFixture[str],
) -> None:
    checks = Checks(Session("", pid=1, stopwatch=lambda: 0.0), asked(never_the_same), None)
    for step in (2, 4):
        checks.check(cast(TrainState, None), {}, step)
    assert capsys.readouterr().err == ""
    checks.check(cast(TrainState, None), {}, 6)
    said = capsys.readouterr().err
    assert "mainspring: devices are not checked after step 6 any more" in said
    assert "XLA_FLAGS=--xla_gpu_deterministic_ops=true" in said
    assert "guard.check_every=0" in said


def test_nobody_is_accused_of_a_spike_that_comes_again_where_the_program_may_not_repeat_itself(
    tmp_path: Path,
) -> None:
    desk = Desk(tmp_path, every=5)
    session, every = desk.join(), (0, 1, 2, 3)
    checks = Checks(session, asked(never_the_same), None)
    assert checks.again(9, Again(unsteady=every, upset=True)) == "; done again it went wrong too"
    assert checks.again(9, Again(unsteady=(0, 2), upset=True)) == "; done again it went wrong too"
    alone = Checks(session, asked(never_the_same, size=1), None)
    assert alone.again(9, Again(unsteady=(0,), upset=True)) == "; done again it went wrong too"
    assert desk.said(wire.StepTried) == []
    assert checks.again(9, Again(unsteady=(2,), upset=True)).endswith("on device 0 of rank 0 (cpu)"), (
        "others did repeat"
    )
    repeats = Checks(session, asked(sound), None)
    repeats.check(cast(TrainState, None), {}, 2)
    assert "came to something else, on" in repeats.again(10, Again(unsteady=(0, 2), upset=True))
    assert repeats.again(11, Again(unsteady=every, upset=True)) == "; done again it went wrong too"
    assert [(one.step, one.ranks) for one in desk.said(wire.StepTried)] == [(9, (0,)), (2, ()), (10, (0,))]
    desk.close()


def test_program_of_a_look_is_the_same_from_shapes_as_from_arrays(views: dict[Split, View]) -> None:
    mesh, state = make_mesh(), begun(views["train"], RECIPE)
    batch = place_batch(mesh, next(batches(views["train"], RECIPE)))
    ahead = lowered_look(RECIPE, Signature(state_dim=DIMS, action_dim=DIMS), shapes_of(batch), jax.devices())
    assert ahead.as_text() == Trials(RECIPE, mesh).lowered(state, batch).as_text()


# ---------------------------------------------------------------- on a device


def memory_of(array: jax.Array) -> NDArray[np.uint8]:
    """Returns the bytes of a device's memory in which an array lies: what a flipped bit changes."""
    data = array.addressable_shards[0].data
    return np.ctypeslib.as_array((ctypes.c_uint8 * data.nbytes).from_address(data.unsafe_buffer_pointer()))


def batches(view: View, recipe: Recipe) -> Iterator[dict[str, Any]]:
    sources = Sources(recipe, view)
    with sources.loader(rank=0, world_size=1, fit=Fitting(sources)).stream(0) as stream:
        for rows in stream:
            yield {name: array.copy() for name, array in rows.items()}


def begun(view: View, recipe: Recipe) -> TrainState:
    signature = Signature(state_dim=DIMS, action_dim=DIMS)
    return initial_state(recipe, signature, statistics_of(Sources(recipe, view)), make_mesh())


def run(view: View, recipe: Recipe, *, flip: bool) -> tuple[list[bytes], list[Over]]:
    """Returns the state after a few steps, and what was told of each; in step `BAD` the batch is wrong for a while."""
    mesh, told = make_mesh(), list[Over]()

    def over(done: Over) -> None:
        told.append(done)

    stepping = Stepping(recipe, mesh, begun(view, recipe), Trials(recipe, mesh), over)
    for step, rows in zip(range(1, 7), batches(view, recipe), strict=False):
        batch = place_batch(mesh, rows)
        held = memory_of(batch["state"].block_until_ready())
        before = held.copy()
        if flip and step == BAD:
            held[:4] = np.frombuffer(np.float32(np.nan).tobytes(), np.uint8)
        stepping.do(step, batch)
        if flip and step == BAD:
            jax.tree.map(lambda leaf: leaf.block_until_ready(), stepping.state)
            held[:] = before
    stepping.settle()
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(stepping.state)], told


@pytest.mark.slow
def test_step_that_went_wrong_once_is_done_again_and_leaves_no_trace(views: dict[Split, View]) -> None:
    bits, told = run(views["train"], RECIPE, flip=True)
    assert [done.step for done in told] == [1, 2, 3, 4, 5, 6]
    assert [done.again for done in told] == [None, None, Again(unsteady=(), upset=False), None, None, None]
    assert all(np.isfinite(done.measures.loss) and not done.measures.upset for done in told)
    assert bits == run(views["train"], RECIPE, flip=False)[0]


@pytest.mark.slow
def test_device_that_gives_two_answers_is_named_and_told_and_the_word_says_so(
    views: dict[Split, View], tmp_path: Path
) -> None:
    mesh = make_mesh()
    trials, state = Trials(RECIPE, mesh), begun(views["train"], RECIPE)
    batch = place_batch(mesh, next(batches(views["train"], RECIPE)))
    first = trials.look(state, batch, 1)
    assert compared(first, trials.look(state, batch, 1)).passed
    memory_of(batch["state"])[2] ^= 1
    again = compared(first, trials.look(state, batch, 1))
    assert again == Again(unsteady=(0,), upset=False)
    desk = Desk(tmp_path, every=5)
    checks = Checks(desk.join(), trials, None)
    assert checks.again(9, again) == "; done again it came to something else, on device 0 of rank 0 (cpu)"
    assert checks.again(10, Again(unsteady=(), upset=False)) == "; done again it came to something else"
    assert checks.again(11, Again(unsteady=(), upset=True)) == "; done again it came to the same"
    named = wire.StepTried(step=9, equal=False, again=True, ranks=(0,), device="device 0 of rank 0 (cpu)")
    assert desk.said(wire.StepTried) == [named, wire.StepTried(step=10, equal=False, again=True, ranks=(0,))]
    desk.close()


def test_fleet_that_is_simulated_checks_as_often_as_recipes_do() -> None:
    from mainspring.simulator.health.watchers import CHECK_STEPS

    assert GuardRecipe().check_every == CHECK_STEPS


def test_neighbours_are_not_asked_where_there_are_none_or_nobody_wants_it() -> None:
    assert not Trials(RECIPE, make_mesh()).due(250)
