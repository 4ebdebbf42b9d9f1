"""Types of messages as trees, and which parts of a message are wanted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from mainspring.data.readers.messages import DEPTH_MAX, FIELDS_MAX, MessageField, Step, steps_of
from mainspring.domain.errors import InvalidInput

EMPTY_MEMBER = "structure_needs_at_least_one_member"  # What ROS 2 puts into a struct without fields.
_PADDING = "_padding"  # ULog's.


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeNode:
    """A type: a number, a text, a struct, or a row of elements of one type.

    Args:
        kind: What it is.
        dtype: Of a number: NumPy's name of it, without byte order.
        size: Of a number: its bytes.
        fields: Of a struct.
        element: Of a row.
        count: Of a row: how many, when that is declared.
        time: A struct of seconds and nanoseconds.
    """

    kind: Literal["number", "text", "struct", "row"]
    dtype: str = ""
    size: int = 0
    fields: tuple[tuple[str, TypeNode], ...] = ()
    element: TypeNode | None = None
    count: int | None = None
    time: bool = False
    fixed: int | None = field(init=False)  # Its bytes where nothing is aligned; None when they vary.
    width: int | None = field(init=False)  # The bytes of each of its numbers, when all are alike and fixed in count.

    def __post_init__(self) -> None:
        """Works out what can be passed over at once."""
        fixed: int | None = None
        width: int | None = None
        if self.kind == "number":
            fixed = width = self.size
        elif self.kind == "struct":
            sizes = [node.fixed for _, node in self.fields]
            fixed = sum(size for size in sizes if size is not None) if None not in sizes else None
            widths = {node.width for _, node in self.fields}
            width = widths.pop() if len(widths) == 1 else None
        elif self.element is not None and self.count is not None and self.element.fixed is not None:
            fixed, width = self.count * self.element.fixed, self.element.width
        object.__setattr__(self, "fixed", fixed)
        object.__setattr__(self, "width", width)


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """What is wanted of a node: the whole of it under a path, or parts."""

    paths: list[str] = field(default_factory=list)
    names: dict[str, Want] = field(default_factory=dict)
    items: dict[int, Want] = field(default_factory=dict)
    ranges: list[tuple[str, int, int]] = field(default_factory=list)


def fields_of(root: TypeNode) -> tuple[MessageField, ...]:
    """Returns what can be read of a type; dims None where they vary.

    Args:
        root: The type.
    """
    found: list[MessageField] = []
    _list(root, "", 0, found)
    return tuple(found)


def _list(node: TypeNode, path: str, depth: int, found: list[MessageField]) -> None:
    if len(found) >= FIELDS_MAX or depth > DEPTH_MAX:
        return
    if node.kind == "number":
        found.append(MessageField(path=path, kind="number"))
    elif node.kind == "text":
        found.append(MessageField(path=path, kind="text"))
    elif node.time and path:
        found.append(MessageField(path=path, kind="time"))
    elif node.kind == "struct":
        for name, child in node.fields:
            if name == EMPTY_MEMBER or name.startswith(_PADDING):
                continue
            _list(child, f"{path}.{name}" if path else name, depth + 1, found)
    elif node.element is not None:
        element = node.element
        dims = None if node.count is None else (node.count,)
        if element.kind == "number" and dims is None and element.dtype in ("u1", "i1"):
            found.append(MessageField(path=path, kind="bytes"))
        elif element.kind in ("number", "text"):
            found.append(MessageField(path=path, kind="number" if element.kind == "number" else "text", dims=dims))
        else:
            _list(element, f"{path}[0]", depth + 1, found)


def wants_of(root: TypeNode, paths: tuple[str, ...]) -> Want:
    """Returns where in a type some paths lead.

    Args:
        root: The type.
        paths: What is wanted.

    Raises:
        InvalidInput: One leads nowhere, or to a group of fields.
    """
    want = Want()
    for path in paths:
        _add_want(root, want, path, steps_of(path))
    return want


def _add_want(root: TypeNode, want: Want, path: str, steps: tuple[Step, ...]) -> None:
    node = root
    for step in steps:
        if step.name:
            child = dict(node.fields).get(step.name)
            if child is None:
                names = ", ".join(name for name, _ in node.fields) or "no fields"
                raise InvalidInput("read a field", on=path, got=repr(step.name[:80]), wanted=f"one of {names}"[:300])
            node, want = child, want.names.setdefault(step.name, Want())
            continue
        if node.element is None or (node.count is not None and max(step.start + 1, step.stop) > node.count):
            raise InvalidInput("read a field", on=path, got="an index", wanted="one inside a vector")
        if step.stop >= 0:
            if node.element.kind != "number":
                raise InvalidInput("read a field", on=path, got="a range", wanted="a range of numbers, or one item")
            want.ranges.append((path, step.start, step.stop))
            return
        node, want = node.element, want.items.setdefault(step.start, Want())
    leaf = node.kind in ("number", "text") or node.time
    if not leaf and not (node.element is not None and node.element.kind in ("number", "text")):
        raise InvalidInput("read a field", on=path, got="a group of fields", wanted="one of them")
    want.paths.append(path)
