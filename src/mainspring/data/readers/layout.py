"""Decodes CDR, ROS 1 and ULog messages: where each wanted field lies, and all messages that are laid out alike at once.

A message is walked once. The walk notes every length it met (the guards) and where the wanted fields lie. Every other
message that has the same lengths at the same places has its fields at the same places, so all of them are read as
strided views over their joined bytes. What differs is walked again.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mainspring.data.readers.messages import (
    Decoded,
    Kind,
    MessageField,
    MessagePart,
    Values,
)
from mainspring.data.readers.types import TypeNode, Want, fields_of, wants_of

Format = Literal["cdr", "ros1", "ulog"]
_LAYOUTS_MAX = 8  # Kept from batch to batch and tried on all messages; those that match none are walked one by one.
_GUARDS_MAX = 256  # Of a layout that is tried on all messages.
_WHOLE_WALKS_MAX = 64  # Of a batch: messages whose unwanted rest varies cost a walk each, so that not all are checked.
_REST_BYTES_MAX = 4_096  # Beyond what is wanted that is looked at in every message.
_PADDING_BYTES = MappingProxyType(
    {"cdr": 3, "ros1": 0, "ulog": 1 << 16}
)  # Behind a message; ULog's are known elsewhere.
_CDR_BODY = 4  # The encapsulation header; alignment counts from its end.
# Representation identifiers of plain CDR and plain XCDR2: byte order, and the largest alignment.
# Source: OMG DDS-XTypes 1.3, table 60.
_CDR_KINDS = {0x0000: (">", 8), 0x0001: ("<", 8), 0x0006: (">", 4), 0x0007: ("<", 4)}
_SECOND_NS = 1_000_000_000
_BYTES_MAX = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where a field lies: numbers (dims), a time, or bytes and text by offset and length."""

    kind: Kind
    offset: int = 0
    dtype: str = ""
    dims: tuple[int, ...] = ()
    pieces: tuple[tuple[int, int], ...] = ()  # Texts of a row; one piece for bytes and a single text.
    row: bool = False

    @property
    def shape(self) -> tuple[object, ...]:
        return (self.kind, self.dims, self.dtype, self.row)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """Places of the wanted fields, valid for every message whose guards say the same.

    Args:
        bytes_min: A message must have as many.
        bytes_max: And not more, where it was walked to its end.
        extent: How many of its bytes hold the guards and the numbers.
        guards: Offset, type and value of each length met.
        places: By path.
    """

    bytes_min: int
    bytes_max: int
    extent: int
    guards: tuple[tuple[int, str, int], ...]
    places: dict[str, _Place]

    @property
    def shape(self) -> tuple[object, ...]:
        return tuple(place.shape for place in self.places.values())


class _Unfit(Exception):
    """The message cannot be read as its type, or lacks a wanted field."""


