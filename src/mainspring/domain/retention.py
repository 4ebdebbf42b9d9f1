"""Retention: how long what has ended is kept at hand."""

from __future__ import annotations

from dataclasses import dataclass

from mainspring.domain.errors import InvalidSpec

DAYS_MIN = 7  # What jobs ended of is evidence about nodes for so long.
DAYS_MAX = 36_500
JOBS_MAX = 100_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """What is kept at hand of what is over; what is older goes to the archive, or goes.

    Args:
        days: Since they ended, jobs with their attempts and events are in the store; since they were made, plans and
            events of no job; since they ended, tokens.
        jobs: The most jobs that have ended which are in the store, the newest.
    """

    days: int = 90
    jobs: int = 1_000_000

    def __post_init__(self) -> None:
        """Checks the ranges.

        Raises:
            InvalidSpec: A number is out of its range.
        """
        for name, value, least, most in (
            ("days", self.days, DAYS_MIN, DAYS_MAX),
            ("jobs", self.jobs, 0, JOBS_MAX),
        ):
            if not least <= value <= most:
                raise InvalidSpec(
                    "say what is kept", on=f"field 'keep.{name}'", got=str(value), wanted=f"{least} to {most}"
                )
