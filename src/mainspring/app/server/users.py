"""Whether a server can run jobs as the users that its configuration names, and keeps what is its own from them."""

from __future__ import annotations

import asyncio
import os
import pwd
import stat
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mainspring.app.base.home import Config, Home
from mainspring.domain.errors import InvalidSpec, NotAllowed, Unavailable
from mainspring.node.process.users import User, UserAccount

LOOK_S_MAX = 10.0  # A look at one path; a disk of others that hangs is told of then.
TRIALS_AT_ONCE_MAX = 8  # Processes of users, a few tenths of a second each.
# Bits of capabilities(7) that root needs to become other users, to see to their processes, and to end them.
_CAPABILITIES = {1: "CAP_DAC_OVERRIDE", 5: "CAP_KILL", 6: "CAP_SETGID", 7: "CAP_SETUID", 19: "CAP_SYS_PTRACE"}
_OTHERS, _WRITABLE, _SHARED = 0o077, 0o022, 0o1003
_OWN_ALONE = 0o1733  # Everybody makes folders in it; nobody else sees which there are, or removes another's.
_ATTEMPTED = "start a server whose jobs run as other users"


def require_users(home: Home, config: Config) -> None:
    """Raises unless jobs can run as every user that `run_as` names; makes the folder that theirs lie in.

    Raises:
        NotAllowed: The server may not run programs as a user; or others can look into its home.
        InvalidSpec: There is no such user, or it is root.
        Unavailable: A user cannot have a folder there, or somebody else could remove it.
    """
    names = sorted(set(config.run_as.values()))
    for name in names:
        _require_user(name)
    if os.geteuid() == 0:
        _require_rights()
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
    with ThreadPoolExecutor(TRIALS_AT_ONCE_MAX) as trials:
        for _ in trials.map(lambda name: asyncio.run(_try(User.named(name), folder)), names):
            pass


def without_python(config: Config) -> Sequence[str]:
    """Returns which users cannot run the server's own interpreter, and so what is installed with it: none by sudo."""
    if os.geteuid() != 0:
        return ()
    return [name for name in sorted(set(config.run_as.values())) if not _may(name, "-x", Path(sys.executable))]


async def _try(user: User, folder: Path) -> None:
    """Raises unless an agent could run ranks as a user."""
    try:
        account = await UserAccount.begun(user, folder / f"trial-{os.getpid()}-{user.name}")
    except Unavailable as error:
        raise Unavailable(
            _ATTEMPTED,
            on=f"user {user.name!r}",
            got=f"no way to {folder}: {error.got}",
            wanted="a folder that the user can go through, and all those above it",
            next_step="name another under run_folder in config.yaml",
        ) from error
    await account.close()


def _require_rights() -> None:
    held = next(
        int(line.split()[1], 16) for line in Path("/proc/self/status").read_text().splitlines() if "CapEff" in line
    )
    missing = [name for bit, name in _CAPABILITIES.items() if not held >> bit & 1]
    if missing:
        raise NotAllowed(
            _ATTEMPTED,
            got=f"root without {', '.join(missing)}",
            wanted="root, with these rights",
            next_step="give the container these rights, or remove run_as from config.yaml",
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
    """Makes the folder, or sees that nobody but root and us can remove what others have in it."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(exist_ok=True)
        for each in (folder, *folder.parents):
            seen = each.lstat()
            writable = seen.st_mode & _WRITABLE and not seen.st_mode & stat.S_ISVTX
            if not stat.S_ISDIR(seen.st_mode) or seen.st_uid not in (0, os.geteuid()) or writable:
                raise Unavailable(
                    _ATTEMPTED,
                    on=str(folder),
                    got=f"{each} of user {seen.st_uid}, mode {stat.S_IMODE(seen.st_mode):o}",
                    wanted="folders of root or the server, in which others write only their own, all the way to it",
                )
        if folder.stat().st_mode & _SHARED != _SHARED:  # Else it is so already, /tmp for one.
            folder.chmod(_OWN_ALONE)
    except OSError as error:
        own = pwd.getpwuid(os.geteuid()).pw_name
        raise Unavailable(
            _ATTEMPTED,
            on=str(folder),
            got=str(error),
            next_step=f"sudo install -d -o {own} {folder}, or name another under run_folder in config.yaml",
        ) from error


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
