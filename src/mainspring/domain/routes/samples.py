"""Calls about what ranks of a job measured, and where they stand."""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

from typing import Annotated

from mainspring.domain import answers
from mainspring.domain.codec import WHOLE_MAX
from mainspring.domain.routes.routing import Query, route
from mainspring.domain.team import Right

_JOBS = Right.READ_JOBS


class SampleCalls:
    """What people ask of a job's samples; see `LabCalls`."""

    @route("GET", "/jobs/{job}/samples", may=_JOBS, handler="samples.series", operation="job_samples", patient=True)
    def job_samples(
        self,
        job: str,
        *,
        metrics: Annotated[str, Query(max_length=4_096)] = "",
        points: Annotated[int, Query(ge=2, le=answers.POINTS_MAX)] = 500,
        attempt: Annotated[int | None, Query(ge=1, le=WHOLE_MAX)] = None,
    ) -> answers.JobSamples:
        """Shows what a job's ranks reported, step by step, as curves that go through what was least and most in each
        stretch; steps that were done again are marked.

        Args:
            job: JOB.
            metrics: Names, with commas between; of all where there are none.
            points: Of each curve, about so many.
            attempt: Only of the attempt of this number.
        """

    @route("GET", "/jobs/{job}/rank-times", may=_JOBS, handler="samples.rank_times", patient=True)
    def rank_times(
        self,
        job: str,
        *,
        columns: Annotated[int, Query(ge=1, le=1_000)] = 120,
        rows: Annotated[int, Query(ge=1, le=256)] = 64,
    ) -> answers.RankTimes:
        """Shows how long steps took at every rank of a job over time; of ranks that share a row, at the slowest.

        Args:
            job: JOB.
            columns: At most so many stretches of time.
            rows: At most so many rows of ranks.
        """

    @route("POST", "/jobs/{job}/stacks", may=Right.STEER_JOBS, handler="steering.ask_stacks")
    def ask_stacks(self, job: str, body: answers.Reason) -> answers.JobView:
        """Asks where the ranks of a job stand; some seconds later its events tell so (`stacks_seen`)."""
