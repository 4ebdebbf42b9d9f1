"""The store: its shape, its lease, its errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Event

import pytest
import sqlalchemy as sa

from mainspring.control import Store, open_store
from mainspring.control.store.schema import leases, teams
from mainspring.control.store.store import Together
from mainspring.domain.errors import Conflict, DamagedData, InvalidInput, NotFound, StorageFull, Unavailable


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    opened = open_store(url)
    yield opened
    opened.close()


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


def test_full_disk_is_told_as_such_and_writes_nothing(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'store.db'}")
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
        begun.wait(120)
        return together.ask(number)

    def hold() -> None:
        with store.write():
            entered.wait(120)
            begun.wait(120)

    with ThreadPoolExecutor(9) as threads:
        threads.submit(hold)
        entered.wait(120)
        done = [threads.submit(piece, number) for number in range(8)]
        for number, one in enumerate(done):
            if number % 2:
                with pytest.raises(NotFound, match=str(number)):
                    one.result(120)
            else:
                assert one.result(120) == "of 1"
    assert _pieces(store) == [f"piece-{number}" for number in range(0, 8, 2)]


def test_pieces_that_one_caller_brings_are_each_told_what_became_of_them(store: Store) -> None:
    told = Together(store, _write_pieces).ask_each(range(5))
    assert [str(one.got) if isinstance(one, NotFound) else one for one in told] == ["of 1", "1", "of 1", "3", "of 1"]
    assert _pieces(store) == ["piece-0", "piece-2", "piece-4"]


def test_piece_that_the_database_cannot_hold_fails_alone(store: Store) -> None:
    def write(connection: sa.Connection, names: Sequence[str]) -> Sequence[str]:
        connection.execute(sa.insert(leases), [_lease(name) for name in names])
        return names

    names = ["piece-0", "piece-\0", "piece-2"]
    told = Together(store, write).ask_each(names)
    assert [told[0], told[2]] == ["piece-0", "piece-2"]
    assert isinstance(told[1], InvalidInput) if store.shared else told[1] == names[1]  # SQLite keeps whatever it is.
    assert len(_pieces(store)) == (2 if store.shared else 3)


def test_piece_that_fails_within_something_larger_takes_nothing_else_with_it(store: Store) -> None:
    with store.joined() as connection:
        connection.execute(sa.insert(leases), _lease("piece-9"))
        (told,) = Together(store, _write_pieces).ask_each([1])
        assert isinstance(told, NotFound)
        assert Together(store, _write_pieces).ask(2) == "of 1"
    assert _pieces(store) == ["piece-2", "piece-9"]


def test_pieces_that_come_while_others_are_written_are_written_in_one_go(store: Store) -> None:
    others, sizes = Barrier(4), []

    def write(connection: sa.Connection, numbers: Sequence[int]) -> Sequence[int]:
        sizes.append(len(numbers))
        if numbers[0] == 0:
            others.wait(120)
            Event().wait(0.2)  # From there to the queue is one statement.
        return numbers

    together: Together[int, int] = Together(store, write)

    def piece(number: int) -> int:
        if number:
            others.wait(120)
        return together.ask(number)

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(piece, range(4))) == [0, 1, 2, 3]
    assert sizes == [1, 3]


def test_pieces_of_a_transaction_that_fails_all_hear_of_it(store: Store) -> None:
    def write(connection: sa.Connection, fails: Sequence[bool]) -> list[int]:
        if any(fails):
            connection.execute(sa.insert(leases), _lease("piece-0"))
            dies = "select pg_terminate_backend(pg_backend_pid())" if store.shared else "select nothing from nowhere"
            connection.execute(sa.text(dies))
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
