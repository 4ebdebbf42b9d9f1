"""The store: its shape, its lease, its errors."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Event

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateTable

from mainspring import control
from mainspring.control import Store, open_store
from mainspring.control.service.views import view_job
from mainspring.control.state.history import usage
from mainspring.control.store.holdings import grants, parts
from mainspring.control.store.records import jobs_by_id, specs, tenants, text_of
from mainspring.control.store.schema import allocations, leases, metadata, teams
from mainspring.control.store.store import Together
from mainspring.control.store.tallies import Tally, tallies_of_teams, tally_of_person
from mainspring.domain.errors import Conflict, DamagedData, InvalidInput, NotFound, StorageFull, Unavailable
from mainspring.domain.ids import AllocationId, AttemptId, ChipName, ClusterName, JobId, NodeName
from mainspring.domain.job import LAB, MAIN, JobSpec, Option, Role
from mainspring.domain.plan import Grant
from mainspring.domain.team import Team


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(f"sqlite:///{tmp_path / 'store.db'}")


def test_migrations_build_the_tables_that_the_schema_names(store: Store) -> None:
    with store.read() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []


def _at(url: str, revision: str, rows: list[tuple[str, dict[str, object]]]) -> None:
    """Makes a store of an older shape."""
    engine = sa.create_engine(url)
    config = Config()
    config.set_main_option("script_location", str(Path(control.__file__).parent / "store" / "migrations"))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
        for table, row in rows:
            connection.execute(sa.insert(sa.table(table, *map(sa.column, row))).values(row))
    engine.dispose()


def test_store_of_the_first_shape_keeps_its_jobs_attempts_and_teams(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    spec = JobSpec(name="old", roles=(Role(command=("x",), options=(Option(chip=ChipName("h100"), chips=2.0),)),))
    grant = Grant(
        role=MAIN,
        option=0,
        cluster=ClusterName("east"),
        nodes=(NodeName("n0"),),
        chip_milli=(2_000,),
        ranks=(1,),
    )
    job = {"id": "job-1", "name": "old", "team": "lab", "state": "succeeded", "submitted_s": 1.0, "reason": ""}
    told = {"step": -1, "metrics": "{}", "result": "{}", "spec": text_of(spec)}
    attempt = {"id": "attempt-1", "job_id": "job-1", "number": 1, "state": "succeeded", "cluster": "east"}
    facts = {"simulated": True, "plan": 1, "dollars_per_hour": 6.0, "granted_s": 10.0, "ended_s": 110.0}
    rest = {"stop_cause": "outcome", "reason": "", "generation": 1, "step": 3, "ranks": "[]", "events_seen": 0}
    gone = {"state": "gone", "launched_s": 11.0}
    rows: list[tuple[str, dict[str, object]]] = [
        ("jobs", job | told),
        ("attempts", attempt | facts | rest | {"grants": text_of((grant,))}),
        ("allocations", {"id": "allocation-1", "attempt_id": "attempt-1", "place": 0, "cluster": "east"} | gone),
        ("teams", {"name": "lab", "parent": None, "chip_milli_max": 1_500}),
    ]
    _at(url, "0001", rows)
    with open_store(url).read() as connection:
        assert tenants(connection) == (Team(name=LAB, chips_max=1.5),)
        assert parts(connection, [AllocationId("allocation-1")]) == {"allocation-1": grant}
        assert grants(connection, [AttemptId("attempt-1")]) == {"attempt-1": (grant,)}
        assert connection.execute(sa.select(allocations.c.chips)).scalars().all() == ['{"h100": 2000}']
        (job_,) = jobs_by_id(connection, [JobId("job-1")]).values()
        assert view_job(connection, job_, now_s=1e9, lease_s=15.0).attempts[0].dollars == pytest.approx(
            6.0 * 100 / 3600
        )
        assert specs(connection, [JobId("job-1")]) == {"job-1": spec}
        assert usage(connection, now_s=110.0)[LAB] == pytest.approx(200.0, rel=0.01)


def test_store_of_before_tallies_counts_the_jobs_that_have_not_ended(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    job = {"name": "old", "team": "lab", "submitted_s": 1.0, "reason": "", "step": -1, "metrics": "{}", "result": "{}"}
    live = [job | {"id": f"job-{at}", "state": state, "owner": owner} for at, (state, owner) in enumerate(_TALLIED)]
    _at(url, "0010", [("jobs", each | {"spec": "spec"}) for each in live])
    with open_store(url).read() as connection:
        assert tally_of_person(connection, "ada") == Tally(jobs=2, letters=8)
        assert tallies_of_teams(connection) == {LAB: Tally(jobs=3, letters=12)}


_TALLIED = [("queued", "ada"), ("stopping", "ada"), ("running", ""), ("failed", "ada"), ("cancelled", "bo")]


def _grant(*nodes: str, ranks: int = 1) -> Grant:
    count = len(nodes)
    return Grant(
        role=MAIN,
        option=0,
        cluster=ClusterName("east"),
        nodes=tuple(map(NodeName, nodes)),
        chip_milli=(1_000 * ranks,) * count,
        ranks=(ranks,) * count,
    )


def test_store_with_grants_of_attempts_is_read_as_having_the_same(tmp_path: Path) -> None:
    """Live ones, one that shrank, one that came back to a node it gave up, one that ended with all it held."""
    held = {
        "live": _grant("a", "b"),
        "shrunk": _grant("a"),
        "again": _grant("a", "b"),
        "over": _grant("a", "b"),
        "twice": _grant("a", ranks=2),
    }
    parts_of: dict[str, list[tuple[Grant, str]]] = {
        "live": [(_grant("a"), "launched"), (_grant("b"), "granted")],
        "shrunk": [(_grant("a"), "launched"), (_grant("b"), "gone")],
        "again": [(_grant("a"), "launched"), (_grant("b"), "gone"), (_grant("b"), "launched")],
        "over": [(_grant("a"), "gone"), (_grant("c"), "gone"), (_grant("b"), "gone")],
        "twice": [(_grant("a"), "gone"), (_grant("a"), "gone")],
    }
    job = {"id": "job-1", "name": "old", "team": "lab", "state": "running", "submitted_s": 1.0, "reason": ""}
    rows: list[tuple[str, dict[str, object]]] = [
        ("jobs", {**job, "step": -1, "metrics": "{}", "result": "{}", "spec": "{}"})
    ]
    facts = {"state": "running", "cluster": "east", "simulated": True, "plan": 1, "granted_s": 1.0, "stop_cause": ""}
    rest = {"reason": "", "generation": 1, "step": 3, "ranks": "[]", "events_seen": 0}
    for number, (name, grant) in enumerate(held.items()):
        own = {"id": name, "job_id": "job-1", "number": number, "grants": text_of((grant,))}
        rows.append(("attempts", {**facts, **rest, **own}))
        for place, (part, state) in enumerate(parts_of[name]):
            which = {"id": f"{name}-{place}", "attempt_id": name, "place": place, "cluster": "east", "state": state}
            rows.append(("allocations", {**which, "part": text_of(part), "nodes": 1}))
    url = f"sqlite:///{tmp_path / 'store.db'}"
    _at(url, "0005", rows)
    with open_store(url).read() as connection:
        assert grants(connection, map(AttemptId, held)) == {name: (grant,) for name, grant in held.items()}
        released = sa.select(allocations.c.id).where(allocations.c.released).order_by(allocations.c.id)
        assert list(connection.execute(released).scalars()) == ["again-1", "over-1", "shrunk-1"]


def test_schema_says_nothing_particular_to_one_database() -> None:
    for table in metadata.sorted_tables:
        assert "CREATE TABLE" in str(CreateTable(table).compile(dialect=postgresql.dialect()))  # type: ignore[no-untyped-call]


def test_store_opened_again_keeps_what_was_written(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'deep' / 'store.db'}"
    first = open_store(url)
    with first.write() as connection:
        connection.execute(sa.insert(teams).values(name="lab", facts="{}"))
    first.close()
    with open_store(url).read() as connection:
        assert connection.execute(sa.select(teams.c.name)).scalars().all() == ["lab"]


def test_write_that_fails_writes_nothing(store: Store) -> None:
    def write_and_fail() -> None:
        with store.write() as connection:
            connection.execute(sa.insert(teams).values(name="lab", facts="{}"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_and_fail()
    with store.read() as connection:
        assert connection.execute(sa.select(teams.c.name)).all() == []


def test_lease_is_one_holders_until_it_expires(store: Store) -> None:
    first = store.lead("first", now_s=100.0, lease_s=10.0)
    assert store.lead("second", now_s=109.0, lease_s=10.0) == first
    assert store.lead("first", now_s=109.0, lease_s=10.0).expires_s == 119.0
    second = store.lead("second", now_s=120.0, lease_s=10.0)
    assert second.holder == "second"
    assert second.epoch == first.epoch + 1
    with pytest.raises(Conflict, match="second"), store.write(first):
        pass
    with store.write(second):
        pass
    store.resign(first)
    assert store.leader().holder == "second"
    store.resign(second)
    assert store.lead("first", now_s=121.0, lease_s=10.0).holder == "first"


def test_lease_that_somebody_knows_to_be_stale_is_over_unless_it_was_renewed(store: Store) -> None:
    stale = store.lead("first", now_s=9_000.0, lease_s=10.0)
    assert store.lead("second", now_s=0.0, lease_s=10.0) == stale
    renewed = store.lead("first", now_s=9_001.0, lease_s=10.0)
    assert store.lead("second", now_s=0.0, lease_s=10.0, stale=stale) == renewed
    assert store.lead("second", now_s=0.0, lease_s=10.0, stale=renewed).holder == "second"


def test_lease_regained_after_another_led_is_a_new_one(store: Store) -> None:
    old = store.lead("first", now_s=0.0, lease_s=1.0)
    store.lead("second", now_s=2.0, lease_s=1.0)
    store.lead("first", now_s=4.0, lease_s=1.0)
    with pytest.raises(Conflict), store.write(old):
        pass


def test_store_is_for_its_owner_alone(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'store.db'}")
    with store.write() as connection:
        connection.execute(sa.insert(teams).values(name="lab", facts="{}"))
        modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert set(modes.values()) == {0o600}, modes


def test_errors_of_the_store_quote_no_secret(store: Store) -> None:
    def write_twice() -> None:
        with store.write() as connection:
            for _ in range(2):
                connection.execute(sa.insert(teams).values(name="hunter2", facts="{}"))

    with pytest.raises(sa.exc.IntegrityError) as told:
        write_twice()
    assert "hunter2" not in str(told.value)
    with pytest.raises(InvalidInput) as refused:
        open_store("postgresql+psycopg://ada:hunter2@host:port:1/db")
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "no url at all"])
def test_stores_that_no_restart_would_find_again_are_refused(url: str) -> None:
    with pytest.raises(InvalidInput):
        open_store(url)


def test_file_that_is_no_database_is_told_as_damaged(tmp_path: Path) -> None:
    (tmp_path / "store.db").write_bytes(b"not a database" * 1_000)
    with pytest.raises(DamagedData, match="not a database"):
        open_store(f"sqlite:///{tmp_path / 'store.db'}")


def test_full_disk_is_told_as_such_and_writes_nothing(store: Store) -> None:
    with store.read() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()

    def write_too_much() -> None:
        with store.write() as connection:
            connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
            connection.execute(
                sa.insert(teams), [{"name": f"team-{index}-{'x' * 40}", "facts": "{}"} for index in range(10_000)]
            )

    with pytest.raises(StorageFull, match="full"):
        write_too_much()
    with store.read() as connection:
        assert connection.execute(sa.select(teams.c.name)).all() == []


def _write_pieces(connection: sa.Connection, numbers: Sequence[int]) -> list[str]:
    for number in numbers:
        connection.execute(sa.insert(leases), _lease(f"piece-{number}"))
        if number % 2:
            raise NotFound("write a piece", got=str(number))
    return [f"of {len(numbers)}" for _ in numbers]


def test_pieces_written_together_are_each_whole_or_not_at_all(store: Store) -> None:
    """Half of them fail after they wrote; all come while another transaction keeps them waiting."""
    begun, entered = Barrier(9), Barrier(2)
    together: Together[int, str] = Together(store, _write_pieces)

    def piece(number: int) -> str:
        begun.wait(10)
        return together.ask(number)

    def hold() -> None:
        with store.write():
            entered.wait(10)
            begun.wait(10)

    with ThreadPoolExecutor(9) as threads:
        threads.submit(hold)
        entered.wait(10)
        done = [threads.submit(piece, number) for number in range(8)]
        for number, one in enumerate(done):
            if number % 2:
                with pytest.raises(NotFound, match=str(number)):
                    one.result(10)
            else:
                assert one.result(10) == "of 1"
    assert _pieces(store) == [f"piece-{number}" for number in range(0, 8, 2)]


def test_pieces_that_come_while_others_are_written_are_written_in_one_go(store: Store) -> None:
    others, sizes = Barrier(4), []

    def write(connection: sa.Connection, numbers: Sequence[int]) -> Sequence[int]:
        sizes.append(len(numbers))
        if numbers[0] == 0:
            others.wait(10)
            Event().wait(0.2)  # From there to the queue is one statement.
        return numbers

    together: Together[int, int] = Together(store, write)

    def piece(number: int) -> int:
        if number:
            others.wait(10)
        return together.ask(number)

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(piece, range(4))) == [0, 1, 2, 3]
    assert sizes == [1, 3]


def test_pieces_of_a_transaction_that_fails_all_hear_of_it(store: Store) -> None:
    def write(connection: sa.Connection, fails: Sequence[bool]) -> list[int]:
        if any(fails):
            connection.execute(sa.insert(leases), _lease("piece-0"))
            connection.connection.rollback()
            connection.execute(sa.text("select nothing from nowhere"))
        return [7 for _ in fails]

    together: Together[bool, int] = Together(store, write)
    with pytest.raises(Unavailable):
        together.ask(True)
    assert _pieces(store) == []
    assert together.ask(False) == 7


def _lease(name: str) -> dict[str, object]:
    return {"name": name, "holder": "", "epoch": 0, "expires_s": 0.0}


def _pieces(store: Store) -> list[str]:
    with store.read() as connection:
        names = connection.execute(sa.select(leases.c.name).where(leases.c.name.like("piece-%"))).scalars()
        return sorted(names)
