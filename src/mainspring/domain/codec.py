"""The only codec: frozen dataclasses to bounded JSON and back, driven by their type hints.

Messages tolerate fields they do not know (a newer peer may send them); documents written by people are read with
`strict=True`, which names the unknown field and the nearest valid one. A union that has `Unknown` takes a word it does
not know from a peer of a newer release, and from nobody else. Never executes or imports anything it reads.
"""

from __future__ import annotations

import dataclasses
import json
import marshal
import math
import reprlib
import struct
import types
from collections.abc import Callable, Hashable, Iterable, Mapping
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, Union, cast, dataclass_transform, get_args, get_origin, get_type_hints

from mainspring.domain.encoding.writing import encode as encode
from mainspring.domain.encoding.writing import encode_each as encode_each
from mainspring.domain.encoding.writing import fields_of as fields_of
from mainspring.domain.encoding.writing import to_plain as to_plain
from mainspring.domain.errors import InvalidInput, InvalidMessage, InvalidSpec, MainspringError, nearest
from mainspring.domain.release import HALF_LETTER, RELEASE, Unknown, is_newer, member_of_its_own

if TYPE_CHECKING:
    from typing_extensions import TypeForm as TypeForm  # A union of classes, as a value that mypy follows (PEP 747).

MESSAGE_BYTES_MAX = 8 << 20  # A heartbeat of 10,000 ranks is about 2 MB; a manifest part of 10,000 shards 3 MB.
DEPTH_MAX = 16
ITEMS_MAX = 600_000  # A batch of 10,000 plain jobs, of 50 parts each.
WHOLE_MAX = (1 << 63) - 1  # What a column of a store holds.

Value = TypeVar("Value")
_SCALARS = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
_NAMES: dict[type, str] = {}  # What each message is called where it travels.
_SHARED: dict[type, tuple[str, ...]] = {}  # Fields marked as "shared": many messages carry the same long tuple.
_NO_REFERENCES = 2  # marshal's version in which equal values have equal bytes. Source: CPython, Python/marshal.c.
_LENGTH = struct.Struct(">I")
FRAME_HEADER_BYTES = _LENGTH.size
MESSAGE_VERSION = 1  # Of the whole vocabulary: peers of another version are refused by name.


def from_plain(
    kind: type[Value], plain: object, *, strict: bool = False, where: str = "", newer: bool = False, shown: bool = False
) -> Value:
    """Returns `plain` as a `kind`.

    Args:
        kind: The dataclass (or other supported type) wanted.
        plain: What `json.loads` or a YAML reader gave.
        strict: Whether an unknown field is an error.
        newer: Whether a peer of a newer release wrote it: then `Unknown` comes of what fits no other arm of a union.
        where: Its place in a larger document, for errors.
        shown: Whether such a peer's words for states and the like are only shown: each that is not known is a member
            of its own then, equal to its word and to no member.

    Raises:
        InvalidSpec: `strict`, and a field is unknown, missing or of the wrong type.
        InvalidMessage: Not `strict`, and a field is missing or of the wrong type, or a bound is passed.
    """
    reader = _Reader(strict=strict, newer=newer, shown=shown)
    value: Value = reader.read(kind, plain, where=where, depth=0)
    return value


def alike(kind: type, *sources: Any) -> dict[str, Any]:
    """Returns what some dataclasses tell of the fields of another, by name: what crosses over without being listed.

    Args:
        kind: The dataclass to be made.
        sources: Where its fields are taken from; of fields of one name, the last one's.
    """
    return {name: getattr(source, name) for source in sources for name in _alike(kind, source.__class__)}


@cache
def _alike(kind: type, source: type) -> tuple[str, ...]:
    theirs = {field.name for field in dataclasses.fields(source)}
    return tuple(field.name for field in dataclasses.fields(kind) if field.name in theirs)


def decode(kind: type[Value], data: bytes, *, newer: bool = False, shown: bool = False) -> Value:
    """Returns the `kind` that `data` holds.

    Args:
        kind: The dataclass wanted.
        data: UTF-8 JSON, at most `MESSAGE_BYTES_MAX` bytes.
        newer: See `from_plain`.
        shown: See `from_plain`.

    Raises:
        InvalidMessage: Too large, not JSON, too deep, or not such a value.
    """
    return from_plain(kind, loads(data), newer=newer, shown=shown)


