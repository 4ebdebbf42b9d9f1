"""Windows of maintenance in the store: which nodes are not there for work, from when until when, and who says so."""

from __future__ import annotations

from dataclasses import replace

import sqlalchemy as sa

from mainspring.control.store.nodes.tables import maintenance
from mainspring.control.store.rows import RowMapping
from mainspring.domain.answers import MaintenanceWindow

WINDOWS_MAX = 1_000  # That are not over.
NEW = 0  # The number of one that is not in the store yet.
_ROWS = RowMapping(MaintenanceWindow, maintenance)


def windows(connection: sa.Connection, *, after_s: float = 0.0) -> tuple[MaintenanceWindow, ...]:
    """Returns windows in order of when they begin.

    Args:
        after_s: Only those that end later.
    """
    query = _ROWS.select.where(maintenance.c.until_s > after_s)
    return _ROWS.read(connection, query.order_by(maintenance.c.from_s, maintenance.c.number).limit(WINDOWS_MAX))


def add_window(connection: sa.Connection, window: MaintenanceWindow) -> MaintenanceWindow:
    """Adds a window, and returns it with its number.

    Args:
        connection: From `Store.write`.
    """
    values = _ROWS.row({name: getattr(window, name) for name in _ROWS.columns if name != "number"})
    query = sa.insert(maintenance).values(values).returning(maintenance.c.number)
    return replace(window, number=connection.execute(query).scalar_one())


def remove_window(connection: sa.Connection, number: int) -> MaintenanceWindow | None:
    """Removes a window, and returns it, None where there is none.

    Args:
        connection: From `Store.write`.
    """
    found = _ROWS.read(connection, _ROWS.select.where(maintenance.c.number == number))
    connection.execute(sa.delete(maintenance).where(maintenance.c.number == number))
    return found[0] if found else None
