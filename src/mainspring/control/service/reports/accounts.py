"""The accounts of allocated time, for those who ask: of a job, and of all that somebody may see."""

from __future__ import annotations

from typing import final

from mainspring.control.service.reports.goodput import goodput_of, goodput_report
from mainspring.control.service.shared import Shared
from mainspring.control.service.views import find_job
from mainspring.control.store.settings import Settings
from mainspring.control.store.store import Store
from mainspring.control.store.tokens import LAB_ITSELF, Caller, sight
from mainspring.domain.answers import GoodputReport
from mainspring.domain.goodput import Goodput
from mainspring.domain.ids import ClusterName, TeamName
from mainspring.domain.ports import Clock


@final
class Accounts:
    """What allocated time went into, until now, for those who ask.

    Args:
        shared: What many ask for at one time.
    """

    def __init__(self, store: Store, clock: Clock, settings: Settings, shared: Shared) -> None:
        self._shared = shared
        self._store = store
        self._clock = clock
        self._settings = settings

    def of_job(self, reference: str, caller: Caller = LAB_ITSELF) -> Goodput:
        """Returns the ledger of a job.

        Args:
            reference: Its id or name.

        Raises:
            NotFound: No such job.
        """
        with self._store.read() as connection:
            job = find_job(connection, reference, caller)
            return goodput_of(connection, job, now_s=self._clock.now_s(), lease_s=self._settings.lease_s)

    def report(
        self,
        caller: Caller = LAB_ITSELF,
        *,
        team: TeamName | None = None,
        cluster: ClusterName | None = None,
        since_s: float = 0.0,
    ) -> GoodputReport:
        """Returns the ledgers of many attempts: in all, by team and by cluster; of very many, as it was a moment ago.

        Args:
            team: Only of this team and those below it, unless None.
            cluster: Only on this cluster, unless None.
            since_s: Only attempts granted since then.

        Raises:
            NotFound: No such team or cluster.
        """
        with self._store.read() as connection:
            seen = sight(connection, caller)

            def made() -> GoodputReport:
                return goodput_report(
                    connection,
                    team=team,
                    cluster=cluster,
                    since_s=since_s,
                    now_s=self._clock.now_s(),
                    lease_s=self._settings.lease_s,
                    seen=seen,
                )

            return self._shared.of(("report", team, cluster, since_s, seen), made)