def loads(data: bytes) -> object:
    """Returns what bounded JSON holds.

    Args:
        data: UTF-8 JSON, at most `MESSAGE_BYTES_MAX` bytes.

    Raises:
        InvalidMessage: Too large, or not JSON.
    """
    if len(data) > MESSAGE_BYTES_MAX:
        raise InvalidMessage("read a message", got=f"{len(data)} bytes", wanted=f"at most {MESSAGE_BYTES_MAX}")
    try:
        plain: object = json.loads(data, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidMessage("read a message", got=f"{data[:60]!r}...", wanted="UTF-8 JSON") from error
    return plain


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def message(name: str) -> Callable[[type[Value]], type[Value]]:
    """Returns a decorator that makes a class of annotated fields a frozen value that travels under a name of its own.

    Args:
        name: For good: peers and files of other versions know it, so renaming the class leaves it as it is.
    """

    def named(kind: type[Value]) -> type[Value]:
        frozen = dataclasses.dataclass(frozen=True, slots=True, kw_only=True)(kind)
        assert name not in _NAMES.values(), name
        _NAMES[frozen] = name
        shared = tuple(part.name for part in dataclasses.fields(frozen) if part.metadata.get("shared"))  # type: ignore[arg-type]
        if shared:
            _SHARED[frozen] = shared
        return frozen

    return named


def wire_name(kind: type) -> str:
    """Returns what a message is called where it travels.

    Args:
        kind: A class marked with `message`.
    """
    return _NAMES[kind]


def frame(value: object, *, release: str = RELEASE) -> bytes:
    """Returns a message as it travels on a stream: four bytes of big-endian length, then JSON.

    Args:
        value: An instance of a class marked with `message`.
        release: Of whoever says it.

    Raises:
        InvalidMessage: It is larger than a frame may be.
    """
    name = _NAMES[type(value)]
    assert dataclasses.is_dataclass(value)
    shared = _SHARED.get(type(value), ())
    names = [part.name for part in dataclasses.fields(value)]
    plain = {part: [] if part in shared else getattr(value, part) for part in names}
    body = encode({"type": name, "version": MESSAGE_VERSION, "release": release, "body": plain})
    for part in shared:  # A quote inside a text is escaped, so nothing else in the body looks like this.
        body = body.replace(f'"{part}":[]'.encode(), f'"{part}":'.encode() + _encoded_once(getattr(value, part)), 1)
    if len(body) > MESSAGE_BYTES_MAX:
        raise InvalidMessage(f"send a {name}", got=f"{len(body)} bytes", wanted=f"at most {MESSAGE_BYTES_MAX}")
    return _LENGTH.pack(len(body)) + body


def _encoded_once(items: tuple[object, ...]) -> bytes:
    """Returns a tuple's JSON; of the same tuple as the last time without encoding it again."""
    global _LAST_ENCODED  # noqa: PLW0603  One slot: a sender addresses its peers one after the other.
    known, encoded = _LAST_ENCODED
    if known is not items:
        encoded = encode(items)
        _LAST_ENCODED = (items, encoded)
    return encoded


_LAST_ENCODED: tuple[tuple[object, ...], bytes] = ((), b"[]")


def frame_length(header: bytes, bytes_max: int = MESSAGE_BYTES_MAX) -> int:
    """Returns how many bytes follow a frame's header.

    Args:
        header: `FRAME_HEADER_BYTES` bytes.
        bytes_max: The most that may follow.

    Raises:
        InvalidMessage: The length is zero or over the bound.
    """
    length: int = _LENGTH.unpack(header)[0]
    if not 0 < length <= bytes_max:
        raise InvalidMessage("read a frame", got=f"{length} bytes", wanted=f"1 to {bytes_max}")
    return length


def unframe(body: bytes, kinds: TypeForm[Value]) -> Value:
    """Returns the message in a frame's body.

    Args:
        body: The bytes after the header.
        kinds: What may come in here: a message's class, or the union of several.

    Raises:
        InvalidMessage: Not JSON, of a type that may not come in here, of another version, or with wrong fields.
        OtherRelease: Whoever says it is of a release too far from this one.
    """
    plain = loads(body)
    if not isinstance(plain, dict) or not isinstance(plain.get("type"), str):
        raise InvalidMessage("read a frame", got=_short(plain), wanted="type, version and body")
    name, known = plain["type"], _by_name(cast(Hashable, kinds))
    newer = is_newer(plain.get("release"), f"who says {name[:80]!r}")
    if name not in known:
        if newer and Unknown in get_args(kinds):
            return cast(Value, Unknown.said(name, plain.get("body")))
        raise InvalidMessage("read a frame", got=name[:80], wanted=nearest(name[:80], known))
    if plain.get("version") != MESSAGE_VERSION:
        raise InvalidMessage(
            f"read a {name}", got=f"version {plain.get('version')}", wanted=f"version {MESSAGE_VERSION}"
        )
    value: Value = from_plain(known[name], plain.get("body"), newer=newer)
    return value


@cache
def _by_name(kinds: Hashable) -> dict[str, type[Any]]:
    return {_NAMES[kind]: kind for kind in get_args(kinds) or (kinds,) if kind is not Unknown}


_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother = 3, 80, 80


def _short(value: object) -> str:
    """Returns a bounded look at a value that may be hostile: deep, long, or both."""
    return _SHORT.repr(value)[:160]


class _Reader:
    """Reads one document and counts what it has read."""

    def __init__(self, *, strict: bool, newer: bool, shown: bool = False) -> None:
        self.strict = strict
        self.newer = newer
        self.shown = shown
        self.items = 0
        self._repeated: dict[int, tuple[bytes, Any, int]] = {}

    def error(self, where: str, got: object, wanted: str) -> MainspringError:
        kind = InvalidSpec if self.strict else InvalidMessage
        document = "document" if self.strict else "message"
        return kind(f"read a {document}", on=f"field {where!r}" if where else "", got=_short(got), wanted=wanted)

    def read(self, kind: Any, plain: object, *, where: str, depth: int) -> Any:
        self.items += 1
        if depth > DEPTH_MAX or self.items > ITEMS_MAX:
            raise self.error(where, f"depth {depth}, {self.items} items", f"at most {DEPTH_MAX} and {ITEMS_MAX}")
        read, what = _way(kind)
        return read(self, what, plain, where, depth)

    def _union(self, arms: tuple[Any, ...], plain: object, where: str, depth: int) -> Any:
        if plain is None and type(None) in arms:
            return None
        failed: MainspringError | None = None
        for arm in arms:
            if arm is not type(None) and arm is not Unknown:
                try:
                    return self.read(arm, plain, where=where, depth=depth)
                except (InvalidMessage, InvalidSpec) as error:
                    failed = error
        if self.newer and Unknown in arms:
            return Unknown.said(plain, None) if isinstance(plain, str) else Unknown.said("", plain)
        assert failed is not None
        raise failed

    def _tuple(self, item: Any, plain: object, where: str, depth: int) -> Any:
        if not isinstance(plain, (list, tuple)):
            raise self.error(where, plain, "a list")
        if item is str and self.items + len(plain) <= ITEMS_MAX and depth < DEPTH_MAX and _all_ascii(plain):
            self.items += len(plain)
            return tuple(plain)
        return tuple(self.read(item, entry, where=f"{where}[{i}]", depth=depth + 1) for i, entry in enumerate(plain))

    def _mapping(self, item: Any, plain: object, where: str, depth: int) -> Any:
        if not isinstance(plain, Mapping):
            raise self.error(where, plain, "a mapping")
        read: dict[str, Any] = {}
        for key, entry in plain.items():
            if not isinstance(key, str) or HALF_LETTER.search(key):
                raise self.error(where, key, "text as key")
            read[key] = self.read(item, entry, where=f"{where}.{key}" if where else key, depth=depth + 1)
        return read

    def _dataclass(self, kind: Any, plain: object, where: str, depth: int) -> Any:
        if not isinstance(plain, Mapping):
            raise self.error(where, plain, f"the fields of {kind.__name__}")
        parts = _parts(kind)
        if self.strict:
            for key in plain:
                if key not in parts:
                    path = f"{where}.{key}" if where else str(key)
                    raise self.error(path, key, f"a field of {kind.__name__}; {nearest(str(key), parts)}")
        values = {}
        for name, part in parts.items():
            if name in plain:
                entry = plain[name]
                if entry.__class__ is part.plain and depth < DEPTH_MAX and part.is_fine(entry):
                    self.items += 1  # Most fields are such: nothing of them can be wrong.
                    values[name] = entry
                elif not entry and depth < DEPTH_MAX and entry.__class__ in part.blanks:
                    self.items += 1
                    values[name] = part.blanks[entry.__class__]
                elif entry.__class__ is str and depth < DEPTH_MAX and entry in part.members:
                    self.items += 1
                    values[name] = part.members[entry]
                else:
                    read = self._repeating if part.repeats and not self.strict else self._part
                    values[name] = read(part, entry, f"{where}.{name}" if where else name, depth + 1)
            elif part.required:
                path = f"{where}.{name}" if where else name
                raise self.error(path, "nothing", f"this field of {kind.__name__}")
        try:
            return kind(**values)
        except InvalidInput as error:
            if self.strict or isinstance(error, InvalidMessage):
                raise
            raise InvalidMessage("read a message", on=where, got=str(error)) from error
        except AssertionError as error:
            raise self.error(where, plain, f"a consistent {kind.__name__}") from error

    def _repeating(self, part: _Part, plain: Any, where: str, depth: int) -> Any:
        """Reads a field that is seldom another than the last time; its bytes tell, for to Python 1 == 1.0 == True."""
        text = marshal.dumps(plain, _NO_REFERENCES)
        known, value, items = self._repeated.get(id(part), (b"", None, 0))
        if known == text:
            self.items += items
            return value
        before, value = self.items, self._part(part, plain, where, depth)
        self._repeated[id(part)] = text, value, self.items - before
        return value

    def _part(self, part: _Part, plain: object, where: str, depth: int) -> Any:
        return self.read(part.kind, plain, where=where, depth=depth)

    def _enum(self, kind: type[Enum], plain: object, where: str, _: int) -> Any:
        values = _members(kind)
        if isinstance(plain, str) and plain in values:
            return values[plain]
        if self.shown and isinstance(plain, str) and issubclass(kind, str):
            return member_of_its_own(kind, plain)
        raise self.error(where, plain, nearest(str(plain), values))

    def _scalar(self, kind: Any, plain: object, where: str, _: int) -> Any:
        if kind in (Any, object):
            return plain
        if type(plain) is int and not -WHOLE_MAX <= plain <= WHOLE_MAX:
            raise self.error(where, f"{plain.bit_length()} bits", "a whole number of 64 bits")
        if kind is float and isinstance(plain, int) and not isinstance(plain, bool):
            return float(plain)
        if type(plain) is not kind:
            raise self.error(where, plain, _SCALARS.get(kind, str(kind)))
        if isinstance(plain, float) and not math.isfinite(plain):
            raise self.error(where, plain, "a finite number")
        if isinstance(plain, str) and not plain.isascii() and HALF_LETTER.search(plain):
            raise self.error(where, plain, "text that UTF-8 can hold")
        return plain


def _all_ascii(items: Iterable[Any]) -> bool:
    return {*map(type, items)} <= {str} and all(map(str.isascii, items))


@cache
def _way(kind: Any) -> tuple[Callable[[_Reader, Any, object, str, int], Any], Any]:
    """Returns how values of a type hint are read, and what of it that needs to know."""
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _Reader._union, get_args(kind)
    if origin is tuple:
        return _Reader._tuple, get_args(kind)[0]
    if origin in (Mapping, dict):
        return _Reader._mapping, get_args(kind)[1]
    kind = getattr(kind, "__supertype__", kind)
    if dataclasses.is_dataclass(kind):
        return _Reader._dataclass, kind
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _Reader._enum, kind
    return _Reader._scalar, kind


def _is_whole(value: int) -> bool:
    return -WHOLE_MAX <= value <= WHOLE_MAX


# What of a value of just this type may still be wrong.
_FINE: dict[Any, Callable[[Any], bool]] = {
    str: str.isascii,
    bool: lambda value: True,
    int: _is_whole,
    float: math.isfinite,
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A field: its type, whether it must be there, and what of it needs no reading.

    Args:
        plain: The type itself where that is a scalar; a value of it is what was sent, unless it is not fine.
        blanks: What an empty value means, by its own type.
        members: Of an enum, by their words.
        repeats: Whether it is marked as one that is mostly the same in all values of one message.
    """

    kind: Any
    required: bool
    plain: Any
    is_fine: Callable[[Any], bool]
    blanks: Mapping[type, Any]
    members: Mapping[str, Enum]
    repeats: bool


@cache
def _parts(kind: type) -> dict[str, _Part]:
    hints, missing, found = get_type_hints(kind), dataclasses.MISSING, {}
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        bare = getattr(hint, "__supertype__", hint)
        required = field.default is missing and field.default_factory is missing
        blanks: dict[type, Any] = {list: ()} if get_origin(bare) is tuple else {}
        if get_origin(bare) in (Union, types.UnionType) and type(None) in get_args(bare):
            blanks = {type(None): None}
        found[field.name] = _Part(
            kind=hint,
            required=required,
            plain=bare if bare in _FINE else None,
            is_fine=_FINE.get(bare, bool),
            blanks=blanks,
            members=_members(bare) if isinstance(bare, type) and issubclass(bare, Enum) else {},
            repeats=field.metadata.get("repeats", False),
        )
    return found


@cache
def _members(kind: type[Enum]) -> dict[str, Enum]:
    return {str(member.value): member for member in kind}
