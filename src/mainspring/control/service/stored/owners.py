"""Whose datasets are, and with that the one answer to whether somebody may read one.

Whoever begins a dataset gives it their team; what the lab's own people begin, and what was there before, is
everybody's. What somebody may not read is not there for them. A view is of the datasets whose versions it is made of.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache
from itertools import islice
from threading import Lock
from typing import final

import sqlalchemy as sa

from mainspring.control.store.audit import Deed, note_all
from mainspring.control.store.datasets.records import (
    add_owner,
    count_owners,
    find_owner,
    put_owner,
    teams_of_datasets,
    teams_of_robots,
)
from mainspring.control.store.records import tenants
from mainspring.control.store.store import Store
from mainspring.control.store.tokens import LAB_ITSELF, Caller, covered, sight
from mainspring.data.views.places import datasets_of_view
from mainspring.domain.answers import DatasetOwner, NewDatasetTeam
from mainspring.domain.errors import LimitReached, NotAllowed, NotFound, nearest
from mainspring.domain.ids import TeamName, checked_name
from mainspring.domain.job import LAB, JobSpec
from mainspring.domain.ports import Clock
from mainspring.domain.team import Right, TeamRole
from mainspring.objects import ObjectStore, open_store

DATASETS_MAX = 100_000  # Of all whose owner is known: each look at the data reads their names.
TEAM_DATASETS_MAX = 10_000  # So that no team can use up the names of all.
VIEWS_KNOWN_MAX = 4_096  # Of which is remembered what they are of: a few hundred bytes each.
_FOLDERS = ("catalog", "candidates", "clips")  # A dataset is there when one of them has it.
opened_store = lru_cache(maxsize=4)(open_store)  # One client of the lab's object store, for all that read it.


def hidden_from(connection: sa.Connection, caller: Caller) -> frozenset[str]:
    """Returns the datasets that somebody may not read: those of teams whose jobs they may not read either.

    Args:
        connection: Where datasets' owners and the tenant tree are.
    """
    return _hidden_from_each(connection, [caller])[caller]


def _hidden_from_each(connection: sa.Connection, callers: Iterable[Caller]) -> Mapping[Caller, frozenset[str]]:
    seen = {caller: sight(connection, caller) for caller in dict.fromkeys(callers)}
    teams = teams_of_datasets(connection) if any(own is not None for own in seen.values()) else {}
    return {
        caller: frozenset(name for name, team in teams.items() if own is not None and team not in own)
        for caller, own in seen.items()
    }


def member_of(team: TeamName) -> Caller:
    """Returns somebody of a team: as whom its jobs and robots read."""
    return Caller(role=TeamRole.MEMBER, team=team)


@final
class _KnownViews:
    """Tells whether views are hidden. Used by many threads.

    A dataset is added to a view, and never taken from it: who may read one of those that were found need not wait for
    the object store again.

    Args:
        look: Returns the datasets of a view.
    """

    def __init__(self, look: Callable[[str], tuple[str, ...]]) -> None:
        self._look = look
        self._lock = Lock()
        self._found: dict[str, tuple[str, ...]] = {}  # The view that was looked at longest ago first.

    def is_hidden(self, view: str, hidden: Collection[str]) -> bool:
        """Returns whether all datasets that a view is of are hidden."""
        if not hidden or any(dataset not in hidden for dataset in self._found.get(view, ())):
            return False
        found = self._look(view)
        if found:
            with self._lock:
                self._found.pop(view, None)
                self._found[view] = found
                if len(self._found) > VIEWS_KNOWN_MAX:
                    del self._found[next(iter(self._found))]
        return bool(found) and all(dataset in hidden for dataset in found)


@final
class DatasetOwners:
    """Whose datasets are, of one controller. Used by many threads.

    Args:
        objects_url: Where the data is.
    """

    def __init__(self, store: Store, clock: Clock, objects_url: str) -> None:
        self._store = store
        self._clock = clock
        self._objects_url = objects_url
        self._views = _KnownViews(lambda view: datasets_of_view(self._objects, view))

    # ---------------------------------------------------------------- reading

    def hidden(self, caller: Caller) -> frozenset[str]:
        """Returns the datasets that somebody may not read."""
        with self._store.read() as connection:
            return hidden_from(connection, caller)

    def seen_by(self, caller: Caller) -> Callable[[str], bool]:
        """Returns what tells of a dataset's name whether somebody may read that."""
        hidden = self.hidden(caller)
        return lambda dataset: dataset not in hidden

    def teams(self) -> Mapping[str, TeamName]:
        """Returns the team of each dataset that is not everybody's."""
        with self._store.read() as connection:
            return teams_of_datasets(connection)

    def require_readable(self, dataset: str, caller: Caller) -> None:
        """Returns if somebody may read a dataset, or there is none of that name.

        Raises:
            NotFound: They may not.
        """
        with self._store.read() as connection:
            _readable(connection, dataset, caller)

    def require_view(self, view: str, team: TeamName) -> None:
        """Returns if a team's jobs may read a view, or there is none.

        Raises:
            NotFound: They may not.
        """
        self._require_views("read a view", [view], self.hidden(member_of(team)))

    def readable_views(self, views: Iterable[str], team: TeamName, *, most: int) -> tuple[str, ...]:
        """Returns those of some views that a team's jobs may read, the first few."""
        hidden = self.hidden(member_of(team))
        return tuple(islice((view for view in views if not self._views.is_hidden(view, hidden)), most))

    def require_named(self, specs: Iterable[JobSpec], caller: Caller) -> None:
        """Returns if all data that some specs name may be read by whoever submits them, and by their teams.

        Raises:
            NotFound: The caller may not read something.
            NotAllowed: Others of a job's team may not, and would by way of the job.
            Unavailable: The object store does not answer.
        """
        naming = dict.fromkeys((one.team, one.inputs, one.views) for one in specs if one.inputs or one.views)
        if not naming:
            return
        with self._store.read() as connection:
            out_of_sight = _hidden_from_each(connection, [caller, *(member_of(team) for team, _, _ in naming)])
        hidden = out_of_sight[caller]
        for team, inputs, views in naming:
            for name in inputs:
                if name.partition("@")[0] in hidden:
                    told = f"no dataset {name[:80]!r}"
                    raise NotFound("submit a job", on="field 'inputs'", got=told, next_step="ms data ls")
            self._require_views("submit a job", views, hidden)
            walled = out_of_sight[member_of(team)]
            theirs = [name for name in inputs if name.partition("@")[0] in walled]
            theirs += [view for view in views if self._views.is_hidden(view, walled)]
            if theirs:
                raise NotAllowed(
                    "submit a job",
                    on=f"team {team!r}",
                    got=f"{theirs[0][:80]!r}, which people of that team may not read",
                    wanted="data of the team, of one below, or everybody's",
                    next_step="submit it for a team that may, or give them the dataset: ms data team NAME --to TEAM",
                )

    def _require_views(self, attempted: str, views: Iterable[str], hidden: Collection[str]) -> None:
        for view in views:
            if self._views.is_hidden(view, hidden):
                raise NotFound(attempted, on="field 'views'", got=f"no view {view[:80]!r}", next_step="ms data view")

    def of(self, dataset: str, caller: Caller = LAB_ITSELF) -> DatasetOwner:
        """Returns whose a dataset is.

        Raises:
            NotFound: There is none of that name for the caller.
        """
        checked_name(dataset, "dataset")
        with self._store.read() as connection:
            found = _readable(connection, dataset, caller)
        if found is None and not self._is_there(dataset):
            raise _not_found(dataset)
        return found or DatasetOwner(name=dataset)

    # ---------------------------------------------------------------- beginning and giving

    def begin(
        self, dataset: str, caller: Caller = LAB_ITSELF, *, team: TeamName | None = None, there: bool = False
    ) -> DatasetOwner:
        """Returns whose a dataset is that somebody is about to add to: theirs, if it begins with that.

        Args:
            team: Whose it is to be then; the caller's, when left out.
            there: Whether it is known to be there already.

        Raises:
            NotFound: It is of a team whose datasets the caller may not read.
            NotAllowed: The caller may not add to it.
            LimitReached: There are too many.
            Unavailable: The object store does not answer, which knows whether it is there.
        """
        checked_name(dataset, "dataset")
        with self._store.read() as connection:
            found = _own(connection, dataset, caller)
            if found is not None:
                _require_sender(connection, found, caller)
                return found
        there = there or self._is_there(dataset)
        begun = team or caller.team
        owner = None if there or begun == LAB else begun
        made = DatasetOwner(name=dataset, team=owner, maker="" if there else str(caller), made_s=self._clock.now_s())
        with self._store.write() as connection:
            _require_sender(connection, made, caller)
            _require_room(connection, made)
            found = add_owner(connection, made)
            if found == made and not there:
                deed = Deed(caller=caller, action="begin a dataset", target=dataset, team=owner or LAB)
                note_all(connection, [deed], made.made_s)
            _own(connection, dataset, caller)  # Somebody else may have begun it meanwhile.
            _require_sender(connection, found, caller)
        return found

    def begin_for(self, dataset: str, robots: Collection[str], caller: Caller) -> DatasetOwner:
        """Returns whose a dataset is that clips of some robots are for: theirs, if it begins with that.

        Robots that are enrolled are of their team, others of the caller's.

        Raises:
            NotFound: It is of a team of which a robot is not.
            MainspringError: See `begin`.
        """
        with self._store.read() as connection:
            teams = teams_of_robots(connection, robots)
            theirs = {teams.get(robot, caller.team) for robot in robots}
            own = min(theirs) if len(theirs) == 1 else caller.team
            own = own if caller.covers(connection, own) else caller.team
            below = [covered(connection, member_of(team)) for team in sorted(theirs)]
        found = self.begin(dataset, caller, team=own)
        if found.team is not None and any(each is not None and found.team not in each for each in below):
            raise NotFound(
                "tell of clips",
                on=f"dataset {dataset[:80]!r}",
                got="none of the robot's team",
                wanted="a dataset of its team, or of everybody's",
                next_step="name another in the robot's rules",
            )
        return found

    def give(self, dataset: str, asked: NewDatasetTeam, caller: Caller = LAB_ITSELF) -> DatasetOwner:
        """Gives a dataset to a team, or to everybody, and returns whose it is then.

        Raises:
            NotFound: There is no such dataset for the caller, or no such team.
            NotAllowed: The caller is no admin of the team whose it is, of the lab for everybody's; or of that team.
        """
        before, now_s = self.of(dataset, caller), self._clock.now_s()
        team = None if asked.team in (None, LAB) else asked.team
        made = DatasetOwner(name=dataset, team=team, maker=str(caller), made_s=now_s)
        with self._store.write() as connection:
            before = _readable(connection, dataset, caller) or before
            caller.require(connection, Right.GIVE_DATASETS, before.team or LAB)
            if team is not None:
                known = [one.name for one in tenants(connection)]
                if team not in known:
                    raise NotFound("give a dataset", on=f"team {team[:80]!r}", wanted=nearest(team[:80], known))
                caller.require(connection, Right.GIVE_DATASETS, team)
            put_owner(connection, made)
            told = f"{dataset} to {team or 'everybody'}"
            concerned = dict.fromkeys((before.team or LAB, team or LAB))
            deeds = [Deed(caller=caller, action="give a dataset", target=told, team=each) for each in concerned]
            note_all(connection, deeds, now_s)
        return made

    def _is_there(self, dataset: str) -> bool:
        return any(self._objects.list(f"{folder}/{dataset}") for folder in _FOLDERS)

    @property
    def _objects(self) -> ObjectStore:
        return opened_store(self._objects_url)


