"""Two servers on one PostgreSQL: one leads; the other follows, serves, and takes over when it ends or is killed."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event

import pytest

from mainspring.app.base.client import Client
from mainspring.app.base.home import Config
from mainspring.app.sdk.lab import Lab, job
from mainspring.control import open_store
from mainspring.domain.answers import Submit
from mainspring.domain.errors import InvalidSpec
from mainspring.domain.life import JobState
from mainspring.testing.postgres import PostgresServer, postgres_missing
from tests.app.conftest import clusters, until


@contextmanager
def _two_labs(folder: Path, url: str) -> Iterator[tuple[Lab, Lab]]:
    first, second = Lab(folder / "first"), Lab(folder / "second")
    try:
        for lab in (first, second):
            objects = first.home.objects_url(Config())
            lab.home.write_config(Config(clusters=clusters(), database=url, objects=objects))
            if lab is second:
                for name in ("key", "token"):
                    shutil.copy(first.home.path / name, second.home.path / name)
            lab.up(port=0)
        yield first, second
    finally:
        for lab in (first, second):
            lab.down()


def _url(lab: Lab) -> str:
    record = lab.home.server()
    assert record is not None
    return record.url


@pytest.mark.slow
def test_server_killed_another_that_shares_its_store_leads_and_what_was_said_counts(
    tmp_path: Path, postgres_url: str
) -> None:
    with _two_labs(tmp_path, postgres_url) as (first, second):
        through_follower = second.run(job("by-follower", "echo followed", on=["h100"])).id
        assert first.wait(through_follower, timeout_s=60).state is JobState.SUCCEEDED
        assert [event.kind for event in second.events(through_follower)] == [
            event.kind for event in first.events(through_follower)
        ]
        assert second.fleet()[0].inventory == first.fleet()[0].inventory
        record = first.home.server()
        assert record is not None
        os.kill(record.pid, signal.SIGKILL)
        waits = second.run(job("after", "echo after", on=["h100"])).id
        assert second.wait(waits, timeout_s=60).state is JobState.SUCCEEDED
        assert second.status(through_follower).state is JobState.SUCCEEDED
        first.up()
        until(lambda: first.status(waits).state is JobState.SUCCEEDED, "the first to follow")


@pytest.mark.slow
def test_servers_restarted_in_turn_are_missed_by_nobody(tmp_path: Path, postgres_url: str) -> None:
    over = Event()
    with _two_labs(tmp_path, postgres_url) as labs, ThreadPoolExecutor(8) as threads:
        urls, token, store = [_url(lab) for lab in labs], labs[0].home.token(), open_store(postgres_url)
        labs[0].set_team("waiting", chips_max=0.0)

        def client(number: int) -> Client:
            return Client(",".join(urls[number % 2 :] + urls[: number % 2]), token)

        def submits(number: int) -> list[str]:
            made: list[str] = []
            with client(number) as one:
                while not over.is_set():
                    spec = job(f"name-{number}-{len(made)}", "true", on=["h100"], team="waiting")
                    made.append(one.submit(Submit(spec=spec)).id)
                    assert one.status(spec.name).id == made[-1]
                    assert one.ps(limit=3)
            return made

        def watches(number: int) -> list[int]:
            seen: list[int] = []
            with client(number) as one:
                for event in one.watch():
                    seen.append(event.sequence)
                    if event.detail.get("name") == "last":
                        break
            return seen

        submitting = [threads.submit(submits, number) for number in range(5)]
        watching = [threads.submit(watches, number) for number in range(3)]
        try:
            for lab in labs:
                leads = store.leader().holder
                assert lab.down()
                assert store.leader().holder != leads, "the lease is given back"
                lab.up()
        finally:
            over.set()
            made = [name for each in submitting for name in each.result()]
            labs[1].run(job("last", "true", on=["h100"], team="waiting"))
        with client(0) as one:
            assert sorted(view.id for view in one.every_job() if view.spec.name != "last") == sorted(made)
            every = [event.sequence for event in one.past_events("", since=0, limit=1)]
        assert [each.result() for each in watching] == [every[: len(each.result())] for each in watching]
        store.close()


@pytest.mark.slow
def test_database_that_fails_over_costs_no_call_and_forgets_nothing(tmp_path: Path) -> None:
    if missing := postgres_missing():
        pytest.skip(missing)
    with ExitStack() as running:
        primary, standby = PostgresServer(), PostgresServer()
        for server in (primary, standby):
            running.callback(server.stop)
        primary.start()
        name = primary.new_database().partition("?")[0].rpartition("/")[2]
        standby.follow(primary)
        labs = running.enter_context(_two_labs(tmp_path, primary.url(name, standby)))
        before = [lab.run(job(f"before-{number}", "true", on=["h100"])).id for number, lab in enumerate(labs)]
        with ThreadPoolExecutor(2) as threads:
            primary.kill()
            during = [threads.submit(lab.run, job("during", "true", on=["h100"])) for lab in labs]
            standby.promote()
            made = before + [each.result().id for each in during]
        for one in made:
            assert labs[0].wait(one, timeout_s=60).state is JobState.SUCCEEDED
        assert sorted(view.id for view in labs[1].ps()) == sorted(made)


def test_password_in_the_configuration_is_refused_and_not_shown(tmp_path: Path) -> None:
    for url in ("postgresql://ms:hunter2@db/ms", "postgresql:///ms?host=db&password=hunter2"):
        with pytest.raises(InvalidSpec, match="PGPASSFILE") as told:
            Config(database=url)
        assert "hunter2" not in str(told.value)
