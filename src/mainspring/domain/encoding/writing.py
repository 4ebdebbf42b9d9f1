"""Values as bounded JSON: what `codec` writes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from operator import attrgetter
from typing import Any

_PLAIN = frozenset((str, int, float, bool, type(None)))
_NOTHING = object()  # Is no value's part.


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Fields:
    """The fields of a dataclass: their names, and what returns all of a value's at once."""

    names: tuple[str, ...]
    of: Callable[[Any], Sequence[Any]]


_NAMED: dict[type, _Fields] = {}  # Of the dataclasses that were written.


def _fields(kind: type) -> _Fields:
    """Returns the fields of a dataclass."""
    if (known := _NAMED.get(kind)) is None:
        assert dataclasses.is_dataclass(kind), f"no wire form for {kind}"
        names = tuple(field.name for field in dataclasses.fields(kind))
        getter = attrgetter(*names) if len(names) > 1 else lambda one: [getattr(one, name) for name in names]
        known = _NAMED[kind] = _Fields(names=names, of=getter)
    return known


def fields_of(value: Any) -> Iterable[tuple[str, Any]]:
    """Returns each field of a dataclass, by name, as it is.

    Args:
        value: An instance of it.
    """
    known = _fields(value.__class__)
    return zip(known.names, known.of(value), strict=True)


def to_plain(value: object) -> Any:
    """Returns `value` as JSON's own types: dataclasses as objects, enums as their values, tuples as lists.

    Args:
        value: A dataclass, enum, tuple, mapping with string keys, or scalar.
    """
    if value.__class__ in _PLAIN:
        return value
    if value.__class__ in _NAMED or not isinstance(value, (tuple, list, str, int, float)):
        found = _one_level(value)
        if not isinstance(found, dict):
            return found
        return {name: item if item.__class__ in _PLAIN else to_plain(item) for name, item in found.items()}
    if isinstance(value, (tuple, list)):
        return [item if item.__class__ in _PLAIN else to_plain(item) for item in value]
    return value.value if isinstance(value, Enum) else value


def _one_level(value: Any) -> Any:
    """Returns what JSON's own encoder does not know in a form that it does, and what is in it as it is."""
    known = _NAMED.get(value.__class__)
    if known is None:
        if isinstance(value, Enum):
            return value.value
        if isinstance(value, Mapping):
            return dict(value)
        known = _fields(value.__class__)
    return dict(zip(known.names, known.of(value), strict=True))


# What is written are values that cannot hold themselves.
_ENCODER = json.JSONEncoder(
    separators=(",", ":"), ensure_ascii=False, allow_nan=False, check_circular=False, default=_one_level
)


def encode(value: object) -> bytes:
    """Returns `value` as UTF-8 JSON.

    Args:
        value: See `to_plain`.
    """
    return _ENCODER.encode(value).encode()


def encode_each(values: Iterable[Any]) -> list[str]:
    """Returns each of several values as text of the JSON that `encode` makes of it.

    A field that is the same object in one value after the other is written once.

    Args:
        values: Dataclasses, of one kind for as long as possible; nothing in them changes meanwhile.
    """
    found: list[str] = []
    known = _Fields(names=(), of=list)
    parts, texts = list[Any](), list[str]()
    kind = None
    for value in values:
        if value.__class__ is not kind:
            kind = value.__class__
            known = _fields(kind)
            parts, texts = [_NOTHING] * len(known.names), [""] * len(known.names)
        for at, part in enumerate(known.of(value)):
            before = parts[at]
            if part is not before and (part.__class__ is not str or part != before):
                parts[at], texts[at] = part, f'"{known.names[at]}":{_ENCODER.encode(part)}'
        found.append(f"{{{','.join(texts)}}}")
    return found
