"""Profiles of jobs that run: who wants one, of which ranks. Leads learn of it with the answer to a heartbeat."""

from __future__ import annotations

from typing import final

import sqlalchemy as sa

from mainspring.control.service.views import find_job
from mainspring.control.store.audit import note
from mainspring.control.store.holdings import allocation_of_rank
from mainspring.control.store.records import attempts_of, text_of
from mainspring.control.store.schema import attempts
from mainspring.control.store.store import Store
from mainspring.control.store.tokens import LAB_ITSELF, Caller
from mainspring.domain.answers import NewProfile, ProfileView
from mainspring.domain.errors import Conflict
from mainspring.domain.ids import draw_id
from mainspring.domain.life import AttemptState
from mainspring.domain.ports import Clock, Dice
from mainspring.domain.team import Right
from mainspring.domain.wire import ProfileAsked


@final
class Profiling:
    """Asks for profiles. Used by many threads."""

    def __init__(self, store: Store, clock: Clock, dice: Dice) -> None:
        self._store = store
        self._clock = clock
        self._dice = dice

    def ask(self, reference: str, asked: NewProfile, caller: Caller = LAB_ITSELF) -> ProfileView:
        """Has ranks of a job profiled, and returns under which id.

        Args:
            reference: Its id or name.

        Raises:
            NotFound: There is no such job or rank.
            NotAllowed: The caller may not steer it.
            Conflict: It does not run.
        """
        now_s, drawn = self._clock.now_s(), draw_id("profile", self._dice)
        with self._store.write() as connection:
            job = find_job(connection, reference, caller)
            caller.require(connection, Right.STEER_JOBS, job.team, owner=job.owner)
            own = attempts_of(connection, [job.id]).get(job.id, [])
            if not own or own[-1].state is not AttemptState.RUNNING:
                raise Conflict(
                    "profile a job",
                    on=job.id,
                    got=job.state.value,
                    wanted="one that runs",
                    next_step=f"ms why {job.id}",
                )
            for rank in asked.ranks:
                allocation_of_rank(connection, own[-1].id, rank)
            wish = ProfileAsked(id=drawn, steps=asked.steps, ranks=asked.ranks, asked_s=now_s)
            of = attempts.c.id == own[-1].id
            connection.execute(sa.update(attempts).where(of).values(profile=text_of(wish)))
            note(connection, caller, "profile a job", job.id, team=job.team, now_s=now_s)
        return ProfileView(id=drawn, job=job.id, steps=asked.steps, ranks=asked.ranks)
