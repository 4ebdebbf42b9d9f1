"""What teams are told: of which events, in which words, and signed how."""

from __future__ import annotations

import hmac
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from mainspring.control.service.notices.places import Known
from mainspring.control.store.ledger import StopCause
from mainspring.control.store.records import JobRecord
from mainspring.domain.answers import Event, Notice
from mainspring.domain.codec import encode
from mainspring.domain.ids import TeamName
from mainspring.domain.job import Occasion
from mainspring.domain.life import JobState, ended
from mainspring.domain.team import NoticeForm
from mainspring.domain.wire.events import AnyEvent
from mainspring.domain.wire.events.attempts import AttemptStoppingEvent
from mainspring.domain.wire.events.jobs import HoldPlacedEvent, HoldReleasedEvent, JobMovedEvent

TOLD = (JobMovedEvent, AttemptStoppingEvent, HoldPlacedEvent, HoldReleasedEvent)
TEXT_LENGTH_MAX = 1_000  # A few lines of a chat.
SUBJECT_LENGTH_MAX = 150
SIGNATURE_HEADER, ID_HEADER = "Mainspring-Signature", "Mainspring-Notice"
_PREEMPTED = (StopCause.EVICT.value, StopCause.TAKEN.value)
_UNSEEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]"
)  # What steers a terminal, or turns text.


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """What goes over a network.

    Args:
        id: The notice's.
        url: Where to.
        subject: Of an e-mail, "" for what is posted.
        body: What is posted, JSON; or an e-mail's text.
        headers: Beside those of every post.
    """

    id: str
    form: NoticeForm
    url: str = field(repr=False)
    subject: str = ""
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


def occasions_of(told: AnyEvent) -> Collection[Occasion]:
    """Returns what an event is to whoever wants to be told of its job."""
    if isinstance(told, JobMovedEvent):
        if told.after is JobState.FAILED:
            return (Occasion.FAILED, Occasion.ENDED)
        if ended(told.after):
            return (Occasion.ENDED,)
        return (Occasion.WAITS,) if told.after is JobState.QUEUED else ()
    return (Occasion.PREEMPTED,) if isinstance(told, AttemptStoppingEvent) and told.cause in _PREEMPTED else ()


def notice_of_job(event: Event, job: JobRecord) -> Notice:
    """Returns what is said of something that happened to a job."""
    told = event.told
    moved = isinstance(told, JobMovedEvent)
    return Notice(
        id=_id_of(event),
        time_s=event.time_s,
        kind=event.kind,
        team=job.team,
        text=plain(f"{job.name} ({job.id}) of team {job.team}: {told}"),
        look=f"ms status {job.id}",
        job=job.id,
        name=plain(job.name),
        owner=plain(job.owner),
        state=told.after.value if moved else "",  # type: ignore[union-attr]
    )


def notice_of_team(event: Event, team: TeamName) -> Notice:
    """Returns what is said of something that happened to a team."""
    text = plain(str(event.told))
    return Notice(id=_id_of(event), time_s=event.time_s, kind=event.kind, team=team, text=text, look="ms team ls")


def _id_of(event: Event) -> str:
    return f"{event.sequence}-{event.time_s * 1000:.0f}"  # A store that went back in time counts anew.


def plain(text: str) -> str:
    """Returns text on one line, without what would steer whatever shows it, and no longer than a notice may be."""
    return " ".join(_UNSEEN.sub(" ", text).split())[:TEXT_LENGTH_MAX]


def letter_of(notice: Notice, place: Known, now_s: float) -> Letter:
    """Returns a notice as it goes to a place.

    Args:
        now_s: The time that is signed.
    """
    target = place.target
    if target.form is NoticeForm.EMAIL:
        lines = f"{notice.text}\n\nLook: {notice.look}\n"
        subject = f"[mainspring] {notice.text}"[:SUBJECT_LENGTH_MAX]
        return Letter(id=notice.id, form=target.form, url=target.url, subject=subject, body=lines.encode())
    body = _slack(notice) if target.form is NoticeForm.SLACK else encode(notice)
    headers = {ID_HEADER: notice.id}
    if place.key:
        headers[SIGNATURE_HEADER] = signature(place.key, body, round(now_s))
    return Letter(id=notice.id, form=target.form, url=target.url, body=body, headers=headers)


def signature(key: str, body: bytes, time_s: int) -> str:
    """Returns what a receiver checks: HMAC-SHA256 (RFC 2104) of the time, a dot and the body, so that old ones age.

    Args:
        time_s: When it is sent, in seconds since the Unix epoch.
    """
    digest = hmac.new(key.encode(), f"{time_s}.".encode() + body, "sha256").hexdigest()
    return f"t={time_s},v1={digest}"


def _slack(notice: Notice) -> bytes:
    """Returns what Slack's incoming webhooks take, in which nothing of the text is a mention or a link."""
    text = notice.text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return json.dumps({"text": f"{text}\n`{notice.look}`"}).encode()
