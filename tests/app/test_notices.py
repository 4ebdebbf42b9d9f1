"""Teams are told of their jobs, end to end: `ms`, a server that is started anew, real jobs, posts and e-mail."""

from __future__ import annotations

import hashlib
import hmac
import json
import sys
from dataclasses import replace

import pytest

from mainspring.app.sdk.lab import Lab
from mainspring.domain.team import NoticeRules
from tests.app.conftest import until
from tests.app.test_secrets import holding, ms
from tests.receivers import Mails, Posts, mails, posts

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

KEY = "a key that only arms and its receiver know"
PATH = "robots-7c1f0d5a93"


def told(lab: Lab, *words: str, stdin: str = "") -> str:
    done = ms(lab, *words, stdin=stdin)
    assert done.returncode == 0, done.stderr
    return done.stdout


def allowing(lab: Lab, receiver: Posts, mail: Mails) -> None:
    lab.down()
    hosts = (f"127.0.0.1:{receiver.port}", "robots.example")
    rules = NoticeRules(hosts=hosts, smtp=f"127.0.0.1:{mail.port}", sender="lab@robots.example")
    lab.home.write_config(replace(lab.home.config(), notices=rules))
    lab.up()


def test_team_is_told_of_its_jobs_also_by_a_server_that_is_started_anew(lab: Lab) -> None:
    lab.set_team("arms")
    lab.set_team("vision")
    refused = ms(lab, "team", "set", "arms", "--notify", "https://hooks.slack.com/x")
    assert refused.returncode != 0
    assert "notices.hosts in its config.yaml" in " ".join(refused.stderr.split())
    with posts() as receiver, mails() as mail:
        allowing(lab, receiver, mail)
        refused = ms(lab, "team", "set", "arms", "--notify", "https://hooks.slack.com/x")
        assert "on hooks.slack.com wanted" in " ".join(refused.stderr.split())
        told(lab, "secret", "set", "NOTICES_KEY", "--team", "arms", stdin=f"{KEY}\n")
        said = told(lab, "team", "set", "arms", "--notify", f"http://127.0.0.1:{receiver.port}/{PATH}")
        assert f"Team arms is told of its jobs at 127.0.0.1:{receiver.port} (json)." in said
        told(lab, "team", "set", "vision", "--weight", "2", "--notify", "mailto:vision@robots.example")

        run = ("run", "--no-code", "--on", "h100")
        fails = (
            *run,
            "--name",
            "grips",
            "--team",
            "arms",
            "--",
            sys.executable,
            "-c",
            "raise SystemExit('no such gripper')",
        )
        told(lab, *run, "--name", "seen", "--team", "vision", "--notify", "ended", "--", sys.executable, "-c", "")
        told(lab, *fails)
        until(lambda: bool(receiver.taken) and bool(mail.taken), "both teams to be told")
        ((headers, body),) = receiver.taken
        notice = json.loads(body)
        assert notice["text"].startswith(f"grips ({notice['job']}) of team arms: running -> failed: ")
        assert "no such gripper" in notice["text"]
        stamp, _, digest = headers["Mainspring-Signature"].removeprefix("t=").partition(",v1=")
        assert digest == hmac.new(KEY.encode(), f"{stamp}.".encode() + body, hashlib.sha256).hexdigest()
        assert notice["job"] in told(lab, *notice["look"].split()[1:])
        ((envelope, text),) = mail.taken
        assert envelope == ["<lab@robots.example>", "<vision@robots.example>"]
        assert "of team vision: running -> succeeded" in " ".join(text.split())

        receiver.status = 503
        later = json.loads(
            told(lab, *run, "--team", "arms", "--notify", "ended", "--json", "--", sys.executable, "-c", "")
        )
        until(lambda: receiver.tried > 1, "the receiver to be asked while it takes nothing")
        lab.down()
        receiver.status = 200
        lab.up()
        until(lambda: len(receiver.taken) > 1, "the server that was started anew to send what waited")
        lab.wait(lab.run(lab.status(later["id"]).spec).id)
        until(lambda: len(receiver.taken) > 2, "the next one")
        assert json.loads(receiver.taken[1][1])["job"] == later["id"]
        assert json.loads(receiver.taken[2][1])["job"] != later["id"]
    assert holding(lab.home.path, PATH, KEY) == []
