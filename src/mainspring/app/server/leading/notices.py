"""How notices leave this machine: posted by HTTP, or as e-mail; and the thread that has them sent."""

from __future__ import annotations

import logging
import smtplib
import ssl
from email.message import EmailMessage
from functools import partial
from threading import Event, Thread
from typing import final

import httpx

from mainspring.control import Control
from mainspring.control.server import Server
from mainspring.control.service.notices.letters import Letter
from mainspring.control.service.notices.sending import Notices
from mainspring.domain.errors import Conflict, MainspringError, Unavailable
from mainspring.domain.team import NoticeForm, NoticeRules
from mainspring.domain.wire.trust import trust

ANSWER_S = 5.0  # For a connection, and for each piece of an answer.
_PAUSE_S = 1.0  # Between two looks at what is new.
_STEP_S = 5.0  # What is under way may take when the server stops; it is sent once more then.
_ATTEMPTED = "send a notice"
_log = logging.getLogger(__name__)


def send(letter: Letter, rules: NoticeRules) -> None:
    """Sends a notice, and returns once it was taken.

    Raises:
        Unavailable: It was not.
    """
    if letter.form is NoticeForm.EMAIL:
        _mail(letter, rules)
    else:
        _post(letter)


def _post(letter: Letter) -> None:
    headers = {"Content-Type": "application/json", "User-Agent": "mainspring", **letter.headers}
    try:
        with (
            # Neither the environment's proxies nor a redirect may lead elsewhere than to the host that was allowed.
            httpx.Client(verify=trust(letter.url, ""), timeout=ANSWER_S, trust_env=False) as client,
            client.stream("POST", letter.url, content=letter.body, headers=headers) as answer,
        ):
            status = answer.status_code  # What it says is not read.
    except (httpx.HTTPError, httpx.InvalidURL, ssl.SSLError) as error:
        raise Unavailable(_ATTEMPTED, got=f"no answer ({type(error).__name__})") from error
    if not 200 <= status < 300:
        raise Unavailable(_ATTEMPTED, got=f"HTTP {status}")


def _mail(letter: Letter, rules: NoticeRules) -> None:
    host, _, port = rules.smtp.rpartition(":")
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = rules.sender, letter.url.removeprefix("mailto:"), letter.subject
    mail["Message-ID"] = f"<{letter.id}@{rules.sender.rpartition('@')[2]}>"
    mail.set_content(letter.body.decode())
    try:
        with smtplib.SMTP(host, int(port), timeout=ANSWER_S) as server:
            server.ehlo()
            if server.has_extn("starttls"):
                server.starttls(context=ssl.create_default_context())
            server.send_message(mail)
    except (OSError, smtplib.SMTPException) as error:
        raise Unavailable(_ATTEMPTED, got=f"no e-mail ({type(error).__name__})") from error


@final
class NoticeThread:
    """Has notices sent while its server leads, until it is stopped; nothing where the operator allows no hosts."""

    def __init__(self, control: Control, server: Server, rules: NoticeRules) -> None:
        self._server = server
        self._rules = rules
        keys, courier = control.people.secrets.keys, partial(send, rules=rules)
        self._notices = Notices(control.store, keys, control.clock, rules, courier, server.write_as_leader)
        self._stopping = Event()
        self._thread = Thread(target=self._run, name="mainspring-notices", daemon=True)

    def start(self) -> None:
        """Begins with what the last leader left."""
        if self._rules.hosts:
            self._thread.start()

    def stop(self) -> None:
        """Ends; what was not sent waits for the next leader."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(_STEP_S)

    def _run(self) -> None:
        more = False
        while more or not self._stopping.wait(_PAUSE_S):
            more = False
            if not self._server.leads:
                self._notices.forget()
                continue
            try:
                more = self._notices.step() and not self._stopping.is_set()
            except Conflict:
                self._notices.forget()
            except MainspringError as error:
                _log.warning("notices wait: %s", error)
            except Exception:  # noqa: BLE001  As of a sweep: the next look begins from the store.
                _log.exception("notices failed")
                self._notices.forget()
