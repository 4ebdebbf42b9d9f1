"""Pages over HTTP, as any browser asks for them: who is let in, what answers forbid, what forms do, what comes out."""

from __future__ import annotations

import csv
import io
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import parse_qs, quote, urlsplit

import httpx
import pytest

from mainspring.app.base.calls import PAGES
from mainspring.app.sdk.lab import Lab, job
from mainspring.app.sdk.policies.services import replica_spec
from mainspring.domain.answers import NewScale, NewService, NewToken
from mainspring.domain.ids import TeamName
from mainspring.domain.life import JobState
from mainspring.domain.team import TeamRole
from tests.app.conftest import until

HOSTILE = "<img src=x onerror=alert(1)>\"'&\x1b[31m\u202e</script><script>alert(2)</script>"
SHOWN = "&lt;img src=x onerror=alert(1)&gt;"


@contextmanager
def browser(lab: Lab, token: str | None = None) -> Iterator[httpx.Client]:
    """A browser that was let in by a code, of somebody, or of the home's administrator."""
    url = lab.client().servers.url
    with httpx.Client(base_url=url, follow_redirects=False) as client:
        shown = {"Authorization": f"Bearer {token or lab.home.token()}"}
        code = client.post(f"{PAGES}/code", headers=shown).json()["code"]
        assert client.get(f"{PAGES}/enter", params={"code": code}).status_code == 303
        yield client


def csrf_in(page: str) -> str:
    found = re.search(r'name="csrf" value="(\w+)"', page)
    assert found
    return found[1]


def long_job(lab: Lab, name: str) -> str:
    return lab.run(job(name, ["sleep", "600"], on=["h100"])).id


def test_browser_without_a_token_is_sent_to_sign_in_and_back(shared_lab: Lab) -> None:
    with httpx.Client(base_url=shared_lab.client().servers.url) as client:
        sent = client.get(f"{PAGES}/jobs/some-job?a=b")
        where = urlsplit(sent.headers["location"])
        assert (sent.status_code, where.path) == (303, f"{PAGES}/in")
        assert parse_qs(where.query)["next"] == [f"{PAGES}/jobs/some-job?a=b"]
        wrong = client.post(f"{PAGES}/in", data={"token": "nobody's", "next": f"{PAGES}/"})
        assert (wrong.status_code, "set-cookie" in wrong.headers) == (401, False)
        right = client.post(f"{PAGES}/in", data={"token": shared_lab.home.token(), "next": "//elsewhere.example/"})
        assert right.headers["location"] == f"{PAGES}/"
        kept = right.headers["set-cookie"].lower()
        assert "httponly" in kept
        assert "samesite=strict" in kept


def test_address_that_lets_in_does_so_once_and_holds_no_token(shared_lab: Lab) -> None:
    address = shared_lab.page("/jobs/x")
    assert shared_lab.home.token() not in address
    with httpx.Client() as client:
        elsewhere = client.get(address, headers={"Sec-Fetch-Site": "cross-site"})
        assert (elsewhere.status_code, "set-cookie" in elsewhere.headers) == (403, False)
        assert client.get(address).headers["location"] == f"{PAGES}/jobs/x"
        assert client.get(address).status_code == 401


def test_codes_are_made_for_tokens_that_are_good_alone(shared_lab: Lab) -> None:
    url = f"{shared_lab.client().servers.url}{PAGES}/code"
    assert httpx.post(url).status_code == 401
    assert httpx.post(url, headers={"Authorization": "Bearer nobody's"}).status_code == 401
    assert httpx.post(url, cookies={"mainspring": shared_lab.home.token()}).status_code == 401


@pytest.mark.parametrize(
    "path", ["/in", "/nowhere", "/jobs/none-such", "/static/page.js", "/api/v1/whoami", "/enter?code=x"]
)
def test_every_answer_keeps_browsers_from_running_or_loading_anything_else(shared_lab: Lab, path: str) -> None:
    with browser(shared_lab) as client:
        answer = client.get(PAGES + path)
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert "http" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_nothing_that_people_or_jobs_wrote_becomes_markup(shared_lab: Lab) -> None:
    program = f"import sys; sys.stderr.write({HOSTILE!r}); print({HOSTILE!r}); raise SystemExit({HOSTILE!r})"
    failed = shared_lab.run(
        job("hostile", [sys.executable, "-c", program], on=["h100"], restarts_max=0, attempts_max=1)
    )
    until(lambda: shared_lab.status(failed.id).state is JobState.FAILED, "the job to fail")
    with browser(shared_lab) as client:
        page = client.get(f"{PAGES}/jobs/{failed.id}", params={"done": HOSTILE, "attempt": HOSTILE})
        lost = client.get(f"{PAGES}/jobs/{quote(HOSTILE, safe='')}")
        written = client.get(f"{PAGES}/api/v1/jobs/{failed.id}/logs")
    assert SHOWN in page.text
    for html in (page.text, lost.text):
        assert "<img" not in html
        assert "\u202e" not in html
        assert not re.search(r"<script(?! src=| type=\"application/json\")|<style|\sstyle=|\son\w+=\"", html)
    assert b"<img" in written.content
    assert written.headers["content-security-policy"] == "default-src 'none'; sandbox"
    assert written.headers["content-type"] == "application/octet-stream"


