"""Back-ups: one instant of a store at work, in one file for both databases; and stores put back from them."""

from __future__ import annotations

from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from mainspring.control import Store, open_store
from mainspring.control.service.views import view_job
from mainspring.control.store.databases.backups import HEADER_BYTES, BackupHeader, Maker, back_up, read_header
from mainspring.control.store.databases.opening import parsed_url
from mainspring.control.store.records import jobs_by_id
from mainspring.control.store.restores.restoring import restore
from mainspring.control.store.schema import events, jobs, tallies
from mainspring.control.store.settings import Settings
from mainspring.domain.answers import Submit
from mainspring.domain.errors import Conflict, DamagedData, NotFound
from mainspring.domain.ids import JobId

if TYPE_CHECKING:
    from tests.control.conftest import World

MAKER = Maker(release="0.2.0", key="a mark", now_s=0.0)


def _counts(store: Store) -> tuple[int, int, int]:
    """How many jobs there are, are counted, and were told of."""
    with store.read() as connection:
        told = sa.select(sa.func.count()).where(events.c.kind == "job_submitted")
        queries = (sa.select(sa.func.count()).select_from(jobs), sa.select(sa.func.sum(tallies.c.jobs)), told)
        return tuple(connection.execute(query).scalar() or 0 for query in queries)  # type: ignore[return-value]


def test_back_up_of_a_store_at_work_holds_one_instant(world: World, tmp_path: Path) -> None:
    world.tick()
    world.submit(count=300)
    enough = Event()

    def submit() -> None:
        number = 0
        while not enough.is_set():
            number += 1
            world.control.submit(Submit(spec=world.spec(), key=f"key-{number}", count=7))

    writing = Thread(target=submit)
    writing.start()
    try:
        made: list[BackupHeader] = []
        while len({one.jobs for one in made}) < 3 and len(made) < 100:
            made.append(back_up(parsed_url(world.url), tmp_path / f"{len(made)}", MAKER))
    finally:
        enough.set()
        writing.join()
    assert len({one.jobs for one in made}) == 3, "nothing was written meanwhile"
    assert [one.jobs for one in made] == sorted(one.jobs for one in made)
    for number, header in enumerate(made):
        restore(f"sqlite:///{tmp_path / f'{number}.db'}", tmp_path / f"{number}", MAKER)
        store = open_store(f"sqlite:///{tmp_path / f'{number}.db'}")
        assert _counts(store) == (header.jobs,) * 3
        store.close()


def test_restored_store_is_what_it_was_and_the_one_that_was_there_is_kept(world: World, tmp_path: Path) -> None:
    first = world.submit(count=2)
    world.run(first)
    before, file = _rows(world.control.store), tmp_path / "copy"
    header = back_up(parsed_url(world.url), file, MAKER)
    assert (file.stat().st_mode & 0o777, header.jobs, header.key) == (0o600, 2, "a mark")
    world.succeed(first)
    later = world.submit()
    epoch = world.control.store.leader().epoch
    world.loop.resign()
    world.control.store.close()
    done = restore(world.url, file, MAKER)
    assert done.backup == read_header(file)
    world.restart()
    assert _rows(world.control.store) == before
    with pytest.raises(NotFound):
        world.job(later)
    assert world.submit() not in (first, later)
    assert world.control.store.leader().holder == ""
    if world.control.store.shared:
        assert world.control.store.leader().epoch > epoch
        with world.control.store.read() as connection:
            schema = done.kept.removeprefix("schema ")
            assert connection.exec_driver_sql(f"SELECT count(*) FROM {schema}.jobs").scalar() == 3
    else:
        kept = open_store(f"sqlite:///{done.kept}")
        assert _counts(kept)[0] == 3
        kept.close()


