"""Where teams are told of their jobs: addresses that admins name among the hosts that the operator allows.

An address may be a secret itself, as Slack's are, so it is kept as one: under `URL_NAME`, beside the key that notices
are signed with, which the team sets as it does any secret.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import final
from urllib.parse import urlsplit

import sqlalchemy as sa

from mainspring.control.service.secrets import Secrets
from mainspring.control.store.audit import note
from mainspring.control.store.secrets import SecretKeys, SecretRecord, find_secret, for_jobs_of, remove_secret
from mainspring.control.store.store import Store
from mainspring.control.store.tokens import LAB_ITSELF, Caller
from mainspring.domain.answers import NewNoticePlace, NewSecret, NoticePlace
from mainspring.domain.errors import InvalidInput, NotFound
from mainspring.domain.ids import SecretName, TeamName
from mainspring.domain.ports import Clock
from mainspring.domain.team import MAILBOX, NoticeForm, NoticeRules, Right
from mainspring.domain.wire.trust import is_private

URL_NAME, KEY_NAME = SecretName("NOTICES_URL"), SecretName("NOTICES_KEY")
URL_LENGTH_MAX = 2_000  # Slack's have 80 letters.
SLACK_HOST = "hooks.slack.com"
_MAIL = "mailto:"
_PORTS = {"https": 443, "http": 80}
_ATTEMPTED = "have a team told of its jobs"
_ALLOWED = "whoever runs the server: notices.hosts in its config.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """An address that is allowed; `host` is what may be shown of it."""

    form: NoticeForm
    host: str
    url: str = field(repr=False)


def target_of(url: str, form: NoticeForm | None, rules: NoticeRules) -> Target:
    """Returns where an address leads.

    Args:
        url: `https://...`, `http://...` on this machine alone, or `mailto:NAME@HOST`.
        form: None for what follows from it.

    Raises:
        NotFound: The server sends none.
        InvalidInput: It is none, does not go with the form, or its host is not allowed. Nothing of it is quoted but
            the host.
    """
    if not rules.hosts:
        raise NotFound(_ATTEMPTED, got="a server that sends no notices", next_step=_ALLOWED)
    found = _mail_target(url) if url.startswith(_MAIL) else _web_target(url, form)
    if form not in (None, found.form):
        raise InvalidInput(_ATTEMPTED, on=found.host, got=f"form {form.value}", wanted=found.form.value)
    if found.form is NoticeForm.EMAIL and not rules.smtp:
        raise InvalidInput(_ATTEMPTED, got="mailto:", wanted="https://...", next_step=_ALLOWED.replace("hosts", "smtp"))
    if found.host not in {host.lower() for host in rules.hosts}:
        raise InvalidInput(
            _ATTEMPTED, on=found.host, wanted=f"one of {', '.join(rules.hosts)}"[:400], next_step=_ALLOWED
        )
    return found


def _mail_target(url: str) -> Target:
    mailbox = MAILBOX.fullmatch(url.removeprefix(_MAIL))
    if mailbox is None:
        raise InvalidInput(_ATTEMPTED, got="another address", wanted="mailto:NAME@HOST")
    return Target(form=NoticeForm.EMAIL, host=mailbox[1].lower(), url=url)


def _web_target(url: str, form: NoticeForm | None) -> Target:
    try:
        parts = urlsplit(url)
        port, host = parts.port, (parts.hostname or "").lower()
    except ValueError:
        parts, port, host = urlsplit(""), None, ""
    plain = len(url) <= URL_LENGTH_MAX and url.isascii() and url.isprintable() and " " not in url and "\\" not in url
    if not host or not plain or not is_private(url) or parts.username is not None or parts.password is not None:
        wanted = "https://HOST[:PORT]/..., or mailto:NAME@HOST"
        raise InvalidInput(_ATTEMPTED, on=host[:200], got=f"{parts.scheme[:20]}://...", wanted=wanted)
    if form in (None, NoticeForm.EMAIL):
        form = NoticeForm.SLACK if host == SLACK_HOST else NoticeForm.JSON
    shown = host if port in (None, _PORTS[parts.scheme]) else f"{host}:{port}"
    return Target(form=form, host=shown, url=url)


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What a team, or the nearest one above, keeps for its notices; `key` is "" for none."""

    target: Target
    key: str = field(repr=False)


