"""Brings a store's tables to the shape that this release reads, or back to an older one."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from mainspring.control.store.databases.copying import unbounded
from mainspring.domain.errors import Conflict, NotFound

# Any number that no other program of the database uses: the letters "mspr".
_TURN = 0x6D737072


class BackUp(Protocol):
    """Makes a copy of a store before its tables change."""

    def __call__(self, url: sa.URL, revision: str) -> None:
        """Returns once there is a copy.

        Args:
            revision: Of its tables.

        Raises:
            Unavailable: There is none; nothing may change then.
        """


def newest_revision() -> str:
    """Returns the revision of the tables that this release reads."""
    return str(ScriptDirectory.from_config(_config()).get_current_head())


def revision_of(engine: sa.Engine) -> str | None:
    """Returns the revision of a store's tables, None where there are none."""
    with engine.connect() as connection:
        return revision_in(connection)


def revision_in(connection: sa.Connection) -> str | None:
    """Returns the revision of a store's tables, None where there are none."""
    return MigrationContext.configure(connection).get_current_revision()


def require_known(revision: str, attempted: str, *, release: str = "") -> None:
    """Returns if this release knows the tables of a revision.

    Args:
        revision: Of tables that somebody made.
        attempted: What is to be done with them, as a clause.
        release: That made them, as far as they tell.

    Raises:
        Conflict: A newer release has made them.
    """
    scripts, head = ScriptDirectory.from_config(_config()), newest_revision()
    if revision not in {each.revision for each in scripts.walk_revisions()}:
        newer = f"a newer release ({release})" if release else "a newer release"
        raise Conflict(
            attempted,
            got=f"tables of revision {revision}, which {newer} made",
            wanted=f"revision {head} or an older one",
            next_step=f"use that release, or with it: ms store down {head}; or put back a copy from before",
        )


def build(connection: sa.Connection, revision: str) -> None:
    """Makes the tables of a revision where there are none.

    Args:
        connection: Of an empty database, in a transaction.
        revision: One that this release knows.
    """
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


def migrate(engine: sa.Engine, back_up: BackUp | None = None) -> None:
    """Brings the tables up to date; one process at a time does, and a failure leaves them as they were.

    Args:
        back_up: Copies what is there before it changes; None to make no copy.

    Raises:
        Conflict: A newer release has changed them.
        Unavailable: No copy could be made.
    """
    head, current = newest_revision(), revision_of(engine)
    if current == head:
        return
    if current is not None:
        require_known(current, "open the store")
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
            unbounded(connection)
        current = revision_in(connection)  # Another process may have had its turn.
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


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parents[1] / "migrations"))
    return config
