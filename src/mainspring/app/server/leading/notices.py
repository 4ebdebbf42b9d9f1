"""How notices leave this machine: posted by HTTP, or as e-mail; and what has them sent."""

from __future__ import annotations

import smtplib
import ssl
from email.message import EmailMessage
from functools import partial

import httpx

from mainspring.app.server.leading.thread import LeadingThread
from mainspring.control import Control
from mainspring.control.server import Server
from mainspring.control.service.notices.letters import Letter
from mainspring.control.service.notices.sending import Notices
from mainspring.domain.errors import Unavailable
from mainspring.domain.team import NoticeForm, NoticeRules
from mainspring.domain.wire.trust import trust

ANSWER_S = 5.0  # For a connection, and for each piece of an answer.
_PAUSE_S = 1.0  # Between two looks at what is new.
_ATTEMPTED = "send a notice"


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


def notice_thread(control: Control, server: Server, rules: NoticeRules) -> LeadingThread:
    """Returns what has notices sent; nothing where the operator allows no hosts."""
    keys, courier = control.people.secrets.keys, partial(send, rules=rules)
    notices = Notices(control.store, keys, control.clock, rules, courier, server.write_as_leader)
    return LeadingThread(server, "notices", notices.step, notices.forget, pause_s=_PAUSE_S, wanted=bool(rules.hosts))
