"""Images of whole systems as releases: one file of SWUpdate's form, which its own tools made and signed.

What is in an image, and whether a machine may take it, SWUpdate decides on the machine. Here it is only seen to that
the file is one, so that no wrong file reaches a fleet.
"""

from __future__ import annotations

import re
from pathlib import Path

from mainspring.domain.answers.policies.releases import ReleaseFile
from mainspring.domain.errors import InvalidInput, NotFound
from mainspring.objects import ObjectStore
from mainspring.robots.releases.shelf import ReleaseShelf

FIRST = b"sw-description\0"  # Source: SWUpdate's documentation, "SWUpdate: syntax and tags": the first file of it.
MAGIC = (b"070701", b"070702")  # Source: cpio(5), new portable format, without and with checksums.
_NEXT = "make it with swupdate's own tools"
_NAME_AT = 110  # After the magic and 13 numbers of 8 digits.
_PLAIN = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")


def put_image(store: ObjectStore, path: Path) -> tuple[ReleaseFile, int]:
    """Puts an image into the object store where it is missing, and returns it, and the bytes that were moved.

    Args:
        path: The image, such as "panel.swu".

    Raises:
        NotFound: There is no such file.
        InvalidInput: It is no image of SWUpdate, or its name is none that a device could be told.
    """
    try:
        with path.open("rb") as file:
            head = file.read(_NAME_AT + len(FIRST))
    except OSError as error:
        got = error.strerror or str(error)
        raise NotFound("release an image", on=str(path)[:200], got=got, next_step=_NEXT) from error
    if not head.startswith(MAGIC) or head[_NAME_AT:] != FIRST:
        wanted = "an archive of cpio that begins with sw-description, as SWUpdate has it"
        got = "another file"
        raise InvalidInput("release an image", on=str(path)[:200], got=got, wanted=wanted, next_step=_NEXT)
    if not _PLAIN.fullmatch(path.name):
        wanted = "a name of letters, digits, '.', '_' and '-'"
        got = repr(path.name[:80])
        raise InvalidInput("release an image", on=str(path)[:200], got=got, wanted=wanted, next_step="rename it")
    shelf = ReleaseShelf(store)
    shelf.add_file(path.name, path)
    return shelf.files[0], shelf.moved_bytes
