"""Errors as they travel, all their parts kept."""

from __future__ import annotations

from mainspring.domain import errors
from mainspring.domain.codec import message
from mainspring.domain.errors import MainspringError


@message("Problem")
class Problem:
    """An error as it travels over HTTP; the parts are those of `MainspringError`."""

    error: str
    attempted: str
    on: str = ""
    got: str = ""
    wanted: str = ""
    next_step: str = ""


_ERRORS = {
    kind.wire_name: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, MainspringError)
}


def problem_of(error: MainspringError) -> Problem:
    """Returns an error as it travels.

    Args:
        error: What was raised.
    """
    return Problem(
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
