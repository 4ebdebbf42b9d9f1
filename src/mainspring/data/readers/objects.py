"""Decodes messages one at a time: JSON, and Protocol Buffers by the descriptors that the log carries."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.message import DecodeError, Message
from numpy.typing import NDArray

from mainspring.data.readers.messages import (
    DEPTH_MAX,
    FIELDS_MAX,
    Decoded,
    Kind,
    MessageField,
    MessagePart,
    Step,
    Values,
    steps_of,
)
from mainspring.domain.errors import InvalidInput

_SECOND_NS = 1_000_000_000
_FRACTIONS = ("nsec", "nanosec", "nanos", "nsecs")
_TIMES = ("google.protobuf.Timestamp", "google.protobuf.Duration")
_INTEGERS = (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64)
_JSON_BYTES_MAX = 8 << 20  # Of one message: as Python objects it takes up to 30 times that.


class _Lacks(Exception):
    """The message has not a wanted field, or not as a value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Value:
    """A field of one message, and what columns it can share."""

    kind: Kind
    value: Any

    @property
    def shape(self) -> tuple[object, ...]:
        if isinstance(self.value, np.ndarray):
            return (self.kind, self.value.shape)
        return (self.kind, isinstance(self.value, tuple))


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonDecoder:
    """Decodes JSON objects; its fields are those of an example."""

    def fields(self, example: bytes | None) -> tuple[MessageField, ...]:
        """See `Decoder.fields`."""
        found: list[MessageField] = []
        if example is not None and len(example) <= _JSON_BYTES_MAX:
            try:
                _list_json(json.loads(example), "", 0, found)
            except (ValueError, RecursionError):
                return ()
        return tuple(found)

    def columns(self, paths: tuple[str, ...]) -> Callable[[Sequence[bytes]], Decoded]:
        """See `Decoder.columns`; whether a field exists shows only in the messages."""
        steps = {path: steps_of(path) for path in paths}

        def read(data: bytes) -> dict[str, _Value]:
            if len(data) > _JSON_BYTES_MAX:
                raise _Lacks(f"{len(data):,} bytes of JSON; at most {_JSON_BYTES_MAX:,} are read")
            plain = json.loads(data)
            return {path: _json_value(_follow_json(plain, way)) for path, way in steps.items()}

        return lambda messages: _decode(messages, read)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtobufDecoder:
    """Decodes Protocol Buffers.

    Args:
        descriptor: Of the messages' type.
    """

    descriptor: Descriptor

    def fields(self, example: bytes | None) -> tuple[MessageField, ...]:
        """See `Decoder.fields`."""
        found: list[MessageField] = []
        _list_protobuf(self.descriptor, "", 0, found)
        if example is None:
            return tuple(found)
        try:
            message = message_factory.GetMessageClass(self.descriptor).FromString(example)
        except DecodeError:
            return tuple(found)
        return tuple(_shaped(field, message, self.descriptor) for field in found)

    def columns(self, paths: tuple[str, ...]) -> Callable[[Sequence[bytes]], Decoded]:
        """See `Decoder.columns`."""
        ways = {path: (steps_of(path), _leaf(self.descriptor, path)) for path in paths}
        parse = message_factory.GetMessageClass(self.descriptor).FromString

        def read(data: bytes) -> dict[str, _Value]:
            message = parse(data)
            return {path: _protobuf_value(_follow_protobuf(message, way), leaf) for path, (way, leaf) in ways.items()}

        return lambda messages: _decode(messages, read)


def protobuf_decoder(name: str, descriptors: bytes) -> ProtobufDecoder:
    """Returns the decoder of a type.

    Args:
        name: The type's full name.
        descriptors: A serialised `FileDescriptorSet` with it and all it names.

    Raises:
        InvalidInput: The descriptors do not hold together, or lack the type.
    """
    try:
        pool = descriptor_pool.DescriptorPool()
        files = {file.name: file for file in FileDescriptorSet.FromString(descriptors).file}
        added: set[str] = set()

        def add(file_name: str, depth: int) -> None:
            if file_name in added or file_name not in files or depth > len(files):
                return
            added.add(file_name)
            for needed in files[file_name].dependency:
                add(needed, depth + 1)
            pool.Add(files[file_name])

        for file_name in files:
            add(file_name, 0)
        return ProtobufDecoder(descriptor=pool.FindMessageTypeByName(name))
    except (DecodeError, TypeError, KeyError, ValueError, RecursionError) as error:
        raise InvalidInput(
            "read a message definition", on=name[:200], got=str(error)[:200], wanted="a FileDescriptorSet with the type"
        ) from error


