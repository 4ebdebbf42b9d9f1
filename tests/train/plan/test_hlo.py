"""Programs of a few lines, in the forms that XLA writes: what a chip computes and sends in them is counted by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mainspring.domain.errors import DamagedData
from mainspring.train.plan.hlo import flops_of, parsed_program
from mainspring.train.plan.traffic import bytes_by_axis, groups_of

MESH = {"replica": 2, "data": 4, "sequence": 1, "tensor": 2}  # 16 chips; a tensor pair lies next to each other.
DATA = "replica_groups=[4,4]<=[2,4,2]T(0,2,1)"
TENSOR = "replica_groups=[8,2]<=[16]"
LOOP = """
%condition (c: (s32[], f32[8,64])) -> pred[] {
  %c = (s32[], f32[8,64]{1,0}) parameter(0)
  %at = s32[] get-tuple-element(%c), index=0
  %end = s32[] constant(5)
  ROOT %more = pred[] compare(%at, %end), direction=LT
}

%body (b: (s32[], f32[8,64])) -> (s32[], f32[8,64]) {
  %b = (s32[], f32[8,64]{1,0}) parameter(0)
  %now = s32[] get-tuple-element(%b), index=0
  %one = s32[] constant(1)
  %next = s32[] add(%now, %one)
  %x = f32[8,64]{1,0} get-tuple-element(%b), index=1
INSIDE
  ROOT %out = (s32[], f32[8,64]{1,0}) tuple(%next, %x)
}
"""
START = """
  %zero = s32[] constant(0)
  %begin = (s32[], f32[8,64]{1,0}) tuple(%zero, %p)
  %loop = (s32[], f32[8,64]{1,0}) while(%begin), condition=%condition, body=%body
