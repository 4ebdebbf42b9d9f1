"""A store that goes back in time: copied at one moment, put back at a later one, as `ms backup` and `ms restore` do."""

from __future__ import annotations

from pathlib import Path
from typing import final

from mainspring.control.store.databases.backups import Maker, back_up
from mainspring.control.store.databases.opening import parsed_url
from mainspring.control.store.restores.restoring import restore
from mainspring.domain.release import RELEASE
from mainspring.simulator.nodes.agenda import chance, within
from mainspring.testing import SeededDice

_GOES_BACK = 0.15  # Of all worlds.
_AGAIN = 0.3  # Of these, those that go back to the same copy twice.
_SETTLES = 0.04  # Each step: an operator looks at what is held after some tens of seconds.
_ADOPTS = 0.5  # Each time: they adopt what they can, or else end it.


@final
class GoingBack:
    """When one world's store is copied, and put back; by dice of its own.

    Args:
        url: Where the store is.
        folder: Where its copy is kept.
    """

    def __init__(self, seed: int, url: str, folder: Path) -> None:
        self._luck = SeededDice(seed, "going back")
        self._operator = SeededDice(seed, "adopting")
        self.wanted = chance(self._luck, _GOES_BACK)
        self.happened = 0
        """How often it has."""
        self.forgotten = 0
        """How many jobs it knows no more."""
        self.url = url
        self._copy = folder / "copy.db"
        copied, back = within(self._luck, 0.05, 0.6), within(self._luck, 0.05, 0.3)
        again = within(self._luck, 0.05, 0.3) if chance(self._luck, _AGAIN) else 1.0
        self._copies, self._returns = [copied], [copied + back, copied + back + again]

    def copies(self, share: float) -> bool:
        """Returns whether the store is to be copied.

        Args:
            share: Of the world's steps, those that are done.
        """
        return self.wanted and _comes(self._copies, share)

    def returns(self, share: float) -> bool:
        """Returns whether the store is to go back.

        Args:
            share: Of the world's steps, those that are done.
        """
        return self.wanted and _comes(self._returns, share)

    def settles(self) -> bool:
        """Returns whether an operator looks at what is held."""
        return self.happened > 0 and chance(self._luck, _SETTLES)

    def adopts(self) -> bool:
        """Returns whether an operator who looks at what is held adopts what they can of it."""
        return self.happened > 0 and chance(self._operator, _ADOPTS)

    def copy(self, now_s: float) -> None:
        """Copies the store, while servers work with it."""
        back_up(parsed_url(self.url), self._copy, _maker(now_s))

    def go(self, now_s: float) -> None:
        """Puts the copy in the store's place; no server may have it open."""
        self.happened += 1
        restore(self.url, self._copy, _maker(now_s))


def _maker(now_s: float) -> Maker:
    return Maker(release=RELEASE, key="", now_s=now_s)


def _comes(times: list[float], share: float) -> bool:
    if times and times[0] <= share:
        del times[0]
        return True
    return False
