"""Code snapshots: the submitter's working tree as one content-addressed archive, and the environment beside it.

Decides which files travel (git's tracked and untracked-but-not-ignored files; outside git the whole folder, within
bounds) and how the archive is made, so that the same files give the same id. Agents unpack it.
"""

from __future__ import annotations

import gzip
import io
import os
import platform
import subprocess
import tarfile
from dataclasses import replace
from importlib.metadata import distributions
from itertools import islice
from pathlib import Path

from blake3 import blake3

from mainspring.domain.codec import encode
from mainspring.domain.errors import InvalidInput
from mainspring.domain.job import Code
from mainspring.objects import ObjectStore

TREE_BYTES_MAX = 256 << 20  # A checkout of a large research repository without its data.
TREE_FILES_MAX = 20_000
GIT_TIMEOUT_S = 30.0


def record_environment(store: ObjectStore) -> Code:
    """Returns what the submitter runs in, for a job that takes no files along; the list of packages is stored.

    Args:
        store: Where the list is kept.
    """
    packages = encode(tuple(sorted({f"{item.name}=={item.version}" for item in distributions()})))
    listed = blake3(packages).hexdigest()
    store.put_if_absent(f"environments/{listed}.json", packages)
    return Code(python=platform.python_version(), packages=f"blake3:{listed}")


def snapshot_code(folder: Path, store: ObjectStore) -> Code:
    """Returns the snapshot of `folder`'s working tree, stored under its content id, beside the environment.

    Args:
        folder: Where the command runs; the whole git work tree it lies in is taken when there is one.
        store: Where the archive and the list of packages are kept.

    Raises:
        InvalidInput: The tree has too many files or bytes.
    """
    top = _git(folder, "rev-parse", "--show-toplevel")
    root = Path(top.strip()) if top else folder
    archive = _archive(root, _files(root, in_git=top is not None))
    tree = blake3(archive).hexdigest()
    store.put_if_absent(f"code/{tree}.tar.gz", archive)
    commit = _git(root, "rev-parse", "HEAD") if top else None
    status = _git(root, "status", "--porcelain") if commit else None
    return replace(
        record_environment(store),
        tree=f"blake3:{tree}",
        folder=str(folder.resolve().relative_to(root.resolve())),
        commit=(commit or "").strip(),
        dirty=bool(status and status.strip()),
    )


def _git(folder: Path, *words: str) -> str | None:
    """Returns what git prints, or None when there is no git, no work tree, or no commit."""
    try:
        done = subprocess.run(["git", *words], cwd=folder, capture_output=True, timeout=GIT_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return os.fsdecode(done.stdout) if done.returncode == 0 else None


def _files(root: Path, *, in_git: bool) -> list[str]:
    """Returns the relative names of the files that travel, sorted."""
    if in_git:
        listed = _git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard") or ""
        names = [name for name in listed.split("\0") if name]
    else:
        found = (str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
        names = list(islice(found, TREE_FILES_MAX + 1))  # One too many is enough to refuse them.
    names = sorted({name for name in names if (root / name).is_file()})
    if len(names) > TREE_FILES_MAX:
        raise InvalidInput(
            "snapshot the working tree",
            on=str(root),
            got=f"over {TREE_FILES_MAX} files",
            wanted="a smaller tree",
            next_step="run from the project's own folder, list data in .gitignore, or pass --no-code",
        )
    return names


def _archive(root: Path, files: list[str]) -> bytes:
    """Returns a gzipped tar that depends on names, contents and the executable bit alone."""
    buffer = io.BytesIO()
    total = 0
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0, compresslevel=6) as squeezed,
        tarfile.open(fileobj=squeezed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name in files:
            path = root / name
            total += path.stat().st_size
            if total > TREE_BYTES_MAX:
                raise InvalidInput(
                    "snapshot the working tree",
                    on=str(root),
                    got=f"over {TREE_BYTES_MAX >> 20} MiB at {name}",
                    wanted="code without data",
                    next_step="list data in .gitignore, or pass --no-code",
                )
            data = path.read_bytes()
            member = tarfile.TarInfo(name)
            member.size = len(data)
            member.mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()
