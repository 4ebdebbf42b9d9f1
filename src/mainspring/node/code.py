"""Code delivery: the job's code snapshot fetched, checked against its name, unpacked without escape."""

from __future__ import annotations

import tarfile
from pathlib import Path

from blake3 import blake3

from mainspring.domain.errors import DamagedData, InvalidInput, NotFound
from mainspring.domain.job import CODE_SCHEME, Code
from mainspring.objects import ObjectStore

MEMBERS_MAX = 200_000
UNPACKED_BYTES_MAX = 8 << 30  # A working tree with its assets; data belongs in the catalog.


def unpack_code(store: ObjectStore, code: Code, folder: Path) -> Path:
    """Returns the folder a job's commands run in, holding its code snapshot.

    Args:
        code: The snapshot's content id, `blake3:<hex>`, or "" for an empty folder; and where in it commands run.
        folder: Where the snapshot's folder is made.

    Raises:
        NotFound: The store does not hold it.
        DamagedData: Its bytes are not what its name says.
        InvalidInput: It is too large, or would write outside its folder.
        Unavailable: The store does not answer.
    """
    root = folder / "code"
    root.mkdir(parents=True, exist_ok=True)
    if not code.tree:
        return root
    tree = code.tree
    archive = folder / "code.tar.gz"
    try:
        store.fetch_file(code.key, archive)
    except NotFound as error:
        raise NotFound("fetch the job's code", on=tree, next_step="submit the job again from its code") from error
    got = CODE_SCHEME + blake3().update_mmap(archive).hexdigest()
    if got != tree:
        raise DamagedData("fetch the job's code", on=tree, got=got)
    try:
        with tarfile.open(archive, "r:gz") as tar:
            _unpack(tar, root)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise InvalidInput("unpack the job's code", on=tree, got=str(error)) from error
    archive.unlink()
    inside = (root / code.folder).resolve()
    if not inside.is_relative_to(root.resolve()) or not inside.is_dir():
        raise InvalidInput("enter the job's folder", on=code.folder, wanted=f"a folder inside {tree}")
    return inside


def _unpack(tar: tarfile.TarFile, root: Path) -> None:
    size_bytes = 0
    for members, member in enumerate(tar, start=1):
        size_bytes += member.size
        if members > MEMBERS_MAX or size_bytes > UNPACKED_BYTES_MAX:
            raise InvalidInput(
                "unpack the job's code",
                on=member.name[:200],
                got=f"over {members - 1} files or {UNPACKED_BYTES_MAX} bytes",
                wanted=f"at most {MEMBERS_MAX} files and {UNPACKED_BYTES_MAX} bytes",
            )
        tar.extract(member, root, filter="data")
