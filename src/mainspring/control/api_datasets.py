"""Pictures of episodes over HTTP."""

from __future__ import annotations

from typing import cast

from fastapi import Request
from fastapi.responses import Response

from mainspring.control.control import Control
from mainspring.control.store.tokens import Caller

_KEPT_S = 3_600  # An episode never changes; who may look at it might.


def pictures(*, request: Request, caller: Caller, dataset: str, number: str, episode: str) -> Response:
    """Answers with pictures of an episode."""
    made = cast(Control, request.app.state.control).datasets.pictures(dataset, number, episode)
    return Response(made, media_type="image/png", headers={"cache-control": f"private, max-age={_KEPT_S}"})