"""


def program(lines: str, *, before: str = "") -> Any:
    return parsed_program(
        f"HloModule step, num_partitions=16\n{before}\n"
        "ENTRY %main (p: f32[8,64]) -> f32[8,64] {\n  %p = f32[8,64]{1,0} parameter(0)\n"
        f"{lines}\n  ROOT %end = f32[8,64]{{1,0}} copy(%p)\n}}\n"
    )


def sent(lines: str, *, before: str = "") -> dict[str, float]:
    return bytes_by_axis(program(lines, before=before), MESH)


SIZE = 8 * 64 * 4


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("%g = f32[32,64]{1,0} all-gather(%p), " + DATA + ", dimensions={0}", {"data": 3 * SIZE}),
        ("%g = f32[2,64]{1,0} reduce-scatter(%p), " + DATA + ", dimensions={0}", {"data": SIZE * 3 / 4}),
        ("%g = f32[8,64]{1,0} all-reduce(%p), " + TENSOR + ", to_apply=%add", {"tensor": SIZE}),
        ("%g = f32[8,64]{1,0} all-to-all(%p), " + TENSOR + ", dimensions={0}", {"tensor": SIZE / 2}),
        ("%g = f32[8,64]{1,0} all-reduce(%p), replica_groups={}, to_apply=%add",
         {"tensor": SIZE, "data": SIZE / 2 * 3 / 2, "replica": SIZE / 8}),
        ("%g = f32[8,64]{1,0} collective-permute(%p), source_target_pairs={{0,8},{8,0},{3,3}}", {"replica": SIZE}),
        ("%g = f32[8,64]{1,0} collective-permute(%p), source_target_pairs={{0,0},{1,1}}", {}),
        ("%s = (f32[8,64], f32[32,64]) all-gather-start(%p), " + DATA + ", dimensions={0}\n"
         "  %g = f32[32,64]{1,0} all-gather-done(%s)", {"data": 3 * SIZE}),
        ("%g = f32[8,64]{1,0} multiply(%p, %p)", {}),
    ],
)  # fmt: skip
def test_collective_sends_what_the_best_ring_sends_over_each_axis(line: str, expected: dict[str, float]) -> None:
    assert sent(f"  {line}") == pytest.approx(expected)


@pytest.mark.parametrize(
    ("groups", "first"),
    [
        ("{{0,2,4,6},{1,3,5,7}}", [0, 2, 4, 6]),
        ("[2,4]<=[4,2]T(1,0)", [0, 2, 4, 6]),
        ("[2,4]<=[8]", [0, 1, 2, 3]),
        ("{}", [0, 1, 2, 3, 4, 5, 6, 7]),
        ("mesh['axis_0'=4,'axis_1'=1,'axis_2'=2] {'axis_0'}", [0, 2, 4, 6]),
        ("mesh['axis_0'=2,'axis_1'=4], device_ids=([4,2]T(1,0)) {'axis_1'}", [0, 2, 4, 6]),
        ("mesh['axis_0'=2,'axis_1'=4], device_ids=([4,2]T(1,0)) {'axis_0'}", [0, 1]),
        ("mesh['x'=8] {'x':(1)4}", [0, 2, 4, 6]),
        ("mesh['x'=8] {'x':(4)2}", [0, 1]),
        ("mesh['x'=2,'y'=4] {'x','y'}", [0, 1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_groups_are_the_same_chips_in_every_form_they_are_written_in(groups: str, first: list[int]) -> None:
    line = f"  %g = f32[8,64]{{1,0}} all-reduce(%p), channel_id=1, replica_groups={groups}, to_apply=%add"
    found = groups_of(program(line).computations["main"].instructions["g"], 8)
    assert found[0].tolist() == first
    assert sorted(found.ravel().tolist()) == list(range(8))


def test_groups_of_no_known_form_are_refused() -> None:
    with pytest.raises(DamagedData, match="who takes part in a collective"):
        sent("  %g = f32[8,64]{1,0} all-reduce(%p), replica_groups=all, to_apply=%add")


def test_sum_of_which_each_chip_keeps_its_part_at_once_is_a_scattered_one() -> None:
    whole = f"  %g = f32[8,64]{{1,0}} all-reduce(%p), {DATA}, to_apply=%add\n  %i = s32[] constant(0)\n"
    kept = "  %t = f32[64,8]{1,0} transpose(%g), dimensions={1,0}\n"
    kept += "  %s = f32[16,8]{1,0} dynamic-slice(%t, %i, %i), dynamic_slice_sizes={16,8}\n"
    assert sent(whole) == {"data": 2 * SIZE * 3 / 4}
    assert sent(whole + kept) == {"data": SIZE * 3 / 4}
    assert sent(whole + kept + "  %u = f32[8,64]{1,0} negate(%g)") == {"data": 2 * SIZE * 3 / 4}


def test_sum_over_two_axes_of_which_one_cuts_it_is_scattered_over_that_and_the_parts_are_summed_over_the_other() -> (
    None
):
    both = "replica_groups=[2,8]<=[16]"
    lines = f"  %g = f32[8,64]{{1,0}} all-reduce(%p), {both}, to_apply=%add\n  %i = s32[] constant(0)\n"
    lines += "  %s = f32[2,64]{1,0} dynamic-slice(%g, %i, %i), dynamic_slice_sizes={2,64}\n"
    assert sent(lines) == {"data": SIZE * 3 / 4, "tensor": SIZE / 4}


def test_sums_over_the_same_chips_that_are_only_added_up_travel_as_one() -> None:
    lines = "".join(
        f"  %{name} = f32[8,64]{{1,0}} all-reduce(%p), {TENSOR}, to_apply=%sum\n" for name in ("one", "two", "three")
    )
    lines += "  %both = f32[8,64]{1,0} add(%one, %two)\n  %all = f32[8,64]{1,0} add(%three, %both)\n"
    assert sent(lines) == {"tensor": SIZE}
    assert sent(lines + "  %u = f32[8,64]{1,0} negate(%two)\n") == {"tensor": 3 * SIZE}
    assert sent(lines.replace(TENSOR, DATA, 1)) == {"tensor": 2 * SIZE, "data": 2 * SIZE * 3 / 4}


def test_array_that_is_gathered_twice_in_one_place_travels_once() -> None:
    line = "  %{} = f32[32,64]{{1,0}} all-gather(%p), " + DATA + ", dimensions={{{}}}\n"
    assert sent(line.format("a", 0) + line.format("b", 0)) == {"data": 3 * SIZE}
    assert sent(line.format("a", 0) + line.format("b", 1)) == {"data": 6 * SIZE}


def test_body_of_a_loop_counts_as_often_as_it_runs_and_one_within_it_as_often_again() -> None:
    gather = f"  %g = f32[32,64]{{1,0}} all-gather(%x), {DATA}, dimensions={{0}}"
    assert sent(START, before=LOOP.replace("INSIDE", gather)) == {"data": 5 * 3 * SIZE}
    inner = LOOP.replace("INSIDE", gather).replace("%body", "%within").replace("%condition", "%until")
    again = START.replace("%p)", "%x)").replace("%body", "%within").replace("%condition", "%until")
    assert sent(START, before=inner + LOOP.replace("INSIDE", again)) == {"data": 25 * 3 * SIZE}


def test_window_that_goes_round_a_ring_sends_what_the_gather_it_stands_for_would() -> None:
    hops = [
        (a, b) for pair in range(2) for a, b in (((8 * pair + 2 * i), (8 * pair + (2 * i + 2) % 8)) for i in range(4))
    ]
    hops += [(a + 1, b + 1) for a, b in hops]
    pairs = "{" + ",".join(f"{{{a},{b}}}" for a, b in hops) + "}"
    moved = f"  %w = f32[8,64]{{1,0}} collective-permute(%q), source_target_pairs={pairs}\n"
    branches = "%hop (q: f32[8,64]) -> f32[8,64] {\n  %q = f32[8,64]{1,0} parameter(0)\n" + moved.replace(
        "%w", "ROOT %w"
    )
    branches += "}\n%stay (r: f32[8,64]) -> f32[8,64] {\n  ROOT %r = f32[8,64]{1,0} parameter(0)\n}\n"
    window = "  %f = pred[] constant(true)\n  %m = f32[8,64]{1,0} conditional(%f, %x, %x), "
    window += "true_computation=%hop, false_computation=%stay"
    ring = LOOP.replace("INSIDE", window).replace("constant(5)", "constant(4)")
    assert sent(START, before=branches + ring) == {"data": 3 * SIZE}  # As a gather over four chips.


def test_loop_that_counts_by_two_runs_half_as_often() -> None:
    gather = f"  %g = f32[32,64]{{1,0}} all-gather(%x), {DATA}, dimensions={{0}}"
    loop = LOOP.replace("INSIDE", gather).replace("constant(5)", "constant(8)")
    twice = loop.replace(
        "%next = s32[] add(%now, %one)", "%half = s32[] add(%now, %one)\n  %next = s32[] add(%one, %half)"
    )
    assert sent(START, before=twice) == {"data": 4 * 3 * SIZE}


@pytest.mark.parametrize("kind", ["ag", "rs"])
def test_windows_that_go_round_a_ring_while_they_are_multiplied_send_what_a_gather_or_scatter_would(kind: str) -> None:
    ring = ",".join(
        f"{{{8 * r + 2 * d + t},{8 * r + 2 * ((d + 1) % 4) + t}}}" for r in (0, 1) for d in range(4) for t in (0, 1)
    )
    hop = "  %{} = f32[8,64]{{1,0}} collective-permute(%{}), channel_id=1, source_target_pairs={{{}}}\n"
    both_ways = hop.format("h1", "x", ring) + hop.format("h2", "h1", ring) + hop.format("h3", "x", ring)
    name = f"windowed_dot_general_body_{kind}.3"
    loop = LOOP.replace("INSIDE", both_ways).replace("%body", f"%{name}").replace("constant(5)", "constant(4)")
    start = hop.format("first", "p", ring) + START.replace("%p)", "%first)").replace("%body", f"%{name}")
    start += "  %came = f32[8,64]{1,0} get-tuple-element(%loop), index=1\n" + hop.format("last", "came", ring)
    assert sent(start, before=loop) == {"data": 3 * SIZE}
    assert sent(hop.format("alone", "p", ring)) == {"data": SIZE}


def test_loop_that_counts_to_no_constant_is_refused() -> None:
    loop = LOOP.replace("INSIDE", "").replace("s32[] constant(5)", "s32[] get-tuple-element(%c), index=0")
    with pytest.raises(DamagedData, match=r"tell how often a loop runs; on loop; got a condition of compare"):
        sent(START, before=loop)


def test_products_count_two_operations_a_multiply_add_in_loops_as_often_as_they_run() -> None:
    dot = "  %d = f32[8,8]{1,0} dot(%x, %x), lhs_contracting_dims={1}, rhs_contracting_dims={1}"
    assert flops_of(program(START, before=LOOP.replace("INSIDE", dot))) == 5 * 2 * 8 * 8 * 64


def test_convolution_counts_the_taps_of_its_kernel_and_no_zeros_between_spread_inputs() -> None:
    arrays = "  %i = f32[2,32,32,3]{3,2,1,0} parameter(1)\n  %k = f32[8,8,3,48]{3,2,1,0} parameter(2)\n"
    line = "  %c = f32[2,4,4,48]{3,2,1,0} convolution(%i, %k), window={size=8x8 stride=8x8}, dim_labels=b01f_01io->b01f"
    assert flops_of(program(arrays + line)) == 2 * (2 * 4 * 4 * 48) * (8 * 8 * 3)
    spread = line.replace("stride=8x8", "pad=7_7x7_7 lhs_dilate=8x8")
    assert flops_of(program(arrays + spread)) == 2 * (2 * 4 * 4 * 48) * (8 * 8 * 3) // 64


def test_text_that_is_no_program_is_refused() -> None:
    with pytest.raises(DamagedData, match="wanted an HloModule with an ENTRY"):
        parsed_program("BufferAssignment:\n")


def test_size_of_an_array_is_that_of_its_numbers() -> None:
    text = "  %a = (pred[3], bf16[2,3]{1,0:T(8,128)(2,1)}, /*index=2*/u8[], s4[3], f8e4m3fn[5]) custom-call(%p)"
    found = program(text).computations["main"].instructions["a"]
    assert [array.size for array in found.arrays] == [3, 12, 1, 2, 5]
    assert np.prod(found.arrays[1].dims) == 6
