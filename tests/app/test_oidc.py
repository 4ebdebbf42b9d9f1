"""Logging in by a provider of identities, Dex: in a browser, on a device, again, and no more."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from mainspring.app.base.client import Client
from mainspring.app.base.home import Config, LoginRecord
from mainspring.app.sdk.lab import Lab, job
from mainspring.domain.answers import Login, Person
from mainspring.domain.codec import decode
from mainspring.domain.errors import NotAllowed, Unavailable
from mainspring.domain.ids import TeamName
from mainspring.domain.life import JobState
from mainspring.domain.team import GroupRole, Oidc, TeamRole
from tests.app.conftest import clusters, until
from tests.app.provider import NO_DEX, Provider, walk

HOURS = 2.0
VLA, ARMS = TeamName("vla"), TeamName("arms")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(NO_DEX), reason=NO_DEX)]


@pytest.fixture(scope="module")
def dex(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Provider]:
    with Provider(tmp_path_factory.mktemp("dex")) as provider:
        yield provider


@pytest.fixture(scope="module")
def lab(dex: Provider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """The server, and whoever administers it."""
    made = Lab(tmp_path_factory.mktemp("lab") / "home")
    oidc = Oidc(
        issuer=dex.issuer,
        client_id="mainspring",
        hours=HOURS,
        roles=(
            GroupRole(group="leads", team=VLA, role=TeamRole.ADMIN),
            GroupRole(group="vla", team=VLA),
            GroupRole(group="arms", team=ARMS, role=TeamRole.VIEWER),
        ),
    )
    made.home.write_config(Config(clusters=clusters(), oidc=oidc, shared_account=True))
    made.up(port=0)
    for team in (VLA, ARMS):
        made.set_team(team)
    yield made
    made.down()


@pytest.fixture
def mine(tmp_path: Path) -> Lab:
    """Somebody's own machine."""
    return Lab(tmp_path / "mine")


def url_of(lab: Lab) -> str:
    record = lab.home.server()
    assert record is not None
    return record.url


def log_in(lab: Lab, mine: Lab, name: str, *words: str) -> tuple[int, str, str]:
    """Runs `ms login`, and does with a browser what it asks for; returns its status and what it said."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("MAINSPRING_") and name not in ("DISPLAY", "WAYLAND_DISPLAY")
    }
    with subprocess.Popen(
        [Path(sys.executable).with_name("ms"), "--home", mine.home.path, "login", url_of(lab), "--json", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        assert process.stderr is not None
        said = ""
        while not (found := re.search(r"^(http://\S+)\n", said, re.MULTILINE)) and (line := process.stderr.readline()):
            said += line
        try:
            page = walk(found[1], name) if found else ""
        except Exception:
            process.kill()
            raise
        out, rest = process.communicate(timeout=60)
    return process.returncode, out or said + rest, page


def login_of(mine: Lab) -> LoginRecord:
    login = mine.home.login()
    assert login is not None
    return login


def age(mine: Lab, *, ended: bool = False) -> None:
    """Lets a login be due for renewal, or have ended, by its own machine's clock."""
    login = login_of(mine)
    assert login.renewal is not None
    ends_s = 0.0 if ended else login.renewal.ends_s
    mine.home.write_login(replace(login, renewal=replace(login.renewal, due_s=0.0, ends_s=ends_s)))


def test_a_person_logs_in_with_a_browser_and_is_what_their_groups_say(lab: Lab, mine: Lab, dex: Provider) -> None:
    dex.people(ada=["arms", "vla", "leads"])
    status, out, page = log_in(lab, mine, "ada", "--browser")
    assert status == 0, out
    assert "You are back" in page
    person = decode(Person, out.encode())
    assert (person.holder, person.team, person.role) == ("ada@example.org", VLA, TeamRole.ADMIN), "the first listed"
    assert (mine.home.path / "login.json").stat().st_mode & 0o777 == 0o600
    view = mine.run(job("hers", "true", team=VLA, on=["h100"]))
    assert [one.id for one in lab.ps(owner="ada@example.org")] == [view.id]
    (token,) = [token for token in lab.tokens() if token.holder == "ada@example.org"]
    assert token.maker == "OIDC"
    assert token.expires_s == pytest.approx(token.made_s + HOURS * 3_600)
    assert [line.action for line in lab.audit() if line.holder == "ada@example.org"] == ["log in", "submit a job"]
    secrets = [
        login_of(mine).token,
        json.loads((mine.home.path / "login.json").read_text())["renewal"]["refresh_token"],
    ]
    assert not [secret for secret in secrets if secret in lab.home.log.read_text() or secret in out]
    status, out, _ = log_in(lab, mine, "ada", "--browser", "--team", "arms")
    assert (status, decode(Person, out.encode()).role) == (0, TeamRole.VIEWER), "the one asked for"


