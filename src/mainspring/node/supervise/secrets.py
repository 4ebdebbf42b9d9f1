"""Secrets of one agent's ranks: given to processes as variables and as files, and to nobody else."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import final

from mainspring.domain.errors import Unavailable
from mainspring.domain.ids import SecretName
from mainspring.domain.job import FILE_SUFFIX
from mainspring.domain.wire import RoleOrders
from mainspring.node.process.account import PASSED_THROUGH, Account
from mainspring.node.process.ranks import Guard
from mainspring.node.process.secrets import Masks

_MEMORY = Path("/dev/shm")  # Linux keeps POSIX shared memory there, a tmpfs: files in it never see a disk.
_OWNERS = 0o400


@final
class RankSecrets:
    """What ranks are given.

    Args:
        values: By name.
        guard: Told of folders, so that a killed agent leaves none.
        work: Where files go when the machine has no shared memory for them.
        account: Whose the files are, None for ours. Their folder stays ours, so that nobody puts another there.
    """

    def __init__(
        self, values: Mapping[SecretName, str], guard: Guard, work: Path, account: Account | None = None
    ) -> None:
        self.masks = Masks()
        self._values: dict[SecretName, str] = {}
        self._guard = guard
        self._account = account
        self._root = _MEMORY if os.access(_MEMORY, os.W_OK | os.X_OK) else work
        self._folders: dict[object, Path] = {}
        self.renew(values)

    def renew(self, values: Mapping[SecretName, str]) -> None:
        """Gives processes that start from now on these values; what is not among them stays as it was.

        Args:
            values: By name.
        """
        self._values |= values
        self.masks.add(values)

    def given(self, orders: RoleOrders, process: object) -> Mapping[str, str]:
        """Returns the variables of a new process, having written its files into a folder of its own.

        Args:
            orders: Its role's.
            process: Whose the folder is, until `forget`.

        Raises:
            Unavailable: The files cannot be written.
        """
        variables: dict[str, str] = {name: self._values[name] for name in orders.secrets}
        if not orders.secret_files:
            return variables
        try:
            folder = Path(tempfile.mkdtemp(prefix="mainspring-", dir=self._root))  # For its owner alone.
            self._folders[process] = folder
            self._guard.note_files(folder)
            for name in orders.secret_files:
                with open(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWNERS), "wb") as file:
                    file.write(self._values[name].encode())
                    if self._account is not None:
                        self._account.own(file.fileno())
            if self._account is not None:
                folder.chmod(PASSED_THROUGH)
        except OSError as error:
            raise Unavailable("give a rank its secrets", on=str(self._root), got=str(error)) from error
        return variables | {f"{name}{FILE_SUFFIX}": str(folder / name) for name in orders.secret_files}

    def forget(self, process: object) -> None:
        """Removes the files of a process that has ended."""
        folder = self._folders.pop(process, None)
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
