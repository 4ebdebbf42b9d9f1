"""A program of a few lines with what XLA writes beside it: its largest arrays and what moves, counted by hand."""

from __future__ import annotations

from mainspring.train.plan.buffers import largest_temporaries, memory_traffic
from mainspring.train.plan.hlo import parsed_program

PROGRAM = """HloModule step, is_scheduled=true

FileNames
1 "/venv/optax/transform.py"
2 "/lab/src/mainspring/train/models/transformer.py"
3 "/venv/jax/lax.py"

FunctionNames
1 "update"

FileLocations
1 {file_name_id=1 function_name_id=1 line=7 end_line=7 column=1 end_column=2}
2 {file_name_id=2 function_name_id=1 line=98 end_line=98 column=1 end_column=2}
3 {file_name_id=3 function_name_id=1 line=5 end_line=5 column=1 end_column=2}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=1}
3 {file_location_id=3 parent_frame_id=2}

%layer (a: f32[18,256], b: s32[]) -> f32[256] {
  %a = f32[18,256]{1,0} parameter(0)
  %b = s32[] parameter(1)
  %z = s32[] constant(0)
  %cut = f32[1,256]{1,0} dynamic-slice(%a, %b, %z), dynamic_slice_sizes={1,256}
  ROOT %flat = f32[256]{0} reshape(%cut)
}

%put (c: f32[18,256], d: f32[1,256], e: s32[]) -> f32[18,256] {
  %c = f32[18,256]{1,0} parameter(0)
  %d = f32[1,256]{1,0} parameter(1)
  %e = s32[] parameter(2)
  %y = s32[] constant(0)
  ROOT %in = f32[18,256]{1,0} dynamic-update-slice(%c, %d, %e, %y)
}

ENTRY %main (p: f32[18,256], q: s32[]) -> f32[18,256] {
  %p = f32[18,256]{1,0} parameter(0)
  %q = s32[] parameter(1)
  %one = f32[256]{0} fusion(%p, %q), kind=kLoop, calls=%layer, metadata={op_name="a" stack_frame_id=3}
  %near = f32[256]{0:T(256)S(1)} negate(%one), metadata={op_name="b" stack_frame_id=1}
  %row = f32[1,256]{1,0} bitcast(%near)
  %fetch = (f32[256]{0:S(1)}, f32[256]{0}, u32[]{:S(2)}) copy-start(%one)
  %fetched = f32[256]{0:S(1)} copy-done(%fetch)
  ROOT %new = f32[18,256]{1,0} fusion(%p, %row, %q), kind=kLoop, calls=%put, metadata={op_name="c"}
}
"""

BUFFERS = """BufferAssignment:
allocation 0: size 18432, page 0, parameter 0, shape |f32[18,256]| at ShapeIndex {}, maybe-live-out:
 value: <1 p @0> (size=18432,offset=0): f32[18,256]{1,0}
allocation 1: size 9000, color 1, page 0, preallocated-temp:
 value: <2 near @0> (size=8000,offset=0): f32[256]{0:T(256)S(1)}
allocation 2: size 90000, page 0, preallocated-temp:
 value: <3 fetch{} @0> (size=50000,offset=0): (f32[256]{0:S(1)}, f32[256]{0}, u32[]{:S(2)})
 value: <4 one @0> (size=1024,offset=512): f32[256]{0:T(256)}
 value: <5 new @0> (size=4096,offset=2048): f32[18,256]{1,0:T(8,128)}
 value: <6 new.1 @0> (size=4096,offset=2048): f32[18,256]{1,0:T(8,128)}
 value: <7 near @0> (size=512,offset=8192): f32[256]{0}

Total bytes used: 90000
"""


def test_largest_temporaries_are_named_by_the_innermost_line_of_our_own_and_those_at_one_place_once() -> None:
    found = largest_temporaries(BUFFERS, PROGRAM, own="/mainspring/")
    assert [(each.size, each.shape, each.source) for each in found] == [
        (4096, "f32[18,256]", ""),
        (1024, "f32[256]", "transformer.py:98"),
        (512, "f32[256]", ""),  # Of the optimizer's own.
    ]


def test_memory_traffic_counts_slices_of_stacked_arrays_and_nothing_of_what_lies_near() -> None:
    row = 256 * 4
    sliced, put = row + 4 + row, row + 4  # With the index; what is put in comes from near.
    expected = sliced + row + row + put + row  # And a read each by `negate` and by the copy; `row` itself lies far.
    assert memory_traffic(parsed_program(PROGRAM)) == expected
