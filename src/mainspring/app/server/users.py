"""Whether a server can run jobs as the users that its configuration names, and keeps what is its own from them."""

from __future__ import annotations

import os
import pwd
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from mainspring.app.base.home import Config, Home
from mainspring.domain.errors import InvalidSpec, NotAllowed, Unavailable

LOOK_S_MAX = 10.0  # A look at one path; a disk of others that hangs is told of then.
# Bits of capabilities(7) that a server needs to hand things to other users, to see to their processes, and to end them.
_CAPABILITIES = {
    0: "CAP_CHOWN",
    1: "CAP_DAC_OVERRIDE",
    3: "CAP_FOWNER",
    5: "CAP_KILL",
    6: "CAP_SETGID",
    7: "CAP_SETUID",
    19: "CAP_SYS_PTRACE",
}
_OTHERS, _GO_THROUGH, _WRITABLE = 0o077, 0o711, 0o022
_ATTEMPTED = "start a server whose jobs run as other users"


def require_users(home: Home, config: Config) -> None:
    """Raises unless jobs can run as every user that `run_as` names; makes the folder for what they are handed.

    Raises:
        NotAllowed: The server is not root, or lacks a right that root has elsewhere; or others can look into its home.
        InvalidSpec: There is no such user, or it is root.
        Unavailable: A user cannot reach the folder, or somebody else may write there.
    """
    _require_rights()
    names = sorted(set(config.run_as.values()))
    for name in names:
        _require_user(name)
    mode = stat.S_IMODE(home.path.stat().st_mode)
    if mode & _OTHERS:
        raise NotAllowed(
            _ATTEMPTED,
            on=str(home.path),
            got=f"a home of mode {mode:o}, which others can look into",
            wanted="one that is its owner's alone",
            next_step=f"chmod -R go= {home.path}",
        )
    folder = home.run_folder(config)
    _make(folder)
    for name in names:
        if not _may(name, "-x", folder):
            raise Unavailable(
                _ATTEMPTED,
                on=f"user {name!r}",
                got=f"no way to {folder}",
                wanted="a folder that the user can go through, and all those above it",
                next_step="name another under run_folder in config.yaml",
            )


def without_python(config: Config) -> Sequence[str]:
    """Returns which users cannot run the server's own interpreter, and so what is installed with it."""
    return [name for name in sorted(set(config.run_as.values())) if not _may(name, "-x", Path(sys.executable))]


def _require_rights() -> None:
    held = next(
        int(line.split()[1], 16) for line in Path("/proc/self/status").read_text().splitlines() if "CapEff" in line
    )
    missing = [name for bit, name in _CAPABILITIES.items() if not held >> bit & 1]
    if os.geteuid() != 0 or missing:
        raise NotAllowed(
            _ATTEMPTED,
            got=f"user {os.geteuid()}, without {', '.join(missing)}" if missing else f"user {os.geteuid()}",
            wanted="root, with these rights",
            next_step="run ms up as root, or remove run_as from config.yaml",
        )


def _require_user(name: str) -> None:
    try:
        uid = pwd.getpwnam(name).pw_uid
    except KeyError as error:
        raise InvalidSpec(
            _ATTEMPTED, on="field 'run_as'", got=repr(name), wanted="users of this machine", next_step=f"useradd {name}"
        ) from error
    if uid in (0, os.geteuid()):
        raise InvalidSpec(
            _ATTEMPTED, on="field 'run_as'", got=f"{name!r}, the server's own account", wanted="users that can do less"
        )


def _make(folder: Path) -> None:
    """Makes the folder, or sees that it is root's alone to write."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(exist_ok=True)
        for each in (folder, *folder.parents):
            seen = each.lstat()
            writable = seen.st_mode & _WRITABLE and (each == folder or not seen.st_mode & stat.S_ISVTX)
            if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.geteuid() or writable:
                raise Unavailable(
                    _ATTEMPTED,
                    on=str(folder),
                    got=f"{each} of user {seen.st_uid}, mode {stat.S_IMODE(seen.st_mode):o}",
                    wanted="folders that are the server's own and that nobody else can write, all the way to it",
                )
        folder.chmod(_GO_THROUGH)
    except OSError as error:
        raise Unavailable(_ATTEMPTED, on=str(folder), got=str(error)) from error


def _may(name: str, how: str, path: Path) -> bool:
    found = pwd.getpwnam(name)
    looked = subprocess.run(
        ["/bin/sh", "-c", 'test "$0" "$1"', how, str(path)],
        cwd="/",
        stdin=subprocess.DEVNULL,
        user=found.pw_uid,
        group=found.pw_gid,
        extra_groups=os.getgrouplist(name, found.pw_gid),
        timeout=LOOK_S_MAX,
        check=False,
    )
    return looked.returncode == 0
