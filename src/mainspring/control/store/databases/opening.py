"""Opens SQLite and PostgreSQL so that both keep the same promises.

The promises: what was committed is on the disk; writers take turns; a reader sees one instant; nobody waits for ever.

SQLite keeps them in WAL mode with synchronous=FULL, transactions of writers that begin IMMEDIATE, and a busy timeout.

PostgreSQL keeps them so. Every writer locks one row first (`Store.write`), and runs at READ COMMITTED: each statement
after that lock then sees all that earlier writers committed, and since nobody else writes meanwhile, all statements of
one writer see one state. REPEATABLE READ would freeze a writer's view when it begins to wait for the lock, and so show
it a state that others have left behind; SERIALIZABLE would only add failures to retry, for what the lock excludes
already. A transaction becomes visible before it lets go of its locks, so numbers drawn under the lock (events, audit
lines, jobs) become visible in the order in which they count: whoever reads on from the last number it saw misses
nothing, though numbers of transactions that failed are left out. Readers run at REPEATABLE READ, read-only: one
instant, no locks, and no failures to retry. Deadlocks need two locks in two orders; there is one.

Bounded is what holds others up: a wait for a lock, a statement, and a transaction whose client has fallen silent, which
would keep the writers' row. Machines that are gone are found by probes of connections, on both sides; a server that
keeps them and says nothing is given up (`silence`); one that takes no writes any more is left for one that does.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from mainspring.domain.errors import InvalidInput, NotFound

LOG_PAGES = 8_000  # Of 4 KiB: a log that long is copied into the file. A batch of jobs fills the usual 1,000.
BUSY_S = 10.0  # Longer than any transaction here; a database busy for this long has a stuck writer.
STATEMENT_S = 60.0  # Reading all that has not ended, of 100,000 jobs, takes seconds.
CONNECT_S = 5  # A server that lives accepts within milliseconds; the next of several is tried after that.
CONNECTIONS_MAX = 40  # As many as the API's threads.
_CONNECTIONS_KEPT = 20  # Making one costs as much as a small question.
_PROBES = {"keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3}  # Lost machines: about 11 s.
_PSYCOPG = "postgresql+psycopg"
_READ_ONLY = "25006"  # Source: PostgreSQL 15, appendix A.
_SAFE = {"fsync": "on", "full_page_writes": "on", "server_encoding": "UTF8"}


def is_sqlite(url: sa.URL) -> bool:
    """Returns whether a URL is of a file that SQLite keeps."""
    return url.get_backend_name() == "sqlite"


def parsed_url(url: str) -> sa.URL:
    """Returns a database URL, taken apart.

    Args:
        url: "sqlite:////absolute/path.db", or "postgresql://...", as libpq has it.

    Raises:
        InvalidInput: It is none, or a database that no restart would find again.
    """
    attempted, wanted = "open the store", "a database URL such as sqlite:////path.db or postgresql://host/name"
    try:
        parsed = sa.make_url(url)
        kind = parsed.get_backend_name()
    except (sa.exc.ArgumentError, ValueError):
        raise InvalidInput(attempted, got="no database URL", wanted=wanted) from None
    if kind not in ("sqlite", "postgresql", "postgres"):
        raise InvalidInput(attempted, got=f"a URL of {kind[:40]!r}", wanted=wanted)
    if kind != "sqlite":
        return parsed.set(drivername=_PSYCOPG)
    if parsed.database in (None, "", ":memory:"):
        raise InvalidInput(attempted, got=url, wanted="a database in a file, which a restart can find again")
    return parsed


def new_engine(url: sa.URL, *, kept: int = _CONNECTIONS_KEPT, most: int = CONNECTIONS_MAX) -> sa.Engine:
    """Returns connections to a database; a SQLite file is made when it is absent.

    Args:
        url: From `parsed_url`.
        kept: How many stay open.
        most: How many there are at one time.

    Raises:
        NotFound: The driver is not installed.
        InvalidInput: Its hosts and ports do not match.
    """
    pool = {"pool_size": kept, "max_overflow": most - kept}
    return _sqlite(url, pool) if is_sqlite(url) else _postgresql(url, pool)


def require_safe(connection: sa.Connection) -> None:
    """Returns if a database keeps what it is given.

    Raises:
        InvalidInput: It is set up to lose what it said it had written, or to hold text of one language only.
    """
    if connection.dialect.name == "sqlite":
        return
    for name, wanted in _SAFE.items():
        got = connection.exec_driver_sql(f"SHOW {name}").scalar_one()
        if got != wanted:
            raise InvalidInput(
                "open the store",
                on=f"PostgreSQL's {name}",
                got=str(got),
                wanted=f"{wanted}: a grant that the database forgot would be started and unknown"
                if wanted == "on"
                else wanted,
                next_step="set it in postgresql.conf" if wanted == "on" else "createdb --encoding UTF8 -T template0",
            )


def reading(engine: sa.Engine) -> sa.Engine:
    """Returns the same connections for transactions that only read, each at one instant."""
    if engine.dialect.name == "sqlite":
        return engine
    return engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)


def _sqlite(url: sa.URL, pool: Mapping[str, int]) -> sa.Engine:
    path = Path(str(url.database))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)  # For its owner alone; SQLite gives the files beside it the same mode.
    engine = sa.create_engine(
        url,
        connect_args={"timeout": BUSY_S},
        hide_parameters=True,  # Values are people's specs, with their jobs' variables: errors must not quote them.
        **pool,
    )
    sa.event.listen(engine, "connect", _prepare_sqlite)
    sa.event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # Transactions begin where `_begin_sqlite` says, not where the driver guesses.
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")  # A grant the disk forgot would be started and unknown.
    connection.execute("PRAGMA foreign_keys=ON")
    connection.execute(f"PRAGMA wal_autocheckpoint={LOG_PAGES}")


def _begin_sqlite(connection: sa.Connection) -> None:
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _postgresql(url: sa.URL, pool: Mapping[str, int]) -> sa.Engine:
    milliseconds = {
        "lock_timeout": BUSY_S,
        "statement_timeout": STATEMENT_S,
        "idle_in_transaction_session_timeout": BUSY_S,
        "tcp_user_timeout": BUSY_S,
    }
    settings = {name: str(round(1_000 * value_s)) for name, value_s in milliseconds.items()}
    settings |= {f"tcp_{name}": str(value) for name, value in _PROBES.items()}
    settings["jit"] = "off"  # Compiling takes longer than any query here.
    # A plan that was kept since a table was small compares each of its rows with each of 500 keys. Source: PostgreSQL,
    # "PREPARE"; only a list that is known when a plan is made is looked up by hash.
    settings["plan_cache_mode"] = "force_custom_plan"
    options = " ".join(f"-c {name}={value}" for name, value in settings.items())
    own = url.query.get("options", "")
    known = {
        "application_name": "mainspring",
        "connect_timeout": CONNECT_S,
        "client_encoding": "utf8",
        "tcp_user_timeout": round(1_000 * BUSY_S),
        **_PROBES,
    }
    arguments = {name: value for name, value in known.items() if name not in url.query}
    arguments["options"] = f"{options} {own if isinstance(own, str) else ' '.join(own)}".strip()
    try:
        engine = sa.create_engine(
            url,
            isolation_level="READ COMMITTED",  # Whatever the database's own default is.
            connect_args=arguments,
            pool_timeout=BUSY_S,
            pool_pre_ping=True,  # A server that was started anew, or another that took over, costs nobody a failure.
            hide_parameters=True,
            **pool,
        )
    except sa.exc.ArgumentError as error:  # Such as of three hosts with two ports.
        raise InvalidInput("open the store", got=str(error), wanted="a URL as libpq has it") from error
    except ImportError as error:
        raise NotFound(
            "open the store", got="no driver for PostgreSQL", next_step="pip install 'mainspring[postgres]'"
        ) from error
    from mainspring.control.store.databases.silence import hear  # It needs the driver.

    hear(engine)
    sa.event.listen(engine, "connect", _prepare_postgresql)
    sa.event.listen(engine, "handle_error", _on_error)
    return engine


def _on_error(context: sa.engine.ExceptionContext) -> None:
    """Leaves out of an error the details, which quote whole rows; and a server that takes no writes."""
    if getattr(context.original_exception, "sqlstate", None) == _READ_ONLY:
        context.is_disconnect = True
    error, told = context.original_exception, context.sqlalchemy_exception
    primary = getattr(getattr(error, "diag", None), "message_primary", None)
    if primary:
        error.args = (primary,)
        if told is not None:
            told.args = (f"({type(error).__name__}) {primary}",)


def _prepare_postgresql(connection: Any, _record: object) -> None:
    """Has commits wait for the disk, also where a database, or a role, is set up to let them not."""
    autocommit, connection.autocommit = connection.autocommit, True
    connection.execute(
        "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
    )
    connection.autocommit = autocommit
