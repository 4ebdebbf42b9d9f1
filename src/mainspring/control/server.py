"""Runs one controller: the API on a socket and the loop in a thread, until told to stop."""

from __future__ import annotations

import logging
import signal
import socket
from contextlib import AbstractContextManager, suppress
from threading import Event, Thread
from typing import final

import sqlalchemy as sa
import uvicorn

from mainspring.control.api import create_app
from mainspring.control.api_arrivals import Arrivals
from mainspring.control.connections import BACKLOG, BoundedConnection, Tls
from mainspring.control.control import Control
from mainspring.control.logins import Logins
from mainspring.control.loop.leadership import KEEP
from mainspring.control.loop.loop import Step
from mainspring.control.service.metrics.measures import Measures
from mainspring.domain.errors import Conflict, MainspringError, Unavailable

_FIRST_TICK_S = 10.0  # A cluster that takes longer is not worth waiting for: it is shown once it answers.
_DRAIN_S = 5.0  # Requests still open when stopping; streams are cut, everything else takes milliseconds.
_REST = 3.0  # After a tick, as often as long as it took: calls that come one upon another wake the loop all the time.
_REST_S_MAX = 1.0  # After a long tick: what waits for the next one shall not wait for much more than that one takes.
_SWEEP_S = 30.0  # Between two sweeps, of 500 jobs each: more than ten times what any lab ends in that time.
_SWEEP_PAUSE_S = 0.1  # Between two transactions of a sweep, each of which takes some milliseconds.
_STEP_S = 5.0  # What a tick is in the middle of may take, when stopping, before the lead is given up over its head.
_log = logging.getLogger(__name__)


