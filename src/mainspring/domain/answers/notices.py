"""Notices: where a team is told of its jobs, and what it is told."""

from __future__ import annotations

from dataclasses import field

from mainspring.domain.codec import message
from mainspring.domain.ids import JobId, TeamName
from mainspring.domain.team import NoticeForm


@message("NewNoticePlace")
class NewNoticePlace:
    """Where a team wants to be told: `https://...` or `mailto:...`; without a form it follows from the address."""

    url: str = field(repr=False)
    form: NoticeForm | None = None


@message("NoticePlace")
class NoticePlace:
    """Where a team is told, but for what of the address may be secret."""

    team: TeamName
    form: NoticeForm
    host: str


@message("Notice")
class Notice:
    """What is sent of one event.

    Args:
        id: The same each time that this notice is sent.
        time_s: When it happened, in seconds since the Unix epoch.
        kind: Of the event.
        team: Whose.
        text: What happened, on one line, for people.
        look: The command that shows more.
        job: The job it happened to, None for the team.
        name: The job's.
        owner: Who submitted it.
        state: The job's then, "" where that is not what changed.
    """

    id: str
    time_s: float
    kind: str
    team: TeamName
    text: str
    look: str
    job: JobId | None = None
    name: str = ""
    owner: str = ""
    state: str = ""
