"""Job specs and policies as people write them: YAML, options, durations and chip counts on command lines.

Everything is read strictly: an unknown field, or one out of its range, is told by name.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Mapping
from datetime import datetime
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

from mainspring import planner
from mainspring.domain.codec import from_plain
from mainspring.domain.errors import InvalidInput, InvalidSpec, NotFound, nearest
from mainspring.domain.ids import ChipName
from mainspring.domain.job import JobSpec

Parsed = TypeVar("Parsed")
SPEC_BYTES_MAX = 1 << 20
OPTION_FORM = "CHIP[:CHIPS][@SPEED]"
DURATION_FORM = "SECONDS, or a number with s, m, h or d, such as 90m"
TIME_FORM = "a date and time such as 2026-11-25T14:30, or how long ago: 90m, 2h, 7d"
NONE_WORD = "none"  # Takes a limit away.
_SHORTHAND = ("command", "options", "environment", "secrets", "secret_files", "spares")
_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}


def read_spec(path: Path) -> JobSpec:
    """Returns the job spec in a YAML file.

    A simple job may name the fields of its one role (`command`, `options`, `environment`, `secrets`, `secret_files`,
    `spares`) at the top in place of `roles`; a command may be one line of text.

    Raises:
        NotFound: There is no such file.
        InvalidSpec: It is not YAML, or a field is unknown, missing or out of range.
    """
    return read_yaml(path, "read a job spec", spec_from)


def read_policy(path: Path) -> planner.Policy:
    """Returns the planning policy in a YAML file of the fields of `Policy`; what it leaves out keeps its default.

    Raises:
        NotFound: There is no such file.
        InvalidSpec: It is not YAML, or a field is unknown or out of range.
    """
    return read_yaml(path, "read a planning policy", lambda plain: from_plain(planner.Policy, plain or {}, strict=True))


def read_yaml(path: Path, attempted: str, parse: Callable[[object], Parsed]) -> Parsed:
    """Returns what a YAML file holds; an error names the file.

    Raises:
        NotFound: There is no such file.
        InvalidSpec: It is too large, not YAML, or refused by `parse`.
    """
    import yaml

    try:
        with path.open("rb") as file:
            data = file.read(SPEC_BYTES_MAX + 1)
    except OSError as error:
        raise NotFound(attempted, on=str(path), got=error.strerror or str(error)) from error
    if len(data) > SPEC_BYTES_MAX:
        raise InvalidSpec(attempted, on=str(path), got="a larger file", wanted=f"at most {SPEC_BYTES_MAX} bytes")
    try:
        return parse(yaml.safe_load(data))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidSpec(attempted, on=str(path), got=" ".join(str(error).split()), wanted="YAML") from error
    except InvalidInput as error:
        on = f"{error.on} of {path}" if error.on else str(path)
        raise InvalidSpec(attempted, on=on, got=error.got, wanted=error.wanted) from error


def spec_from(plain: object) -> JobSpec:
    """Returns the job spec that a parsed document holds.

    Args:
        plain: What a YAML or JSON reader gave.

    Raises:
        InvalidSpec: A field is unknown, missing or out of range.
    """
    if not isinstance(plain, Mapping):
        raise InvalidSpec("read a job spec", got=repr(plain)[:80], wanted="a mapping with name, command and options")
    fields = [
        field.name for field in dataclasses.fields(JobSpec) if field.name != "code"
    ]  # Taken when it is submitted.
    for key in plain:
        if key not in fields and key not in _SHORTHAND:
            raise InvalidSpec(
                "read a job spec", on=f"field {str(key)!r}", wanted=nearest(str(key), [*fields, *_SHORTHAND])
            )
    document: dict[str, Any] = {key: value for key, value in plain.items() if key not in _SHORTHAND}
    short = {key: plain[key] for key in _SHORTHAND if key in plain}
    if short and "roles" in document:
        raise InvalidSpec(
            "read a job spec", on=f"field {next(iter(short))!r}", got="roles beside it", wanted="one or the other"
        )
    if short:
        document["roles"] = [short]
    roles = document.get("roles")
    if isinstance(roles, list):
        document["roles"] = [_with_split_command(role) for role in roles]
    return from_plain(JobSpec, document, strict=True)


def _with_split_command(role: object) -> object:
    if not isinstance(role, Mapping) or not isinstance(role.get("command"), str):
        return role
    try:
        return {**role, "command": shlex.split(role["command"])}
    except ValueError as error:
        raise InvalidSpec("read a job spec", on="field 'command'", got=str(error), wanted="balanced quotes") from error


def option_from(text: str, *, replicas: int, **fields: object) -> dict[str, object]:
    """Returns the option that `CHIP[:CHIPS][@SPEED]` stands for, such as `h100:8` or `v5e:1@0.4`.

    Args:
        replicas: How many replicas start together.
        **fields: Any other field of `Option`.

    Raises:
        InvalidSpec: A number does not read as one.
    """
    head, _, speed = text.partition("@")
    chip, _, chips = head.partition(":")
    try:
        return {"chip": chip, "chips": float(chips or 1), "speed": float(speed or 1), "replicas": replicas, **fields}
    except ValueError as error:
        raise InvalidSpec("read an option", got=repr(text), wanted=f"{OPTION_FORM}, such as h100:8@1.0") from error


def duration_from(text: str) -> float:
    """Returns the seconds that a duration such as `90m` or `2h` stands for.

    Raises:
        InvalidSpec: It does not read as a duration.
    """
    number, unit = (text[:-1], text[-1]) if text[-1:] in _UNITS_S else (text, "s")
    try:
        seconds = float(number) * _UNITS_S[unit]
        if not isfinite(seconds):
            raise ValueError(text)
    except ValueError as error:
        raise InvalidSpec("read a duration", got=repr(text), wanted=DURATION_FORM) from error
    return seconds


def time_from(text: str, *, now_s: float) -> float:
    """Returns the time that was typed, in seconds since the Unix epoch: a date and time, or how long ago.

    Args:
        text: By ISO 8601, on this machine's clock where it names no zone; or a duration.
        now_s: What is long ago is before this.

    Raises:
        InvalidSpec: It is neither.
    """
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        pass
    try:
        return max(0.0, now_s - duration_from(text))
    except InvalidSpec as error:
        raise InvalidSpec("read a time", got=repr(text), wanted=TIME_FORM) from error


def limit_from(text: str) -> float | None:
    """Returns the limit that was typed, None for `none`.

    Raises:
        InvalidSpec: It is neither.
    """
    if text == NONE_WORD:
        return None
    try:
        return float(text)
    except ValueError as error:
        raise InvalidSpec("read a limit", got=repr(text), wanted=f"a number, or {NONE_WORD}") from error


def chips_from(texts: list[str]) -> dict[ChipName, float]:
    """Returns the counts that `CHIP=COUNT`, one or several, stand for; none of them for `none`.

    Raises:
        InvalidSpec: One does not read so.
    """
    counts: dict[ChipName, float] = {}
    for text in texts:
        if text == NONE_WORD:
            continue
        chip, equals, count = text.partition("=")
        try:
            if not chip or not equals:
                raise ValueError(text)
            counts[ChipName(chip)] = float(count)
        except ValueError as error:
            raise InvalidSpec("read a number of chips", got=repr(text), wanted="CHIP=COUNT, such as h100=64") from error
    return counts
