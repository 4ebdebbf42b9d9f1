"""Teams are told of their jobs: once, in order, signed, where the operator allows, whoever leads meanwhile."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from tests.receivers import Mails, Posts, mails, posts

from mainspring.app.server.leading.notices import send
from mainspring.control.service.notices.letters import occasions_of
from mainspring.control.service.notices.places import target_of
from mainspring.control.service.notices.sending import WAITING_MAX, Notices
from mainspring.control.store.settings import Settings
from mainspring.domain.answers import NewHold, NewNoticePlace, NewSecret
from mainspring.domain.errors import Conflict, InvalidInput, NotFound
from mainspring.domain.ids import JobId, TeamName
from mainspring.domain.job import LAB, Occasion
from mainspring.domain.life import AttemptState, JobState
from mainspring.domain.team import NoticeForm, NoticeRules, Team
from mainspring.domain.wire.events.attempts import AttemptStoppingEvent

if TYPE_CHECKING:
    from tests.control.conftest import World

KEY = "0123456789abcdef"


@pytest.fixture
def receiver() -> Iterator[Posts]:
    with posts() as made:
        yield made


def rules_of(*ports: int, **fields: object) -> NoticeRules:
    return NoticeRules(hosts=tuple(f"127.0.0.1:{port}" for port in ports), **fields)  # type: ignore[arg-type]


def telling(world: World, rules: NoticeRules, **place: object) -> Notices:
    """A lab with a team that is told, and what tells it."""
    world.restart(settings=Settings(notices=rules))
    people = world.control.people
    people.set_team(Team(name=TeamName(LAB)))
    people.set_team(Team(name=TeamName("arms"), parent=TeamName(LAB)))
    people.secrets.keep("arms", "NOTICES_KEY", NewSecret(value=KEY))
    world.tick()
    notices = notices_of(world, rules)
    notices.step()
    people.notices.place("arms", NewNoticePlace(**place))  # type: ignore[arg-type]
    return notices


def notices_of(world: World, rules: NoticeRules) -> Notices:
    keys = world.control.people.secrets.keys
    return Notices(world.control.store, keys, world.clock, rules, partial(send, rules=rules), world.loop.write)


def failed(world: World, name: str = "fold", *, reason: str = "rank 0: boom", **fields: Any) -> JobId:
    job = world.submit(world.spec(name, team=TeamName("arms"), **fields))
    world.run(job)
    world.beat(job, outcome=AttemptState.FAILED, reason=reason)
    world.tick(3)
    assert world.job(job).state is JobState.FAILED
    return job


def over(world: World, name: str) -> JobId:
    """A job that ended well and is told of; a second failure on one node would be the node's."""
    job = world.submit(world.spec(name, team=TeamName("arms"), notify=(Occasion.ENDED,)))
    world.run(job)
    world.succeed(job)
    return job


def bodies(receiver: Posts) -> list[dict[str, object]]:
    return [json.loads(body) for _, body in receiver.taken]


def test_team_is_told_once_of_a_job_that_failed_in_a_post_that_it_can_check(world: World, receiver: Posts) -> None:
    rules = rules_of(receiver.port)
    notices = telling(world, rules, url=f"http://127.0.0.1:{receiver.port}/robots?x=1")
    job = failed(world, reason="rank 0: \x1b[2Jboom\nagain\u202e")
    for _ in range(3):
        notices.step()
    ((headers, body),) = receiver.taken
    told = json.loads(body)
    assert told["text"] == f"fold ({job}) of team arms: running -> failed: rank 0: [2Jboom again"
    assert {name: told[name] for name in ("kind", "team", "job", "name", "state", "look")} == {
        "kind": "job_moved",
        "team": "arms",
        "job": job,
        "name": "fold",
        "state": "failed",
        "look": f"ms status {job}",
    }
    assert headers["Mainspring-Notice"] == told["id"]
    stamp, _, digest = headers["Mainspring-Signature"].removeprefix("t=").partition(",v1=")
    assert int(stamp) == round(world.clock.now_s())
    assert digest == hmac.new(KEY.encode(), f"{stamp}.".encode() + body, hashlib.sha256).hexdigest()
    assert receiver.paths == ["/robots?x=1"]


