"""A program as XLA writes it down (HLO text), and what one run of it takes: each instruction, as often as it runs.

Read are the names, shapes and operands of instructions, and how often a loop's body runs; what moves between chips is
`traffic.py`'s. A program of a thousand chips is that of one chip: all run the same, each its own part of every array.
Source: openxla.org, "HLO syntax" and "Operation semantics".
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from mainspring.domain.errors import DamagedData

CALLS_MAX = 64  # Computations within computations.
TRIPS_MAX = 1 << 31

_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .*\{$")
_LINE = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*)$")
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,<=]*)\](\{[^}]*\})?")
_CALLED = re.compile(r"\b(?:calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")
_SAME = {"copy", "bitcast", "reshape", "convert", "copy-start", "copy-done", "optimization-barrier"}  # One operand.


@dataclass(frozen=True, slots=True, kw_only=True)
class HloArray:
    """The type of an array: "bf16" and its dimensions.

    Args:
        near: Whether it lies in another memory than the chip's large one.
    """

    numbers: str
    dims: tuple[int, ...]
    near: bool = False

    @property
    def size(self) -> int:
        """Returns its bytes; those of a chip's layout, which pads, may be more."""
        bits = 8 if self.numbers == "pred" else int("".join(re.findall(r"^[a-z]+(\d+)", self.numbers)) or 0)
        return math.ceil(math.prod(self.dims) * bits / 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One line of a computation.

    Args:
        arrays: What it gives: one array, or those of a tuple.
        operands: Names of instructions of the same computation.
        rest: What stands after the operands.
        literal: What stands in their place, of a constant or parameter.
    """

    name: str
    opcode: str
    arrays: tuple[HloArray, ...]
    operands: tuple[str, ...]
    rest: str
    literal: str = ""
    root: bool = False

    @property
    def size(self) -> int:
        """Returns the bytes of all it gives."""
        return sum(array.size for array in self.arrays)

    @property
    def called(self) -> tuple[str, ...]:
        """Returns the computations that it runs."""
        branches = "".join(_BRANCHES.findall(self.rest))
        return (*_CALLED.findall(self.rest), *re.findall(r"[\w.\-]+", branches))

    def attribute(self, name: str) -> str:
        """Returns what stands after `name=`, up to the end of the line; "" where it is not there."""
        return self.rest.partition(f"{name}=")[2]

    def numbers(self, name: str) -> tuple[int, ...]:
        """Returns the numbers of an attribute such as `dimensions={0,1}`."""
        return tuple(int(number) for number in re.findall(r"\d+", self.attribute(name).partition("}")[0]))


@dataclass(frozen=True, kw_only=True)
class Computation:
    """A list of instructions, each after its operands."""

    name: str
    instructions: Mapping[str, Instruction]

    @property
    def root(self) -> Instruction:
        """Returns the instruction whose value is the computation's."""
        return next(each for each in self.instructions.values() if each.root)

    @cached_property
    def users(self) -> Mapping[str, list[Instruction]]:
        """Returns which instructions take each one's value."""
        users: dict[str, list[Instruction]] = {}
        for each in self.instructions.values():
            for operand in dict.fromkeys(each.operands):
                users.setdefault(operand, []).append(each)
        return users

    def source(self, name: str) -> Instruction:
        """Returns the instruction that an array comes from, before it was only copied or shaped anew."""
        found = self.instructions[name]
        while found.opcode in _SAME:
            found = self.instructions[found.operands[0]]
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class HloRun:
    """An instruction, and how often a program runs it.

    Args:
        times: In all.
        trips: Of the loop that it is in; 1 outside of loops.
        fused: Whether it is a part of a fusion.
    """

    computation: Computation
    instruction: Instruction
    times: int
    trips: int
    fused: bool


@dataclass(frozen=True, kw_only=True)
class Program:
    """What one chip runs."""

    computations: Mapping[str, Computation]
    entry: str

    def runs(self, *, fused: bool = True) -> Iterator[HloRun]:
        """Returns all instructions, with those of loop bodies as often as they run; of reductions, the call alone.

        Both branches of a condition count. In a loop they run in all trips but the last: XLA's own conditions send a
        window on while there is more to come.

        Args:
            fused: Whether with those that a fusion is made of.

        Raises:
            DamagedData: Nobody can tell how often a loop runs.
        """
        return (run for run in self._runs(self.entry, 1, 1, 0) if fused or not run.fused)

    def _runs(self, name: str, times: int, trips: int, depth: int, *, fused: bool = False) -> Iterator[HloRun]:
        """Returns those of a computation that runs so often, in a loop of so many trips."""
        assert depth < CALLS_MAX, f"{name} runs within {depth} others"
        computation = self.computations[name]
        for each in computation.instructions.values():
            yield HloRun(computation=computation, instruction=each, times=times, trips=trips, fused=fused)
            match each.opcode:
                case "while":
                    body = each.attribute("body").lstrip("%").partition(",")[0].split()[0]
                    within = self.trips(computation, each)
                    yield from self._runs(body, times * within, within, depth + 1)
                case "call" | "fusion" | "async-start":
                    within_fusion = fused or each.opcode == "fusion"
                    for called in each.called:
                        yield from self._runs(called, times, trips, depth + 1, fused=within_fusion)
                case "conditional":
                    for called in each.called:
                        yield from self._runs(called, times // max(trips, 1) * max(trips - 1, 1), trips, depth + 1)
                case _:
                    pass

    def trips(self, computation: Computation, loop: Instruction) -> int:
        """Returns how often a loop's body runs: a number counts, by a fixed step, from a constant to a constant.

        Raises:
            DamagedData: It does not.
        """
        known = re.search(r'known_trip_count":\{"n":"(\d+)"', loop.rest)
        if known:
            return int(known[1])
        condition, body = (
            self.computations[loop.attribute(part).lstrip("%").partition(",")[0].split()[0]]
            for part in ("condition", "body")
        )
        compare = condition.source(condition.root.name)
        counts = compare.opcode == "compare" and "direction=LT" in compare.rest
        try:
            counter, limit = (condition.source(name) for name in compare.operands)
            index = int(counter.attribute("index").partition(",")[0])
            start = computation.source(computation.source(loop.operands[0]).operands[index])
            step = _step(body, body.root.operands[index], index)
            trips = math.ceil((int(limit.literal) - int(start.literal)) / step) if counts else -1
        except (KeyError, IndexError, ValueError):
            trips = -1
        if not 0 <= trips < TRIPS_MAX:
            raise DamagedData(
                "tell how often a loop runs",
                on=loop.name,
                got=f"a condition of {compare.opcode}",
                wanted="a count from a constant to a constant by a constant",
            )
        return trips


def _step(body: Computation, name: str, index: int) -> int:
    """Returns by how much a body raises its counter, one constant after the other.

    Raises:
        ValueError: By no constant.
    """
    step = 0
    while (each := body.source(name)).opcode == "add":
        added = {operand: body.source(operand) for operand in each.operands}
        (constant,) = (other for other in added.values() if other.opcode == "constant")
        (name,) = (operand for operand, other in added.items() if other.opcode != "constant")
        step += int(constant.literal)
    if not step or each.opcode != "get-tuple-element" or each.numbers("index")[0] != index:
        raise ValueError(f"a counter that {each.name} sets")
    return step


def parsed_program(text: str) -> Program:
    """Returns a program from its text.

    Args:
        text: An `HloModule`.

    Raises:
        DamagedData: It is none.
    """
    computations: dict[str, Computation] = {}
    entry, name = "", ""
    instructions: dict[str, Instruction] = {}
    for line in text.splitlines():
        head = _HEAD.match(line)
        if head:
            name, instructions = head[2], {}
            entry = name if head[1] else entry
        elif name and line.startswith("}"):
            computations[name] = Computation(name=name, instructions=instructions)
            name = ""
        elif name and (found := _LINE.match(line)):
            instructions[found[2]] = _instruction(found[2], found[3], root=bool(found[1]))
    if not entry:
        raise DamagedData("read a program of XLA", got=text[:60], wanted="an HloModule with an ENTRY")
    return Program(computations=computations, entry=entry)


def _instruction(name: str, text: str, *, root: bool) -> Instruction:
    """Returns an instruction from what stands after "=": a type, an opcode, operands, and more."""
    at = _closed(text, 0) if text.startswith("(") else text.index(" ")
    kind, rest = text[:at], text[at:].lstrip()
    opens = rest.index("(")
    closes = _closed(rest, opens)
    inside = rest[opens + 1 : closes - 1]
    arrays = tuple(
        HloArray(
            numbers=numbers,
            dims=tuple(int(dim) for dim in dims.replace("<=", "").split(",") if dim),
            near="S(" in layout,
        )
        for numbers, dims, layout in _ARRAY.findall(kind)
    )
    return Instruction(
        name=name,
        opcode=rest[:opens],
        arrays=arrays,
        operands=tuple(re.findall(r"%([\w.\-]+)", inside)),
        rest=rest[closes:],
        literal="" if "%" in inside else inside,
        root=root,
    )


def _closed(text: str, start: int) -> int:
    """Returns where the parenthesis that opens at `start` has closed."""
    depth = 0
    for at in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if not depth:
            return at + 1
    raise DamagedData("read an instruction of XLA", got=text[:80], wanted="parentheses that close")


def flops_of(program: Program) -> float:
    """Returns the floating-point operations of a program's products: matrices and convolutions, a multiply-add as two.

    Raises:
        DamagedData: Nobody can tell how often a loop runs.
    """
    return float(sum(_flops(run) * run.times for run in program.runs()))


def _flops(run: HloRun) -> int:
    each = run.instruction
    if each.opcode == "dot":
        left = run.computation.instructions[each.operands[0]].arrays[0]
        summed = math.prod(left.dims[dim] for dim in each.numbers("lhs_contracting_dims"))
        return 2 * math.prod(each.arrays[0].dims) * summed
    if each.opcode == "convolution":
        kernel = run.computation.instructions[each.operands[1]].arrays[0]
        names = re.search(r"dim_labels=\w+_(\w+)->", each.rest)
        assert names, each.rest
        taps = math.prod(size for size, name in zip(kernel.dims, names[1], strict=True) if name != "o")
        # Where the input is spread out with zeros between, only so many taps meet a number.
        spread = re.search(r"lhs_dilate=([\dx]+)", each.rest)
        zeros = math.prod(int(size) for size in spread[1].split("x")) if spread else 1
        return 2 * math.prod(each.arrays[0].dims) * taps // zeros
    return 0
