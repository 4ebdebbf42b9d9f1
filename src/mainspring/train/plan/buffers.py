"""What a compiled program holds in a chip's memory and moves to and from it, by what XLA writes beside it.

Source: XLA, `buffer_assignment.cc` (its dump); the stack frames of "HLO syntax" on openxla.org.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from mainspring.train.plan.figures import LargestTemporary
from mainspring.train.plan.hlo import HloArray, HloRun, Instruction, Program

LARGEST = 10
FRAMES_MAX = 200

_VALUE = re.compile(r"^ value: <\d+ ([\w.\-]+)(?:\{[\d,]*\})? @\d+> \(size=(\d+),offset=(\d+)\): (.*)$")
_NOTHING_MOVES = {  # Names of what is there, and loops and calls, whose bodies count by themselves.
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional", "call", "async-start",
    "after-all", "optimization-barrier", "partition-id", "replica-id", "iota",
}  # fmt: skip


def largest_temporaries(buffers: str, program: str, *, own: str) -> tuple[LargestTemporary, ...]:
    """Returns the largest arrays that live during the step alone, the largest first, those at one place once.

    Args:
        buffers: The dump of the buffer assignment.
        program: The optimised program it is of, with its stack frames.
        own: A part of the paths of the sources whose lines are of interest; of other frames, none is named.
    """
    found: dict[tuple[int, int], tuple[int, str, str]] = {}
    inside = False
    for line in buffers.splitlines():
        if line.startswith("allocation "):
            inside = "preallocated-temp" in line and ", color " not in line
        elif inside and (value := _VALUE.match(line)):
            name, size, offset, shape = value[1], int(value[2]), int(value[3]), value[4]
            if not shape.startswith("("):
                found.setdefault((offset, size), (size, name, re.sub(r"\{.*\}", "", shape)))
    largest = sorted(found.values(), reverse=True)[:LARGEST]
    frames = _frames(program, {name for _, name, _ in largest})
    lines = _Lines(program, own)
    return tuple(
        LargestTemporary(size=size, shape=shape, source=lines.of(frames.get(name, 0))) for size, name, shape in largest
    )


def _frames(program: str, names: set[str]) -> dict[str, int]:
    """Returns the stack frames in which some instructions were traced."""
    frames: dict[str, int] = {}
    for line in program.splitlines():
        name = line.lstrip().removeprefix("ROOT ").removeprefix("%").partition(" = ")[0]
        if name in names and (frame := re.search(r"stack_frame_id=(\d+)", line)):
            frames[name] = int(frame[1])
    return frames


class _Lines:
    """Where a program was traced, by the tables before its text."""

    def __init__(self, program: str, own: str) -> None:
        tables: dict[str, dict[int, str]] = {}
        table: dict[int, str] = {}
        for line in program.partition("\n%")[0].splitlines():
            if line in ("FileNames", "FunctionNames", "FileLocations", "StackFrames"):
                table = tables.setdefault(line, {})
            elif row := re.match(r"(\d+) (.*)", line):
                table[int(row[1])] = row[2]
        self._tables, self._own = tables, own

    def of(self, frame: int) -> str:
        """Returns the innermost line of our own of a frame: "file.py:12"; "" where there is none."""
        for _ in range(FRAMES_MAX):
            row = _fields(self._tables.get("StackFrames", {}).get(frame, ""))
            place = _fields(self._tables.get("FileLocations", {}).get(row.get("file_location_id", 0), ""))
            path = self._tables.get("FileNames", {}).get(place.get("file_name_id", 0), "").strip('"')
            if self._own in path and path:
                return f"{path.rpartition('/')[2]}:{place['line']}"
            if not row or row["parent_frame_id"] == frame:
                return ""
            frame = row["parent_frame_id"]
        return ""


def _fields(text: str) -> Mapping[str, int]:
    return {name: int(number) for name, number in re.findall(r"(\w+)=(\d+)", text)}


def memory_traffic(program: Program) -> float:
    """Returns the bytes that an optimised program reads from and writes to a chip's memory.

    Every instruction reads what it takes and writes what it gives; a fusion is one. Of an array of which it only reads
    or replaces a slice, the slice counts. What lies in the chip's own fast memory counts nothing.

    Raises:
        DamagedData: Nobody can tell how often a loop runs.
    """
    return float(sum(_moved(program, run) * run.times for run in program.runs(fused=False)))


def _moved(program: Program, run: HloRun) -> int:
    each, operands = run.instruction, run.computation.instructions
    if each.opcode in _NOTHING_MOVES or each.opcode.endswith("-done"):
        return 0
    inputs = [sum(map(_far, operands[name].arrays)) for name in each.operands]
    outputs = sum(map(_far, each.arrays))
    match each.opcode:
        case "fusion":
            return _fused(program, each, inputs, outputs)
        case "dynamic-slice" | "slice" | "gather":
            return 2 * outputs
        case "dynamic-update-slice":
            return 2 * inputs[1]
        case opcode if opcode.endswith("-start"):  # Gives what it takes, too.
            return sum(inputs[:1]) + sum(map(_far, each.arrays[:1]))
        case _:
            return sum(inputs) + outputs


def _fused(program: Program, fusion: Instruction, inputs: list[int], outputs: int) -> int:
    """Returns what a fusion reads and writes: of an array that it slices, or puts a slice into, that slice."""
    inside = program.computations[fusion.called[0]]
    for each in inside.instructions.values():
        if each.opcode != "parameter":
            continue
        users = inside.users.get(each.name, [])
        number = int(each.literal)
        if users and all(user.opcode == "dynamic-slice" for user in users):
            inputs[number] = min(inputs[number], sum(user.size for user in users))
        elif users and all(user.opcode == "dynamic-update-slice" and user.operands[0] == each.name for user in users):
            written = sum(inside.instructions[user.operands[1]].size for user in users)
            outputs = max(outputs - inputs[number], 0) + written  # The rest stays where it is.
            inputs[number] = 0
    return sum(inputs) + outputs


def _far(array: HloArray) -> int:
    return 0 if array.near else array.size
