"""Errors as they travel, all their parts kept."""

from __future__ import annotations

from mainspring.domain import errors
from mainspring.domain.codec import message
from mainspring.domain.errors import MainspringError

PROBLEM_TYPE = "application/problem+json"  # How RFC 9457 calls what an HTTP server says of an error.


@message("Problem")
class Problem:
    """An error as it travels: the parts of `MainspringError`, and over HTTP those of RFC 9457 beside them.

    `type` names the kind of error and `title` says what that is; `detail` tells of this one in a sentence. `request_id`
    is that of the request, by which a log tells more.
    """

    error: str
    attempted: str
    on: str = ""
    got: str = ""
    wanted: str = ""
    next_step: str = ""
    type: str = "about:blank"
    title: str = ""
    status: int = 0
    detail: str = ""
    request_id: str = ""


_ERRORS = {
    kind.wire_name: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, MainspringError)
}


def problem_of(error: MainspringError, status: int = 0, *, request: str = "") -> Problem:
    """Returns an error as it travels.

    Args:
        error: What was raised.
        status: HTTP's, where it travels so.
        request: The id of the request that it is the answer to.
    """
    return Problem(
        type=f"urn:mainspring:error:{error.wire_name}",
        title=(type(error).__doc__ or "").split(".")[0],
        status=status,
        detail=str(error),
        request_id=request,
        error=error.wire_name,
        attempted=error.attempted,
        on=error.on,
        got=error.got,
        wanted=error.wanted,
        next_step=error.next_step,
    )


def error_of(problem: Problem) -> MainspringError:
    """Returns the error that travelled, of the class it was raised as.

    Args:
        problem: What came.
    """
    kind = _ERRORS.get(problem.error, MainspringError)
    return kind(problem.attempted, on=problem.on, got=problem.got, wanted=problem.wanted, next_step=problem.next_step)
