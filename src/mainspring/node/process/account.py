"""The account of this machine that ranks run under, where that is not their agent's: their team's.

Such ranks share nothing with their agent but what it hands them: a socket, the files of their snapshots, a work folder,
and files of secrets. What the agent itself writes lies in folders that they cannot write, so that no link of theirs can
lead it astray.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import final

from mainspring.domain.errors import Unavailable

PASSED_THROUGH = 0o711  # Everybody may go through such a folder, and only its owner may look into it.


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """One user of this machine.

    Args:
        groups: All groups of the user, the first one included.
    """

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str
    shell: str

    @staticmethod
    def named(name: str) -> Account:
        """Returns a user's account.

        Raises:
            Unavailable: This machine has no such user, or it may do whatever it likes.
        """
        try:
            found = pwd.getpwnam(name)
        except KeyError as error:
            raise Unavailable("run ranks as their team's user", on=f"user {name!r}", got="no such user here") from error
        if found.pw_uid == 0:
            raise Unavailable("run ranks as their team's user", on=f"user {name!r}", got="root", wanted="another")
        return Account(
            name=name,
            uid=found.pw_uid,
            gid=found.pw_gid,
            groups=tuple(sorted(os.getgrouplist(name, found.pw_gid))),
            home=found.pw_dir,
            shell=found.pw_shell,
        )

    @property
    def variables(self) -> Mapping[str, str]:
        """Returns what programs learn of the account."""
        return {"HOME": self.home, "LOGNAME": self.name, "SHELL": self.shell, "USER": self.name}

    def own(self, path: Path | int) -> None:
        """Gives a file or folder to the account: a link itself, not what it leads to."""
        if isinstance(path, int):
            os.fchown(path, self.uid, self.gid)
        else:
            os.chown(path, self.uid, self.gid, follow_symlinks=False)

    def own_all(self, folder: Path) -> None:
        """Gives a folder of ours to the account with all that is in it: itself last, so that nobody is in it before."""
        for parent, folders, files in os.walk(folder, topdown=False):
            for name in (*folders, *files):
                self.own(Path(parent, name))
        self.own(folder)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SharedFolder:
    """A folder through which an agent hands things to ranks of another account: theirs lies in it, it stays ours.

    Args:
        path: Absolute, of few letters: sockets lie in it.
    """

    path: Path
    account: Account

    @staticmethod
    def made(path: Path, user: str) -> SharedFolder:
        """Returns a new folder for the ranks of a user.

        Raises:
            Unavailable: There is no such user, or no folder can be made there.
        """
        account = Account.named(user)
        try:
            path.mkdir()
            path.chmod(PASSED_THROUGH)
            (path / "job").mkdir(mode=0o700)
        except OSError as error:
            raise Unavailable("share a folder with ranks", on=str(path), got=str(error)) from error
        return SharedFolder(path=path, account=account)

    @property
    def job(self) -> Path:
        """Returns the folder for what is the ranks' own, ours alone until it is given to them."""
        return self.path / "job"
