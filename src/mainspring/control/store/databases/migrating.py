"""Brings a store's tables to the shape that this release reads, or back to an older one."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from mainspring.control.store.databases.backups import BackUp
from mainspring.domain.errors import Conflict, NotFound

# Any number that no other program of the database uses: the letters "mspr".
_TURN = 0x6D737072


def newest_revision() -> str:
    """Returns the revision of the tables that this release reads."""
    return str(ScriptDirectory.from_config(_config()).get_current_head())


def revision_of(engine: sa.Engine) -> str | None:
    """Returns the revision of a store's tables, None where there are none."""
    with engine.connect() as connection:
        return _revision(connection)


def migrate(engine: sa.Engine, back_up: BackUp | None = None) -> None:
    """Brings the tables up to date; one process at a time does, and a failure leaves them as they were.

    Args:
        back_up: Copies what is there before it changes; None to make no copy.

    Raises:
        Conflict: A newer release has changed them.
        Unavailable: No copy could be made.
    """
    scripts, head = ScriptDirectory.from_config(_config()), newest_revision()
    current = revision_of(engine)
    if current == head:
        return
    if current is not None and current not in {each.revision for each in scripts.walk_revisions()}:
        raise Conflict(
            "open the store",
            got=f"tables of revision {current}, which a newer release made",
            wanted=f"revision {head} or an older one",
            next_step=f"use that release, or with it: ms store down {head}; or put back a copy from before",
        )
    _move(engine, head, back_up)


def migrate_down(engine: sa.Engine, revision: str, back_up: BackUp | None = None) -> None:
    """Brings the tables back to what an older release reads; what only newer ones keep is lost.

    Args:
        revision: Whose.
        back_up: Copies what is there before it changes; None to make no copy.

    Raises:
        NotFound: There is no such revision, or the store is older than that.
        Unavailable: No copy could be made.
    """
    current = revision_of(engine)
    known = [each.revision for each in ScriptDirectory.from_config(_config()).walk_revisions()]
    older = known[known.index(current) :] if current in known else []
    if revision not in older:
        raise NotFound(
            "bring the store back",
            got=f"revision {revision[:40]!r}",
            wanted=f"one of {', '.join(sorted(older))}" if older else f"a store of a known revision, not {current}",
        )
    if revision != current:
        _move(engine, revision, back_up)


def _move(engine: sa.Engine, revision: str, back_up: BackUp | None) -> None:
    config = _config()
    with engine.connect().execution_options(writes=True) as connection, connection.begin():
        if engine.dialect.name == "postgresql":
            from mainspring.control.store.databases.silence import be_patient  # It needs the driver.

            be_patient(connection)
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_TURN)))
            connection.exec_driver_sql("SET LOCAL statement_timeout = 0")  # Tables of years are long.
            connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")  # Nor is a copy quick.
        current = _revision(connection)  # Another process may have had its turn.
        if current is not None and current != revision:
            _hold_writers(connection)
            if back_up is not None:
                back_up(engine.url, current)
        config.attributes["connection"] = connection
        (command.upgrade if current is None or current < revision else command.downgrade)(config, revision)


def _hold_writers(connection: sa.Connection) -> None:
    """Keeps other servers from writing what the copy would not have; see `Store.write`."""
    leases = sa.table("leases", sa.column("name"))
    connection.execute(sa.select(leases).where(leases.c.name == "writer").with_for_update())


def _revision(connection: sa.Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parents[1] / "migrations"))
    return config