class _Walk:
    """One walk over one message."""

    def __init__(self, data: bytes, message_format: Format, wanted: int, whole: int) -> None:
        self.data = data
        self.end = len(data)
        self.left = wanted + whole  # One more than there is goes on to the end.
        self.pos = 0
        self.order, self.align_max = "<", 1
        self.extent = self.bytes_min = 0
        self.guards: list[tuple[int, str, int]] = []
        self.places: dict[str, _Place] = {}
        self.text_end = 0
        if message_format == "cdr":
            if self.end < _CDR_BODY:
                raise _Unfit("shorter than a CDR header")
            kind = int.from_bytes(data[:2], "big")
            if kind not in _CDR_KINDS:
                raise _Unfit(f"CDR representation {kind:#06x}, which is not plain")
            self.order, self.align_max = _CDR_KINDS[kind]
            self.guards.append((0, ">u2", kind))
            self.pos = _CDR_BODY
            self.text_end = 1  # The terminating zero counts in a text's length.
        self._u4 = struct.Struct(self.order + "I")

    def layout(self) -> _Layout:
        """Returns what the walk found."""
        guard_end = max((offset + int(dtype[-1]) for offset, dtype, _ in self.guards), default=0)
        return _Layout(
            bytes_min=max(self.bytes_min, guard_end, self.extent),
            bytes_max=_BYTES_MAX,
            extent=max(self.extent, guard_end),
            guards=tuple(self.guards),
            places=self.places,
        )

    def take(self, node: TypeNode, want: Want) -> None:
        """Passes over a node and notes what is wanted of it."""
        match node.kind:
            case "number":
                self._align(node.size)
                for path in want.paths:
                    self._place(path, self._numbers(node.dtype, self.pos, (), node.size))
                self._pass(node.size)
            case "text":
                piece = self._text()
                for path in want.paths:
                    self._place(path, _Place(kind="text", pieces=(piece,)))
            case "struct":
                self._struct(node, want)
            case "row":
                self._row(node, want)

    def _struct(self, node: TypeNode, want: Want) -> None:
        if want.paths:  # Only times are wanted whole.
            self._align(4)
            for path in want.paths:
                self._place(path, _Place(kind="time", offset=self.pos, dtype=self.order + node.fields[0][1].dtype))
                self.extent = max(self.extent, self.pos + 8)
        for name, child in node.fields:
            if name in want.names:
                self.take(child, want.names[name])
            else:
                self._skip(child, 1)
            if not self.left:
                return

    def _row(self, node: TypeNode, want: Want) -> None:
        assert node.element is not None
        count = self._length() if node.count is None else node.count
        for item in want.items:
            if item >= count:
                raise _Unfit(f"only {count} items where item {item} is wanted")
        element = node.element
        if element.kind == "number":
            self._number_row(node, count, want)
        elif element.kind == "text":
            pieces = tuple(self._text() for _ in range(self._bounded(count, 4)))
            for path in want.paths:
                self._place(path, _Place(kind="text", pieces=pieces, row=True))
            for item, inner in want.items.items():
                for path in inner.paths:
                    self._place(path, _Place(kind="text", pieces=(pieces[item],)))
        else:
            done = 0
            for item in sorted(want.items):
                self._skip(element, item - done)
                self.take(element, want.items[item])
                done = item + 1
            if self.left:
                self._skip(element, count - done)

    def _number_row(self, node: TypeNode, count: int, want: Want) -> None:
        assert node.element is not None
        size, dtype = node.element.size, node.element.dtype
        if count:
            self._align(size)
        base = self.pos
        self._pass(self._bounded(count, size) * size)
        for path in want.paths:
            if node.count is None and dtype in ("u1", "i1"):
                self.bytes_min = max(self.bytes_min, self.pos)
                self._place(path, _Place(kind="bytes", pieces=((base, count),)))
            else:
                self._place(path, self._numbers(dtype, base, (count,), size))
        for path, start, stop in want.ranges:
            if stop > count:
                raise _Unfit(f"only {count} items where [{start}:{stop}] is wanted")
            self._place(path, self._numbers(dtype, base + start * size, (stop - start,), size))
        for item, inner in want.items.items():
            for path in inner.paths:
                self._place(path, self._numbers(dtype, base + item * size, (), size))

    def _skip(self, node: TypeNode, count: int) -> None:
        """Passes over some elements of one type; each step advances, so a count that lies ends at the message's end."""
        if count <= 0:
            return
        if self.align_max == 1 and node.fixed is not None:
            self._pass(node.fixed * count)
        elif node.width and node.fixed is not None:
            self._align(node.width)
            self._pass(node.fixed * count)
        else:
            for _ in range(self._bounded(count, 1)):
                self._skip_one(node)

    def _skip_one(self, node: TypeNode) -> None:
        match node.kind:
            case "text":
                self._text()
            case "struct":
                for _, child in node.fields:
                    self._skip(child, 1)
            case "row":
                assert node.element is not None
                self._skip(node.element, self._length() if node.count is None else node.count)
            case "number":
                self._align(node.size)
                self._pass(node.size)

    def _length(self) -> int:
        self._align(4)
        at = self.pos
        self._pass(4)
        value: int = self._u4.unpack_from(self.data, at)[0]
        self.guards.append((at, self.order + "u4", value))
        return value

    def _text(self) -> tuple[int, int]:
        length = self._length()
        at = self.pos
        self._pass(length)
        self.bytes_min = max(self.bytes_min, self.pos)
        return at, max(length - self.text_end, 0)

    def _numbers(self, dtype: str, offset: int, dims: tuple[int, ...], size: int) -> _Place:
        end = offset + size * (dims[0] if dims else 1)
        if end > self.end:
            raise _Unfit("shorter than its type")
        self.extent = max(self.extent, end)
        return _Place(kind="number", offset=offset, dtype=self.order + dtype, dims=dims)

    def _place(self, path: str, place: _Place) -> None:
        self.places[path] = place
        self.left -= 1

    def _align(self, size: int) -> None:
        if self.align_max > 1:
            self.pos += -(self.pos - _CDR_BODY) % min(size, self.align_max)

    def _pass(self, count: int) -> None:
        self.pos += count
        if self.pos > self.end:
            raise _Unfit("shorter than its type")

    def _bounded(self, count: int, size: int) -> int:
        if count * size > self.end - self.pos:
            raise _Unfit(f"a length of {count}, more than the message holds")
        return count


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutDecoder:
    """Decodes messages whose layout follows from their type.

    Args:
        root: The type.
        format: How it is laid out.
    """

    root: TypeNode
    format: Format

    def fields(self, example: bytes | None) -> tuple[MessageField, ...]:
        """See `Decoder.fields`."""
        found = fields_of(self.root)
        unknown = {item.path for item in found if item.dims is None}
        known: dict[str, tuple[int, ...]] = {}
        if example is not None and unknown:
            try:
                layout = _walked(
                    example, self.root, self.format, wants_of(self.root, tuple(sorted(unknown))), len(unknown)
                )
                known = {
                    path: (len(place.pieces),) if place.row else place.dims for path, place in layout.places.items()
                }
            except _Unfit:
                known = {}
        return tuple(
            MessageField(path=item.path, kind=item.kind, dims=known.get(item.path) if item.dims is None else item.dims)
            for item in found
        )

    def columns(self, paths: tuple[str, ...]) -> Callable[[Sequence[bytes]], Decoded]:
        """See `Decoder.columns`."""
        want = wants_of(self.root, paths)
        layouts: list[_Layout] = []

        def decode(messages: Sequence[bytes]) -> Decoded:
            def walk(data: bytes, whole: int) -> _Layout:
                return _walked(data, self.root, self.format, want, len(paths), whole if paths else 0)

            return _decode(messages, walk, layouts)

        return decode


