"""What an attempt holds is what its allocations hold: those it went on without are marked, and its own copy goes.

Revision ID: 0006
"""

import json
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

_READ_AT_ONCE = 1_000


def upgrade() -> None:
    """Marks the allocations that are not in their attempt's grants, and drops these."""
    op.add_column("allocations", sa.Column("released", sa.Boolean(), nullable=False, server_default=sa.false()))
    connection = op.get_bind()
    attempts = sa.table("attempts", sa.column("id"), sa.column("grants"))
    last = ""
    while rows := connection.execute(
        sa.select(attempts).where(attempts.c.id > last).order_by(attempts.c.id).limit(_READ_AT_ONCE)
    ).all():
        for row in rows:
            _mark(connection, row)
        last = rows[-1].id
    op.drop_column("attempts", "grants")


def downgrade() -> None:
    """Gives every attempt a copy of what it holds, one grant a role."""
    op.add_column("attempts", sa.Column("grants", sa.Text(), nullable=False, server_default="[]"))
    connection = op.get_bind()
    attempts = sa.table("attempts", sa.column("id"), sa.column("grants"))
    last = ""
    while (
        ids := connection.execute(
            sa.select(attempts.c.id).where(attempts.c.id > last).order_by(attempts.c.id).limit(_READ_AT_ONCE)
        )
        .scalars()
        .all()
    ):
        for each in ids:
            grants = json.dumps(_held(connection, each))
            connection.execute(sa.update(attempts).where(attempts.c.id == each).values(grants=grants))
        last = ids[-1]
    op.drop_column("allocations", "released")


def _held(connection: sa.Connection, attempt: str) -> list[dict[str, Any]]:
    """Returns the parts that an attempt holds, those of one role together."""
    allocations = sa.table("allocations", *map(sa.column, ("attempt_id", "place", "part", "released")))
    own = (allocations.c.attempt_id == attempt, sa.not_(sa.type_coerce(allocations.c.released, sa.Boolean)))
    by_role: dict[str, dict[str, Any]] = {}
    for part in connection.execute(sa.select(allocations.c.part).where(*own).order_by(allocations.c.place)).scalars():
        grant = json.loads(part)
        held = by_role.setdefault(grant["role"], {**grant, "nodes": [], "chip_milli": [], "ranks": []})
        for node, milli, ranks in zip(grant["nodes"], grant["chip_milli"], grant["ranks"], strict=True):
            if node not in held["nodes"]:
                for name, value in (("nodes", node), ("chip_milli", 0), ("ranks", 0)):
                    held[name].append(value)
            at = held["nodes"].index(node)
            held["chip_milli"][at] += milli
            held["ranks"][at] += ranks
    return list(by_role.values())


def _mark(connection: sa.Connection, attempt: sa.Row[Any]) -> None:
    names = ("id", "attempt_id", "place", "state", "part", "released")
    allocations = sa.table("allocations", *map(sa.column, names))
    query = sa.select(allocations).where(allocations.c.attempt_id == attempt.id).order_by(allocations.c.place.desc())
    held: dict[tuple[str, str], int] = {}
    for grant in json.loads(attempt.grants):
        held |= _milli(grant)
    # What is not gone is held; of what is gone the newest was held last, where a node came back in another allocation.
    for row in sorted(connection.execute(query).all(), key=lambda row: bool(row.state == "gone")):
        own = _milli(json.loads(row.part))
        if row.state == "gone" and any(held.get(share, 0) < milli for share, milli in own.items()):
            connection.execute(sa.update(allocations).where(allocations.c.id == row.id).values(released=True))
        else:
            held |= {share: held.get(share, 0) - milli for share, milli in own.items()}


def _milli(grant: dict[str, Any]) -> dict[tuple[str, str], int]:
    """Returns thousandths of chips by role and node."""
    return {(grant["role"], node): milli for node, milli in zip(grant["nodes"], grant["chip_milli"], strict=True)}
