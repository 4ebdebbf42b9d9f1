"""Questions about jobs, plans and nodes: why a job is where it is, what some changes would make of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Lock
from typing import final

from mainspring.control.service.alerts.history import promises
from mainspring.control.service.lists import JobFilter
from mainspring.control.service.metrics.glance import Glances
from mainspring.control.service.nodes.maps import map_of
from mainspring.control.service.planning import plan_of, waiting_why, what_if
from mainspring.control.service.planning import remedies as remedies_of
from mainspring.control.service.shared import Shared
from mainspring.control.service.views import find_job, list_nodes, list_verdicts, view_clusters, view_why
from mainspring.control.state.fleet import FleetView, read_closed
from mainspring.control.state.latest_plan import LatestPlan, LatestPlans
from mainspring.control.store.records import ACTIVE_MAX
from mainspring.control.store.rows import RowMapping
from mainspring.control.store.schema import plans
from mainspring.control.store.settings import Settings
from mainspring.control.store.store import Store
from mainspring.control.store.tokens import LAB_ITSELF, Caller, sight
from mainspring.domain.answers import (
    SHOWN_MAX,
    ClusterMap,
    Glance,
    NodeView,
    PlanLine,
    PlanView,
    PromiseView,
    Verdict,
    WhatIf,
    WhatIfAnswer,
    Why,
)
from mainspring.domain.errors import InvalidInput, NotFound, Unavailable, nearest
from mainspring.domain.fleet import NodeOrder
from mainspring.domain.ids import ClusterName, TeamName
from mainspring.domain.life import JobState
from mainspring.domain.plan import Limit
from mainspring.domain.ports import Clock
from mainspring.domain.routes import LIST_MAX

HOLDS_SHOWN_MAX = 100
PROMISES_S = 60.0  # How long what became of promises is told again: it takes a look through many events.
_PLANS = RowMapping(PlanLine, plans)
ASK_S = 60.0  # The longest wait for others who try changes: one thread tries at a time, for each makes whole plans.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """What became of promises, and when that was looked up."""

    at_s: float
    views: tuple[PromiseView, ...]


@final
class Questions:
    """Answers about plans. Used by many threads; nothing here changes anything.

    Args:
        pictures: The last plan.
        wake: Told that somebody waits for a picture.
        fleet: What the engines said.
    """

    def __init__(
        self,
        store: Store,
        pictures: LatestPlans,
        fleet: FleetView,
        clock: Clock,
        wake: Callable[[], None],
        *,
        settings: Settings,
    ) -> None:
        self.shared = Shared(clock)
        """What many ask for at one time."""
        self._wake = wake
        self._store = store
        self._fleet = fleet
        self._clock = clock
        self._pictures = pictures
        self._asking = Lock()
        self._telling = Lock()
        self._promises: _Told | None = None
        self._glances = Glances(fleet, lease_s=settings.lease_s)

    def why(self, reference: str, caller: Caller = LAB_ITSELF, *, remedies: bool = False) -> Why:
        """Returns why a job is where it is, or waits.

        Args:
            reference: Its id or name.
            caller: Who asks.
            remedies: Whether to find what would start it now, which makes plans and takes a while.

        Raises:
            NotFound: No such job.
            Unavailable: Others keep this controller busy with such questions.
        """
        with self._store.read() as connection:
            answer = view_why(connection, find_job(connection, reference, caller), self._clock.now_s())
            holds = read_closed(connection)
        answer = replace(answer, ordered=tuple(one for one in self._ordered() if one.job == answer.job))
        picture = self._shown() if remedies else self._pictures.newest
        if answer.limit is Limit.PAUSED or answer.state is not JobState.QUEUED:
            return answer
        if picture is not None:
            answer = waiting_why(picture, answer)
        places = {one.cluster for one in answer.candidates}
        kept = (*holds.clusters.values(), *holds.nodes.values())
        answer = replace(answer, holds=tuple(hold for hold in kept if hold.cluster in places)[:HOLDS_SHOWN_MAX])
        if picture is None:
            return answer
        if not remedies:
            return answer
        with self._asked("find what would start a job"):
            return replace(answer, remedies=remedies_of(picture, answer.job))

    def plan(self, caller: Caller = LAB_ITSELF) -> PlanView:
        """Returns the last plan, which anybody may read: it names jobs by their ids alone.

        A controller that follows another shows the one that would be made now.

        Raises:
            Unavailable: There is no plan yet.
        """
        picture = self._picture("show the last plan")
        return replace(plan_of(picture), ordered=self._ordered()[:SHOWN_MAX])

    def promises(self, caller: Caller = LAB_ITSELF) -> tuple[PromiseView, ...]:
        """Returns what became of the lab's promises, as far as events tell; no older than a minute."""
        now_s = self._clock.now_s()
        with self._telling:
            if self._promises is None or now_s - self._promises.at_s > PROMISES_S:
                with self._store.read() as connection:
                    self._promises = _Told(at_s=now_s, views=promises(connection, now_s))
            return self._promises.views

    def glance(self, caller: Caller = LAB_ITSELF, *, limit: int = 10) -> Glance:
        """Returns the lab at a glance.

        Args:
            limit: The most jobs of each kind.

        Raises:
            Unavailable: There is no plan yet.
        """
        picture = self._picture("look at the lab")
        with self._store.read() as connection:
            seen = sight(connection, caller)
            return self._glances.look(connection, picture, now_s=self._clock.now_s(), limit=limit, seen=seen)

    def _ordered(self) -> tuple[NodeOrder, ...]:
        return tuple(order for seen in self._fleet.seen().values() for order in seen.inventory.orders)

    def plans(self, caller: Caller = LAB_ITSELF, *, before: int | None = None, limit: int = 50) -> tuple[PlanLine, ...]:
        """Returns the plans that changed something, newest first, which anybody may read.

        Args:
            before: Only those with a lower number, unless None.
            limit: The most to return.
        """
        query = _PLANS.select.order_by(plans.c.number.desc()).limit(limit)
        with self._store.read() as connection:
            return _PLANS.read(connection, query if before is None else query.where(plans.c.number < before))

    def verdicts(
        self, caller: Caller = LAB_ITSELF, *, team: TeamName | None = None, limit: int = 50
    ) -> tuple[Verdict, ...]:
        """Returns what jobs wait for, what most wait for first; of many, as it was a moment ago.

        Args:
            team: Only this team's, unless None.
            limit: The most to return.
        """
        with self._store.read() as connection:
            wanted = JobFilter(state=JobState.QUEUED, team=team, seen=sight(connection, caller))
            asked = ("verdicts", team, wanted.seen, limit)
            return self.shared.of(asked, lambda: list_verdicts(connection, wanted, limit=limit))

    def fleet_map(self, caller: Caller = LAB_ITSELF) -> tuple[ClusterMap, ...]:
        """Returns the map of every cluster, in order of name, which anybody may read; of a large fleet, as it was a
        moment ago.
        """

        def drawn() -> tuple[ClusterMap, ...]:
            with self._store.read() as connection:
                return tuple(map_of(view) for view in view_clusters(connection, self._fleet, self._clock.now_s()))

        return self.shared.of("map", drawn)

    def nodes(
        self,
        cluster: str,
        caller: Caller = LAB_ITSELF,
        *,
        within: str | None = None,
        after: str | None = None,
        limit: int = LIST_MAX,
    ) -> tuple[NodeView, ...]:
        """Returns the nodes of a cluster, or its slots, in order of name, which anybody may read.

        Args:
            within: Only those in a domain of this name, unless None.
            after: The last one seen, None to begin.
            limit: The most to return, up to `LIST_MAX`.

        Raises:
            NotFound: No such cluster.
        """
        with self._store.read() as connection:
            views = view_clusters(connection, self._fleet, self._clock.now_s())
            known = {view.inventory.cluster: view for view in views}
            view = known.get(ClusterName(cluster))
            if view is None:
                raise NotFound("list nodes", on=f"cluster {cluster[:80]!r}", wanted=nearest(cluster[:80], known))
            return list_nodes(connection, view, within=within, after=after, limit=limit)

    def what_if(self, changes: WhatIf, caller: Caller = LAB_ITSELF) -> WhatIfAnswer:
        """Returns what some changes would make of the last plan; nothing of it happens.

        Raises:
            NotFound: A change speaks of a cluster, chip or team that is not known.
            InvalidInput: There would be too many nodes or jobs, or the teams would be no tree.
            Unavailable: There is no plan yet, or this controller is kept busy with such questions.
        """
        picture = self._picture("try a change")
        count = sum(submit.count for submit in changes.submits) + len(picture.snapshot.pending.jobs)
        if count > ACTIVE_MAX:
            raise InvalidInput("try a change", got=f"{count} waiting jobs", wanted=f"at most {ACTIVE_MAX}")
        with self._asked("try a change"):
            return what_if(picture, changes)

    def _shown(self) -> LatestPlan | None:
        return self._pictures.shown(self._clock.now_s(), self._wake)

    def _picture(self, attempted: str) -> LatestPlan:
        picture = self._shown()
        if picture is None:
            raise Unavailable(attempted, got="no plan yet on this controller", next_step="ask again in a moment")
        return picture

    @contextmanager
    def _asked(self, attempted: str) -> Iterator[None]:
        """Lets one thread at a time make plans that only answer questions."""
        if not self._asking.acquire(timeout=ASK_S):
            raise Unavailable(attempted, got="others who ask", next_step="ask again in a moment")
        try:
            yield
        finally:
            self._asking.release()
