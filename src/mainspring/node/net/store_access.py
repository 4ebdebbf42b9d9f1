"""Credentials of the object store, asked of the controller: an agent's, renewed while it works, and its ranks'.

They are in memory alone.
"""

from __future__ import annotations

import asyncio
from typing import final

from mainspring.domain import wire
from mainspring.domain.errors import MainspringError, NotFound, Unavailable
from mainspring.domain.ids import AllocationId
from mainspring.domain.ports import Backoff, Dice
from mainspring.node.net.controller import ControllerClient
from mainspring.objects import ObjectStore, open_store

ASK_AGAIN = Backoff(first_s=0.2, factor=1.5, cap_s=10.0)
RENEW_PART = 0.5  # Of their time: as long again may the controller, or what it asks, be away before a save fails.


@final
class StoreAccess:
    """What an agent reaches its attempt's part of the object store by.

    Args:
        allocation: The agent's.
        dice: Spreads waits, so that many agents do not call at once.
    """

    def __init__(self, controller: ControllerClient, allocation: AllocationId, dice: Dice) -> None:
        self._controller = controller
        self._allocation = allocation
        self._wanted = wire.CredentialsWanted(allocation=allocation)
        self._dice = dice
        self._held: wire.StoreCredentials | None = None

    async def ask(self) -> None:
        """Returns once credentials are here; whoever gives them may be away for as long as it likes.

        Raises:
            NotAllowed: The attempt is over, or the store gives it none.
        """
        tries = 0
        while self._held is None:
            try:
                self._held = await self._controller.store_credentials(self._wanted)
            except Unavailable:
                tries += 1
                await asyncio.sleep(ASK_AGAIN.wait_s(tries, self._dice))

    async def renew(self) -> None:
        """Keeps them fresh, for ever; those that are held are used until there are others."""
        tries = 0
        while True:
            wait_s = ASK_AGAIN.wait_s(tries, self._dice) if tries else self._current().lasts_s * RENEW_PART
            await asyncio.sleep(wait_s)
            try:
                self._held = await self._controller.store_credentials(self._wanted)
                tries = 0
            except MainspringError:  # Also a refusal: an attempt that is over hears so by other ways.
                tries += 1

    async def for_view(self, view: str) -> wire.StoreCredentials | wire.ViewRefused:
        """Returns what ranks may read a view by; whoever gives it may be away for as long as it likes.

        Args:
            view: The view; "" for the checkpoints and releases that their job names.
        """
        tries = 0
        while True:
            try:
                wanted = wire.ViewCredentialsWanted(allocation=self._allocation, view=view)
                return await self._controller.view_credentials(wanted)
            except Unavailable:
                tries += 1
                await asyncio.sleep(ASK_AGAIN.wait_s(tries, self._dice))
            except MainspringError as error:
                return wire.ViewRefused(reason=str(error), unnamed=isinstance(error, NotFound))

    def open(self, url: str) -> ObjectStore:
        """Returns the store, as far as it is open to the attempt.

        Args:
            url: The orders'.
        """
        return open_store(url, self._current().options, self._current)

    def _current(self) -> wire.StoreCredentials:
        assert self._held is not None
        return self._held