def test_what_a_job_asks_to_be_told_of_is_told_and_nothing_else(world: World, receiver: Posts) -> None:
    notices = telling(world, rules_of(receiver.port), url=f"http://127.0.0.1:{receiver.port}/")
    failed(world, "silent", notify=())
    well = world.submit(world.spec("well", team=TeamName("arms"), notify=(Occasion.ENDED,)))
    usual = world.submit(world.spec("usual", team=TeamName("arms")))
    for job in (well, usual):
        world.run(job)
        world.succeed(job)
    again = world.submit(world.spec("again", team=TeamName("arms"), notify=(Occasion.WAITS,)))
    world.run(again)
    world.control.steering.requeue(again)
    world.tick(3)
    notices.step()
    assert [(told["name"], told["state"]) for told in bodies(receiver)] == [("well", "succeeded"), ("again", "queued")]


@pytest.mark.parametrize(
    ("cause", "occasions"), [("evict", (Occasion.PREEMPTED,)), ("taken", (Occasion.PREEMPTED,)), ("cancel", ())]
)
def test_attempt_that_makes_room_or_is_taken_by_its_cluster_is_preempted(
    cause: str, occasions: tuple[Occasion, ...]
) -> None:
    assert occasions_of(AttemptStoppingEvent(cause=cause, reason="makes room")) == occasions


def test_team_is_told_that_it_is_paused_and_one_below_where_the_team_above_is(world: World, receiver: Posts) -> None:
    notices = telling(world, rules_of(receiver.port), url=f"http://127.0.0.1:{receiver.port}/")
    world.control.people.set_team(Team(name=TeamName("grasp"), parent=TeamName("arms")))
    world.control.people.set_team(Team(name=TeamName("vision"), parent=TeamName(LAB)))
    for team in ("grasp", "vision"):
        world.control.pauses.pause_team(team, NewHold(reason="stock-taking"))
    notices.step()
    assert [told["text"] for told in bodies(receiver)] == ["team grasp paused by admin of team lab: stock-taking"]


def test_receiver_that_is_down_for_a_while_is_told_later_once_and_in_order(world: World, receiver: Posts) -> None:
    notices = telling(world, rules_of(receiver.port), url=f"http://127.0.0.1:{receiver.port}/")
    receiver.status = 503
    first, second = over(world, "first"), over(world, "second")
    notices.step()
    notices.step()
    assert receiver.tried == 1, "what else waits is not tried before the next try is due"
    receiver.status = 200
    world.clock.advance(1.9)
    notices.step()
    assert receiver.taken == []
    world.clock.advance(0.2)
    for _ in range(3):
        notices.step()
    assert [told["job"] for told in bodies(receiver)] == [first, second]


@pytest.mark.parametrize("status", [500, 307])
def test_receiver_that_takes_nothing_is_given_up_with_an_event_of_the_job(
    world: World, receiver: Posts, status: int
) -> None:
    notices = telling(world, rules_of(receiver.port, hours=0.5), url=f"http://127.0.0.1:{receiver.port}/secret-path")
    receiver.status = status
    job = failed(world)
    for _ in range(40):
        notices.step()
        world.clock.advance(60)
    told = [event for event in world.control.events(job) if event.kind == "notice_undelivered"]
    assert [str(event.told) for event in told] == [
        f"team arms could not be told of it at 127.0.0.1:{receiver.port}: HTTP {status}"
    ]
    assert 5 < receiver.tried < 20
    assert set(receiver.paths) == {"/secret-path"}, "a redirect is not followed"
    assert "secret-path" not in str([event.detail for event in world.control.events()])


