"""The profile verbs of the SDK, `lab.profiles`: the same as `ms profile`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, final

from mainspring.app.base.system import looked
from mainspring.checkpoint import job_folder
from mainspring.domain.answers import JobView, NewProfile, ProfileView
from mainspring.domain.errors import NotFound, Unavailable
from mainspring.domain.ids import JobId
from mainspring.domain.life import ended
from mainspring.domain.routes import Calls
from mainspring.domain.wire.events.leads import ProfileKeptEvent
from mainspring.session.profiling.recording import ABOUT, TRACE, XPLANE
from mainspring.train.profile.summary import ProfileDifference, ProfileSummary, difference, summarise
from mainspring.train.profile.trace import read_trace

if TYPE_CHECKING:
    from mainspring.app.sdk.lab import Lab

WAIT_S_MAX = 600.0  # A step of the largest runs takes a minute.
FILES = (XPLANE, TRACE, ABOUT)
_POLL_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProfile:
    """One rank's profile as it is kept.

    Args:
        id: Which profile; those of several ranks that were asked for together have one.
        folder: Where it lies in the object store.
    """

    id: str
    job: JobId
    rank: int
    folder: str
    summary: ProfileSummary


@final
class ProfileVerbs:
    """What can be done to know where the time of a lab's jobs goes.

    Args:
        lab: The lab.
    """

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._store = lab.objects()

    def take(
        self,
        job: str,
        *,
        steps: int = 5,
        ranks: tuple[int, ...] = (0,),
        timeout_s: float = WAIT_S_MAX,
        on_wait: Callable[[int], object] = lambda left: None,
    ) -> tuple[JobProfile, ...]:
        """Profiles ranks of a job that runs, without a restart, and returns their profiles once they are kept.

        Args:
            job: Its id or name.
            steps: How many steps.
            ranks: Which ranks, as `ms status` and `ms logs` number them.
            timeout_s: How long to wait.
            on_wait: Called at each look with how many ranks are still awaited.

        Raises:
            NotFound: There is no such job or rank.
            Conflict: The job does not run.
            Unavailable: A rank could not be profiled, or it took too long.
        """
        seen = self._lab.call(Calls.job_events, job, newest=True, limit=1)
        asked = self._lab.ask_profile(job, NewProfile(steps=steps, ranks=ranks))
        told = self._told(asked, seen[-1].sequence if seen else 0, timeout_s, on_wait)
        failed = [event for event in told if event.failure]
        if failed:
            raise Unavailable("profile a job", on=f"rank {failed[0].rank} of {asked.job}", got=failed[0].failure[:500])
        return tuple(self.read(asked.job, asked.id, rank) for rank in sorted(ranks))

    def _told(
        self, asked: ProfileView, since: int, timeout_s: float, on_wait: Callable[[int], object]
    ) -> list[ProfileKeptEvent]:
        """Returns what is told of each rank, in events after a sequence."""
        told: list[ProfileKeptEvent] = []

        def left() -> int:
            return len({*asked.ranks} - {event.rank for event in told})

        def look() -> JobView:
            nonlocal since
            view = self._lab.status(asked.job)  # Before its events: what a job that has ended told is among these.
            fresh = self._lab.call(Calls.job_events, asked.job, since=since)
            since = fresh[-1].sequence if fresh else since
            kept = (event.told for event in fresh if isinstance(event.told, ProfileKeptEvent))
            told.extend(event for event in kept if event.id == asked.id)
            on_wait(left())
            return view

        view = looked(look, lambda view: not left() or ended(view.state), every_s=_POLL_S, timeout_s=timeout_s)
        if left():
            got = view.state.value if ended(view.state) else f"no word of {left()} ranks in {timeout_s:.0f} s"
            raise Unavailable("profile a job", on=asked.job, got=got, next_step=f"ms status {asked.job}")
        return told

    def ls(self, job: str) -> tuple[str, ...]:
        """Returns the profiles that are kept of a job, "ID/RANK", in order of id.

        Args:
            job: Its id or name.
        """
        folder = f"{job_folder(self._id(job))}/profiles"
        keys = [seen.key for seen in self._store.list(folder) if seen.key.endswith(f"/{ABOUT}")]
        return tuple(f"{key.split('/')[-3]}/{int(key.split('/')[-2].removeprefix('rank-'))}" for key in keys)

    def read(self, job: str, id: str = "", rank: int | None = None) -> JobProfile:
        """Returns a profile that is kept.

        Args:
            job: A job's id or name.
            id: Which; the newest where it is "".
            rank: Of which rank; None for the lowest that has one.

        Raises:
            NotFound: There is none.
            DamagedData: It cannot be read.
        """
        whose = self._id(job)
        seen = self._store.list(f"{job_folder(whose)}/profiles")
        found = [
            (each.modified_s, parts[3], int(parts[4].removeprefix("rank-")))
            for each in seen
            for parts in [each.key.split("/")]
            if parts[-1] == ABOUT and id in ("", parts[3])
        ]
        found = [each for each in found if rank in (None, each[2])]
        if not found:
            raise NotFound("read a profile", on=f"{job} {id}".strip(), got="none", next_step=f"ms profile {job}")
        newest = max(found)[1]
        of = min(each[2] for each in found if each[1] == newest)
        folder = f"{job_folder(whose)}/profiles/{newest}/rank-{of:05}"
        trace = read_trace(self._store.get(f"{folder}/{XPLANE}"), self._store.get(f"{folder}/{ABOUT}"))
        return JobProfile(id=newest, job=whose, rank=of, folder=folder, summary=summarise(trace))

    def difference(self, before: str, after: str) -> ProfileDifference:
        """Returns how two profiles differ.

        Args:
            before: "JOB", "JOB/ID" or "JOB/ID/RANK".
            after: Another.
        """
        return difference(self.find(before).summary, self.find(after).summary)

    def find(self, reference: str) -> JobProfile:
        """Returns the profile that somebody names.

        Args:
            reference: "JOB" for its newest, "JOB/ID" or "JOB/ID/RANK".

        Raises:
            NotFound: There is none.
        """
        job, _, rest = reference.partition("/")
        id, _, rank = rest.partition("/")
        return self.read(job, id, int(rank) if rank.isdigit() else None)

    def write(self, profile: JobProfile, out: Path) -> None:
        """Writes a profile's files as Perfetto (`host.trace.json.gz`) and XProf (`--logdir`) open them.

        Args:
            profile: Which.
            out: A folder; made when missing.
        """
        folder = out / "plugins" / "profile" / profile.id
        for name in FILES:
            key = f"{profile.folder}/{name}"
            if self._store.size(key) is not None:
                self._store.fetch_file(key, (out if name == ABOUT else folder) / name)

    def _id(self, job: str) -> JobId:
        if self._store.list(f"{job_folder(JobId(job))}/profiles"):
            return JobId(job)
        return self._lab.status(job).id
