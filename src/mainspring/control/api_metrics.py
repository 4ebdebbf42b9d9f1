"""What Prometheus reads over HTTP, and the requests that are counted for it on their way."""

from __future__ import annotations

import logging
from typing import cast, final

from prometheus_client.exposition import choose_encoder
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mainspring.control.control import Control
from mainspring.control.service.metrics.lab import LabCollector
from mainspring.control.service.metrics.measures import Measures
from mainspring.control.store.schema import ID_LENGTH_MAX
from mainspring.control.store.tokens import Caller
from mainspring.domain.job import LAB
from mainspring.domain.team import Right

_log = logging.getLogger(__name__)


@final
class Metrics:
    """All that one server tells Prometheus."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self.measures = Measures(control.clock)
        self.measures.registry.register(
            LabCollector(
                control.store,
                control.fleet,
                control.pictures,
                control.clock,
                settings=control.settings,
                loop_silent_s=lambda: control.pulse.silent_s,
                held=control.restores.waiting,
            )
        )

    def read(self, caller: Caller, accepted: str) -> tuple[bytes, str]:
        """Returns every sample as text, and the type of that text.

        Args:
            accepted: What the caller takes, as HTTP's `Accept` says.

        Raises:
            NotAllowed: The caller may not read them.
        """
        with self._control.store.read() as connection:
            caller.require(connection, Right.READ_METRICS, LAB)
        encoder, kind = choose_encoder(accepted)
        return encoder(self.measures.registry), kind


@final
class Measured:
    """Counts each request, and how long its answer took to begin.

    Args:
        app: What serves them.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        measures: Measures = scope["app"].state.metrics.measures
        begun_s = measures.clock.monotonic_s()

        async def counting(message: Message) -> None:
            if message["type"] == "http.response.start":
                operation = getattr(scope.get("route"), "name", "")
                measures.answered(operation, message["status"], begun_s)
                _tell(scope, operation, message["status"], measures.clock.monotonic_s() - begun_s)
            await send(message)

        await self._app(scope, receive, counting)


def _tell(scope: Scope, operation: str, status: int, seconds: float) -> None:
    """Writes a line of what people change, and of what the server could not answer; of nothing that a stranger asks."""
    caller = scope.get("state", {}).get("caller")
    changes = scope["method"] not in ("GET", "HEAD") and caller is not None and caller.attempt is None
    if (changes or (status >= 500 and caller is not None)) and _log.isEnabledFor(logging.INFO):
        job = str(scope.get("path_params", {}).get("job", ""))
        facts = {"operation": operation, "status": status, "seconds": round(seconds, 6)}
        whose = {"holder": caller.holder, "team": caller.team, "job_id": job[:ID_LENGTH_MAX]}
        _log.info("%s is answered %d", operation, status, extra=facts | whose)


def read_metrics(*, request: Request, caller: Caller) -> Response:
    """Answers Prometheus."""
    told, kind = cast(Metrics, request.app.state.metrics).read(caller, request.headers.get("accept", ""))
    return Response(told, headers={"content-type": kind})