def test_a_person_logs_in_on_another_device_where_there_is_no_display(lab: Lab, mine: Lab, dex: Provider) -> None:
    dex.people(bo=["vla"])
    status, out, page = log_in(lab, mine, "bo")
    assert (status, "Login Successful" in page) == (0, True), out
    assert (mine.whoami().holder, mine.whoami().role) == ("bo@example.org", TeamRole.MEMBER)


def test_who_is_in_no_group_of_the_lab_is_told_so_and_kept_out(lab: Lab, mine: Lab, dex: Provider) -> None:
    dex.people(eve=["cooks"])
    status, out, _ = log_in(lab, mine, "eve", "--browser")
    assert status == NotAllowed.exit_code
    assert "theirs: cooks" in out
    assert mine.home.login() is None
    (line,) = [line for line in lab.audit() if line.holder == "eve@example.org"]
    assert (line.action, line.outcome) == ("log in", "refused")


def test_a_login_is_renewed_by_itself_with_a_new_key_and_the_groups_of_then(lab: Lab, mine: Lab, dex: Provider) -> None:
    dex.people(cy=["vla"])
    assert log_in(lab, mine, "cy", "--browser")[0] == 0
    first, known = login_of(mine), dex.keys()
    age(mine)
    with mine.client() as client, mine.client() as other:
        dex.people(cy=["leads"])
        dex.rotate()
        assert set(dex.keys()) > set(known)
        until(lambda: client.whoami().role is TeamRole.ADMIN, "the keys to be asked for again", wait_s=20)
        second = login_of(mine)
        assert second.token != first.token
        assert first.renewal is not None
        assert second.renewal is not None
        assert second.renewal.refresh_token != first.renewal.refresh_token, "Dex takes each once"
        assert other.whoami().role is TeamRole.ADMIN
        assert login_of(mine) == second, "who came later takes what the first one got"


def test_who_leaves_is_out_when_their_login_ends_and_their_jobs_go_on(lab: Lab, mine: Lab, dex: Provider) -> None:
    dex.people(di=["vla"])
    assert log_in(lab, mine, "di", "--browser")[0] == 0
    view = mine.run(job("lasting", ["sleep", "600"], team=VLA, on=["h100"]))
    until(lambda: lab.status(view.id).state is JobState.RUNNING, "the job to run")
    dex.people()
    age(mine)
    assert mine.whoami().holder == "di@example.org", "until it ends"
    age(mine, ended=True)
    # Dex answers with status 500 for who is gone; others refuse.
    with pytest.raises((NotAllowed, Unavailable), match=f"stay logged in.*ms login {url_of(lab)}"):
        mine.whoami()
    assert lab.status(view.id).state is JobState.RUNNING
    lab.stop(view.id)


def test_who_is_blocked_is_out_at_once_and_stays_out(lab: Lab, mine: Lab, dex: Provider) -> None:
    dex.people(flo=["arms"], gus=["leads"])
    assert log_in(lab, mine, "flo", "--browser")[0] == 0
    lab.block("arms", "flo@example.org")
    with pytest.raises(NotAllowed, match="nobody holds"):
        mine.whoami()
    age(mine)
    with pytest.raises(NotAllowed, match="nobody holds"):
        mine.whoami()
    status, out, _ = log_in(lab, mine, "flo", "--browser")
    assert (status, "blocked in team arms" in out) == (NotAllowed.exit_code, True)
    lab.unblock("arms", "flo@example.org")
    assert log_in(lab, mine, "flo", "--browser")[0] == 0


def test_tokens_of_the_provider_that_are_not_for_the_lab_or_were_changed_open_nothing(lab: Lab, dex: Provider) -> None:
    dex.people(hal=["vla"])
    good, other = dex.granted("hal"), dex.granted("hal", client="another")
    head, body, signature = good.split(".")
    with Client(url_of(lab), "") as client:
        for bad in (other, f"{head}.{other.split('.')[1]}.{signature}", f"{head}.{body}.", "x", ""):
            with pytest.raises(NotAllowed, match="accept an ID token"):
                client.log_in(Login(id_token=bad))
        made = client.log_in(Login(id_token=good))
        with pytest.raises(NotAllowed, match="of another login"):
            client.log_in(Login(id_token=good, nonce="mine"))
    with pytest.raises(NotAllowed), Client(url_of(lab), good) as client:
        client.whoami()
    assert made.token.holder == "hal@example.org"


def test_strangers_send_no_more_than_an_id_token_may_have(lab: Lab) -> None:
    answer = httpx.post(f"{url_of(lab)}/v1/login", content=b" " * 100_000)
    assert answer.status_code == 413
    assert "at most 32768" in answer.text
