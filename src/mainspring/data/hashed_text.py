"""How a value is written where a hash of it is kept: as `repr` wrote it, under names of classes that never change."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from enum import Enum


def hashed_text(value: object, names: Mapping[type, str]) -> str:
    """Returns what a hash on disk is made of.

    Args:
        value: Dataclasses and enums, tuples of them, and what Python itself writes.
        names: What each of their classes was called when the first such hash was kept.
    """
    if isinstance(value, tuple):
        parts = [hashed_text(part, names) for part in value]
        return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"
    if isinstance(value, Enum):
        return f"<{names[type(value)]}.{value.name}: {value.value!r}>"
    if dataclasses.is_dataclass(value):
        fields = [field.name for field in dataclasses.fields(value)]
        said = ", ".join(f"{name}={hashed_text(getattr(value, name), names)}" for name in fields)
        return f"{names[type(value)]}({said})"
    return repr(value)
