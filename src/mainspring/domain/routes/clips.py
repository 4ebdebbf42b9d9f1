"""Calls about clips that robots cut out of their logs: told first, sent when they are wanted."""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

from mainspring.domain import answers
from mainspring.domain.routes.nodes import Limit, Named
from mainspring.domain.routes.routing import route
from mainspring.domain.team import Right


class ClipCalls:
    """What robots tell of clips, and people ask; see `LabCalls`. Their bytes arrive as any recording's do."""

    @route("GET", "/clips", may=Right.READ_RECORDINGS, handler="clips.every", operation="list_clips", patient=True)
    def clips(self, *, dataset: Named = None, robot: Named = None, limit: Limit = 50) -> tuple[answers.ClipView, ...]:
        """Lists clips that robots told of, newest first, and where their bytes are.

        Args:
            dataset: Only those for this dataset.
            robot: Only this robot's.
            limit: At most so many.
        """

    @route("POST", "/clips/ask", may=Right.SEND_RECORDINGS, handler="clips.ask", operation="ask_clips", repeats=True)
    def ask_clips(self, body: answers.ClipsAsked) -> answers.ClipsAsked:
        """Has robots send the bytes of clips, by id or how it begins, the next time they look."""

    @route(
        "POST",
        "/datasets/{dataset}/clips",
        may=Right.SEND_RECORDINGS,
        handler="clips.tell",
        operation="tell_clips",
        repeats=True,
        patient=True,
    )
    def tell_clips(self, dataset: str, body: answers.ClipCatalog) -> answers.ClipsAsked:
        """Tells the lab of clips that a robot has, by its own token, and answers which of them somebody asked for."""
