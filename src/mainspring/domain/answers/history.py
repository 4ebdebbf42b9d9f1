"""What was: a job's whole life, and what a sweep of the store does."""

from __future__ import annotations

from mainspring.domain.answers.jobs import Event, JobView
from mainspring.domain.codec import message


@message("JobHistory")
class JobHistory:
    """A job's whole life.

    Args:
        job: All about it, with every attempt, what it cost and where its time went.
        events: What happened to it, oldest first; of very many, the newest.
        archived: Whether it is in the archive, and no longer in the store.
    """

    job: JobView
    events: tuple[Event, ...]
    archived: bool = False


@message("Sweep")
class Sweep:
    """What a sweep takes out of the store, or would.

    Args:
        dry_run: Whether nothing of it was done.
        archived: Jobs written to the archive.
        jobs: Jobs removed, with their attempts, events and tokens; all are in the archive.
        events: Events of no job.
        plans: Plans.
        tokens: Tokens of people, which had ended.
    """

    dry_run: bool = False
    archived: int = 0
    jobs: int = 0
    events: int = 0
    plans: int = 0
    tokens: int = 0
