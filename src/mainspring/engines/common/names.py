"""Names that clusters give, as names may be here."""

from __future__ import annotations

import re
from collections.abc import Container
from zlib import crc32

from mainspring.domain.ids import NAME_LENGTH_MAX

_NOT_OURS = re.compile(r"[^a-z0-9._-]")


def our_name(name: str, taken: Container[str] = (), *, longest: int = NAME_LENGTH_MAX) -> str:
    """Returns the name by which something of a cluster's goes here: lower case, of letters that names may have.

    Args:
        name: The cluster's own.
        taken: Names of others; where the plain form is one of them, or no name, it gets a mark of its own.
        longest: How many letters it may have.
    """
    plain = _NOT_OURS.sub("-", name.lower()).strip("._-")
    if plain and len(plain) <= longest and plain not in taken:
        return plain
    mark = f"{crc32(name.encode()):08x}"
    return f"{plain[: longest - len(mark) - 1].rstrip('._-')}-{mark}".lstrip("-")