def test_store_moves_between_databases_and_goes_on_counting(world: World, postgres_url: str, tmp_path: Path) -> None:
    world.run(world.submit())
    world.submit(count=5)
    newest = world.newest()
    with world.control.store.write() as connection:  # Numbers that were given out stay so, whoever is gone.
        connection.execute(sa.delete(events).where(events.c.sequence == newest))
    was = _rows(world.control.store)
    back_up(parsed_url(world.url), tmp_path / "one", MAKER)
    world.loop.resign()
    world.control.store.close()
    restore(postgres_url, tmp_path / "one", MAKER)
    back_up(parsed_url(postgres_url), tmp_path / "two", MAKER)
    restore(f"sqlite:///{tmp_path / 'two.db'}", tmp_path / "two", MAKER)
    for url in (postgres_url, f"sqlite:///{tmp_path / 'two.db'}"):
        world.url = url
        world.restart()
        assert _rows(world.control.store) == was
        made = world.submit()
        with world.control.store.read() as connection:
            assert jobs_by_id(connection, [made])[made].ordinal == 7
        assert world.newest() > newest
        world.control.store.close()


def _rows(store: Store) -> list[object]:
    with store.read() as connection:
        known = [JobId(job) for job in connection.execute(sa.select(jobs.c.id).order_by(jobs.c.ordinal)).scalars()]
        records = jobs_by_id(connection, known)
        return [view_job(connection, records[job], now_s=1e6, settings=Settings()) for job in known]


def test_back_up_that_is_damaged_cut_off_or_none_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    url, file = f"sqlite:///{tmp_path / 'store.db'}", tmp_path / "copy"
    open_store(url).close()
    back_up(parsed_url(url), file, MAKER)
    before, whole = (tmp_path / "store.db").read_bytes(), file.read_bytes()
    middle = len(whole) // 2
    for damaged in (
        whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :],
        whole[:-1],
        whole[: middle + 1],
        whole[4_096:],
        whole[:-HEADER_BYTES],
        b"",
    ):
        file.write_bytes(damaged)
        with pytest.raises(DamagedData):
            restore(url, file, MAKER)
    assert (tmp_path / "store.db").read_bytes() == before
    assert sorted(each.name for each in tmp_path.iterdir()) == ["copy", "store.db", "store.db-owner"]
    with pytest.raises(NotFound):
        restore(url, tmp_path / "none", MAKER)


def test_restore_is_refused_while_a_server_runs_and_with_another_key_or_a_newer_release(
    world: World, tmp_path: Path
) -> None:
    file, store = tmp_path / "copy", world.control.store
    world.tick()
    store.own(0.0)
    back_up(parsed_url(world.url), file, MAKER)
    now = Maker(release="0.2.0", key="a mark", now_s=world.clock.now_s())
    with pytest.raises(Conflict, match="which leads" if store.shared else "process"):
        restore(world.url, file, now)
    world.loop.resign()
    store.close()
    other = Maker(release="0.2.0", key="", now_s=world.clock.now_s())
    with pytest.raises(Conflict, match="file 'key' of this home; got none"):
        restore(world.url, file, other)
    assert restore(world.url, file, other, any_key=True).kept
    newer = back_up(parsed_url(world.url), file, Maker(release="9.9.0", key="a mark", now_s=1.0))
    file.write_bytes(file.read_bytes().replace(f'"{newer.revision}"'.encode(), b'"0999"'))
    with pytest.raises(Conflict, match=r"a newer release \(9.9.0\)"):
        restore(world.url, file, now)


def test_store_that_is_damaged_or_absent_is_not_backed_up(tmp_path: Path) -> None:
    url = parsed_url(f"sqlite:///{tmp_path / 'store.db'}")
    with pytest.raises(NotFound, match="ms up makes it"):
        back_up(url, tmp_path / "copy", MAKER)
    store = open_store(str(url))
    with store.write() as connection:
        for number in range(200):
            connection.execute(sa.insert(events).values(time_s=1.0, kind="x", detail="y" * number))
    store.close()
    damaged = bytearray((tmp_path / "store.db").read_bytes())
    damaged[-4_096:] = b"\xff" * 4_096
    (tmp_path / "store.db").write_bytes(damaged)
    with pytest.raises(DamagedData):
        back_up(url, tmp_path / "copy", MAKER)
    assert not (tmp_path / "copy").exists()
