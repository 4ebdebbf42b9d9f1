"""Engine wiring: each configured cluster's engine, opened here or hosted by a process of its own; none is named."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, final

from mainspring.app.base.home import Config, Home
from mainspring.app.base.system import SystemClock
from mainspring.domain.ids import ClusterName
from mainspring.domain.ports import Clock, Engine
from mainspring.domain.wire.telemetry import LogForm
from mainspring.engines.common.kind import ClusterSettings, EngineContext, JobUsers
from mainspring.engines.common.nonblocking import NonBlockingEngine
from mainspring.engines.registry import kind_named
from mainspring.engines.remote.connection import HostCommand
from mainspring.engines.remote.engine import RemoteEngine, ssh_words


def open_engine(opening: Any) -> Engine:
    """Returns the engine that an opening names, for another process.

    Args:
        opening: The first message from there, one of `openings`.
    """
    context = EngineContext(
        environment=os.environ,
        certificate=opening.certificate,
        users=JobUsers(run_as=opening.run_as) if opening.run_as else None,
        clock=SystemClock(),
    )
    return kind_named(opening.cluster.kind).engine(opening.cluster, context)


@final
class Engines:
    """The engines of all configured clusters.

    Args:
        home: Keeps what local ones remember.
        environment: This process's own.
    """

    def __init__(self, config: Config, home: Home, *, environment: Mapping[str, str], clock: Clock) -> None:
        self._context = EngineContext(
            environment=environment,
            certificate=home.certificate(config),
            folder=home.engines,
            users=JobUsers(run_as=config.run_as, folder=home.run_folder(config)) if config.run_as else None,
            clock=clock,
        )
        self._log_form = config.log_format
        self._closing = ExitStack()
        self.by_name: dict[ClusterName, Engine] = {cluster.name: self._opened(cluster) for cluster in config.clusters}

    def close(self) -> None:
        """Hangs up and ends all threads. What the engines have started goes on."""
        self._closing.close()

    def _opened(self, cluster: ClusterSettings) -> Engine:
        kind, context = kind_named(cluster.kind), self._context
        if kind.hosting is None or kind.opening is None:
            return kind.engine(cluster, context)
        hosting = kind.hosting(cluster)
        json = ("--log-format", self._log_form.value, "--cluster", cluster.name)
        said = () if self._log_form is LogForm.TEXT else json
        program = ("engine-host", *said)
        words: tuple[str, ...] = (sys.executable, "-P", "-m", "mainspring", *program)
        if hosting.ssh:
            words = ssh_words(hosting.ssh, hosting.python or sys.executable, *program)
        far = RemoteEngine(
            HostCommand(
                words=words,
                on=f"{cluster.name} over {hosting.ssh}" if hosting.ssh else cluster.name,
                environment=context.environment_but_ours(),
            ),
            kind.opening(
                cluster=cluster,
                certificate=context.certificate,
                run_as=context.users.run_as if context.users is not None else {},
            ),
            clock=context.clock,
            call_s=hosting.call_s,
        )
        behind = NonBlockingEngine(
            far,
            name=cluster.name,
            clock=context.clock,
            inventory_s=hosting.inventory_s,
            observe_s=hosting.observe_s,
            stale_s=hosting.stale_s,
        )
        self._closing.callback(behind.close)
        self._closing.callback(far.close)  # First: whoever waits for it is told.
        return behind
