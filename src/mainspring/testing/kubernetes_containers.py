"""Containers of `PodRunner`: processes in mount namespaces of their own, with an image's files or this machine's.

An image of its own is a folder, whose files a container has as its root, changed in its own copy only, and runs with
as the user that its pod names. All others stand for this machine: its files, and its root.
Source: mount(8), overlayfs of the kernel's documentation, chroot(1).
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

UNSHARE = ("unshare", "--mount", "--propagation", "private")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # What a runtime gives where an image says none.
WORDS_BYTES_MAX = 4_096  # A kubelet keeps no more of a container's last words.
DEFAULT_WORDS = "/dev/termination-log"  # The API's own; nobody reads it here.


@dataclass(frozen=True, slots=True, kw_only=True)
class PodImage:
    """An image of its own.

    Args:
        root: Its files; not changed.
        environment: Variables that it gives.
    """

    root: Path
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """Something that a container has at a path.

    Args:
        source: A folder of this machine; None for memory, which each container of a pod has its own of.
        memory: How much of that, as mount(8) has it; "" for as much as there is.
    """

    path: str
    source: Path | None = None
    memory: str = ""
    read_only: bool = False


@dataclass(slots=True, kw_only=True)
class Container:
    """One that was started.

    Args:
        words: Where it leaves its last words; None where nobody asks for any.
        falls_back: Whether the end of its log are its last words, where it failed and left none.
        began: When, as the API writes it.
        ended: When it ended; "" while nobody has seen that.
    """

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    words: Path | None = None
    falls_back: bool = False
    began: str = ""
    ended: str = ""

    @property
    def code(self) -> int | None:
        """Returns how it ended, as a runtime tells it; None while it lives."""
        code = self.process.poll()
        return code if code is None or code >= 0 else 128 - code

    @property
    def message(self) -> str:
        """Returns its last words."""
        said = self.words.read_bytes() if self.words is not None else b""
        if not said and self.falls_back and self.code:
            said = self.log.read_bytes()[-WORDS_BYTES_MAX:]
        return said[:WORDS_BYTES_MAX].decode(errors="replace").strip()

    def kill(self) -> None:
        """Ends what is left of it: all of its session."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def start_container(
    told: Mapping[str, Any],
    folder: Path,
    *,
    mounts: Sequence[Mount],
    environment: Mapping[str, str],
    image: PodImage | None,
    user: int,
    command: Sequence[str],
) -> Container:
    """Starts a container.

    Args:
        told: As its pod has it.
        folder: Of its own.
        mounts: What it has besides its image.
        environment: Every variable that it has, besides its image's.
        image: None for this machine.
        user: Whom it runs as, where it has an image of its own.
        command: Its words, variables put in.
    """
    folder.mkdir(parents=True)
    path = told.get("terminationMessagePath") or DEFAULT_WORDS
    words = folder / "words" if path != DEFAULT_WORDS else None
    if words is not None:
        words.touch()
        words.chmod(0o666)
    root = folder / "root" if image is not None else Path("/")
    lines = ["set -e", *(_image(image, folder) if image is not None else _tops([*mounts], folder))]
    for mount in sorted(mounts, key=lambda one: one.path):
        lines += _mounted(mount, root)
    if words is not None:
        lines += [f"touch {_at(root, path)}", f"mount --bind {_quoted(words)} {_at(root, path)}"]
    if image is not None:
        given = {"PATH": PATH, "HOME": "/", **image.environment, **environment}
        said = [f"{name}={value}" for name, value in given.items()]
        user_words = [shutil.which("chroot") or "chroot", f"--userspec={user}:{user}", str(root)]
        lines.append(f"exec env -i {shlex.join([*said, *user_words])} " + '"$@"')
    else:
        lines.append('exec "$@"')
    log = folder / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*UNSHARE, "sh", "-c", "\n".join(lines), "container", *command],
            env=dict(os.environ) if image is not None else dict(environment),  # noqa: TID251  (for mount and chroot)
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    falls_back = told.get("terminationMessagePolicy") == "FallbackToLogsOnError"
    return Container(name=told["name"], process=process, log=log, words=words, falls_back=falls_back)


def _image(image: PodImage, folder: Path) -> Iterator[str]:
    """Yields what gives a container its image's files as its root, and what a runtime puts in there."""
    for name in ("changed", "work", "root"):
        yield f"mkdir {_quoted(folder / name)}"
    layers = f"lowerdir={image.root},upperdir={folder}/changed,workdir={folder}/work"
    root = folder / "root"
    yield f"mount -t overlay -o {shlex.quote(layers)} overlay {_quoted(root)}"
    for name in ("proc", "dev", "etc"):
        yield f"mkdir -p {_at(root, name)}"
    for name in ("proc", "dev"):
        yield f"mount --rbind /{name} {_at(root, name)}"
    for name in ("hosts", "resolv.conf"):
        yield f"cp /etc/{name} {_at(root, f'etc/{name}')}"


def _tops(mounts: Sequence[Mount], folder: Path) -> Iterator[str]:
    """Yields what covers folders of this machine, so that places can be made in there that it has not."""
    absent = [Path(mount.path) for mount in mounts if not Path(mount.path).is_dir()]
    for name in sorted({path.parts[1] for path in absent}):
        assert folder.parts[1] != name, f"/{name} holds what containers are made of"
        yield f"mkdir {_quoted(folder / name)}"
        yield f"mount --bind {_quoted(folder / name)} /{shlex.quote(name)}"


def _mounted(mount: Mount, root: Path) -> Iterator[str]:
    place = _at(root, mount.path)
    yield f"mkdir -p {place}"
    if mount.source is None:
        size = f",size={mount.memory}" if mount.memory else ""
        yield f"mount -t tmpfs -o mode=1777{size} tmpfs {place}"
        return
    yield f"mount --bind {_quoted(mount.source)} {place}"
    if mount.read_only:
        yield f"mount -o remount,bind,ro {place}"


def _at(root: Path, path: str) -> str:
    return _quoted(root / path.lstrip("/"))


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
