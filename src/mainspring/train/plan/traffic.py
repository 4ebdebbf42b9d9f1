"""What a chip sends over each axis of a mesh in one run of a program, by its collectives and who takes part in them.

A collective of n chips over S bytes costs each of them what the best ring costs: S (n - 1) / n to gather, to scatter a
sum or to exchange, twice that to give everybody the sum. Over several axes it is done one axis after the other, the
innermost first where sums shrink and last where arrays grow. What is read is what XLA's partitioner wrote; what its
later passes make of that is foreseen. A sum of which each chip keeps its own part at once is a scattered one, sums over
the same chips that are only added up travel as one, and what is gathered twice in one place is gathered once.
Source: Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH", 2005; XLA,
`reduce_scatter_utils.cc` and `all_reduce_reassociate.cc`.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from mainspring.domain.errors import DamagedData
from mainspring.train.plan.hlo import Computation, HloRun, Instruction, Program

WINDOW = "windowed_dot_general_body"  # In the names of XLA's loops around a ring. Source: XLA, `dot_handler.cc`.
_KINDS = {"all-gather", "all-reduce", "reduce-scatter", "all-to-all", "ragged-all-to-all", "collective-permute"}
_STILL = {"copy", "bitcast", "reshape", "transpose", "convert"}  # What may stand between a sum and its slice.
_IOTA = r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?"
_MESH = r"mesh\[([^\]]*)\](?:, device_ids=\((?:\[([\d,]+)\])?(?:T\(([\d,]+)\))?\))? \{([^}]*)\}"


def bytes_by_axis(program: Program, mesh: Mapping[str, int]) -> dict[str, float]:
    """Returns the bytes that a chip sends over each axis, where it sends any; the busiest chip, where they differ.

    Args:
        program: What each chip runs.
        mesh: Sizes of the axes, the outermost first; XLA numbers the chips in this order.

    Raises:
        DamagedData: The text of a collective is of no known form.
    """
    sent: dict[str, float] = defaultdict(float)
    for run in program.runs():
        for axis, count in sent_by(run, mesh).items():
            sent[axis] += count * run.times
    return {axis: sent[axis] for axis in mesh if sent[axis]}


def sent_by(run: HloRun, mesh: Mapping[str, int]) -> dict[str, float]:
    """Returns what one run of an instruction sends over each axis; nothing where it is no collective.

    Args:
        run: Any instruction.
        mesh: As for `bytes_by_axis`.

    Raises:
        DamagedData: Its text is of no known form.
    """
    each = run.instruction
    kind = each.opcode.removesuffix("-start")
    if kind not in _KINDS:
        return {}
    size = float(sum(run.computation.instructions[name].size for name in each.operands))
    if kind == "collective-permute":
        return _permuted(run, size, mesh)
    widths = _widths(groups_of(each, math.prod(mesh.values())), mesh)
    match kind:
        case "all-gather" if _gathered_before(run, math.prod(mesh.values())):
            return {}
        case "all-gather":
            return _halved(size * math.prod(widths.values()), widths)
        case "all-reduce" if _joins_another(run, math.prod(mesh.values())):
            return {}
        case "all-reduce":
            kept = _kept_share(run, size)
            own = _axes_of(kept, widths)
            rest = {axis: width for axis, width in widths.items() if axis not in own}
            twice = _halved(size / math.prod(own.values()), rest)
            return _halved(size, own) | {axis: 2 * count for axis, count in twice.items()}
        case _:
            return _halved(size, widths)


def groups_of(each: Instruction, devices: int) -> NDArray[np.int64]:
    """Returns who takes part in a collective together, [groups, members].

    Args:
        each: A collective with `replica_groups`, in any of the three forms that XLA writes.
        devices: Of the whole program.

    Raises:
        DamagedData: It is of none.
    """
    text = each.attribute("replica_groups")
    if text.startswith("{}"):
        return np.arange(devices)[None]
    if text.startswith("{{"):
        groups = re.findall(r"\{([\d,]+)\}", text[1 : text.index("}}") + 1])
        return np.array([_numbers(group) for group in groups])
    iota = re.match(_IOTA, text)
    if iota:
        order = np.arange(devices).reshape(_numbers(iota[2]))
        return order.transpose(_numbers(iota[3]) if iota[3] else None).reshape(_numbers(iota[1]))
    named = re.match(_MESH, text)
    if named:
        return _named_groups(named, devices)
    raise DamagedData("read who takes part in a collective", on=each.name, got=text[:80], wanted="groups of chips")


def _named_groups(named: re.Match[str], devices: int) -> NDArray[np.int64]:
    """Returns groups of a mesh of XLA's own; an axis may be taken in part: 'x':(2)4 are 4 after the first 2."""
    sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", named[1])}
    ids: NDArray[np.int64] = np.arange(devices)
    if named[2]:
        ids = ids.reshape(_numbers(named[2])).transpose(_numbers(named[3]) if named[3] else None)
    shape: list[int] = []
    inside: list[int] = []
    chosen = {name: (pre, size) for name, pre, size in re.findall(r"'([^']+)'(?::\((\d+)\)(\d+))?", named[4])}
    for name, size in sizes.items():
        pre, taken = (int(number) if number else 0 for number in chosen.get(name, ("", "")))
        if name in chosen:
            pre, taken = (pre, taken) if taken else (1, size)
            inside.append(len(shape) + 1)
            shape += [pre, taken, size // pre // taken]
        else:
            shape.append(size)
    outside = [axis for axis in range(len(shape)) if axis not in inside]
    members = math.prod(shape[axis] for axis in inside)
    return ids.reshape(shape).transpose([*outside, *inside]).reshape(-1, members)


def _widths(groups: NDArray[np.int64], mesh: Mapping[str, int]) -> dict[str, int]:
    """Returns over which axes the groups run, and how many places of each a group has."""
    widths: dict[str, int] = {}
    for axis, place in zip(mesh, np.unravel_index(groups, tuple(mesh.values())), strict=True):
        width = max((len(set(row)) for row in place.tolist()), default=1)
        if width > 1:
            widths[axis] = width
    return widths


def _halved(size: float, widths: Mapping[str, int]) -> dict[str, float]:
    """Returns what a chip sends to scatter `size` bytes, or to gather as many: axis by axis, the innermost first."""
    sent: dict[str, float] = {}
    for axis, width in reversed(list(widths.items())):
        sent[axis] = size * (width - 1) / width
        size /= width
    return sent


def _kept_share(run: HloRun, size: float) -> int:
    """Returns of how many parts each chip keeps one at once, 1 where it needs the whole sum."""
    users, waiting, kept = run.computation.users, [run.instruction.name], 1
    while waiting:
        for user in users.get(waiting.pop(), []):
            if user.opcode in _STILL:
                waiting.append(user.name)
            elif user.opcode != "dynamic-slice":
                return 1
            else:
                kept = max(kept, round(size / max(user.size, 1)))
    return kept


def _permuted(run: HloRun, size: float, mesh: Mapping[str, int]) -> dict[str, float]:
    """Returns what a permute sends.

    Of those by which a window goes round a ring while its parts are multiplied, the first stands for all: they send
    what a gather of the ring's arrays would, or a scatter of their sum.
    """
    pairs = run.instruction.attribute("source_target_pairs").partition("}}")[0] + "}"
    moves = {int(a): int(b) for a, b in re.findall(r"\{(\d+),(\d+)\}", pairs) if a != b}
    widths = _widths(np.array(list(moves.items()), dtype=np.int64).reshape(-1, 2), mesh)
    if not widths or _meets_window(run):
        return {}
    axis = next(axis for axis in mesh if axis in widths)
    if WINDOW not in run.computation.name:
        return {axis: size}
    first = next(each for each in run.computation.instructions.values() if each.opcode == run.instruction.opcode)
    if first.name != run.instruction.name:
        return {}
    start = at = next(iter(moves))
    ring = 1
    while (at := moves.get(at, start)) != start:
        ring += 1
    return {axis: size * (ring - 1) / run.trips}


def _meets_window(run: HloRun) -> bool:
    """Returns whether a permute only prepares a window, or puts together what came of one."""
    computation, each = run.computation, run.instruction
    near = [computation.source(each.operands[0])]
    near += [computation.instructions[name] for other in near for name in other.operands]
    for user in computation.users.get(each.name, []):
        near += [user, *computation.users.get(user.name, [])]
    return any(other.opcode == "while" and WINDOW in other.attribute("body").partition(",")[0] for other in near)


def _gathered_before(run: HloRun, devices: int) -> bool:
    """Returns whether the same array is gathered from the same chips by an instruction before this one."""
    each, computation = run.instruction, run.computation
    for other in computation.users[each.operands[0]]:
        if other.name == each.name:
            return False
        if other.opcode == each.opcode and other.numbers("dimensions") == each.numbers("dimensions"):
            return np.array_equal(groups_of(other, devices), groups_of(each, devices))
    return False


def _joins_another(run: HloRun, devices: int) -> bool:
    """Returns whether a sum is only added to others over the same chips: they travel as one, the leftmost of them."""
    computation, below = run.computation, run.instruction
    groups = groups_of(below, devices)
    while len(users := computation.users.get(below.name, [])) == 1:
        (user,) = users
        if user.opcode == "add":
            if not all(_is_sum(computation, name, groups) for name in user.operands):
                return False
            if user.operands[0] != below.name:
                return True
        elif user.opcode not in _STILL:
            return False
        below = user
    return False


def _is_sum(computation: Computation, name: str, groups: NDArray[np.int64]) -> bool:
    """Returns whether an array is a sum over these chips, or of such sums, that nobody else uses."""
    each = computation.instructions[name]
    if len(computation.users.get(name, [])) != 1:
        return False
    if each.opcode == "add" or each.opcode in _STILL:
        return all(_is_sum(computation, operand, groups) for operand in each.operands)
    return each.opcode == "all-reduce" and np.array_equal(groups_of(each, groups.size), groups)


def _axes_of(parts: int, widths: Mapping[str, int]) -> dict[str, int]:
    """Returns the axes that make so many parts, the outermost first; none where no axes do."""
    axes: dict[str, int] = {}
    for axis, width in widths.items():
        if parts % width == 0:
            axes[axis] = width
            parts //= width
    return axes if parts == 1 else {}


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))