def _decode(messages: Sequence[bytes], read: Callable[[bytes], dict[str, _Value]]) -> Decoded:
    rows: list[int] = []
    values: list[dict[str, _Value]] = []
    left_out, reason = 0, ""
    for row, data in enumerate(messages):
        try:
            values.append(read(data))
            rows.append(row)
        except (_Lacks, ValueError, DecodeError, RecursionError, OverflowError) as error:
            left_out, reason = left_out + 1, reason or str(error)[:200]
    parts: list[MessagePart] = []
    first = 0
    shapes = [tuple(value.shape for value in fields.values()) for fields in values]
    for place in range(1, len(values) + 1):
        if place == len(values) or shapes[place] != shapes[first]:
            parts.append(_part(rows[first:place], values[first:place]))
            first = place
    return Decoded(parts=tuple(parts), left_out=left_out, reason=reason)


def _part(rows: list[int], values: list[dict[str, _Value]]) -> MessagePart:
    fields: dict[str, Values] = {}
    for path, first in values[0].items():
        column = [fields_of[path].value for fields_of in values]
        if first.kind in ("number", "time"):
            fields[path] = np.array(column, dtype=np.int64 if first.kind == "time" else None)
        else:
            fields[path] = tuple(column)
    return MessagePart(rows=np.array(rows, dtype=np.int64), fields=fields)


def _follow_json(plain: Any, steps: tuple[Step, ...]) -> Any:
    for step in steps:
        if step.name:
            if not isinstance(plain, dict) or step.name not in plain:
                raise _Lacks(f"no field {step.name!r}")
            plain = plain[step.name]
        else:
            plain = _item(plain, step)
    return plain


def _item(row: Any, step: Step) -> Any:
    stop = max(step.stop, step.start + 1)
    if isinstance(row, (str, bytes, dict)) or not hasattr(row, "__len__") or len(row) < stop:
        raise _Lacks(f"no items up to {stop}")
    return row[step.start : step.stop] if step.stop >= 0 else row[step.start]


def _json_value(plain: Any) -> _Value:
    if isinstance(plain, (int, float)):
        return _Value(kind="number", value=np.float64(plain))
    if isinstance(plain, str):
        return _Value(kind="text", value=plain)
    if isinstance(plain, dict) and (time_ns := _json_time(plain)) is not None:
        return _Value(kind="time", value=time_ns)
    if isinstance(plain, list):
        if plain and all(isinstance(item, str) for item in plain):
            return _Value(kind="text", value=tuple(plain))
        array = np.array(plain) if plain else np.zeros(0)  # Raises ValueError when lengths differ.
        if array.dtype.kind in "biuf":
            return _Value(kind="number", value=array.astype(np.float64))
    raise _Lacks("a field that is neither numbers nor text")


def _json_time(plain: dict[str, Any]) -> int | None:
    """Returns the time of an object such as {"sec": 1, "nsec": 2}."""
    if len(plain) != 2:
        return None
    seconds = next((plain[name] for name in ("sec", "secs", "seconds") if name in plain), None)
    rest = next((plain[name] for name in _FRACTIONS if name in plain), None)
    return _time(seconds, rest) if isinstance(seconds, int) and isinstance(rest, int) else None


def _time(seconds: int, rest: int) -> int:
    time_ns = seconds * _SECOND_NS + rest
    if not -(2**63) <= time_ns < 2**63:
        raise _Lacks("a time beyond the year 2262")
    return time_ns


def _list_json(plain: Any, path: str, depth: int, found: list[MessageField]) -> None:
    if len(found) >= FIELDS_MAX or depth > DEPTH_MAX:
        return
    if isinstance(plain, dict) and not (path and _json_time(plain) is not None):
        for name, value in plain.items():
            if name and not set(".[]") & set(name):
                _list_json(value, f"{path}.{name}" if path else name, depth + 1, found)
    elif isinstance(plain, list) and plain and isinstance(plain[0], dict):
        _list_json(plain[0], f"{path}[0]", depth + 1, found)
    elif path:
        try:
            value = _json_value(plain)
        except (_Lacks, ValueError):
            return
        found.append(MessageField(path=path, kind=value.kind, dims=_dims(value)))


