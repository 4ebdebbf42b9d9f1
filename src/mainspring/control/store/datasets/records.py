"""Whose datasets are, in the store."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import sqlalchemy as sa

from mainspring.control.store.datasets.tables import dataset_owners
from mainspring.control.store.robots.tables import robots
from mainspring.control.store.rows import RowMapping, add_rows
from mainspring.domain.answers import DatasetOwner
from mainspring.domain.codec import alike
from mainspring.domain.ids import TeamName

_ROWS = RowMapping(DatasetOwner, dataset_owners)
_BY_NAME = _ROWS.select.where(dataset_owners.c.name == sa.bindparam("name"))  # Made once: each piece sent asks it.


def find_owner(connection: sa.Connection, dataset: str) -> DatasetOwner | None:
    """Returns whose a dataset is, None where nobody has said so."""
    return next(iter(_ROWS.read(connection, _BY_NAME, name=dataset)), None)


def add_owner(connection: sa.Connection, owner: DatasetOwner) -> DatasetOwner:
    """Says whose a dataset is unless that is said already, and returns what is said.

    Args:
        connection: From `Store.write`.
    """
    add_rows(connection, dataset_owners, [_ROWS.row(alike(DatasetOwner, owner))], unless_there=True)
    found = find_owner(connection, owner.name)
    assert found is not None
    return found


def put_owner(connection: sa.Connection, owner: DatasetOwner) -> None:
    """Says whose a dataset is from now on.

    Args:
        connection: From `Store.write`.
    """
    connection.execute(sa.delete(dataset_owners).where(dataset_owners.c.name == owner.name))
    connection.execute(sa.insert(dataset_owners).values(**_ROWS.row(alike(DatasetOwner, owner))))


def count_owners(connection: sa.Connection, team: TeamName | None = None) -> int:
    """Returns of how many datasets it is said whose they are.

    Args:
        team: Only those of this one, unless None.
    """
    query = sa.select(sa.func.count()).select_from(dataset_owners)
    return connection.execute(query if team is None else query.where(dataset_owners.c.team == team)).scalar_one()


def teams_of_datasets(connection: sa.Connection) -> Mapping[str, TeamName]:
    """Returns the team of each dataset that is not everybody's."""
    owned = sa.select(dataset_owners.c.name, dataset_owners.c.team).where(dataset_owners.c.team.is_not(None))
    return {row.name: TeamName(row.team) for row in connection.execute(owned)}


def teams_of_robots(connection: sa.Connection, names: Collection[str]) -> Mapping[str, TeamName]:
    """Returns the team of each robot that is enrolled, of some.

    Args:
        names: At most a thousand, as one catalog of clips has.
    """
    known = sa.select(robots.c.name, robots.c.team).where(robots.c.name.in_(sorted(names)))
    return {row.name: TeamName(row.team) for row in connection.execute(known)}
