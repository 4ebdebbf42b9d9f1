"""Code delivery: the job's code snapshot fetched, checked against its name, unpacked without escape."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from blake3 import blake3

from mainspring.domain.errors import DamagedData, InvalidInput, NotFound
from mainspring.domain.job import CODE_SCHEME, Code
from mainspring.node.process.account import Account
from mainspring.node.process.actions import FAILURES
from mainspring.objects import ObjectStore


async def unpack_code(store: ObjectStore, code: Code, folder: Path, account: Account) -> Path:
    """Returns the folder a job's commands run in, holding its code snapshot.

    Args:
        code: The snapshot's content id, `blake3:<hex>`, or "" for an empty folder; and where in it commands run.
        folder: Where the snapshot is checked before the account sees it.
        account: Whose the folder is.

    Raises:
        NotFound: The store does not hold it.
        DamagedData: Its bytes are not what its name says.
        InvalidInput: It is too large, would write outside its folder, or has no such folder.
        Unavailable: The store does not answer, or the account cannot be used any more.
    """
    archive = await asyncio.to_thread(_fetched, store, code, folder) if code.tree else None
    try:
        return await account.unpack(archive, code.folder)
    except FAILURES as error:
        raise InvalidInput("unpack the job's code", on=code.tree, got=str(error)) from error
    finally:
        if archive is not None:
            os.close(archive)


def _fetched(store: ObjectStore, code: Code, folder: Path) -> int:
    """Returns a descriptor of a code snapshot's archive, which has no name any more."""
    tree = code.tree
    archive = folder / "code.tar.gz"
    try:
        store.fetch_file(code.key, archive)
    except NotFound as error:
        raise NotFound("fetch the job's code", on=tree, next_step="submit the job again from its code") from error
    try:
        got = CODE_SCHEME + blake3().update_mmap(archive).hexdigest()
        if got != tree:
            raise DamagedData("fetch the job's code", on=tree, got=got)
        return os.open(archive, os.O_RDONLY)
    finally:
        archive.unlink()
