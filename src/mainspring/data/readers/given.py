"""Message definitions that somebody gives beside a log that holds none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mainspring.data.readers.definitions import DEFINITION_BYTES_MAX
from mainspring.domain.errors import InvalidInput
from mainspring.objects.files import reported

FILES_MAX = 10_000
_SUFFIXES = (".msg", ".idl", ".srv", ".action")


def definitions_in(folder: Path) -> Mapping[str, str]:
    """Returns the definitions below a folder: "package/msg/Name" to text; of an `.idl` file, its text with that ending.

    Args:
        folder: Of ROS packages, each with its files in `msg`, `srv` or `action`; or of such a folder itself.

    Raises:
        InvalidInput: There are none, too many, or one is too large.
    """
    found: dict[str, str] = {}
    with reported("read message definitions", str(folder)):
        paths = sorted(path for path in folder.rglob("*") if path.suffix in _SUFFIXES and path.is_file())
        if not paths or len(paths) > FILES_MAX:
            got = f"{len(paths)} files of {', '.join(_SUFFIXES)}"
            raise InvalidInput("read message definitions", on=str(folder), got=got, wanted=f"1 to {FILES_MAX}")
        for path in paths:
            if path.stat().st_size > DEFINITION_BYTES_MAX:
                got = f"{path.stat().st_size:,} bytes"
                raise InvalidInput(
                    "read message definitions", on=str(path), got=got, wanted=f"at most {DEFINITION_BYTES_MAX:,}"
                )
            package = path.parent.parent.name if path.parent.name in ("msg", "srv", "action") else path.parent.name
            kind = path.parent.name if path.parent.name in ("msg", "srv", "action") else "msg"
            name = f"{package}/{kind}/{path.name if path.suffix != '.msg' else path.stem}"
            found[name] = path.read_text(encoding="utf-8", errors="replace")
    return found
