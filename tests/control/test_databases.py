"""What databases promise the store: numbers that count in order, one instant, bounds, and errors in our words."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from tests.control.conftest import inventory

from mainspring.control import Step, Store, open_store
from mainspring.control.state.fleet import FleetView
from mainspring.control.store.databases.functions import whole
from mainspring.control.store.databases.owners import OwnedFile
from mainspring.control.store.records import tenants, text_of
from mainspring.control.store.schema import events, jobs, leases, teams
from mainspring.domain.answers import HealthStatus, Submit
from mainspring.domain.errors import Busy, Conflict, ImpossibleJob, InvalidInput, NotAllowed, Unavailable
from mainspring.domain.ids import ChipName, TeamName
from mainspring.domain.job import JobSpec, Option, Role
from mainspring.domain.life import JobState
from mainspring.domain.team import Team
from mainspring.testing.postgres import PostgresServer

if TYPE_CHECKING:
    from tests.control.conftest import World

WRITERS, ROUNDS = 4, 25
QUICK = "&options=-c%20lock_timeout%3D200%20-c%20idle_in_transaction_session_timeout%3D300"


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    opened = open_store(url)
    yield opened
    opened.close()


def _event(kind: str) -> dict[str, object]:
    return {"time_s": 0.0, "kind": kind, "job_id": None, "attempt_id": None, "detail": "{}"}


@pytest.mark.slow
def test_reader_that_goes_on_from_the_last_number_misses_no_event_of_many_writers(url: str, store: Store) -> None:
    """Each writer is a server of its own; every fifth transaction fails after it has drawn numbers."""
    over = Event()

    def write(writer: int) -> None:
        own = open_store(url)
        for round_ in range(ROUNDS):
            try:
                with own.write() as connection:
                    for part in range(2):
                        connection.execute(sa.insert(events), _event(f"{writer}-{round_}-{part}"))
                    assert round_ % 5
            except AssertionError:
                continue
        own.close()

    def read() -> list[str]:
        found: list[str] = []
        last, ended = 0, False
        while True:
            ended = over.is_set()
            with store.read() as connection:
                query = sa.select(events.c.sequence, events.c.kind).where(events.c.sequence > last)
                rows = connection.execute(query.order_by(events.c.sequence)).all()
            found += [row.kind for row in rows]
            last = rows[-1].sequence if rows else last
            if ended:
                return found

    with ThreadPoolExecutor(WRITERS + 1) as threads:
        reader = threads.submit(read)
        for writer in [threads.submit(write, number) for number in range(WRITERS)]:
            writer.result(100)
        over.set()
        seen = reader.result(100)
    wanted = {f"{writer}-{each}-{part}" for writer in range(WRITERS) for each in range(ROUNDS) for part in range(2)}
    assert len(seen) == len(set(seen))
    assert set(seen) == {kind for kind in wanted if int(kind.split("-")[1]) % 5}


def test_reader_sees_one_instant_whatever_is_written_meanwhile(store: Store) -> None:
    with store.read() as connection:
        assert tenants(connection) == ()
        with store.write() as other:
            other.execute(sa.insert(teams).values(name="lab", facts=text_of(Team(name=TeamName("lab")))))
        assert tenants(connection) == ()
    with store.read() as connection:
        assert [team.name for team in tenants(connection)] == ["lab"]


def test_names_are_in_the_order_of_their_bytes(store: Store) -> None:
    names = ["a-b", "a_b", "ab", "a.b", "B", "aa", "a-c", "b", "a1"]
    with store.write() as connection:
        connection.execute(sa.insert(leases), [{"name": n, "holder": n, "epoch": 0, "expires_s": 0.0} for n in names])
    with store.read() as connection:
        found = sa.select(leases.c.name).where(leases.c.holder != "").order_by(leases.c.name)
        assert connection.execute(found).scalars().all() == sorted(names)


@pytest.mark.parametrize("number", [0.0, 0.49, 0.5, 0.999, 1.5, 2.5, 480_000.75])
def test_whole_part_of_a_number_is_cut_and_not_rounded(store: Store, number: float) -> None:
    with store.write() as connection:
        row = {"name": "n", "holder": "", "epoch": 0, "expires_s": number}
        connection.execute(sa.insert(leases), row)
        found = sa.select(whole(leases.c.expires_s)).where(leases.c.name == "n")
        assert connection.execute(found).scalar_one() == int(number)


def test_file_that_another_process_has_names_it(tmp_path: Path) -> None:
    owned = OwnedFile(tmp_path / "state.db", now_s=1_700_000_000.0)
    with pytest.raises(Conflict, match=r"process \d+ on .*, which has it since 2023-11-14 22:13:20\+00:00"):
        OwnedFile(tmp_path / "state.db", now_s=0.0)
    owned.close()
    OwnedFile(tmp_path / "state.db", now_s=0.0).close()


# ---------------------------------------------------------------- PostgreSQL alone


@pytest.mark.slow
def test_transaction_that_reads_cannot_write(postgres_url: str) -> None:
    store = open_store(postgres_url)
    with pytest.raises(Unavailable, match="read-only"), store.read() as connection:
        connection.execute(sa.insert(teams).values(name="lab", facts="{}"))
    store.close()


@pytest.mark.slow
def test_writer_that_falls_silent_holds_others_up_for_a_bounded_time(postgres_url: str) -> None:
    silent, other = open_store(postgres_url + QUICK), open_store(postgres_url + QUICK)

    def fall_silent() -> None:
        with silent.write() as connection:
            connection.execute(sa.insert(teams).values(name="lost", facts="{}"))
            with pytest.raises(Unavailable, match="lock timeout"), other.write():
                pass
            Event().wait(0.5)
            with other.write() as connection_:
                connection_.execute(sa.insert(teams).values(name="kept", facts="{}"))
            connection.execute(sa.insert(teams).values(name="late", facts="{}"))

    with pytest.raises(Unavailable):
        fall_silent()
    with other.read() as connection:
        assert connection.execute(sa.select(teams.c.name)).scalars().all() == ["kept"]
    silent.close()
    other.close()


@pytest.mark.slow
def test_lost_connections_cost_what_is_under_way_and_nothing_that_comes_after(
    postgres: PostgresServer, postgres_url: str
) -> None:
    store = open_store(postgres_url)
    name = postgres_url.partition("?")[0].rpartition("/")[2]
    end = f"SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = '{name}'"

    def lose() -> None:
        with store.write() as connection:
            connection.execute(sa.insert(teams).values(name="lost", facts="{}"))
            postgres.say(end)

    with pytest.raises(Unavailable):
        lose()
    with store.write() as connection:
        connection.execute(sa.insert(teams).values(name="kept", facts="{}"))
    postgres.say(end)
    with store.read() as connection:
        assert connection.execute(sa.select(teams.c.name)).scalars().all() == ["kept"]
    store.close()


@pytest.mark.slow
def test_what_was_committed_outlives_a_kill_of_the_database(postgres_url: str) -> None:
    with PostgresServer() as own:
        url = own.new_database()
        store = open_store(url)
        with store.write() as connection:
            connection.execute(sa.insert(teams).values(name="kept", facts="{}"))
        own.kill()
        with pytest.raises(Unavailable), store.read():
            pass
        own.serve()
        with store.read() as connection:
            assert connection.execute(sa.select(teams.c.name)).scalars().all() == ["kept"]
        store.close()


@pytest.mark.slow
def test_value_that_does_not_fit_is_told_and_not_quoted(postgres_url: str) -> None:
    store = open_store(postgres_url)
    for name, facts in (("x" * 64, "hunter2"), ("nul", "hunter2\0")):
        with pytest.raises(InvalidInput) as told, store.write() as connection:
            connection.execute(sa.insert(teams).values(name=name, facts=facts))
        assert "hunter2" not in str(told.value)
    with pytest.raises(sa.exc.IntegrityError) as broken, store.write() as connection:
        connection.execute(sa.insert(jobs).values(id="job-1", spec="hunter2"))
    assert "hunter2" not in str(broken.value) + str(broken.value.orig)
    store.close()


@pytest.mark.slow
def test_commits_wait_for_the_disk_also_where_a_database_lets_them_not(
    postgres: PostgresServer, postgres_url: str
) -> None:
    name = postgres_url.partition("?")[0].rpartition("/")[2]
    postgres.say(f'ALTER DATABASE "{name}" SET synchronous_commit = off')
    postgres.say(f"ALTER DATABASE \"{name}\" SET default_transaction_isolation = 'serializable'")
    store = open_store(postgres_url)
    with store.write() as connection:
        assert connection.exec_driver_sql("SHOW synchronous_commit").scalar_one() == "on"
        assert connection.exec_driver_sql("SHOW transaction_isolation").scalar_one() == "read committed"
    with store.read() as connection:
        assert connection.exec_driver_sql("SHOW transaction_isolation").scalar_one() == "repeatable read"
    store.close()


@pytest.mark.slow
def test_lists_of_many_are_looked_up_by_plans_that_know_them(postgres_url: str) -> None:
    """Of a plan that was made before, each row would be compared with each of them."""
    store = open_store(postgres_url)
    keys = [f"key-{at}" for at in range(500)]
    made = sa.select(jobs.c.id).where(jobs.c.team == "vision", jobs.c.submit_key.in_(keys))
    with store.write() as connection:
        for _ in range(20):
            assert not connection.execute(made).all()
        plans = "SELECT sum(generic_plans), sum(custom_plans) FROM pg_prepared_statements WHERE statement LIKE %s"
        kept, anew = connection.exec_driver_sql(plans, ("%submit_key IN%",)).one()
        assert (kept, anew > 0) == (0, True)
    store.close()


@pytest.mark.slow
def test_database_that_cannot_serve_is_told_in_our_words(postgres: PostgresServer) -> None:
    postgres.say("CREATE DATABASE ascii TEMPLATE template0 ENCODING SQL_ASCII LOCALE_PROVIDER libc LOCALE 'C'")
    with pytest.raises(InvalidInput, match="UTF8"):
        open_store(postgres.url("ascii"))
    with pytest.raises(Unavailable, match='database "nowhere" does not exist'):
        open_store(postgres.url("nowhere"))
    with pytest.raises(Unavailable):
        open_store("postgresql:///any?host=/nonexistent")
    with pytest.raises(InvalidInput, match="hosts and ports"):
        open_store("postgresql:///any?host=a,b,c&port=1,2")
    postgres.say("CREATE ROLE stranger LOGIN")
    with pytest.raises(NotAllowed, match="permission denied"):
        open_store(postgres.url("postgres").replace("mainspring@", "stranger@"))
    postgres.say("DROP DATABASE ascii")


@pytest.mark.slow
def test_controller_that_follows_knows_the_fleet_and_takes_over_when_the_leader_is_silent(
    postgres_url: str, tmp_path: Path, world_type: type[World]
) -> None:
    leader, follower = (world_type(tmp_path, url=postgres_url) for _ in range(2))
    follower.clock, follower.clusters = leader.clock, leader.clusters
    follower.starts = 5
    follower.restart()
    leader.tick()
    assert follower.loop.tick() is Step.FOLLOWING
    assert follower.control.clusters() == leader.control.clusters()
    follower.control.pulse.stepped(Step.FOLLOWING)
    assert follower.control.health().status is HealthStatus.OK
    huge = Option(chip=ChipName("gpu"), replicas=1_000)
    with pytest.raises(ImpossibleJob):
        follower.control.submit(Submit(spec=JobSpec(name="huge", roles=(Role(command=("x",), options=(huge,)),))))
    job = follower.submit()
    leader.tick()
    assert follower.job(job).state is JobState.STARTING
    leader.west.inner.answering = False
    leader.tick()
    follower.loop.tick()
    assert [one.answering for one in follower.control.clusters()] == [True, False]
    leader.west.inner.answering = True
    again = follower.submit()
    stopped = leader.loop.steps()
    assert next(stopped) is Step.LEADING
    leader.clock.advance(leader.control.settings.leader_lease_s + 1.0)
    follower.loop.tick()
    assert follower.job(again).state is JobState.STARTING
    with pytest.raises(Conflict, match="write as the leader"):
        list(stopped)
    for one in (leader, follower):
        one.control.store.close()


@pytest.mark.slow
def test_lead_is_kept_through_a_step_of_any_length_and_is_not_taken_back(
    postgres_url: str, tmp_path: Path, world_type: type[World]
) -> None:
    leader, follower = (world_type(tmp_path, url=postgres_url) for _ in range(2))
    follower.clock, follower.clusters = leader.clock, leader.clusters
    follower.starts = 5
    follower.restart()
    step = leader.loop.steps()
    assert next(step) is Step.LEADING
    lease_s = leader.control.settings.leader_lease_s
    with leader.control.store.write():  # Nor does it wait for those who write.
        for _ in range(8):
            leader.clock.advance(0.3 * lease_s)
            leader.loop.keep_lead()
    assert follower.loop.tick() is Step.FOLLOWING
    leader.clock.advance(1.1 * lease_s)
    leader.loop.keep_lead()
    assert follower.loop.tick() is Step.RECORDED
    taken = follower.control.store.leader()
    leader.loop.keep_lead()
    assert follower.control.store.leader() == taken
    with pytest.raises(Conflict, match="write as the leader"):
        list(step)
    for one in (leader, follower):
        one.control.store.close()


@pytest.mark.slow
def test_server_that_keeps_a_connection_and_says_nothing_is_given_up(postgres_url: str) -> None:
    store = open_store(postgres_url)

    def wait() -> None:
        with store.read() as connection:
            connection.connection.driver_connection.silence_s = 0.2  # type: ignore[union-attr]
            connection.execute(sa.text("SELECT pg_sleep(60)"))

    with pytest.raises(Busy, match="says nothing"):
        wait()
    with store.write() as connection:
        connection.execute(sa.insert(teams).values(name="kept", facts="{}"))
    store.close()


@pytest.mark.slow
def test_server_that_takes_no_writes_any_more_is_left(postgres_url: str) -> None:
    store = open_store(postgres_url)
    with store.engine.begin() as connection:
        connection.execute(sa.text("SET default_transaction_read_only = on"))  # As one that was made a standby.
    with pytest.raises(Busy, match="read-only"), store.write():
        pass
    with store.write() as connection:
        connection.execute(sa.insert(teams).values(name="kept", facts="{}"))
    store.close()


@pytest.mark.slow
def test_servers_of_one_store_must_have_one_key(postgres_url: str) -> None:
    store = open_store(postgres_url)
    for key in ("first", "first"):
        store.agree("key", key)
    with pytest.raises(Conflict, match="copy the file"):
        store.agree("key", "second")
    store.close()


@pytest.mark.slow
def test_follower_reads_an_inventory_once_until_it_changes(postgres_url: str) -> None:
    store, leads, follows = open_store(postgres_url), FleetView(), FleetView()
    for nodes in (1, 1, 2):
        leads.answered(inventory("east", nodes=nodes, chips=1, dollars=1.0), now_s=float(nodes))
        with store.write() as connection:
            leads.keep(connection, float(nodes))
        with store.read() as connection:
            follows.follow(connection)
        assert follows.seen() == leads.seen()
    assert follows.version == 2
    store.close()
