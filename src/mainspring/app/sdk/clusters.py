"""The cluster verbs of the SDK, `lab.clusters`: the same as `ms cluster`.

Clusters are part of the home folder's configuration, which the server reads when it starts: whoever adds or removes one
has a running server started anew. Jobs go on meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, final

from mainspring.app.base.home import Config, ServerRecord
from mainspring.app.base.system import looked
from mainspring.app.server import daemon
from mainspring.domain.answers import ClusterView, JobView
from mainspring.domain.errors import Conflict, InvalidInput, MainspringError, NotFound, Unavailable, nearest
from mainspring.domain.ids import ClusterName
from mainspring.domain.life import JobState, ended
from mainspring.engines.common.kind import CheckResult, ClusterSettings, Finding
from mainspring.engines.registry import kind_named

if TYPE_CHECKING:
    from mainspring.app.sdk.lab import Lab

JOIN_S_MAX = 30.0  # The server asks every cluster each second; Slurm's first answer may take its command's time.
END_S_MAX = 90.0  # Agents get 30 s to end by themselves, then a while to be ended.
_POLL_S = 0.2
_LIVE = (JobState.STARTING, JobState.RUNNING, JobState.STOPPING)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterShown:
    """One cluster, as it is set up and as the server sees it.

    Args:
        name: Its name.
        engine: Kind of engine.
        settings: How it is set up; None where a server elsewhere knows it.
        asked: Whether a server runs that asks it.
        view: What the server last saw of it; None while it has not answered since the server started.
    """

    name: ClusterName
    engine: str
    settings: ClusterSettings | None
    asked: bool
    view: ClusterView | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """A cluster that was removed.

    Args:
        name: Its name.
        stopped: Jobs that were stopped for that.
        left: Jobs that had not ended when it was removed.
    """

    name: ClusterName
    stopped: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


@final
class ClusterVerbs:
    """What can be done with a lab's clusters.

    Args:
        lab: The lab.
    """

    def __init__(self, lab: Lab) -> None:
        self._lab = lab

    def ls(self) -> tuple[ClusterShown, ...]:
        """Returns every cluster, by name: set up here, or known to the server.

        Raises:
            Unavailable: The server does not answer.
        """
        elsewhere = bool(self._lab.elsewhere)
        views: dict[ClusterName, ClusterView] = {}
        asked = elsewhere or self._server() is not None
        if asked:
            views = {view.inventory.cluster: view for view in self._lab.fleet()}
        if elsewhere:
            shown = [
                ClusterShown(name=name, engine=view.inventory.engine, settings=None, asked=True, view=view)
                for name, view in views.items()
            ]
        else:
            shown = [
                ClusterShown(
                    name=cluster.name,
                    engine=cluster.kind,
                    settings=cluster,
                    asked=asked,
                    view=views.get(cluster.name),
                )
                for cluster in self._lab.home.config().clusters
            ]
        return tuple(sorted(shown, key=lambda each: each.name))

    def show(self, name: str) -> ClusterShown:
        """Returns one cluster.

        Args:
            name: Its name.

        Raises:
            NotFound: There is none of that name.
        """
        known = {str(each.name): each for each in self.ls()}
        if name not in known:
            raise NotFound("find a cluster", on=repr(name), wanted=nearest(name, known), next_step="ms cluster ls")
        return known[name]

    def wait(self, *, timeout_s: float = JOIN_S_MAX) -> None:
        """Waits until every cluster has answered the server that runs.

        Args:
            timeout_s: How long to wait at most.

        Raises:
            Unavailable: One has not answered in time.
        """
        if silent := looked(self._silent, lambda silent: not silent, every_s=_POLL_S, timeout_s=timeout_s):
            raise Unavailable(
                "wait for clusters",
                on=", ".join(silent),
                got=f"no answer in {timeout_s:g} s",
                next_step=f"ms cluster check {silent[0]}",
            )

    def _silent(self) -> list[str]:
        return [str(shown.name) for shown in self.ls() if shown.view is None]

    def findings(self, cluster: ClusterSettings) -> Iterator[Finding]:
        """Yields what a check of a cluster's set-up finds, step by step; where there is nothing to set up, nothing.

        Args:
            cluster: Its description; it need not have been added.

        Raises:
            Unavailable: The check cannot be run at all.
        """
        if not kind_named(cluster.kind).steps:
            return
        config, server = self._lab.home.config(), self._server()
        url = (*config.public_urls, server.url)[0] if server else ""
        certificate = self._lab.home.certificate(config)
        from mainspring.app.server import checking  # No other verb looks at a set-up.

        yield from checking.findings(cluster, controller=url, certificate=certificate, run_as=config.run_as)

    def add(
        self,
        cluster: ClusterSettings,
        *,
        check: bool = True,
        on_finding: Callable[[Finding], None] = lambda finding: None,
    ) -> ClusterShown:
        """Adds a cluster, has a running server take it in, and returns it as the server then sees it.

        Args:
            cluster: Its description.
            check: Whether to look at its set-up first, and not to add it when something needed is missing.
            on_finding: Called with every finding, for progress.

        Raises:
            Conflict: There is one of that name.
            Unavailable: Something needed is missing, or the server did not start with it.
        """
        self._here("add a cluster")
        self._with(cluster)
        if check:
            found = []
            for finding in self.findings(cluster):
                on_finding(finding)
                found.append(finding)
            refused(
                found, attempted="add a cluster", on=cluster.name, next_step="put it right, or add it with --no-check"
            )
        with self._lab.home.lock():
            before = self._lab.home.config()
            self._lab.home.write_config(self._with(cluster))
        if self._restarted(before):
            with suppress(Unavailable):  # It is added all the same.
                self.wait()
        return self.show(cluster.name)

    def remove(
        self, name: str, *, force: bool = False, on_look: Callable[[JobView], None] = lambda view: None
    ) -> Removal:
        """Removes a cluster and has a running server let go of it. Nothing of the cluster itself is touched.

        Args:
            name: Its name.
            force: Whether to stop the jobs that are on it first; those that do not end in time are left as they are,
                which happens where the cluster does not answer.
            on_look: Called with every job that is waited for.

        Raises:
            NotFound: There is none of that name.
            Conflict: Jobs are on it, and it is not to be forced.
            Unavailable: No server runs, so that nobody knows of jobs on it, and it is not to be forced.
        """
        self._here("remove a cluster")
        shown = self.show(name)
        up = self._server() is not None
        if not up and not force:
            raise Unavailable(
                "see whether jobs run on a cluster", on=name, got="no server", next_step="ms up, or --force"
            )
        live = self._live_jobs(shown.name) if up else []
        if live and not force:
            named = ", ".join(live[:3]) + (f" and {len(live) - 3} more" if len(live) > 3 else "")
            raise Conflict(
                "remove a cluster",
                on=name,
                got=f"jobs that are on it: {named}",
                next_step="wait for them, or --force, which stops them",
            )
        left = self._stopped(live, on_look)
        with self._lab.home.lock():
            before = self._lab.home.config()
            self._lab.home.write_config(
                replace(before, clusters=tuple(each for each in before.clusters if each.name != name))
            )
        self._restarted(before)
        return Removal(name=shown.name, stopped=tuple(job for job in live if job not in left), left=tuple(left))

    def _server(self) -> ServerRecord | None:
        """Returns where the home's server listens, None when it is not running."""
        record = self._lab.home.server()
        return record if record is not None and daemon.running(record, self._lab.home) else None

    def _here(self, attempted: str) -> None:
        url = self._lab.elsewhere
        if url:
            raise InvalidInput(
                attempted,
                got=f"the one at {url}",
                wanted="the server's own machine",
                next_step="run it there, as the user who ran ms up",
            )

    def _with(self, cluster: ClusterSettings) -> Config:
        """Returns the configuration with one more cluster."""
        config = self._lab.home.config()
        if cluster.name in {each.name for each in config.clusters}:
            raise Conflict(
                "add a cluster",
                on=cluster.name,
                got="one of that name",
                next_step=f"another name, or ms cluster remove {cluster.name} first",
            )
        return replace(config, clusters=(*config.clusters, cluster))

    def _restarted(self, before: Config) -> bool:
        """Has a running server read the configuration; puts the old one back when it does not start with the new."""
        home = self._lab.home
        if self._server() is None:
            return False
        try:
            daemon.down(home)
            daemon.up(home)
        except MainspringError:
            home.write_config(before)
            with suppress(MainspringError):
                daemon.up(home)
            raise
        return True

    def _live_jobs(self, name: ClusterName) -> list[str]:
        """Returns the ids of jobs that are on a cluster, arrays job by job."""
        found: dict[str, None] = {}
        with self._lab.client() as client:
            for state in _LIVE:
                for view in client.every_job(state=state):
                    for each in client.every_job(array=view.id) if view.array else (view,):
                        on_it = each.attempts and each.attempts[-1].cluster == name
                        if on_it and not ended(each.state) and each.attempts[-1].ended_s is None:
                            found[each.id] = None
        return list(found)

    def _stopped(self, jobs: list[str], on_look: Callable[[JobView], None]) -> list[str]:
        """Stops jobs and returns those that had not ended in time."""
        for job in jobs:
            self._lab.stop(job)
        deadline = time.monotonic() + END_S_MAX
        left = []
        for job in jobs:
            try:
                self._lab.wait(job, timeout_s=max(0.0, deadline - time.monotonic()), on_look=on_look)
            except Unavailable:
                left.append(job)
        return left


def refused(found: list[Finding], *, attempted: str, on: str, next_step: str) -> None:
    """Raises what a check that failed means.

    Args:
        found: Every finding.
        attempted: What was being done.
        on: The cluster.
        next_step: What to do.

    Raises:
        Unavailable: Something needed is missing.
    """
    failed = [finding for finding in found if finding.standing is CheckResult.FAILED]
    if failed:
        got = "; ".join(f"{finding.name}: {finding.found}" for finding in failed)
        raise Unavailable(attempted, on=on, got=got, wanted=failed[0].fix, next_step=next_step)