def test_leader_that_died_loses_no_notice_and_the_next_one_sends_none_twice(world: World, receiver: Posts) -> None:
    rules = rules_of(receiver.port)
    notices = telling(world, rules, url=f"http://127.0.0.1:{receiver.port}/")
    sent = over(world, "sent")
    notices.step()
    receiver.status = 503
    queued = over(world, "queued")
    notices.step()
    unseen = over(world, "unseen")
    receiver.status = 200
    world.loop.resign()
    world.control.store.close()
    world.restart(settings=Settings(notices=rules))
    world.tick()
    with pytest.raises(Conflict):
        notices.step()
    world.clock.advance(2)
    another = notices_of(world, rules)
    for _ in range(3):
        another.step()
    assert [told["job"] for told in bodies(receiver)] == [sent, queued, unseen]


def test_team_of_which_too_many_wait_is_not_told_more_and_an_event_says_so(world: World, receiver: Posts) -> None:
    rules = rules_of(receiver.port)
    notices = telling(world, rules, url=f"http://127.0.0.1:{receiver.port}/")
    receiver.status = 503
    spec = world.spec("many", team=TeamName("arms"), notify=(Occasion.ENDED,))
    first = world.submit(spec, count=WAITING_MAX + 3)
    world.control.steering.stop(first, array=True)
    notices.step()
    (told,) = [event for event in world.control.events(limit=1_000) if event.kind == "notice_undelivered"]
    assert told.detail == {"team": "arms", "host": "", "reason": "100 wait already", "notices": 3}
    receiver.status = 200
    world.clock.advance(3)
    for _ in range(10):
        notices.step()
    assert len(receiver.taken) == WAITING_MAX


def test_what_happened_before_a_team_named_its_place_is_told_to_nobody(world: World, receiver: Posts) -> None:
    rules = rules_of(receiver.port)
    notices = telling(world, rules, url=f"http://127.0.0.1:{receiver.port}/")
    world.control.people.notices.remove("arms")
    failed(world)
    world.control.people.notices.place("arms", NewNoticePlace(url=f"http://127.0.0.1:{receiver.port}/"))
    notices.step()
    assert receiver.tried == 0


def test_host_that_is_no_longer_allowed_is_not_called(world: World, receiver: Posts) -> None:
    telling(world, rules_of(receiver.port), url=f"http://127.0.0.1:{receiver.port}/")
    job = failed(world)
    notices_of(world, rules_of(1)).step()
    assert receiver.tried == 0
    assert [event.kind for event in world.control.events(job)][-1] == "notice_undelivered"


def test_slack_gets_what_its_webhooks_take_in_which_nobody_is_mentioned(world: World, receiver: Posts) -> None:
    url = f"http://127.0.0.1:{receiver.port}/services/T0/B0"
    notices = telling(world, rules_of(receiver.port), url=url, form=NoticeForm.SLACK)
    job = failed(world, reason="<!channel> & more")
    notices.step()
    text = f"fold ({job}) of team arms: running -&gt; failed: &lt;!channel&gt; &amp; more\n`ms status {job}`"
    assert bodies(receiver) == [{"text": text}]
    assert (
        target_of("https://hooks.slack.com/a", None, NoticeRules(hosts=("hooks.slack.com",))).form is NoticeForm.SLACK
    )


@pytest.fixture
def mail() -> Iterator[Mails]:
    with mails() as made:
        yield made


def test_team_is_told_by_email_of_one_line_of_subject(world: World, mail: Mails) -> None:
    rules = NoticeRules(hosts=("lab.example",), smtp=f"127.0.0.1:{mail.port}", sender="ms@lab.example")
    notices = telling(world, rules, url="mailto:arms@lab.example")
    job = failed(world, reason="boom\r\nBcc: all@lab.example")
    notices.step()
    ((envelope, text),) = mail.taken
    assert envelope == ["<ms@lab.example>", "<arms@lab.example>"]
    head, _, body = text.partition("\n\n")
    assert "\nBcc:" not in head
    assert (
        head.replace("\n ", " ").count(f"Subject: [mainspring] fold ({job}) of team arms: running -> failed: boom") == 1
    )
    assert body.splitlines()[-1] == f"Look: ms status {job}"


