"""What people do to a job from its page; each is a call of the API, which audits it."""

from __future__ import annotations

from collections.abc import Mapping

from mainspring.app.web.inside import Inside
from mainspring.app.web.visit import reason_in
from mainspring.domain.answers import NewHold, NewPriority, QueuePlace, Reason
from mainspring.domain.errors import InvalidInput
from mainspring.domain.job import Tier

DONE = {
    "stop": "asked to stop",
    "pause": "paused",
    "resume": "resumed",
    "requeue": "asked to queue again",
    "priority": "given another place",
    "stacks": "asked where its ranks stand: their answer is below within seconds",
}  # What can be done, and how that is told.


async def act(lab: Inside, job: str, what: str, fields: Mapping[str, str]) -> None:
    """Does something to a job.

    Args:
        what: One of `DONE`.
        fields: Of the form.

    Raises:
        InvalidInput: That is nothing one can do, or no reason was given.
        Refusal: The API refused it.
    """
    reason = reason_in(fields, "" if what == "resume" else f"{what[:20]} a job")
    match what:
        case "stop":
            await lab.stop(job, reason=reason)
        case "pause":
            await lab.pause(job, NewHold(reason=reason))
        case "resume":
            await lab.resume(job)
        case "requeue":
            await lab.requeue(job, reason=reason)
        case "stacks":
            await lab.ask_stacks(job, Reason(reason=reason))
        case "priority":
            await lab.priority(job, _priority(fields, reason))
        case _:
            raise InvalidInput("do something to a job", got=repr(what[:40]), wanted=", ".join(DONE))


def _priority(fields: Mapping[str, str], reason: str) -> NewPriority:
    tier, place = fields.get("tier", ""), fields.get("place", "")
    try:
        return NewPriority(tier=Tier(tier) if tier else None, place=QueuePlace(place) if place else None, reason=reason)
    except ValueError as error:
        raise InvalidInput("change a job's priority", got=str(error)) from error
