"""Secrets of one agent's ranks: given to processes as variables and as files, and to nobody else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import final

from mainspring.domain.errors import Unavailable
from mainspring.domain.ids import SecretName
from mainspring.domain.job import FILE_SUFFIX
from mainspring.domain.wire import RoleOrders
from mainspring.node.process.account import Account
from mainspring.node.process.secrets import Masks


@final
class RankSecrets:
    """What ranks are given.

    Args:
        values: By name.
        account: Whose the files are.
    """

    def __init__(self, values: Mapping[SecretName, str], account: Account) -> None:
        self.masks = Masks()
        self._values: dict[SecretName, str] = {}
        self._account = account
        self._folders: dict[object, Path] = {}
        self._count = 0
        self.renew(values)

    def renew(self, values: Mapping[SecretName, str]) -> None:
        """Gives processes that start from now on these values; what is not among them stays as it was.

        Args:
            values: By name.
        """
        self._values |= values
        self.masks.add(values)

    async def given(self, orders: RoleOrders, process: object) -> Mapping[str, str]:
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
        self._count += 1
        files = {str(name): self._values[name] for name in orders.secret_files}
        try:
            folder = await self._account.write(f"secrets-{self._count}", files)
        except OSError as error:
            raise Unavailable("give a rank its secrets", got=str(error)) from error
        self._folders[process] = folder
        return variables | {f"{name}{FILE_SUFFIX}": str(folder / name) for name in orders.secret_files}

    def forget(self, process: object) -> None:
        """Removes the files of a process that has ended."""
        folder = self._folders.pop(process, None)
        if folder is not None:
            self._account.remove(str(folder))