def known_place(connection: sa.Connection, team: TeamName) -> SecretRecord | None:
    """Returns the address that holds for a team, still encrypted, or None."""
    return for_jobs_of(connection, team, [URL_NAME]).get(URL_NAME)


def place_of(connection: sa.Connection, keys: SecretKeys, team: TeamName, rules: NoticeRules) -> Known | None:
    """Returns where a team is told, None for nowhere.

    Raises:
        MainspringError: The address is not allowed any more, or cannot be read.
    """
    found = for_jobs_of(connection, team, [URL_NAME, KEY_NAME])
    if URL_NAME not in found:
        return None
    form, _, url = keys.value(found[URL_NAME]).partition(" ")
    if form not in {each.value for each in NoticeForm} or not url:
        raise InvalidInput(_ATTEMPTED, on=f"secret {URL_NAME}", wanted="what ms team set --notify keeps")
    target = target_of(url, NoticeForm(form), rules)
    if target.form is NoticeForm.JSON and KEY_NAME not in found:
        raise _unsigned(team)
    return Known(target=target, key=keys.value(found[KEY_NAME]) if KEY_NAME in found else "")


def _unsigned(team: TeamName) -> NotFound:
    return NotFound(
        _ATTEMPTED,
        on=f"team {team[:80]}",
        got="no key to sign notices with",
        next_step=f"ms secret set {KEY_NAME} --team {team[:80]}",
    )


@final
class NoticePlaces:
    """Where teams of one controller are told. Used by many threads."""

    def __init__(self, store: Store, secrets: Secrets, clock: Clock, rules: NoticeRules) -> None:
        self._store = store
        self._secrets = secrets
        self._clock = clock
        self._rules = rules

    def place(self, team: str, asked: NewNoticePlace, caller: Caller = LAB_ITSELF) -> NoticePlace:
        """Says where a team, and those below that say nothing, are told, and returns that.

        Raises:
            NotAllowed: The caller is no admin of the team.
            NotFound: There is no such team, no key to sign with, or the server sends no notices.
            InvalidInput: The address is none, or its host is not allowed.
            Unavailable: The file of keys is gone, or is none.
        """
        whose = TeamName(team)
        with self._store.write() as connection:
            caller.require(connection, Right.MANAGE_NOTICES, whose)
            target = target_of(asked.url, asked.form, self._rules)
            if target.form is NoticeForm.JSON and not for_jobs_of(connection, whose, [KEY_NAME]):
                raise _unsigned(whose)
            kept = NewSecret(value=f"{target.form.value} {target.url}")
            self._secrets.put(connection, whose, URL_NAME, kept, caller)
            told = f"{target.form.value} to {target.host}"
            note(connection, caller, "set notices", told, team=whose, now_s=self._clock.now_s())
        return NoticePlace(team=whose, form=target.form, host=target.host)

    def remove(self, team: str, caller: Caller = LAB_ITSELF) -> NoticePlace:
        """Has a team told nothing any more, but for what a team above it wants to be told; returns what it named.

        Raises:
            NotAllowed: The caller is no admin of the team.
            NotFound: It had named no place.
        """
        whose = TeamName(team)
        with self._store.write() as connection:
            caller.require(connection, Right.MANAGE_NOTICES, whose)
            found = find_secret(connection, whose, URL_NAME)
            if found is None:
                raise NotFound("have a team told nothing", on=f"team {team[:80]}", got="one that named no place")
            form, _, url = self._secrets.keys.value(found).rpartition(" ")
            remove_secret(connection, found)
            note(connection, caller, "remove notices", "", team=whose, now_s=self._clock.now_s())
        is_mail, host = url.startswith(_MAIL), ""
        with suppress(ValueError):  # What was set as any secret is may be a bare address, or none.
            host = url.rpartition("@")[2] if is_mail else urlsplit(url).hostname or ""
        usual = NoticeForm.EMAIL if is_mail else NoticeForm.JSON
        kind = next((each for each in NoticeForm if each.value == form), usual)
        return NoticePlace(team=whose, form=kind, host=host)
