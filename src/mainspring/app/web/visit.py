"""One look at a page: who looks, with what they may ask, and when."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from starlette.requests import Request

from mainspring.app.web.inside import Inside
from mainspring.app.web.look import Shown
from mainspring.control.service.shared import KEPT_S
from mainspring.domain.answers import Person
from mainspring.domain.errors import InvalidInput
from mainspring.domain.team import RIGHTS, Right, Whose

_MINUTE_S = 60.0
_MOMENT_S = 2 * KEPT_S  # Servers' clocks differ, and an answer takes a while to be made.


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One look.

    Args:
        lab: The API, as who looks.
        person: Who looks.
        secret: Their token.
        now_s: When.
    """

    request: Request
    lab: Inside
    person: Person
    secret: str
    now_s: float

    def asked(self, name: str) -> str:
        """Returns what the address says of a name, "" for nothing."""
        return self.request.query_params.get(name, "")

    def may(self, right: Right, *, owner: str | None = None) -> bool:
        """Returns whether it is worth offering: the API decides, who knows the teams."""
        kinds = (Whose.ANY, Whose.TEAM, Whose.LAB, *((Whose.OWN,) if owner and owner == self.person.holder else ()))
        return any(self.person.role in RIGHTS.get((right, whose), ()) for whose in kinds)

    def ago_s(self, seconds: float) -> float:
        """Returns a moment so long ago, to the minute: the same for all who ask within one."""
        return (self.now_s - seconds) // _MINUTE_S * _MINUTE_S

    async def newest(self) -> int:
        """Returns the sequence of an event after which a page is to be drawn anew: the newest that may be read.

        What the API tells of very many may be as it was a moment ago; so where the newest event is no older than that,
        it is the one before, and the page is soon drawn once more.
        """
        found = await self.lab.all_events(newest=True, limit=1)
        if not found:
            return 0
        return found[-1].sequence - (self.now_s - found[-1].time_s < _MOMENT_S)


def reason_in(fields: Mapping[str, str], attempted: str = "") -> str:
    """Returns the reason that a form gives, on one line.

    Args:
        fields: Of the form.
        attempted: What needs one, "" where none is needed.

    Raises:
        InvalidInput: None is given where one is needed.
    """
    reason = " ".join(fields.get("reason", "").split())
    if attempted and not reason:
        raise InvalidInput(attempted, got="no reason", next_step="say why: others will read it")
    return reason


View: TypeAlias = Callable[[Visit], Awaitable[Shown]]