@pytest.mark.parametrize(
    ("address", "form", "got"),
    [
        ("https://elsewhere.example/x", None, "on elsewhere.example"),
        ("https://chat.lab:8443/x", None, "on chat.lab:8443"),
        ("http://chat.lab/x", None, "http://..."),
        ("https://me:pass@chat.lab/x", None, "https://..."),
        ("https://chat.lab\\@elsewhere.example/x", None, "https://..."),
        ("https://chat.lab/x y", None, "https://..."),
        ("ftp://chat.lab/x", None, "ftp://..."),
        ("mailto:a@chat.lab,b@chat.lab", None, "another address"),
        ("mailto:a@chat.lab", None, "mailto:"),
        ("mailto:a@chat.lab", NoticeForm.SLACK, "form slack"),
        ("https://chat.lab/x", NoticeForm.EMAIL, "form email"),
    ],
    ids=map(str, range(11)),
)
def test_address_that_is_not_allowed_is_refused_when_it_is_set(
    world: World, address: str, form: NoticeForm | None, got: str
) -> None:
    world.control.people.set_team(Team(name=TeamName("arms")))
    world.control.people.secrets.keep("arms", "NOTICES_KEY", NewSecret(value=KEY))
    with pytest.raises(InvalidInput) as refused:
        world.control.people.notices.place("arms", NewNoticePlace(url=address, form=form))
    assert got in str(refused.value)
    assert "pass" not in str(refused.value)
    assert [one.name for one in world.control.people.secrets.known()] == ["NOTICES_KEY"]


def test_team_without_a_key_and_server_without_hosts_say_what_to_do(world: World) -> None:
    world.control.people.set_team(Team(name=TeamName("arms")))
    asked = NewNoticePlace(url="https://chat.lab/x")
    with pytest.raises(NotFound, match="ms secret set NOTICES_KEY --team arms"):
        world.control.people.notices.place("arms", asked)
    world.restart(settings=Settings())
    with pytest.raises(NotFound, match=r"notices.hosts in its config.yaml"):
        world.control.people.notices.place("arms", asked)


def test_address_is_kept_encrypted_and_shown_by_its_host_alone(world: World) -> None:
    world.control.people.set_team(Team(name=TeamName("arms")))
    world.control.people.secrets.keep("arms", "NOTICES_KEY", NewSecret(value=KEY))
    told = world.control.people.notices.place("arms", NewNoticePlace(url="https://chat.lab/T0/secret-path"))
    assert (told.form, told.host) == (NoticeForm.JSON, "chat.lab")
    seen = str([world.control.people.audit(), world.control.people.teams(), world.control.people.secrets.known()])
    assert "json to chat.lab" in seen
    assert "secret-path" not in seen


@pytest.mark.parametrize(
    ("kept", "form", "host"),
    [
        ("https://chat.lab/T0/secret-path", NoticeForm.JSON, "chat.lab"),
        ("mailto:ada@mail.lab", NoticeForm.EMAIL, "mail.lab"),
        ("slack https://[", NoticeForm.SLACK, ""),
        ("a word or two", NoticeForm.JSON, ""),
    ],
)
def test_place_that_was_set_as_a_mere_secret_is_removed_all_the_same(
    world: World, kept: str, form: NoticeForm, host: str
) -> None:
    world.control.people.set_team(Team(name=TeamName("arms")))
    world.control.people.secrets.keep("arms", "NOTICES_URL", NewSecret(value=kept))
    removed = world.control.people.notices.remove("arms")
    assert (removed.form, removed.host) == (form, host)
    assert not world.control.people.secrets.known()