def _walked(data: bytes, root: TypeNode, message_format: Format, want: Want, wanted: int, whole: int = 0) -> _Layout:
    """Returns where the wanted fields lie; with `whole` 1 the message must also end where its type does."""
    walk = _Walk(data, message_format, wanted, whole)
    if wanted:
        walk.take(root, want)
    if not whole:
        return walk.layout()
    padding = _PADDING_BYTES[message_format]
    if walk.end - walk.pos > padding:
        raise _Unfit(f"{walk.end - walk.pos:,} bytes longer than its type")
    return replace(walk.layout(), bytes_min=walk.pos, bytes_max=walk.pos + padding)


def _checked(data: bytes, walk: Callable[[bytes, int], _Layout]) -> _Layout:
    """Returns the layout of a message walked to its end; of what is wanted alone when the rest is too large."""
    whole = walk(data, 1)
    early = walk(data, 0)
    return whole if len(whole.guards) <= _GUARDS_MAX and whole.extent <= early.extent + _REST_BYTES_MAX else early


def _decode(messages: Sequence[bytes], walk: Callable[[bytes, int], _Layout], layouts: list[_Layout]) -> Decoded:
    """Sorts messages by layout, reads each layout's at once, and puts them back in order."""
    lengths = np.fromiter(map(len, messages), np.int64, len(messages))
    pending = np.arange(len(messages))
    groups: list[tuple[NDArray[np.int64], _Layout]] = []
    singles: dict[tuple[object, ...], tuple[list[int], _Layout]] = {}
    reasons: list[str] = []
    for layout in layouts:
        pending = _claim(messages, lengths, pending, layout, groups)
    tries, walks = _LAYOUTS_MAX, _WHOLE_WALKS_MAX
    while len(pending):
        first = int(pending[0])
        try:
            walks -= 1
            layout = _checked(messages[first], walk) if walks >= 0 else walk(messages[first], 0)
        except _Unfit as error:
            reasons.append(str(error))
            pending = pending[1:]
            continue
        if tries and len(layout.guards) <= _GUARDS_MAX:
            tries -= 1
            pending = _claim(messages, lengths, pending, layout, groups)
        else:
            singles.setdefault(layout.guards, ([], layout))[0].append(first)
            pending = pending[1:]
    groups += [(np.array(rows), layout) for rows, layout in singles.values()]
    largest = sorted(groups, key=lambda group: -len(group[0]))[:_LAYOUTS_MAX]
    layouts[:] = [layout for _, layout in largest if len(layout.guards) <= _GUARDS_MAX]
    return Decoded(
        parts=tuple(_part(messages, run) for run in _runs(groups)),
        left_out=len(reasons),
        reason=reasons[0] if reasons else "",
    )