@final
class Server:
    """One controller at work.

    Args:
        listener: From `listen`; closed when the server stops.
        arrivals: Where recordings that are sent arrive; None for a server that takes none.
        logins: How people log in by a provider of identities; None for a server that has none.
        connection: What serves each connection.
        proxied: Whether a proxy on this machine is in front, which tells where calls come from.
    """

    def __init__(
        self,
        control: Control,
        listener: socket.socket,
        *,
        tls: Tls | None = None,
        arrivals: Arrivals | None = None,
        logins: Logins | None = None,
        connection: type[BoundedConnection] = BoundedConnection,
        proxied: bool = False,
    ) -> None:
        self._control = control
        self._listener = listener
        self._stopping = Event()
        self._leading = Event()
        self._ticked = Event()
        self._leads = False
        self.api = create_app(control, arrivals, logins)
        """What serves requests; others may mount more on it before it starts."""
        self.measures: Measures = self.api.state.metrics.measures
        """What this server counts of itself; others may tell more of it there."""
        config = uvicorn.Config(
            self.api,
            log_config=None,  # What it says goes where all goes that this process says.
            log_level="error",  # Strangers could fill the log with warnings of bytes that are no HTTP.
            access_log=False,
            proxy_headers=proxied,
            http=connection,
            ws="none",
            lifespan="off",
            timeout_graceful_shutdown=round(_DRAIN_S),
            ssl_certfile=str(tls.certificate) if tls else None,
            ssl_keyfile=str(tls.key) if tls else None,
            backlog=min(BACKLOG, max(1, connection.connections_max // 2)),  # Accepted in one moment, before any bound.
        )
        self._http = uvicorn.Server(config)
        self._loop = control.new_loop()
        self._serving = Thread(
            target=self._http.run, kwargs={"sockets": [listener]}, name="mainspring-api", daemon=True
        )
        self._ticking = Thread(target=self._run_loop, name="mainspring-loop", daemon=True)
        self._keeping = Thread(target=self._keep_lead, name="mainspring-lead", daemon=True)
        self._sweeping = Thread(target=self._run_sweeps, name="mainspring-sweep", daemon=True)

    def start(self) -> None:
        """Starts serving, and returns once this controller leads and has asked every cluster once.

        With a store that controllers share, it also returns once this one follows another.

        Raises:
            Conflict: Another controller leads this store, which cannot be shared, and goes on doing so.
            Unavailable: The store does not answer.
        """
        self._serving.start()
        self._ticking.start()
        self._sweeping.start()
        if self._control.store.shared:
            self._keeping.start()
        settings = self._control.settings
        # A controller that died without a word still holds its lease for a while.
        if self._leading.wait(4 * settings.leader_lease_s + settings.interval_s):
            self._ticked.wait(_FIRST_TICK_S)
            return
        self.stop()
        leader = self._control.store.leader()
        raise Conflict(
            "lead the store",
            got=f"{leader.holder or 'another controller'}, which keeps its lease alive",
            wanted="one controller a store",
            next_step="use the one that runs, stop it, or give this one a store of its own",
        )

    def heed_signals(self) -> None:
        """Has SIGINT and SIGTERM end `wait`, from now on. Called from the main thread."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: self._stopping.set())

    def wait(self) -> None:
        """Returns after `stop`, or a signal that is heeded."""
        while not self._stopping.wait(1.0):
            assert self._serving.is_alive(), "the thread that serves has died"
            assert self._ticking.is_alive(), "the thread of the loop has died"

    @property
    def leads(self) -> bool:
        """Returns whether this server leads, as far as it knows."""
        return self._leads

    def write_as_leader(self) -> AbstractContextManager[sa.Connection]:
        """Returns a transaction in which nothing is written once another server leads.

        Raises:
            Conflict: Another does, or may.
        """
        return self._loop.write()

    def stop(self) -> None:
        """Ends within seconds, so that nobody misses it where others share its store. Harmless when repeated.

        It says that it is not ready, ends streams and gives up the lead while it serves; then it takes no more
        connections, and ends requests under way. Runs go on without a controller.
        """
        self._stopping.set()
        self._control.pulse.ending = True
        self._control.wake.set()
        if self._ticking.is_alive():
            self._ticking.join(_STEP_S)
            self._resign()
        if self._sweeping.is_alive():
            self._sweeping.join(_STEP_S)
        self._http.should_exit = True
        if self._serving.is_alive():
            self._serving.join(2 * _DRAIN_S)
        self._listener.close()

    def _run_loop(self) -> None:
        control = self._control
        while not self._stopping.is_set():
            begun_s = control.clock.monotonic_s()
            try:
                for step in self._loop.steps():
                    if self._stopping.is_set():  # A controller may die after any of its steps.
                        break
                    control.pulse.stepped(step)
                    self.measures.stepped(step)
                    self._leads = step is not Step.FOLLOWING
                    if step is Step.LEADING:
                        self._leading.set()
                    elif step is Step.FOLLOWING and control.store.shared:
                        self._leading.set()
                        self._ticked.set()
                    elif step is Step.RECORDED:
                        self._ticked.set()
            except (Conflict, Unavailable) as error:
                control.pulse.failed(error)
                self.measures.failed()
                _log.warning("a tick was cut short: %s", error)
            except Exception as error:  # noqa: BLE001
                # A tick that fails by our own fault must not end the loop: the next one starts from the store.
                control.pulse.failed(error)
                self.measures.failed()
                _log.exception("a tick failed")
            self._stopping.wait(min(_REST * (control.clock.monotonic_s() - begun_s), _REST_S_MAX))
            control.wake.wait(control.settings.interval_s)
            control.wake.clear()
        self._resign()

    def _keep_lead(self) -> None:
        """Keeps the lead while the loop plans, or waits for an engine; not that of a loop which moves no more."""
        control = self._control
        while not self._stopping.wait(0.5 * KEEP * control.settings.leader_lease_s):
            with suppress(MainspringError):  # The loop tells of a store that does not answer.
                if control.pulse.alive:
                    self._loop.keep_lead()

    def _resign(self) -> None:
        try:
            self._loop.resign()
        except MainspringError as error:
            _log.warning("could not give up the lead: %s", error)

    def _run_sweeps(self) -> None:
        """Writes whose tokens were used; archives and removes what is over, little by little, while this one leads."""

        def pause() -> None:
            if self._stopping.wait(_SWEEP_PAUSE_S):
                raise Unavailable("sweep the store", got="a server that stops")

        retention = self._control.retention
        while not self._stopping.wait(_SWEEP_S):
            self._write_uses()
            if self._leads:
                try:
                    retention.sweep(pause=pause)
                except MainspringError as error:
                    _log.warning("a sweep was cut short: %s", error)
                except Exception:  # noqa: BLE001  As of a tick: the next sweep begins from the store.
                    _log.exception("a sweep failed")
        self._write_uses()

    def _write_uses(self) -> None:
        try:
            self._control.people.write_uses()
        except Exception as error:  # noqa: BLE001  They are kept for the next time.
            _log.warning("when tokens were last used could not be written: %s", error)