def _readable(connection: sa.Connection, dataset: str, caller: Caller) -> DatasetOwner | None:
    """Returns whose a dataset is, None where nobody has said so.

    Raises:
        NotFound: It is nothing that the caller may read.
    """
    found = find_owner(connection, dataset)
    if found is not None and found.team is not None:
        seen = sight(connection, caller)
        if seen is not None and found.team not in seen:
            raise _not_found(dataset)
    return found


def _own(connection: sa.Connection, dataset: str, caller: Caller) -> DatasetOwner | None:
    """Returns whose a dataset is that somebody is about to add to, None where nobody has said so.

    Raises:
        NotFound: It is of others, of whom the caller is told no more than that.
    """
    try:
        return _readable(connection, dataset, caller)
    except NotFound:
        step = "choose another name"
        raise NotFound("begin a dataset", on=repr(dataset[:80]), got="a name that is taken", next_step=step) from None


def _require_room(connection: sa.Connection, made: DatasetOwner) -> None:
    bounds = {None: DATASETS_MAX} if made.team is None else {None: DATASETS_MAX, made.team: TEAM_DATASETS_MAX}
    for team, most in bounds.items():
        if count_owners(connection, team) >= most:
            whose = f"team {team!r}" if team else "the lab"
            got, step = f"{most:,} datasets of {whose}", "add to one that is there: ms data ls"
            raise LimitReached("begin a dataset", on=made.name, got=got, wanted="fewer", next_step=step)


def _require_sender(connection: sa.Connection, owner: DatasetOwner, caller: Caller) -> None:
    if owner.team is None:
        caller.require_some(Right.SEND_RECORDINGS)
    else:
        caller.require(connection, Right.SEND_RECORDINGS, owner.team)


def _not_found(dataset: str) -> NotFound:
    return NotFound(
        "find a dataset", on=repr(dataset[:80]), wanted="one of your teams, or everybody's", next_step="ms data ls"
    )
