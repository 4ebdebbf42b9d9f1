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
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mainspring import objects
from mainspring.app.base.calls import batches
from mainspring.app.base.client import Client
from mainspring.app.base.home import Home, ServerRecord
from mainspring.app.base.specs import option_from, spec_from
from mainspring.app.base.system import looked
from mainspring.domain import answers
from mainspring.domain.codec import from_plain, to_plain
from mainspring.domain.errors import NotFound, Unavailable
from mainspring.domain.ids import JobId, TeamName
from mainspring.domain.job import LAB, Code, JobSpec
from mainspring.domain.life import ended
from mainspring.domain.routes import Answer, LabCalls, P, Route
from mainspring.domain.team import Team
from mainspring.domain.wire.addresses import addresses_of
from mainspring.domain.wire.telemetry import LogForm

if TYPE_CHECKING:
    from mainspring.app.base.async_client import AsyncClient
    from mainspring.app.base.code import TakenCode
    from mainspring.app.sdk.clusters import ClusterVerbs
    from mainspring.app.sdk.data import DataVerbs
    from mainspring.app.sdk.plans import PlannedSpec
    from mainspring.app.sdk.policies.evaluations import EvaluationVerbs
    from mainspring.app.sdk.policies.releases import ReleaseVerbs
    from mainspring.app.sdk.profiles import ProfileVerbs
    from mainspring.app.sdk.samples import Samples

WAIT_S_MAX = 30 * 86_400.0
TRAINING = {"mainspring", "train", "--recipe"}  # Words of a command that a plan may know something of.
_POLL_S = 0.2


def job(
    name: str,
    command: str | Sequence[str],
    *,
    on: str | Sequence[str] = "cpu",
    replicas: int = 1,
    spares: int = 0,
    each: Mapping[str, object] | None = None,
    environment: Mapping[str, str] | None = None,
    secrets: Sequence[str] = (),
    secret_files: Sequence[str] = (),
    **fields: object,
) -> JobSpec:
    """Returns the spec of a simple job.

    Args:
        name: Shown to people.
        command: Program and arguments, or one line of text.
        on: Acceptable chips, each `CHIP[:CHIPS][@SPEED]`: type, chips per replica, relative speed.
        replicas: How many replicas start together.
        spares: How many of them stand by.
        each: Any other field of `Option`, for each of them (`cpus`, `chip_memory_gib`, `within`, `prefer`, ...).
        environment: Variables for the program.
        secrets: Names of secrets that it finds as variables, of the job's team or of one above.
        secret_files: Names of those it finds as files, where `NAME_FILE` tells.
        **fields: Any other field of `JobSpec`, as in a YAML spec (`team`, `tier`, `after`, `duration_s`, ...);
            `begins_from` names a checkpoint, "JOB" or "JOB@STEP"; `options` replaces `on`.

    Raises:
        InvalidSpec: A field is unknown or out of range.
    """
    chips = [on] if isinstance(on, str) else on
    return spec_from(
        {
            "name": name,
            "command": command if isinstance(command, str) else list(command),
            "options": [option_from(option, replicas=replicas, **(each or {})) for option in chips],
            "environment": dict(environment or {}),
            "secrets": list(secrets),
            "secret_files": list(secret_files),
            "spares": spares,
            **fields,
        }
    )