def test_forms_of_others_do_nothing_and_ours_stop_a_job_with_a_reason(shared_lab: Lab) -> None:
    running = long_job(shared_lab, "to-stop")
    where = f"{PAGES}/jobs/{running}/stop"
    with browser(shared_lab) as client:
        right = {"csrf": csrf_in(client.get(f"{PAGES}/jobs/{running}").text), "reason": "enough =1"}
        refused = [
            client.post(where, data={"reason": "x"}),
            client.post(where, data=right | {"csrf": "0" * 64}),
            client.post(where, data=right, headers={"Sec-Fetch-Site": "cross-site"}),
            client.post(where, data=right, headers={"Origin": "https://elsewhere.example"}),
            client.post(where, data=right | {"reason": " "}),
            client.post(where.replace("/stop", "/explode"), data=right),
            client.post(where, content=b"x" * 100_000),
        ]
        assert [answer.status_code for answer in refused] == [403, 403, 403, 403, 400, 400, 400]
        assert shared_lab.status(running).state not in (JobState.STOPPING, JobState.CANCELLED)
        assert client.post(where, data=right).status_code == 303
    until(lambda: shared_lab.status(running).state is JobState.CANCELLED, "the job to stop")
    assert "enough =1" in shared_lab.status(running).reason
    assert any(line.action == "stop a job" and "enough =1" in line.target for line in shared_lab.audit(newest=True))


def test_tables_come_out_as_json_and_as_csv_in_which_nothing_is_computed(shared_lab: Lab) -> None:
    running = long_job(shared_lab, "exported")
    shared_lab.stop(running, reason="over")
    with browser(shared_lab) as client:
        as_json = client.get(f"{PAGES}/jobs/{running}?export=events.json").json()
        as_csv = list(csv.DictReader(io.StringIO(client.get(f"{PAGES}/jobs/{running}?export=events.csv").text)))
        assert client.get(f"{PAGES}/jobs/{running}?export=nothing.csv").status_code == 400
        assert client.get(f"{PAGES}/jobs/{running}?export=events.exe").status_code == 400
    assert [row["kind"] for row in as_json] == [row["kind"] for row in as_csv]
    assert as_json[-1]["kind"] == "job_submitted"


def test_pages_show_what_the_api_lets_their_reader_know_and_offer_what_they_may(shared_lab: Lab) -> None:
    shared_lab.set_team("secretive")
    running = long_job(shared_lab, "not-theirs")
    theirs = NewToken(holder="eve", team=TeamName("secretive"), role=TeamRole.VIEWER)
    above = NewToken(holder="vera", team=TeamName("lab"), role=TeamRole.VIEWER)
    with browser(shared_lab, shared_lab.new_token(theirs).secret) as client:
        assert client.get(f"{PAGES}/jobs/{running}").status_code == 404
        assert client.get(f"{PAGES}/api/v1/jobs/{running}").status_code == 404
    with browser(shared_lab, shared_lab.new_token(above).secret) as client:
        page = client.get(f"{PAGES}/jobs/{running}").text
        assert "data-dialog" not in page
        refused = client.post(f"{PAGES}/jobs/{running}/stop", data={"csrf": csrf_in(page), "reason": "mine"})
        assert refused.status_code == 403
    shared_lab.stop(running)


def test_browsers_read_the_api_and_write_nothing_by_their_cookie(shared_lab: Lab) -> None:
    with browser(shared_lab) as client:
        assert client.get(f"{PAGES}/api/v1/whoami").json()["role"] == "admin"
        assert client.post(f"{PAGES}/api/v1/sweep").status_code == 403
        assert client.get(f"{PAGES}/api/metrics").status_code == 403
        assert client.get(f"{PAGES}/api/v1/whoami", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
        assert client.get("/v1/whoami").status_code == 401
        assert client.get("/").headers["location"] == f"{PAGES}/"


def test_who_signs_out_is_forgotten(shared_lab: Lab) -> None:
    running = long_job(shared_lab, "left")
    with browser(shared_lab) as client:
        page = client.get(f"{PAGES}/jobs/{running}").text
        assert client.post(f"{PAGES}/out", data={"csrf": csrf_in(page)}).status_code == 303
        assert client.get(f"{PAGES}/jobs/{running}").headers["location"].startswith(f"{PAGES}/in")
    shared_lab.stop(running)


def test_services_have_a_page_with_their_address_and_replicas(shared_lab: Lab) -> None:
    spec = replica_spec(shared_lab, "pick:act", name="shown", on=["h100"])
    address = shared_lab.serve(NewService(spec=spec, scale=NewScale(replicas=1))).address
    try:
        until(lambda: bool(shared_lab.service("shown").members), "a replica")
        (replica, *_) = shared_lab.service("shown").members
        with browser(shared_lab) as client:
            every, one = client.get(f"{PAGES}/services").text, client.get(f"{PAGES}/services/shown").text
            rows = client.get(f"{PAGES}/services", params={"export": "services.json"})
            assert client.get(f"{PAGES}/services/none-such").status_code == 404
        assert f'href="{PAGES}/services/shown"' in every
        assert rows.status_code == 200
        assert address in one
        assert replica.job in one
    finally:
        shared_lab.stop_service("shown")
