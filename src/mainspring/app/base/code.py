"""Code snapshots: the submitter's working tree as one content-addressed archive, and the environment beside it.

Decides which files travel (git's tracked and untracked-but-not-ignored files; outside git the whole folder, within
bounds, without hidden ones and what looks like a secret) and how the archive is made, so that the same files give the
same id. Agents unpack it.
"""

from __future__ import annotations

import gzip
import io
import os
import platform
import subprocess
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from email.parser import HeaderParser
from fnmatch import fnmatch
from importlib.metadata import Distribution, distributions
from pathlib import Path

from blake3 import blake3

from mainspring.domain.codec import encode
from mainspring.domain.errors import InvalidInput
from mainspring.domain.job import CODE_SCHEME, Code
from mainspring.objects import ObjectStore

TREE_BYTES_MAX = 256 << 20  # A checkout of a large research repository without its data.
TREE_FILES_MAX = 20_000
SHOWN_MAX = 8
GIT_TIMEOUT_S = 30.0
SECRETS = (
    *("*.pem", "*.key", "*.p12", "*.pfx", "*.keystore", "*.kdbx", "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*"),
    *("*.env", "*.token", "*_token", "*credentials*", "*secret*.y*ml", "*secret*.json", "*secret*.txt", "kubeconfig"),
    *("token", "*service*account*.json", "*.jks", "*.p8"),
)  # Names that files with secrets have, in any case of letters.


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenCode:
    """A snapshot, and what it was made of.

    Args:
        code: The snapshot.
        root: The folder it was taken from.
        files: How many files it has.
        size_bytes: How long the archive is.
        left_out: Files and folders that did not travel, relative to the root.
    """

    code: Code
    root: Path
    files: int
    size_bytes: int
    left_out: tuple[str, ...]

    def __str__(self) -> str:
        shown = ", ".join(self.left_out[:SHOWN_MAX])
        more = f" and {len(self.left_out) - SHOWN_MAX} more" if len(self.left_out) > SHOWN_MAX else ""
        left = f"; left out: {shown}{more}" if shown else ""
        return f"Code: {self.files} files of {self.root}, {self.size_bytes / 1e6:.1f} MB{left}"


def record_environment(store: ObjectStore) -> Code:
    """Returns what the submitter runs in, for a job that takes no files along; the list of packages is stored.

    Args:
        store: Where the list is kept.
    """
    packages = encode(tuple(sorted({_named(installed) for installed in distributions()})))
    listed = blake3(packages).hexdigest()
    store.put_if_absent(f"environments/{listed}.json", packages)
    return Code(python=platform.python_version(), packages=f"blake3:{listed}")


def _named(installed: Distribution) -> str:
    """Returns name and version; of what a package says the headers alone are read, as its description is long."""
    headers, _, _ = (installed.read_text("METADATA") or "").partition("\n\n")
    known = HeaderParser().parsestr(headers) if headers else installed.metadata
    return f"{known['Name']}=={known['Version']}"


def snapshot_code(folder: Path, store: ObjectStore) -> TakenCode:
    """Returns the snapshot of `folder`'s working tree, stored under its content id, beside the environment.

    Args:
        folder: Where the command runs; the whole git work tree it lies in is taken when there is one.
        store: Where the archive and the list of packages are kept.

    Raises:
        InvalidInput: The tree has too many files or bytes.
    """
    top = _git(folder, "rev-parse", "--show-toplevel")
    root = Path(top.strip()) if top else folder
    files, left_out = _files(root) if top is None else (_known(root), ())
    archive = _archive(root, files)
    commit = _git(root, "rev-parse", "HEAD") if top else None
    status = _git(root, "status", "--porcelain") if commit else None
    code = replace(
        record_environment(store),
        tree=CODE_SCHEME + blake3(archive).hexdigest(),
        folder=str(folder.resolve().relative_to(root.resolve())),
        commit=(commit or "").strip(),
        dirty=bool(status and status.strip()),
    )
    if not store.put_if_absent(code.key, archive):
        store.put(code.again_key, b"again")  # It may be that no job names it any more; it is not to go just now.
    return TakenCode(code=code, root=root, files=len(files), size_bytes=len(archive), left_out=left_out)


def _git(folder: Path, *words: str) -> str | None:
    """Returns what git prints, or None when there is no git, no work tree, or no commit."""
    try:
        done = subprocess.run(["git", *words], cwd=folder, capture_output=True, timeout=GIT_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return os.fsdecode(done.stdout) if done.returncode == 0 else None


def _known(root: Path) -> list[str]:
    """Returns the relative names of the files that git knows or would take, sorted."""
    listed = _git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard") or ""
    return _bounded(root, [name for name in listed.split("\0") if name])


def _files(root: Path) -> tuple[list[str], tuple[str, ...]]:
    """Returns the relative names of a folder's files, sorted, and of what does not travel: hidden, or like a secret."""
    taken: list[str] = []
    left_out: list[str] = []
    for place, folders, files in os.walk(root):
        inside = Path(place).relative_to(root)
        left_out += [f"{inside / name}/" for name in folders if name.startswith(".")]
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in files:
            (left_out if name.startswith(".") or _secret(name) else taken).append(str(inside / name))
        if len(taken) > TREE_FILES_MAX:
            break  # One too many is enough to refuse them.
    return _bounded(root, taken), tuple(sorted(left_out))


def _secret(name: str) -> bool:
    """Returns whether a file of that name may hold a secret; a program of whatever name holds code."""
    low = name.lower()
    return not low.endswith(".py") and any(fnmatch(low, each) for each in SECRETS)


def _bounded(root: Path, names: Iterable[str]) -> list[str]:
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
