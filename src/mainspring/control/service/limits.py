"""Limits on what waits here: jobs that have not ended, and recordings that are in no dataset yet.

A person has a limit in all teams together, a team one together with those below it, the lab what its loop looks at.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import sqlalchemy as sa

from mainspring.control.store.records import ACTIVE_MAX, tenants
from mainspring.control.store.tallies import Tally, tallies_of_teams, tally_of_person
from mainspring.control.store.tokens import Caller
from mainspring.domain.answers import RecordingClaim, WaitingUse
from mainspring.domain.errors import LimitReached
from mainspring.domain.ids import TeamName
from mainspring.domain.team import Team, WaitingLimits

SPEC_LETTERS = 16_384  # For each job of a limit: a spec that somebody wrote by hand has 1,000.
_JOBS, _SPECS, _BYTES = "jobs that have not ended", "letters of their specs", "bytes of recordings in no dataset yet"
_NEXT = {
    _JOBS: "wait until some end, or stop some",
    _SPECS: "put what is long into a file of the code or a dataset",
    _BYTES: "wait until some are read; refused ones lie in arrivals/DATASET/.refused of the server's home",
}
_OF_PERSONS = "limits in the server's config.yaml may be raised"
Counted = TypeVar("Counted", int, Tally)


def require_room_for_jobs(
    connection: sa.Connection, limits: WaitingLimits, caller: Caller, more: Mapping[TeamName, Tally]
) -> None:
    """Refuses jobs beyond what the caller, a team or the lab may have waiting.

    Args:
        connection: From `Store.write`, so that what is counted stays so until they are written.
        more: What is to come, by team.

    Raises:
        LimitReached: There would be too many, or their specs would be too long.
    """
    tree, held = {team.name: team for team in tenants(connection)}, tallies_of_teams(connection)
    every = sum(more.values(), Tally())
    _require_jobs("the lab", sum(held.values(), Tally()), every, ACTIVE_MAX)
    if caller.holder:
        own = tally_of_person(connection, caller.holder)
        _require_jobs(f"person {caller.holder!r}", own, every, limits.person_jobs, _OF_PERSONS)
    below = _with_those_below(tree, held)
    for team, coming in _with_those_below(tree, more).items():
        if team in tree:
            ask = f"an admin above it sets another: ms team set {team} --jobs-max"
            most = limits.jobs_of(tree[team])
            _require_jobs(f"team {team!r} and those below it", below.get(team, Tally()), coming, most, ask)


def require_room_for_bytes(
    connection: sa.Connection, limits: WaitingLimits, caller: Caller, claimed: Iterable[RecordingClaim], more: int
) -> None:
    """Refuses a recording beyond what the caller or a team of theirs may have waiting.

    Args:
        connection: Where the tenant tree is.
        claimed: What waits already.
        more: Bytes of the recording.

    Raises:
        LimitReached: There would be too many bytes.
    """
    tree, claims = {team.name: team for team in tenants(connection)}, tuple(claimed)
    if caller.holder:
        own = sum(claim.size_bytes for claim in claims if claim.holder == caller.holder)
        _require(f"person {caller.holder!r}", _BYTES, own, more, limits.person_bytes, _OF_PERSONS)
    below = _with_those_below(tree, _bytes_by_team(claims))
    for team in _line(tree, caller.team):
        if team in tree:
            ask = f"an admin above it sets another: ms team set {team} --bytes-max"
            most = limits.bytes_of(tree[team])
            _require(f"team {team!r} and those below it", _BYTES, below.get(team, 0), more, most, ask)


def waiting_of_person(
    connection: sa.Connection, limits: WaitingLimits, holder: str, claimed: Iterable[RecordingClaim]
) -> WaitingUse | None:
    """Returns what somebody has waiting, None for nobody known.

    Args:
        holder: Whose.
        claimed: Recordings that are in no dataset yet.
    """
    if not holder:
        return None
    return WaitingUse(
        jobs=tally_of_person(connection, holder).jobs,
        jobs_max=limits.person_jobs,
        bytes=sum(claim.size_bytes for claim in claimed if claim.holder == holder),
        bytes_max=limits.person_bytes,
    )


def waiting_of_teams(
    connection: sa.Connection, limits: WaitingLimits, teams: Sequence[Team], claimed: Iterable[RecordingClaim]
) -> Mapping[TeamName, WaitingUse]:
    """Returns what each team and those below it have waiting.

    Args:
        teams: The tenant tree.
        claimed: Recordings that are in no dataset yet.
    """
    tree = {team.name: team for team in teams}
    jobs = _with_those_below(tree, tallies_of_teams(connection))
    sent = _with_those_below(tree, _bytes_by_team(claimed))
    return {
        team.name: WaitingUse(
            jobs=jobs.get(team.name, Tally()).jobs,
            jobs_max=limits.jobs_of(team),
            bytes=sent.get(team.name, 0),
            bytes_max=limits.bytes_of(team),
        )
        for team in teams
    }


def _require_jobs(whose: str, held: Tally, more: Tally, most: int | None, ask: str = "") -> None:
    _require(whose, _JOBS, held.jobs, more.jobs, most, ask)
    _require(whose, _SPECS, held.letters, more.letters, None if most is None else most * SPEC_LETTERS, ask)


def _require(whose: str, what: str, held: int, more: int, most: int | None, ask: str = "") -> None:
    if most is not None and held + more > most:
        raise LimitReached(
            "send a recording" if what == _BYTES else "submit jobs",
            on=whose,
            got=f"{more} more beside {held} {what}",
            wanted=f"at most {most}",
            next_step="; ".join(filter(None, (_NEXT[what], ask))),
        )


def _bytes_by_team(claimed: Iterable[RecordingClaim]) -> Mapping[TeamName, int]:
    found: dict[TeamName, int] = {}
    for claim in claimed:
        found[claim.team] = found.get(claim.team, 0) + claim.size_bytes
    return found


def _with_those_below(tree: Mapping[TeamName, Team], own: Mapping[TeamName, Counted]) -> dict[TeamName, Counted]:
    """Returns what teams have together with those below them."""
    found: dict[TeamName, Counted] = {}
    for team, count in own.items():
        for above in _line(tree, team):
            found[above] = found[above] + count if above in found else count
    return found


def _line(tree: Mapping[TeamName, Team], team: TeamName) -> Sequence[TeamName]:
    """Returns a team and the teams above it; the tree has been checked for circles."""
    line = [team]
    while line[-1] in tree and (parent := tree[line[-1]].parent) is not None:
        line.append(parent)
    return line