class Lab(LabCalls):
    """One Mainspring, seen from one home folder. Its data is `lab.data`, its clusters `lab.clusters`.

    What is one call of the server is in `LabCalls`; what is loaded in a method is what no other verb needs.

    Args:
        home: The home folder; None for `MAINSPRING_HOME`, else `~/.mainspring`.
        insecure: Whether a token may cross a network in the clear.
    """

    def __init__(self, home: Path | str | None = None, *, insecure: bool = False) -> None:
        self.insecure = insecure
        self.home = Home.find(Path(home) if home is not None else None)

    @cached_property
    def data(self) -> DataVerbs:
        """Returns the verbs of its data."""
        from mainspring.app.sdk.data import DataVerbs

        return DataVerbs(self)

    @cached_property
    def clusters(self) -> ClusterVerbs:
        """Returns the verbs of its clusters."""
        from mainspring.app.sdk.clusters import ClusterVerbs

        return ClusterVerbs(self)

    @cached_property
    def evaluations(self) -> EvaluationVerbs:
        """Returns the verbs of what its policies are worth."""
        from mainspring.app.sdk.policies.evaluations import EvaluationVerbs

        return EvaluationVerbs(self)

    @cached_property
    def profiles(self) -> ProfileVerbs:
        """Returns the verbs of where its jobs' time goes."""
        from mainspring.app.sdk.profiles import ProfileVerbs

        return ProfileVerbs(self)

    @cached_property
    def policies(self) -> ReleaseVerbs:
        """Returns the verbs of releases of its policies."""
        from mainspring.app.sdk.policies.releases import ReleaseVerbs

        return ReleaseVerbs(self)

    def up(
        self,
        *,
        port: int | None = None,
        policy: Path | str | None = None,
        shared_account: bool = False,
        backup: bool = True,
        log_format: LogForm | None = None,
    ) -> ServerRecord:
        """Starts the server when it is not running, and returns where it listens.

        Args:
            port: 0 picks a free one; None takes the last one used, else the configured one.
            policy: A YAML file of the fields of `Policy`, kept for later starts too; None leaves it as it was.
            shared_account: Whether to write to the configuration that jobs of all teams may share the server's account.
            backup: Whether to copy the store before a new release changes its tables.
            log_format: How the server says what it has to say; None for what the configuration says.

        Raises:
            Conflict: The server is running, and reads what is given when it starts.
            NotAllowed: It would listen beyond this machine, and nobody said that jobs may share its account.
        """
        from mainspring.app.server import daemon

        return daemon.up(
            self.home,
            port=port,
            policy=None if policy is None else Path(policy),
            shared_account=shared_account,
            backup=backup,
            log_format=log_format,
        )

    def down(self) -> bool:
        """Stops the server and returns whether it was running. Jobs go on."""
        from mainspring.app.server import daemon

        return daemon.down(self.home)

    def client(self) -> Client:
        """Returns a client of this lab's server: that of `MAINSPRING_URL`, or of `ms login`, else the home's own.

        Raises:
            Unavailable: No server was started from this home.
        """
        return Client(**self._server())

    def async_client(self) -> AsyncClient:
        """Returns a client of this lab's server for programs of an event loop, whose calls are awaited.

        Raises:
            Unavailable: No server was started from this home.
        """
        from mainspring.app.base.async_client import AsyncClient

        return AsyncClient(**self._server())

    def page(self, path: str = "/", *, own: bool = False) -> str:
        """Returns an address that shows a page in a browser: good once, for some minutes, to let in as whoever asks.

        Args:
            path: The page's, such as "/jobs/JOB".
            own: Whether it is to be this home's own server, though it works with a lab elsewhere.

        Raises:
            Unavailable: No server was started from this home.
            NotFound: The server shows no pages.
        """
        with Client(**(self._own() if own else self._server())) as client:
            return client.page(path)

    def _server(self) -> dict[str, Any]:
        """Returns what clients of this lab's server are made with."""
        if url := self.elsewhere:
            token, login = self._token_for(url), self.home.login()
            how: dict[str, Any] = {"url": url, "token": token, "insecure": self.insecure}
            if login is not None and login.token == token and login.renewal is not None:
                from mainspring.app.base.renewal import RenewedToken

                how["renewed"] = RenewedToken(self.home, login, insecure=self.insecure)
            return how
        return self._own()

    def _own(self) -> dict[str, Any]:
        """Returns what clients of this home's own server are made with."""
        record = self.home.server()
        if record is None:
            raise Unavailable("reach the Mainspring server", on=str(self.home.path), got="none", next_step="ms up")
        certificate = self.home.certificate(self.home.config()) if record.url.startswith("https:") else ""
        return {"url": record.url, "token": self.home.token(), "certificate": certificate}

    @property
    def elsewhere(self) -> str:
        """Returns where the lab's servers are, "URL[,URL...]", when none is this home's own, or ""."""
        login = self.home.login()
        return os.environ.get("MAINSPRING_URL") or (login.url if login else "")

    def _token_for(self, text: str) -> str:
        """Returns the token for servers elsewhere: none is shown one that was meant for another."""
        if given := os.environ.get("MAINSPRING_TOKEN"):
            return given
        urls, login, record = set(addresses_of(text)), self.home.login(), self.home.server()
        if login is not None and urls <= set(addresses_of(login.url)):
            return login.token
        return self.home.token() if record is not None and urls == {record.url} else ""

    def call(self, route: Route[P, Answer], /, *args: P.args, **kwargs: P.kwargs) -> Answer:
        """Returns the server's answer to a call; see `Client.call`.

        Args:
            route: The call.
            *args: What it takes.
            **kwargs: What it takes by name.
        """
        with self.client() as client:
            return client.call(route, *args, **kwargs)

    def objects(self) -> objects.ObjectStore:
        """Returns this lab's object store."""
        return objects.open_store(self.home.objects_url(self.home.config()))

    def run(
        self,
        spec: JobSpec,
        *,
        key: str = "",
        code: Path | None = None,
        count: int = 1,
        after: Sequence[str] = (),
        begins_from: str = "",
        on_code: Callable[[TakenCode], object] = lambda taken: None,
        plan: bool = True,
        on_plan: Callable[[PlannedSpec], object] = lambda made: None,
    ) -> answers.JobView:
        """Submits a job and returns it; of an array, its first job.

        Args:
            spec: What to run.
            key: The same key again returns the job it made the first time.
            code: Folder whose working tree the job runs in; None for a job that needs no files.
            count: How many equal jobs to make of it; each program is told its place by `MAINSPRING_ARRAY_INDEX`.
            after: Ids or names of jobs that must succeed first, beside those that the spec names.
            begins_from: "JOB" or "JOB@STEP" of the checkpoint to begin from, where JOB is a job's id or name or an
                import's name; "" for what the spec says. The newest step there is now, or, of a job that this one
                comes after, the newest when this one starts.
            on_code: Called with what was taken of the working tree.
            plan: Whether a recipe of ours is planned on the chips that it may run on, and options have what they leave
                out from it: `chip_memory_gib`, and `speed` where none names any.
            on_plan: Called with what plans say.

        Raises:
            NotFound: There is no such checkpoint.
            InvalidSpec: The compiler has said that a recipe does not fit chips that the job may run on.
        """
        if plan and any({*role.command} >= TRAINING for role in spec.roles):
            from mainspring.app.sdk.plans import planned

            made = planned(spec, self.home)
            on_plan(made)
            spec = made.spec
        taken = self.take_code(code, on_code)
        with self.client() as client:
            first = {name: name for name in spec.after} | {name: client.status(name).id for name in after}
            begins_from = begins_from or spec.begins_from
            if begins_from in first:
                begins_from = first[begins_from]
            elif begins_from:
                from mainspring.app.sdk.checkpoints import CheckpointFinder

                found = CheckpointFinder(self).steps(begins_from)
                begins_from = f"{found.job}@{found.steps[0]}"
            spec = dataclasses.replace(
                spec, code=taken, after=tuple(dict.fromkeys(first.values())), begins_from=begins_from
            )
            return client.submit(answers.Submit(spec=spec, key=key, count=count))

    def run_all(
        self,
        specs: Sequence[JobSpec],
        *,
        code: Path | None = None,
        on_code: Callable[[TakenCode], object] = lambda taken: None,
    ) -> tuple[JobId, ...]:
        """Submits many jobs, in batches of which each is taken whole or not at all, and returns their ids in order.

        Args:
            specs: What to run; `after` and `begins_from` name jobs by their ids.
            code: As for `run`; what is taken is the same for all.
            on_code: As for `run`.
        """
        taken = self.take_code(code, on_code)
        submits = (answers.Submit(spec=dataclasses.replace(spec, code=taken)) for spec in specs)
        with self.client() as client:
            return tuple(job for batch in batches(submits) for job in client.submit_batch(batch).jobs)

    def take_code(self, code: Path | None, on_code: Callable[[TakenCode], object] = lambda taken: None) -> Code:
        """Keeps a working tree in the object store, and returns what a spec says of it.

        Args:
            code: The folder; None for the environment alone.
            on_code: Called with what was taken of it.
        """
        from mainspring.app.base.code import record_environment, snapshot_code

        store = self.objects()
        if code is None:
            return record_environment(store)
        tree = snapshot_code(code, store)
        on_code(tree)
        return tree.code

    def again(self, job: str, *, key: str = "") -> answers.JobView:
        """Submits a job's spec and code once more and returns the new job.

        Args:
            job: Id or name of the job to repeat.
            key: As for `run`.

        Raises:
            NotFound: The code it ran is no longer kept.
        """
        with self.client() as client:
            spec = client.status(job).spec
            if spec.code.tree and self.objects().size(spec.code.key) is None:
                raise NotFound(
                    "repeat a job", on=job, got=f"no code {spec.code.key[:17]}", next_step="ms run from a checkout"
                )
            return client.submit(answers.Submit(spec=spec, key=key))

    def events(self, job: str) -> tuple[answers.Event, ...]:
        """Returns the events of a job, by its id or name, oldest first."""
        with self.client() as client:
            return client.events(job)

    def watch(self, job: str | None = None, *, since: int = 0) -> Iterator[answers.Event]:
        """Yields events as they come: of a job until it ends, or of all jobs one may read, without end.

        Args:
            job: Its id or name, None for all.
            since: The last sequence that was seen.
        """
        with self.client() as client:
            yield from client.watch(job, since=since)

    def set_team(self, name: str, **fields: object) -> Team:
        """Places a team in the tenant tree, or changes it, and returns it.

        Args:
            name: The team.
            **fields: Any other field of `Team`; what is left out stays as it was. A new team is placed under "lab".
        """
        with self.client() as client:
            known = {view.team.name: view.team for view in client.teams()}
            before = known.get(TeamName(name), Team(name=TeamName(name), parent=None if name == LAB else LAB))
            return client.put_team(name, from_plain(Team, {**to_plain(before), **to_plain(fields)}, strict=True))

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
                view = client.status(job)
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

    def samples(self, job: str, *metrics: str, points: int = 2_000, attempt: int | None = None) -> Samples:
        """Returns what a job's ranks reported step by step, as curves of NumPy arrays by name.

        Args:
            job: Its id or name.
            *metrics: Names; all when there are none.
            points: Of each curve, about so many: it goes through what was least and most in each stretch.
            attempt: Only of the attempt of this number.

        Raises:
            NotFound: No such job, or nothing was reported under a name.
        """
        from mainspring.app.sdk.samples import Samples

        return Samples(self.job_samples(job, metrics=",".join(metrics), points=points, attempt=attempt))

    def stacks(
        self, job: str, *, reason: str = "to see where it stands", timeout_s: float = 60.0
    ) -> tuple[answers.Event, ...]:
        """Asks where a job's ranks stand, and returns what its lead tells: an event for each place, with the stacks.

        Args:
            job: Its id or name.
            reason: Why, for the audit log.
            timeout_s: How long to wait at most.

        Raises:
            Conflict: None of its ranks run.
            Unavailable: Its lead has not told in time.
        """
        with self.client() as client:
            job = client.ask_stacks(job, answers.Reason(reason=reason)).id
            asked = max(one.sequence for one in client.job_events(job, newest=True) if one.kind == "stacks_asked")

            def seen() -> list[answers.Event]:
                return [one for one in client.job_events(job, since=asked) if one.kind == "stacks_seen"]

            found = looked(seen, bool, every_s=_POLL_S, timeout_s=timeout_s)
        if found:
            return tuple(found)  # All of one look come with one heartbeat.
        raise Unavailable("see where ranks stand", on=job, got=f"no word of its lead in {timeout_s:g} s")

    def wait(
        self, job: str, *, timeout_s: float = WAIT_S_MAX, on_look: Callable[[answers.JobView], None] = lambda view: None
    ) -> answers.JobView:
        """Returns the job once it has ended.

        Args:
            job: Its id or name.
            timeout_s: How long to wait at most.
            on_look: Called with the job at every look, for progress.

        Raises:
            Unavailable: It has not ended in time.
        """
        with self.client() as client:
            id = client.status(job).id  # A name may come to mean a newer job.

            def is_over(view: answers.JobView) -> bool:
                on_look(view)
                return ended(view.state)

            view = looked(lambda: client.status(id), is_over, every_s=_POLL_S, timeout_s=timeout_s)
        if ended(view.state):
            return view
        raise Unavailable("wait for a job", on=id, got=view.state.value, wanted=f"an end in {timeout_s} s")


__all__ = ["Lab", "job"]
