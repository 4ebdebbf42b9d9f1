"""A real PostgreSQL on one machine: Debian's server, on a Unix socket, private to a folder, as durable as in life.

For tests and benchmarks. Words are ordered as in English unless a column says otherwise, so that a query which leaves
the order to the database shows. Source: initdb(1), pg_basebackup(1), postgres(1) of PostgreSQL 15.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import select
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType

from mainspring.domain.errors import Unavailable
from mainspring.testing.daemons import Daemons, last_words
from mainspring.testing.keeper import descendants

START_S = 30.0
LOOK_S = 0.02
USER = "mainspring"
PACKAGES = Path("/usr/lib/postgresql")  # Source: Debian's postgresql-common: a folder each version.
ACCOUNTS = ("postgres", "nobody")  # Whom it runs as where we are root, as which it refuses to run.
PORT = 5432  # Of the socket's name.
SETTINGS = {
    "listen_addresses": "",
    "max_connections": "200",
    "shared_buffers": "32MB",
    "fsync": "on",
    "synchronous_commit": "on",
    "autovacuum": "off",
}


def postgres_missing() -> str:
    """Returns why no PostgreSQL can be started here and what to do, or nothing when one can."""
    try:
        import psycopg  # noqa: F401
    except ImportError:
        return "psycopg is needed: pip install 'mainspring[postgres]'"
    return "" if _programs() else f"PostgreSQL is needed, none in {PACKAGES}: apt-get install postgresql"


class PostgresServer:
    """A server; nothing of it outlives `stop`, the `with` block, or this process.

    Args:
        settings: Lines of postgresql.conf that win over the ones made here.
    """

    def __init__(self, **settings: str) -> None:
        self._settings = {**SETTINGS, **settings}
        self._folder = Path()
        self._daemons: Daemons | None = None
        self._as_user: list[str] = []
        self._made = 0

    def url(self, database: str, *others: PostgresServer) -> str:
        """Returns where one of its databases is.

        Args:
            others: Servers that may have it instead; connections are made to the one that takes writes.
        """
        hosts = ",".join(str(each._folder) for each in (self, *others))
        return f"postgresql://{USER}@/{database}?host={hosts}{'&target_session_attrs=read-write' if others else ''}"

    def __enter__(self) -> PostgresServer:
        """Starts it."""
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Stops it."""
        self.stop()

    def start(self) -> None:
        """Makes a cluster of databases and serves it; returns once it answers.

        Raises:
            Unavailable: It is not installed, or did not come up; quotes its last words.
        """
        self._make_room()
        words = ["--auth=trust", f"--username={USER}", "--encoding=UTF8", "--locale=C", "--no-sync"]
        self._run("initdb", *words, "--locale-provider=icu", "--icu-locale=en-US")
        self.serve()

    def follow(self, primary: PostgresServer) -> None:
        """Makes its data anew as a copy of another server's, which it follows from now on as its one standby.

        What the primary commits from then on is on both disks.

        Args:
            primary: A server that takes writes. Its commits wait for this one until it is killed, or follows another.

        Raises:
            Unavailable: As `start`.
        """
        if self._daemons is None:
            self._make_room()
        shutil.rmtree(self._folder / "data", ignore_errors=True)
        copying = ["--host", str(primary._folder), f"--username={USER}", "--checkpoint=fast", "--no-sync"]
        self._run("pg_basebackup", *copying, "--write-recovery-conf")
        self.serve()
        primary.say("ALTER SYSTEM SET synchronous_standby_names = '*'")
        primary.say("SELECT pg_reload_conf()")
        synchronous = "SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"
        for _ in range(round(START_S / LOOK_S)):
            if primary.say(synchronous):
                return
            select.select([], [], [], LOOK_S)
        raise Unavailable("follow a PostgreSQL", got=f"no standby in step within {START_S:.0f} s")

    def fall_behind(self, primary: PostgresServer) -> None:
        """Has a standby receive nothing more; what the primary commits from then on is on its own disk alone.

        Args:
            primary: The server that it follows.

        Raises:
            Unavailable: It did not let go.
        """
        # Source: both are read anew on reload; a receiver without an address ends.
        primary.say("ALTER SYSTEM SET synchronous_standby_names = ''")
        primary.say("SELECT pg_reload_conf()")
        self.say("ALTER SYSTEM SET primary_conninfo = ''")
        self.say("SELECT pg_reload_conf()")
        for _ in range(round(START_S / LOOK_S)):
            if not primary.say("SELECT 1 FROM pg_stat_replication"):
                return
            select.select([], [], [], LOOK_S)
        raise Unavailable("leave a PostgreSQL behind", got=f"a standby that follows after {START_S:.0f} s")

    def promote(self) -> None:
        """Has a standby take writes, as whoever watches over both does once the primary is gone."""
        self.say("SELECT pg_promote()")

    def _make_room(self) -> None:
        if _programs() is None:
            raise Unavailable("start PostgreSQL", got=postgres_missing())
        self._folder = Path(tempfile.mkdtemp(prefix="postgres-"))
        if os.getuid() == 0:
            account = next(one for one in ACCOUNTS if one in {each.pw_name for each in pwd.getpwall()})
            self._as_user = ["setpriv", f"--reuid={account}", f"--regid={_group(account)}", "--clear-groups", "--"]
            shutil.chown(self._folder, account)
        self._daemons = Daemons(self._folder, work=Path("/"))

    def _run(self, program: str, *words: str) -> None:
        folder = _programs()
        assert folder is not None
        command = [*self._as_user, str(folder / program), "-D", str(self._folder / "data"), *words]
        made = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
        if made.returncode:
            raise Unavailable("start PostgreSQL", got=made.stderr[-1_000:])

    def serve(self) -> None:
        """Starts it again after `kill`, and returns once it answers.

        Raises:
            Unavailable: It did not come up; quotes its last words.
        """
        programs, log = _programs(), self._folder / "log"
        assert programs is not None
        settings = {**self._settings, "unix_socket_directories": str(self._folder)}
        words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        data = str(self._folder / "data")
        assert self._daemons is not None, "not started"
        error = self._daemons.start("postgres", log, *self._as_user, str(programs / "postgres"), "-D", data, *words)
        for _ in range(round(START_S / LOOK_S)):
            if error or not self._daemons.runs("postgres"):
                break
            if self._answers():
                return
            select.select([], [], [], LOOK_S)
        raise Unavailable("start PostgreSQL", got=error or last_words(log))

    def kill(self) -> None:
        """Ends it by SIGKILL, all its processes at once; `serve` starts it again."""
        assert self._daemons is not None, "not started"
        pids = descendants(self._daemons.pid)
        self._daemons.kill("postgres", signal.SIGKILL)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        (self._folder / f".s.PGSQL.{PORT}").unlink(missing_ok=True)
        (self._folder / f".s.PGSQL.{PORT}.lock").unlink(missing_ok=True)

    def stop(self) -> None:
        """Ends it and removes all that it kept; harmless when nothing runs."""
        if self._daemons is not None:
            self._daemons.stop()
            self._daemons = None
        if self._folder != Path():
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = Path()

    def new_database(self, template: str = "template0") -> str:
        """Returns the URL of a fresh database.

        Args:
            template: The database that it is a copy of, with which nobody may be connected.
        """
        self._made += 1
        name = f"made_{self._made}"
        self.say(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        return self.url(name)

    def drop_database(self, url: str) -> None:
        """Forgets a database, whoever is still connected with it."""
        self.say(f'DROP DATABASE "{url.partition("?")[0].rpartition("/")[2]}" WITH (FORCE)')

    def say(self, statement: str) -> list[tuple[object, ...]]:
        """Runs one statement outside of any transaction; returns the rows it gives, if it gives any."""
        import psycopg

        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            done = connection.execute(statement.encode())
            return done.fetchall() if done.description else []

    def _answers(self) -> bool:
        import psycopg

        try:
            self.say("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True


def _programs() -> Path | None:
    """Returns the folder of the newest server's programs."""
    found = sorted(PACKAGES.glob("[0-9]*/bin/postgres"), key=lambda path: float(path.parents[1].name))
    return found[-1].parent if found else None


def _group(account: str) -> int:
    return pwd.getpwnam(account).pw_gid
