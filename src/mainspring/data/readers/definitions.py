"""Turns the definitions that logs carry (ROS message texts, IDL) into types whose layout is known."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, TypeAlias

from rosbags.interfaces import Nodetype
from rosbags.typesys import Stores, TypesysError, get_types_from_idl, get_types_from_msg, get_typestore

from mainspring.data.readers.layout import Format
from mainspring.data.readers.messages import DEPTH_MAX
from mainspring.data.readers.types import EMPTY_MEMBER, TypeNode
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
    {name: TypeNode(kind="number", dtype=dtype, size=size) for name, (dtype, size) in _NUMBERS.items()}
)
_TEXT = TypeNode(kind="text")
Given: TypeAlias = tuple[tuple[str, str], ...]  # Of `definitions_in`: file to text; a tuple, so that layouts are kept.
_DASHES = re.compile(r"^---[ \t]*$\n?", re.MULTILINE)  # Between the parts of a service or action.
_SECTIONS = re.compile(r"^={20,}\n", re.MULTILINE)
_INCLUDE = re.compile(r"^#[^\n]*$", re.MULTILINE)
_HEAD = re.compile(r"\s*(?:MSG|SRV|ACTION|IDL): (\S+)\n")
_PARTS: Mapping[int, tuple[str, ...]] = MappingProxyType(
    {1: ("_Request", "_Response"), 2: ("_Goal", "_Result", "_Feedback")}
)
_PART = re.compile(r"_(Request|Response|Event|Goal|Result|Feedback|FeedbackMessage)$")


@lru_cache(maxsize=1_024)  # Streams of one type share it; parsing takes milliseconds.
def ros_type(name: str, text: str, language: str, message_format: Format, given: Given = ()) -> TypeNode:
    """Returns the layout of a ROS message type.

    Args:
        name: The type, "sensor_msgs/msg/JointState" or "sensor_msgs/JointState".
        text: Its definition with those of the types it names; "" when the log has none.
        language: "ros1msg", "ros2msg" or "ros2idl".
        message_format: How its messages are laid out.
        given: Definitions from beside the log, for types that `text` lacks; after them come those that ROS 2 ships.

    Raises:
        InvalidInput: The definition cannot be understood, or a type it names is defined nowhere.
    """
    if len(text) > DEFINITION_BYTES_MAX:
        raise _unclear(name, f"{len(text)} letters", f"at most {DEFINITION_BYTES_MAX}")
    package, _, last = name.rpartition("/")
    full = name if package.endswith(("/msg", "/action", "/srv")) else f"{package}/msg/{last}"
    types = _Types(_parsed(full, text, language) if text else {}, dict(given), shipped=message_format == "cdr")
    return _struct(full, types, {}, message_format, 0)


class _Types:
    """Type definitions from wherever they are; the log's own come first.

    Args:
        own: Of the log.
        given: Texts by file, as `definitions_in` names them.
        shipped: Whether those that ROS 2 ships may stand for missing ones.
    """

    def __init__(self, own: dict[str, Any], given: Mapping[str, str], *, shipped: bool) -> None:
        self._known, self._given, self._shipped = own, given, shipped

    def find(self, name: str) -> Any:
        """Returns a definition as the parser gives it, or None."""
        name = name.replace("/srv/msg/", "/srv/")  # As the parser calls a service's part.
        if name not in self._known:
            base = _PART.sub("", name)
            for file, language in ((name, "ros2msg"), (f"{name}.idl", "ros2idl"), (f"{base}.idl", "ros2idl")):
                if file in self._given:
                    self._known = {**_parsed(name, self._given[file], language), **self._known}
            for file in (f"{base}.srv", f"{base}.action"):
                if file in self._given:
                    self._known = {**_parsed(base, self._given[file], "ros2msg"), **self._known}
        if name not in self._known and (made := _made(name)) is not None:
            self._known[name] = made
        return self._known.get(name) or (_shipped().get(name) if self._shipped else None)


def _parsed(name: str, text: str, language: str) -> dict[str, Any]:
    """Returns the types in a definition, those of a service's or action's parts among them."""
    # Definitions end their lines as their authors did; the parser knows one way.
    text = "\n".join(text.splitlines()) + "\n"
    found: dict[str, Any] = {}
    try:
        if language != "ros2idl" and not _DASHES.search(text):
            return dict(get_types_from_msg(text, name))
        for section in _SECTIONS.split(text):
            head = _HEAD.match(section)
            body = section[head.end() :] if head else section
            if language == "ros2idl":
                body = _INCLUDE.sub("", body).strip()
                found |= get_types_from_idl(body) if body else {}
            else:
                found |= _parts_of(head.group(1) if head else _PART.sub("", name), body)
        return found
    except (TypesysError, ValueError, KeyError, IndexError, AssertionError, RecursionError, TypeError) as error:
        raise _unclear(name, str(error)[-200:], f"a {language} definition") from error


def _parts_of(name: str, text: str) -> dict[str, Any]:
    """Returns the types of a message, or of a service's or action's parts."""
    found: dict[str, Any] = {}
    package, _, last = name.rpartition("/")
    if not package.endswith(("/msg", "/srv", "/action")):
        package += "/msg"
    within = f"{package.rpartition('/')[0]}/msg"  # The parser knows no services.
    for kind, part in zip(_PARTS.get(len(_DASHES.findall(text)), ("",)), _DASHES.split(text), strict=False):
        for parsed in get_types_from_msg(part, f"{within}/{last}{kind}").values():
            found[f"{package}/{last}{kind}"] = parsed
    return found


def _made(name: str) -> Any:
    """Returns a type that no file defines: what services' events and actions' feedback are wrapped in.

    Source: github.com/ros2/rosidl, `rosidl_parser/definition.py` of its version Jazzy.
    """
    base, event, _ = name.rpartition("_Event")
    if event:
        parts = [(part.lower(), f"{base}_{part}") for part in ("Request", "Response")]
        wrapped = [(field, (Nodetype.SEQUENCE, ((Nodetype.NAME, kind), 1))) for field, kind in parts]
        return ([], [("info", (Nodetype.NAME, "service_msgs/msg/ServiceEventInfo")), *wrapped])
    base, message, _ = name.rpartition("_FeedbackMessage")
    if message:
        return (
            [],
            [
                (("goal_id", (Nodetype.NAME, "unique_identifier_msgs/msg/UUID"))),
                ("feedback", (Nodetype.NAME, f"{base}_Feedback")),
            ],
        )
    return None


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


def _struct(name: str, types: _Types, known: dict[str, TypeNode], message_format: Format, depth: int) -> TypeNode:
    if name in known:
        return known[name]
    if depth > DEPTH_MAX:
        raise _unclear(name, f"types nested deeper than {DEPTH_MAX}", "fewer")
    if name in _TIMES:
        node = TypeNode(
            kind="struct",
            fields=(
                ("sec", NUMBERS["uint32" if message_format == "ros1" and name == _TIMES[0] else "int32"]),
                ("nanosec", NUMBERS["uint32"]),
            ),
            time=True,
        )
    else:
        definition = types.find(name)
        if definition is None:
            raise _unclear(name, "no definition of it in the log", "its .msg, .srv or .idl file below --msgs FOLDER")
        fields = tuple(
            (field, _node(description, types, known, message_format, depth)) for field, description in definition[1]
        )
        if not fields and message_format == "cdr":
            # A struct cannot be empty in IDL, so ROS 2 writes one byte.
            fields = ((EMPTY_MEMBER, NUMBERS["uint8"]),)
        node = TypeNode(kind="struct", fields=fields)
    known[name] = node
    return node


def _node(description: Any, types: _Types, known: dict[str, TypeNode], message_format: Format, depth: int) -> TypeNode:
    kind, detail = description
    if kind == Nodetype.BASE:
        if detail[0] == "string":
            return _TEXT
        if detail[0] not in NUMBERS:
            raise _unclear(str(detail[0]), "a type that is not read", f"one of {', '.join(NUMBERS)}, string")
        return NUMBERS[detail[0]]
    if kind == Nodetype.NAME:
        return _struct(detail, types, known, message_format, depth + 1)
    return TypeNode(
        kind="row",
        element=_node(detail[0], types, known, message_format, depth),
        count=detail[1] if kind == Nodetype.ARRAY else None,
    )


@lru_cache(maxsize=1)
def _shipped() -> dict[str, Any]:
    return dict(get_typestore(Stores.LATEST).fielddefs)


def _unclear(name: str, got: str, wanted: str) -> InvalidInput:
    return InvalidInput("read a message definition", on=name[:200], got=got, wanted=wanted)
