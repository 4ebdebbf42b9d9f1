"""Job specs as people write them: YAML files and command lines, read strictly into `JobSpec`."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from mainspring.domain.codec import from_plain
from mainspring.domain.errors import InvalidInput, InvalidSpec, NotFound, nearest
from mainspring.domain.job import JobSpec

SPEC_BYTES_MAX = 1 << 20
OPTION_FORM = "CHIP[:CHIPS][@SPEED]"
_SHORTHAND = ("command", "options", "environment")


def read_spec(path: Path) -> JobSpec:
    """Returns the job spec in a YAML file.

    A simple job may name `command`, `options` and `environment` at the top in place of `roles`; a command may be one
    line of text.

    Args:
        path: The file.

    Raises:
        NotFound: There is no such file.
        InvalidSpec: It is not YAML, or a field is unknown, missing or out of range.
    """
    try:
        with path.open("rb") as file:
            data = file.read(SPEC_BYTES_MAX + 1)
    except OSError as error:
        raise NotFound("read a job spec", on=str(path), got=error.strerror or str(error)) from error
    if len(data) > SPEC_BYTES_MAX:
        raise InvalidSpec(
            "read a job spec", on=str(path), got="a larger file", wanted=f"at most {SPEC_BYTES_MAX} bytes"
        )
    try:
        plain = yaml.safe_load(data)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidSpec("read a job spec", on=str(path), got=" ".join(str(error).split()), wanted="YAML") from error
    try:
        return spec_from(plain)
    except InvalidInput as error:
        on = f"{error.on} of {path}" if error.on else str(path)
        raise InvalidSpec("read a job spec", on=on, got=error.got, wanted=error.wanted) from error


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


def option_from(text: str, *, replicas: int) -> dict[str, object]:
    """Returns the option that `CHIP[:CHIPS][@SPEED]` stands for, such as `h100:8` or `v5e:1@0.4`.

    Args:
        text: What was typed.
        replicas: How many replicas start together.

    Raises:
        InvalidSpec: A number does not read as one.
    """
    head, _, speed = text.partition("@")
    chip, _, chips = head.partition(":")
    try:
        return {"chip": chip, "chips": float(chips or 1), "speed": float(speed or 1), "replicas": replicas}
    except ValueError as error:
        raise InvalidSpec("read an option", got=repr(text), wanted=f"{OPTION_FORM}, such as h100:8@1.0") from error