def _claim(
    messages: Sequence[bytes],
    lengths: NDArray[np.int64],
    pending: NDArray[np.int64],
    layout: _Layout,
    groups: list[tuple[NDArray[np.int64], _Layout]],
) -> NDArray[np.int64]:
    """Moves the messages that are laid out so into a group, and returns the others."""
    candidates = pending[(lengths[pending] >= layout.bytes_min) & (lengths[pending] <= layout.bytes_max)]
    if not len(candidates):
        return pending
    joined = _joined(messages, candidates, layout.extent)
    same = np.ones(len(candidates), np.bool_)
    for offset, dtype, value in layout.guards:
        same &= np.ndarray((len(candidates),), dtype, joined, offset, (layout.extent,)) == value
    if not same.any():
        return pending
    rows = candidates[same]
    groups.append((rows, layout))
    return np.setdiff1d(pending, rows, assume_unique=True) if len(rows) < len(pending) else pending[:0]


def _joined(messages: Sequence[bytes], rows: NDArray[np.int64], extent: int) -> bytes:
    return b"".join([messages[row][:extent] for row in rows.tolist()])


def _runs(groups: list[tuple[NDArray[np.int64], _Layout]]) -> list[list[tuple[NDArray[np.int64], _Layout]]]:
    """Cuts the groups so that within each run, in the order of the messages, every field keeps its shape."""
    if len({layout.shape for _, layout in groups}) <= 1:
        return [groups] if groups else []
    shapes: dict[tuple[object, ...], int] = {}
    rows = np.concatenate([rows for rows, _ in groups])
    which = np.concatenate([np.full(len(rows), number) for number, (rows, _) in enumerate(groups)])
    numbers = np.array([shapes.setdefault(layout.shape, len(shapes)) for _, layout in groups])
    order = np.argsort(rows)
    rows, which = rows[order], which[order]
    cuts = np.flatnonzero(np.diff(numbers[which])) + 1
    return [
        [(run_rows[run_which == number], groups[number][1]) for number in np.unique(run_which).tolist()]
        for run_rows, run_which in zip(np.split(rows, cuts), np.split(which, cuts), strict=True)
    ]


def _part(messages: Sequence[bytes], run: list[tuple[NDArray[np.int64], _Layout]]) -> MessagePart:
    columns = [_read(messages, rows, layout) for rows, layout in run]
    if len(run) == 1:
        return MessagePart(rows=run[0][0], fields=columns[0])
    rows = np.concatenate([rows for rows, _ in run])
    order = np.argsort(rows)
    fields: dict[str, Values] = {}
    for path, first in columns[0].items():
        if isinstance(first, np.ndarray):
            fields[path] = np.concatenate([column[path] for column in columns])[order]
        else:
            listed: list[Any] = [value for column in columns for value in column[path]]
            fields[path] = tuple(listed[place] for place in order.tolist())
    return MessagePart(rows=rows[order], fields=fields)


def _read(messages: Sequence[bytes], rows: NDArray[np.int64], layout: _Layout) -> dict[str, Values]:
    joined = _joined(messages, rows, layout.extent)
    count, extent = len(rows), layout.extent
    fields: dict[str, Values] = {}
    for path, place in layout.places.items():
        if place.kind == "number":
            strides = (extent, *([int(place.dtype[-1])] * len(place.dims)))
            view: NDArray[Any] = np.ndarray((count, *place.dims), place.dtype, joined, place.offset, strides)
            fields[path] = view.astype(view.dtype.newbyteorder("="))
        elif place.kind == "time":
            seconds: NDArray[Any] = np.ndarray((count,), place.dtype, joined, place.offset, (extent,))
            rest: NDArray[Any] = np.ndarray((count,), place.dtype[0] + "u4", joined, place.offset + 4, (extent,))
            fields[path] = seconds.astype(np.int64) * _SECOND_NS + rest.astype(np.int64)
        elif place.kind == "bytes":
            ((at, length),) = place.pieces
            fields[path] = tuple(messages[row][at : at + length] for row in rows.tolist())
        elif place.row:
            fields[path] = tuple(
                tuple(messages[row][at : at + length].decode("utf-8", "replace") for at, length in place.pieces)
                for row in rows.tolist()
            )
        else:
            ((at, length),) = place.pieces
            fields[path] = tuple(messages[row][at : at + length].decode("utf-8", "replace") for row in rows.tolist())
    return fields
