"""Turns the definitions that logs carry (ROS message texts, IDL) into types whose layout is known."""

from __future__ import annotations

from functools import lru_cache
from types import MappingProxyType
from typing import Any

from rosbags.interfaces import Nodetype
from rosbags.typesys import Stores, TypesysError, get_types_from_idl, get_types_from_msg, get_typestore

from mainspring.data.readers.layout import Format
from mainspring.data.readers.messages import DEPTH_MAX
from mainspring.data.readers.types import EMPTY_MEMBER, Node
from mainspring.domain.errors import InvalidInput

DEFINITION_BYTES_MAX = 1 << 20  # The largest of ROS, with all it names, has 30 KB.
_TIMES = ("builtin_interfaces/msg/Time", "builtin_interfaces/msg/Duration")
_NUMBERS = MappingProxyType(
    {
        "bool": ("u1", 1),
        "byte": ("u1", 1),
        "char": ("u1", 1),
        "octet": ("u1", 1),
        "int8": ("i1", 1),
        "uint8": ("u1", 1),
        "int16": ("i2", 2),
        "uint16": ("u2", 2),
        "int32": ("i4", 4),
        "uint32": ("u4", 4),
        "int64": ("i8", 8),
        "uint64": ("u8", 8),
        "float32": ("f4", 4),
        "float64": ("f8", 8),
    }
)
NUMBERS = MappingProxyType(
    {name: Node(kind="number", dtype=dtype, size=size) for name, (dtype, size) in _NUMBERS.items()}
)
_TEXT = Node(kind="text")


@lru_cache(maxsize=1_024)  # Streams of one type share it; parsing takes milliseconds.
def ros_type(name: str, text: str, language: str, message_format: Format) -> Node:
    """Returns the layout of a ROS message type.

    Args:
        name: The type, "sensor_msgs/msg/JointState" or "sensor_msgs/JointState".
        text: Its definition with those of the types it names; "" takes the definitions that ROS ships.
        language: "ros1msg", "ros2msg" or "ros2idl".
        message_format: How its messages are laid out.

    Raises:
        InvalidInput: The definition cannot be understood.
    """
    if len(text) > DEFINITION_BYTES_MAX:
        raise _unclear(name, f"{len(text)} letters", f"at most {DEFINITION_BYTES_MAX}")
    try:
        if text:
            # Definitions end their lines as their authors did; the parser knows one way.
            text = "\n".join(text.splitlines()) + "\n"
            types = get_types_from_idl(text) if language == "ros2idl" else get_types_from_msg(text, name)
        else:
            types = _shipped()
    except (TypesysError, ValueError, KeyError, IndexError, AssertionError, RecursionError, TypeError) as error:
        raise _unclear(name, str(error)[-200:], f"a {language} definition") from error
    known: dict[str, Node] = {}
    package, _, last = name.rpartition("/")
    full = name if package.endswith(("/msg", "/action", "/srv")) else f"{package}/msg/{last}"
    return _struct(full, types, known, message_format, 0)


@lru_cache(maxsize=1_024)
def ros1_digest(name: str, text: str) -> str | None:
    """Returns the md5sum that ROS 1 gives a message type; None when its definition cannot be understood.

    Args:
        name: The type.
        text: Its definition with those of the types it names.
    """
    if len(text) > DEFINITION_BYTES_MAX:
        return None
    try:
        store = get_typestore(Stores.EMPTY)
        store.register(get_types_from_msg("\n".join(text.splitlines()) + "\n", name))
        package, _, last = name.rpartition("/")
        return str(store.generate_msgdef(f"{package.removesuffix('/msg')}/msg/{last}", ros_version=1)[1])
    except (TypesysError, ValueError, LookupError, AssertionError, RecursionError, TypeError, AttributeError):
        return None


def _struct(name: str, types: dict[str, Any], known: dict[str, Node], message_format: Format, depth: int) -> Node:
    if name in known:
        return known[name]
    if depth > DEPTH_MAX:
        raise _unclear(name, f"types nested deeper than {DEPTH_MAX}", "fewer")
    if name in _TIMES:
        seconds = NUMBERS["uint32" if message_format == "ros1" and name == _TIMES[0] else "int32"]
        node = Node(kind="struct", fields=(("sec", seconds), ("nanosec", NUMBERS["uint32"])), time=True)
    else:
        definition = types.get(name)
        if definition is None:
            raise _unclear(name, "no definition of it in the log", "one")
        fields = tuple(
            (field, _node(description, types, known, message_format, depth)) for field, description in definition[1]
        )
        if not fields and message_format == "cdr":
            # A struct cannot be empty in IDL, so ROS 2 writes one byte.
            fields = ((EMPTY_MEMBER, NUMBERS["uint8"]),)
        node = Node(kind="struct", fields=fields)
    known[name] = node
    return node


def _node(description: Any, types: dict[str, Any], known: dict[str, Node], message_format: Format, depth: int) -> Node:
    kind, detail = description
    if kind == Nodetype.BASE:
        if detail[0] == "string":
            return _TEXT
        if detail[0] not in NUMBERS:
            raise _unclear(str(detail[0]), "a type that is not read", f"one of {', '.join(NUMBERS)}, string")
        return NUMBERS[detail[0]]
    if kind == Nodetype.NAME:
        return _struct(detail, types, known, message_format, depth + 1)
    element = _node(detail[0], types, known, message_format, depth)
    return Node(kind="row", element=element, count=detail[1] if kind == Nodetype.ARRAY else None)


@lru_cache(maxsize=1)
def _shipped() -> dict[str, Any]:
    return dict(get_typestore(Stores.LATEST).fielddefs)


def _unclear(name: str, got: str, wanted: str) -> InvalidInput:
    return InvalidInput("read a message definition", on=name[:200], got=got, wanted=wanted)
