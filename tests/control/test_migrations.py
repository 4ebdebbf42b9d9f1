"""Tables come to the shape of this release with all they hold, and back, on both databases; a copy is made before."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from mainspring import control
from mainspring.control import Store, open_store
from mainspring.control.service.views import view_job
from mainspring.control.state.history import usage
from mainspring.control.store.databases.backups import KEPT_MAX, Backups, Maker, read_header
from mainspring.control.store.databases.opening import new_engine, parsed_url
from mainspring.control.store.holdings import grants, parts
from mainspring.control.store.records import jobs_by_id, specs, tenants, text_of
from mainspring.control.store.schema import allocations, metadata
from mainspring.control.store.settings import Settings
from mainspring.control.store.store import bring_back
from mainspring.control.store.tallies import Tally, tallies_of_teams, tally_of_person
from mainspring.domain.errors import Conflict, NotFound, Unavailable
from mainspring.domain.ids import AllocationId, AttemptId, ChipName, ClusterName, JobId, NodeName
from mainspring.domain.job import LAB, MAIN, JobSpec, Option, Role
from mainspring.domain.plan import Grant
from mainspring.domain.team import Team

if TYPE_CHECKING:
    from tests.control.conftest import World

MIGRATIONS = Path(control.__file__).parent / "store" / "migrations"


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def unmade_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'unmade.db'}"
    made: str = request.getfixturevalue("unmade_postgres_url")
    return made


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    return config


def _at(url: str, revision: str, rows: list[tuple[str, dict[str, object]]]) -> None:
    """Makes a store of an older shape."""
    engine = new_engine(parsed_url(url))
    config = _config()
    with engine.connect().execution_options(writes=True) as connection, connection.begin():
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
        for table, row in rows:
            connection.execute(sa.insert(sa.table(table, *map(sa.column, row))).values(row))
    engine.dispose()


def test_store_of_the_first_shape_keeps_its_jobs_attempts_and_teams(unmade_url: str) -> None:
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
    _at(unmade_url, "0001", rows)
    with open_store(unmade_url).read() as connection:
        assert tenants(connection) == (Team(name=LAB, chips_max=1.5),)
        assert parts(connection, [AllocationId("allocation-1")]) == {"allocation-1": grant}
        assert grants(connection, [AttemptId("attempt-1")]) == {"attempt-1": (grant,)}
        assert connection.execute(sa.select(allocations.c.chips)).scalars().all() == ['{"h100": 2000}']
        (job_,) = jobs_by_id(connection, [JobId("job-1")]).values()
        assert view_job(connection, job_, now_s=1e9, settings=Settings()).attempts[0].dollars == pytest.approx(
            6.0 * 100 / 3600
        )
        assert specs(connection, [JobId("job-1")]) == {"job-1": spec}
        assert usage(connection, now_s=110.0)[LAB] == pytest.approx(200.0, rel=0.01)


def test_store_of_before_tallies_counts_the_jobs_that_have_not_ended(unmade_url: str) -> None:
    job = {"name": "old", "team": "lab", "submitted_s": 1.0, "reason": "", "step": -1, "metrics": "{}", "result": "{}"}
    live = [job | {"id": f"job-{at}", "state": state, "owner": owner} for at, (state, owner) in enumerate(_TALLIED)]
    _at(unmade_url, "0010", [("jobs", each | {"spec": "spec"}) for each in live])
    with open_store(unmade_url).read() as connection:
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


def test_store_with_grants_of_attempts_is_read_as_having_the_same(unmade_url: str) -> None:
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
    _at(unmade_url, "0005", rows)
    with open_store(unmade_url).read() as connection:
        assert grants(connection, map(AttemptId, held)) == {name: (grant,) for name, grant in held.items()}
        released = sa.select(allocations.c.id).where(allocations.c.released).order_by(allocations.c.id)
        assert list(connection.execute(released).scalars()) == ["again-1", "over-1", "shrunk-1"]


def test_migrations_build_the_tables_that_the_schema_names(unmade_url: str) -> None:
    store = open_store(unmade_url)
    _assert_shape(store)
    store.close()


def test_store_full_of_history_goes_back_to_every_older_shape_and_comes_again(world: World) -> None:
    """What the oldest shape holds is the same afterwards."""
    elastic = world.submit(world.spec("elastic", replicas=4, replicas_min=2))
    world.run(elastic)
    array = world.submit(world.spec("many"), count=3)
    world.tick(2)
    world.succeed(elastic)
    world.control.people.set_team(Team(name=LAB, chips_max=8.0))
    jobs = [elastic, array]
    before = [world.job(job) for job in jobs]
    store, now_s = world.control.store, world.clock.now_s() + 100.0
    known = [each.revision for each in ScriptDirectory.from_config(_config()).walk_revisions()]
    # Where a disk is slow to sync, each step takes a while: PostgreSQL takes them all in one transaction.
    for older in known[-1:] if store.shared else known[1:]:
        bring_back(world.url, older, None, now_s=now_s)
    store.close()
    with new_engine(parsed_url(world.url)).connect() as connection:
        assert MigrationContext.configure(connection).get_current_revision() == "0001"
        assert sorted(sa.inspect(connection).get_columns("teams")[2]["name"].split()) == ["chip_milli_max"]
    open_store(world.url).close()
    world.restart()
    _assert_shape(world.control.store)
    after = [world.job(job) for job in jobs]
    for old, new in zip(before, after, strict=True):
        assert (new.id, new.state, new.spec.roles, new.step) == (old.id, old.state, old.spec.roles, old.step)
        for one, other in zip(old.attempts, new.attempts, strict=True):
            assert (other.state, other.nodes, other.cluster) == (one.state, one.nodes, one.cluster)
            assert other.dollars == pytest.approx(one.dollars)
    with world.control.store.read() as connection:
        assert tenants(connection) == (Team(name=LAB, chips_max=8.0),)


def test_older_shape_keeps_no_token_that_would_open_more_there(unmade_url: str) -> None:
    tokens = {
        "viewer": ("viewer", "lab", None),
        "lab-admin": ("admin", "lab", None),
        "team-admin": ("admin", "arms", None),
        "operator": ("operator", "lab", None),
        "ends": ("viewer", "lab", 5.0),
    }
    named = {"id": "", "holder": "", "maker": "", "made_s": 1.0}
    rows: list[tuple[str, dict[str, object]]] = [
        ("tokens", {**named, "sha256": name, "role": role, "team": team, "expires_s": ends_s})
        for name, (role, team, ends_s) in tokens.items()
    ]
    _at(unmade_url, "0009", rows)
    bring_back(unmade_url, "0008", None, now_s=1.0)
    engine = new_engine(parsed_url(unmade_url))
    with engine.connect() as connection:
        kept = connection.execute(sa.text("SELECT sha256 FROM tokens ORDER BY sha256")).scalars().all()
    engine.dispose()
    assert kept == ["lab-admin", "viewer"]


def test_store_that_a_newer_release_made_is_refused_by_name(unmade_url: str) -> None:
    open_store(unmade_url).close()
    _set_revision(unmade_url, "0999")
    with pytest.raises(Conflict, match=r"revision 0999, which a newer release made.*ms store down"):
        open_store(unmade_url)


def test_store_is_copied_before_it_changes_and_the_newest_copies_are_kept(unmade_url: str, tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    open_store(unmade_url, _backups(folder, 0.0)).close()
    assert not folder.exists()  # There was nothing to copy, and nothing changed.
    open_store(unmade_url, _backups(folder, 0.0)).close()
    assert not folder.exists()
    bring_back(unmade_url, "0009", None, now_s=1.0)
    open_store(unmade_url, _backups(folder, 60.0)).close()
    for number in range(KEPT_MAX - 1):
        (folder / f"store-1969123{number}T000100Z-0009.db").touch()
    (first,) = folder.glob("store-1970*")
    _backups(folder, 120.0)(parsed_url(unmade_url), "0014")
    kept = sorted(folder.iterdir())
    assert len(kept) == KEPT_MAX
    assert kept[-2] == first
    assert first.name.startswith("store-19700101T000100Z-0009.")
    assert first.stat().st_mode & 0o777 == 0o600
    assert read_header(first).revision == "0009"


def _backups(folder: Path, now_s: float) -> Backups:
    return Backups(folder=folder, maker=Maker(release="0.2.0", key="", now_s=now_s))


def test_store_that_cannot_be_copied_stays_as_it_is(unmade_url: str) -> None:
    _at(unmade_url, "0009", [])

    def refuse(url: sa.URL, revision: str) -> None:
        raise Unavailable("back up the store", got=revision)

    with pytest.raises(Unavailable, match="0009"):
        open_store(unmade_url, refuse)
    engine = new_engine(parsed_url(unmade_url))
    with engine.connect() as connection:
        assert MigrationContext.configure(connection).get_current_revision() == "0009"
    engine.dispose()


def test_store_goes_back_only_to_a_shape_there_was_and_without_a_server(world: World) -> None:
    world.tick()
    if not world.control.store.shared:
        world.control.store.own(0.0)
    with pytest.raises(Conflict, match="which leads" if world.control.store.shared else "process"):
        bring_back(world.url, "0009", None, now_s=world.clock.now_s())
    world.loop.resign()
    world.control.store.close()
    with pytest.raises(NotFound, match="one of 0001"):
        bring_back(world.url, "0099", None, now_s=world.clock.now_s())


def _assert_shape(store: Store) -> None:
    with store.read() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
        if connection.dialect.name == "postgresql":
            other = sa.text(
                "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'public' AND"
                " data_type = 'character varying' AND collation_name IS DISTINCT FROM 'C'"
            )
            assert connection.execute(other).all() == [("alembic_version", "version_num")]


def _set_revision(url: str, revision: str) -> None:
    engine = new_engine(parsed_url(url))
    with engine.connect().execution_options(writes=True) as connection, connection.begin():
        connection.execute(sa.text("UPDATE alembic_version SET version_num = :revision"), {"revision": revision})
    engine.dispose()
