"""The Python SDK: the same verbs as the command line.

import mainspring as ms
ms.up()
job = ms.run(ms.job("hello", ["python", "train.py"], on=["h100:1"], replicas=2))
ms.wait(job.id)

Verbs called on the package speak of the default home folder; `ms.Lab(home)` has the same ones for any other.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mainspring import data  # Loads its names when they are used, so that other verbs start fast.
from mainspring.app import daemon
from mainspring.app.client import Client
from mainspring.app.code import record_environment, snapshot_code
from mainspring.app.home import Home, ServerRecord
from mainspring.app.specs import option_from, spec_from
from mainspring.domain.errors import NotFound, Unavailable
from mainspring.domain.ids import TeamName
from mainspring.domain.job import LAB, JobSpec
from mainspring.domain.life import ended
from mainspring.domain.wire import ClusterView, Event, JobView, Why
from mainspring.objects import ObjectStore, open_store
from mainspring.planner import TeamQuota

if TYPE_CHECKING:
    from mainspring.data import IngestReport, Version

WAIT_S_MAX = 30 * 86_400.0
_POLL_S = 0.2


def job(
    name: str,
    command: str | Sequence[str],
    *,
    on: str | Sequence[str] = "cpu",
    replicas: int = 1,
    environment: Mapping[str, str] | None = None,
    **fields: object,
) -> JobSpec:
    """Returns the spec of a simple job.

    Args:
        name: Shown to people.
        command: Program and arguments, or one line of text.
        on: Acceptable chips, each `CHIP[:CHIPS][@SPEED]`: type, chips per replica, relative speed.
        replicas: How many replicas start together.
        environment: Variables for the program.
        **fields: Any other field of `JobSpec`, as in a YAML spec (`team`, `tier`, ...); `options` replaces `on`.

    Raises:
        InvalidSpec: A field is unknown or out of range.
    """
    return spec_from(
        {
            "name": name,
            "command": command if isinstance(command, str) else list(command),
            "options": [option_from(option, replicas=replicas) for option in ([on] if isinstance(on, str) else on)],
            "environment": dict(environment or {}),
            **fields,
        }
    )


class Lab:
    """One Mainspring, seen from one home folder.

    Args:
        home: The home folder; None for `MAINSPRING_HOME`, else `~/.mainspring`.
    """

    def __init__(self, home: Path | str | None = None) -> None:
        self.home = Home.find(Path(home) if home is not None else None)

    def up(self, *, port: int | None = None) -> ServerRecord:
        """Starts the server when it is not running, and returns where it listens.

        Args:
            port: 0 picks a free one; None takes the last one used, else the configured one.
        """
        return daemon.up(self.home, port=port)

    def down(self) -> bool:
        """Stops the server and returns whether it was running. Jobs go on."""
        return daemon.down(self.home)

    def ingest(self, source: Path | str, dataset: str) -> IngestReport:
        """Takes a source's sound recordings into a dataset, and returns what came of it.

        Args:
            source: A folder of MCAP files, one such file, or a LeRobot dataset.
            dataset: Name of the dataset they join.
        """
        return data.ingest(Path(source), self.objects(), dataset)

    def datasets(self) -> tuple[Version, ...]:
        """Returns the newest version of every dataset, in order of name."""
        return data.newest_versions(self.objects())

    def client(self) -> Client:
        """Returns a client of this lab's server: that of `MAINSPRING_URL` when set, else the home's own.

        Raises:
            Unavailable: No server was started from this home.
        """
        url = os.environ.get("MAINSPRING_URL")
        if url:
            return Client(url, os.environ.get("MAINSPRING_TOKEN") or self.home.token())
        record = self.home.server()
        if record is None:
            raise Unavailable("reach the Mainspring server", on=str(self.home.path), got="none", next_step="ms up")
        return Client(record.url, self.home.token())

    def objects(self) -> ObjectStore:
        """Returns this lab's object store."""
        return open_store(self.home.objects_url(self.home.config()))

    def run(self, spec: JobSpec, *, key: str = "", code: Path | None = None) -> JobView:
        """Submits a job and returns it.

        Args:
            spec: What to run.
            key: The same key again returns the job it made the first time.
            code: Folder whose working tree the job runs in; None for a job that needs no files.
        """
        store = self.objects()
        taken = record_environment(store) if code is None else snapshot_code(code, store)
        spec = dataclasses.replace(spec, code=taken)
        with self.client() as client:
            return client.submit(spec, key=key)

    def again(self, job: str, *, key: str = "") -> JobView:
        """Submits a job's spec and code once more and returns the new job.

        Args:
            job: Id or name of the job to repeat.
            key: As for `run`.

        Raises:
            NotFound: The code it ran is no longer kept.
        """
        with self.client() as client:
            spec = client.job(job).spec
            tree = spec.code.tree.removeprefix("blake3:")
            if tree and self.objects().size(f"code/{tree}.tar.gz") is None:
                raise NotFound(
                    "repeat a job", on=job, got=f"no code tree {tree[:12]}", next_step="ms run from a checkout"
                )
            return client.submit(spec, key=key)

    def ps(self, *, state: str = "", limit: int = 50) -> tuple[JobView, ...]:
        """Returns the newest jobs, newest first.

        Args:
            state: Only jobs in this state, "" for all.
            limit: At most so many.
        """
        with self.client() as client:
            return client.jobs(state=state, limit=limit)

    def status(self, job: str) -> JobView:
        """Returns one job.

        Args:
            job: Its id or name.
        """
        with self.client() as client:
            return client.job(job)

    def events(self, job: str) -> tuple[Event, ...]:
        """Returns a job's events, oldest first.

        Args:
            job: Its id or name.
        """
        with self.client() as client:
            return client.events(job)

    def why(self, job: str) -> Why:
        """Returns why a job is where it is, or waits.

        Args:
            job: Its id or name.
        """
        with self.client() as client:
            return client.why(job)

    def stop(self, job: str) -> JobView:
        """Asks a job to end and returns it as it is now.

        Args:
            job: Its id or name.
        """
        with self.client() as client:
            return client.stop(job)

    def fleet(self) -> tuple[ClusterView, ...]:
        """Returns every cluster."""
        with self.client() as client:
            return client.clusters()

    def teams(self) -> tuple[TeamQuota, ...]:
        """Returns the tenant tree, in order of name."""
        with self.client() as client:
            return client.teams()

    def set_team(self, name: str, *, parent: str | None = LAB, chips_max: float | None = None) -> TeamQuota:
        """Places a team in the tenant tree, or changes it, and returns it.

        Args:
            name: The team.
            parent: The team above it; None for a root.
            chips_max: Most chips it and the teams below it may use at once; None for no limit.
        """
        above = TeamName(parent) if parent is not None and parent != name else None
        with self.client() as client:
            return client.set_team(TeamQuota(name=TeamName(name), parent=above, chips_max=chips_max))

    def logs(self, job: str, *, rank: int = 0, follow: bool = False) -> Iterator[bytes]:
        """Yields one rank's output: of the job's newest attempt, and when following of every one after it.

        Args:
            job: Its id or name.
            rank: The rank.
            follow: Whether to go on until the job has ended.
        """
        attempt, offset = 0, 0
        with self.client() as client:
            while True:
                view = client.job(job)
                job, newest = view.id, len(view.attempts)  # The id: a name may come to mean a newer job.
                attempt = attempt or newest
                if attempt:
                    chunk = client.logs(job, attempt=attempt, rank=rank, since=offset)
                    if chunk.data:
                        offset = chunk.next_offset
                        yield chunk.data
                        continue
                if follow and attempt < newest:
                    attempt, offset = attempt + 1, 0
                elif ended(view.state) or not follow:
                    return
                else:
                    time.sleep(_POLL_S)

    def wait(
        self, job: str, *, timeout_s: float = WAIT_S_MAX, on_look: Callable[[JobView], None] = lambda view: None
    ) -> JobView:
        """Returns the job once it has ended.

        Args:
            job: Its id or name.
            timeout_s: How long to wait at most.
            on_look: Called with the job at every look, for progress.

        Raises:
            Unavailable: It has not ended in time.
        """
        deadline = time.monotonic() + timeout_s
        with self.client() as client:
            while True:
                view = client.job(job)
                job = view.id  # A name may come to mean a newer job.
                on_look(view)
                if ended(view.state):
                    return view
                if time.monotonic() > deadline:
                    raise Unavailable("wait for a job", on=job, got=view.state.value, wanted=f"an end in {timeout_s} s")
                time.sleep(_POLL_S)


__all__ = ["Lab", "job"]
