"""Files of foreign formats: bounded JSON to read, and a folder that appears whole or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mainspring.domain.errors import Conflict, DamagedData
from mainspring.objects.files import reported, sync_path

HEADER_BYTES_MAX = 100_000_000  # The bound of safetensors' own reader; Orbax's metadata of 400,000 arrays is as long.
_FOLDER_MODE = 0o755  # Temporary folders are for their owner alone; what comes of them is for everybody.
_NAME_SHOWN_MAX = 100  # Of the name that a temporary folder carries too; file systems allow 255.


def json_file(path: Path) -> dict[str, Any]:
    """Returns the object that a file of JSON holds.

    Args:
        path: The file.

    Raises:
        NotFound: There is no such file.
        DamagedData: It is too long, not JSON, or not an object.
    """
    with reported("read a checkpoint", str(path)):
        size_bytes = path.stat().st_size
        if size_bytes > HEADER_BYTES_MAX:
            raise DamagedData(
                "read a checkpoint", on=str(path), got=f"{size_bytes} bytes", wanted=f"at most {HEADER_BYTES_MAX}"
            )
        data = path.read_bytes()
    return json_object(data, str(path))


def json_object(data: bytes, on: str) -> dict[str, Any]:
    """Returns the object that JSON holds, which names nothing twice.

    Args:
        data: UTF-8.
        on: Where it lies, for messages.

    Raises:
        DamagedData: It is not such an object.
    """

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) < len(pairs):
            raise ValueError("a name given twice")
        return made

    try:
        plain = json.loads(data, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise DamagedData("read a checkpoint", on=on, got=str(error)[:200], wanted="JSON") from error
    if not isinstance(plain, dict):
        raise DamagedData("read a checkpoint", on=on, got=type(plain).__name__, wanted="a JSON object")
    return plain


@contextlib.contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Gives a folder to fill that appears at `path`, durable, when the block ends well, and nowhere when it does not.

    Args:
        path: Where it appears; its parents are made when missing.

    Raises:
        Conflict: Something is there already.
        StorageFull: There is no room.
    """
    if os.path.lexists(path):
        raise Conflict("write a checkpoint", on=str(path), got="something there", wanted="a path that is free")
    with reported("write a checkpoint", str(path)):
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name[:_NAME_SHOWN_MAX]}.writing-"))
        try:
            yield folder
            folder.chmod(_FOLDER_MODE)
            for each in (*sorted(folder.rglob("*")), folder):
                sync_path(each)
            folder.rename(path)
            sync_path(path.parent)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
