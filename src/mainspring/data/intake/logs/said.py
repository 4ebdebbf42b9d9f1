"""Log metadata: what a log's file says of itself, beside its messages."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

from mcap.exceptions import McapError
from mcap.reader import SeekingReader

SAID_MAX = 64  # Records of metadata kept, and entries of each.
_TEXT_MAX = 1_000
_RECORD_BYTES_MAX = 16 << 20


def said_by(path: Path) -> Mapping[str, str]:
    """Returns a log's own metadata, "record.key" to text; nothing where the kind of file has none, or it is damaged.

    Args:
        path: The file or folder.
    """
    if path.suffix.lower() != ".mcap" or not path.is_file():
        return {}
    said: dict[str, str] = {}
    try:
        with open(path, "rb") as file:
            reader = SeekingReader(file, record_size_limit=_RECORD_BYTES_MAX)
            if (summary := reader.get_summary()) is None or len(summary.metadata_indexes) > SAID_MAX:
                return {}
            for record in reader.iter_metadata():
                for key, value in list(record.metadata.items())[:SAID_MAX]:
                    said[f"{record.name}.{key}"[:_TEXT_MAX]] = value[:_TEXT_MAX]
    except (
        McapError,
        struct.error,
        OSError,
        ValueError,
        LookupError,
        TypeError,
        OverflowError,
        EOFError,
        RuntimeError,
    ):
        return {}
    return said