def _dims(value: _Value) -> tuple[int, ...]:
    if isinstance(value.value, np.ndarray):
        return tuple(value.value.shape)
    return (len(value.value),) if isinstance(value.value, tuple) else ()


def _list_protobuf(descriptor: Descriptor, path: str, depth: int, found: list[MessageField]) -> None:
    for field in descriptor.fields:
        if len(found) >= FIELDS_MAX or depth > DEPTH_MAX:
            return
        name = f"{path}.{field.name}" if path else field.name
        inner = field.message_type
        if inner is not None and inner.GetOptions().map_entry:
            continue
        if inner is not None and not _is_time(inner):
            _list_protobuf(inner, f"{name}[0]" if field.is_repeated else name, depth + 1, found)
        elif inner is None or not field.is_repeated:
            kind = _kind(field)
            dims = None if field.is_repeated else ()
            if kind != "bytes" or not field.is_repeated:
                found.append(MessageField(path=name, kind=kind, dims=dims))


def _is_time(descriptor: Descriptor) -> bool:
    """Returns whether a type is one of protobuf's own for times, also by its fields: a damaged log may say anything."""
    fields = [descriptor.fields_by_name.get(name) for name in ("seconds", "nanos")]
    return descriptor.full_name in _TIMES and all(
        field is not None and not field.is_repeated and field.cpp_type in _INTEGERS for field in fields
    )


def _kind(field: FieldDescriptor) -> Kind:
    if field.message_type is not None:
        return "time"
    if field.type == FieldDescriptor.TYPE_STRING:
        return "text"
    return "bytes" if field.type == FieldDescriptor.TYPE_BYTES else "number"


def _shaped(field: MessageField, message: Message, descriptor: Descriptor) -> MessageField:
    if field.dims is not None:
        return field
    try:
        value = _protobuf_value(_follow_protobuf(message, steps_of(field.path)), _leaf(descriptor, field.path))
    except _Lacks:
        return field
    return MessageField(path=field.path, kind=field.kind, dims=_dims(value))


def _leaf(descriptor: Descriptor, path: str) -> FieldDescriptor:
    """Returns the field a path ends in, checked against the type."""
    here: Descriptor | None = descriptor
    field: FieldDescriptor | None = None
    whole = False  # Whether the value so far is a whole repeated field.
    for step in steps_of(path):
        if not step.name:
            if field is None or not whole:
                raise InvalidInput("read a field", on=path, got="an index", wanted="one of a repeated field")
            whole = step.stop >= 0
            continue
        if here is None or whole or step.name not in here.fields_by_name:
            names = ", ".join(here.fields_by_name) if here is not None and not whole else "an index"
            raise InvalidInput("read a field", on=path, got=repr(step.name[:80]), wanted=f"one of {names}"[:300])
        field = here.fields_by_name[step.name]
        whole, here = field.is_repeated, field.message_type
    assert field is not None
    if here is not None and (whole or not _is_time(here)):
        raise InvalidInput("read a field", on=path, got="a group of fields", wanted="one of them")
    if whole and field.type == FieldDescriptor.TYPE_BYTES:
        raise InvalidInput("read a field", on=path, got="repeated bytes", wanted="one of them, by index")
    return field


def _follow_protobuf(message: Any, steps: tuple[Step, ...]) -> Any:
    for step in steps:
        message = getattr(message, step.name) if step.name else _item(message, step)
    return message


_DTYPES = {
    FieldDescriptor.CPPTYPE_DOUBLE: np.float64,
    FieldDescriptor.CPPTYPE_FLOAT: np.float32,
    FieldDescriptor.CPPTYPE_INT32: np.int32,
    FieldDescriptor.CPPTYPE_INT64: np.int64,
    FieldDescriptor.CPPTYPE_UINT32: np.uint32,
    FieldDescriptor.CPPTYPE_UINT64: np.uint64,
    FieldDescriptor.CPPTYPE_BOOL: np.uint8,
    FieldDescriptor.CPPTYPE_ENUM: np.int32,
}


def _protobuf_value(value: Any, leaf: FieldDescriptor) -> _Value:
    kind = _kind(leaf)
    if kind == "time":
        return _Value(kind=kind, value=_time(value.seconds, value.nanos))
    if kind == "number":
        array: NDArray[Any] = np.array(value, dtype=_DTYPES[leaf.cpp_type])
        return _Value(kind=kind, value=array)
    if kind == "text" and not isinstance(value, str):
        return _Value(kind=kind, value=tuple(value))
    return _Value(kind=kind, value=value)
