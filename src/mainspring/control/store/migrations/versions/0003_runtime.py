"""What attempts that change their nodes and leads while they run need: allocations that stand for themselves, ledgers.

Revision ID: 0003
"""

import json
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

_READ_AT_ONCE = 1_000
_OF_ALLOCATIONS: tuple[tuple[str, Any, Any], ...] = (
    ("part", sa.Text(), "{}"),
    ("agent_first", sa.Integer(), "0"),
    ("rank_first", sa.Integer(), "0"),
    ("nodes", sa.Integer(), "0"),
    ("chips", sa.Text(), "{}"),
    ("dollars_per_hour", sa.Double(), "0"),
    ("granted_s", sa.Double(), "0"),
    ("lost", sa.Boolean(), sa.false()),
)
_TIMES = ("came_s", "ended_s")


def upgrade() -> None:
    """Gives every allocation its part of its attempt's grants and price, and attempts a lead and a ledger."""
    for name, kind, default in _OF_ALLOCATIONS:
        op.add_column("allocations", sa.Column(name, kind, nullable=False, server_default=default))
    for name in _TIMES:
        op.add_column("allocations", sa.Column(name, sa.Double(), nullable=True))
    op.create_index("allocations_ended", "allocations", ["ended_s"], unique=False)
    op.add_column("attempts", sa.Column("epoch", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("attempts", sa.Column("lead", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("attempts", sa.Column("led_s", sa.Double(), nullable=True))
    for name in ("seconds", "seconds_before"):
        op.add_column("attempts", sa.Column(name, sa.Text(), nullable=False, server_default="{}"))
    connection = op.get_bind()
    for attempt in _attempts(connection):
        _share_out(connection, attempt)
    op.drop_column("attempts", "chips")
    op.drop_column("attempts", "dollars_per_hour")


def downgrade() -> None:
    """Gives every attempt what its allocations hold, one grant each; ledgers and leads are forgotten."""
    op.add_column("attempts", sa.Column("chips", sa.Text(), nullable=False, server_default="{}"))
    op.add_column("attempts", sa.Column("dollars_per_hour", sa.Double(), nullable=False, server_default="0"))
    connection = op.get_bind()
    for attempt in _attempts(connection):
        _gather(connection, attempt.id)
    for name in ("seconds_before", "seconds", "led_s", "lead", "epoch"):
        op.drop_column("attempts", name)
    op.drop_index("allocations_ended", "allocations")
    for name in (*(name for name, _, _ in _OF_ALLOCATIONS), *_TIMES):
        op.drop_column("allocations", name)


def _gather(connection: sa.Connection, attempt: str) -> None:
    names = ("attempt_id", "place", "part", "chips", "dollars_per_hour")
    allocations = sa.table("allocations", *map(sa.column, names))
    own = sa.select(allocations).where(allocations.c.attempt_id == attempt).order_by(allocations.c.place)
    rows = connection.execute(own).all()
    chips: dict[str, int] = {}
    for row in rows:
        for chip, milli in json.loads(row.chips).items():
            chips[chip] = chips.get(chip, 0) + milli
    values = {
        "grants": json.dumps([json.loads(row.part) for row in rows]),
        "chips": json.dumps(chips),
        "dollars_per_hour": sum(row.dollars_per_hour for row in rows),
    }
    attempts = sa.table("attempts", sa.column("id"), *map(sa.column, values))
    connection.execute(sa.update(attempts).where(attempts.c.id == attempt).values(values))


def _share_out(connection: sa.Connection, attempt: sa.Row[Any]) -> None:
    options = {role["name"]: role["options"] for role in json.loads(attempt.spec)["roles"]}
    grants = json.loads(attempt.grants)
    whole = sum(sum(grant["chip_milli"]) for grant in grants)
    names = ("attempt_id", "place", *(name for name, _, _ in _OF_ALLOCATIONS), *_TIMES)
    allocations = sa.table("allocations", *map(sa.column, names))
    agent = rank = 0
    for place, grant in enumerate(grants):
        milli = sum(grant["chip_milli"])
        values = {
            "part": json.dumps(grant),
            "agent_first": agent,
            "rank_first": rank,
            "nodes": len(grant["nodes"]),
            "chips": json.dumps({options[grant["role"]][grant["option"]]["chip"]: milli}),
            "dollars_per_hour": attempt.dollars_per_hour * (milli / whole if whole else 1.0 / len(grants)),
            "granted_s": attempt.granted_s,
            "came_s": attempt.heard_s,
            "ended_s": attempt.ended_s,
        }
        own = (allocations.c.attempt_id == attempt.id, allocations.c.place == place)
        connection.execute(sa.update(allocations).where(*own).values(values))
        agent, rank = agent + len(grant["nodes"]), rank + sum(grant["ranks"])
    if attempt.heard_s is not None:
        # Leads that report now were told the attempt's number as their epoch.
        table = sa.table("attempts", *map(sa.column, ("id", "epoch", "led_s")))
        led = {"epoch": attempt.number, "led_s": attempt.granted_s}
        connection.execute(sa.update(table).where(table.c.id == attempt.id).values(led))


def _attempts(connection: sa.Connection) -> Iterator[sa.Row[Any]]:
    """Yields every attempt with its job's spec, which jobs of an array share with the first of them."""
    names = ("id", "job_id", "number", "grants", "dollars_per_hour", "granted_s", "ended_s", "heard_s")
    attempts = sa.table("attempts", *map(sa.column, names))
    jobs = sa.table("jobs", sa.column("id"), sa.column("array_id"))
    holders = sa.table("jobs", sa.column("id"), sa.column("spec")).alias("holders")
    query = (
        sa.select(attempts, holders.c.spec)
        .join(jobs, attempts.c.job_id == jobs.c.id)
        .join(holders, holders.c.id == sa.func.coalesce(jobs.c.array_id, jobs.c.id))
    )
    last = ""
    while rows := connection.execute(
        query.where(attempts.c.id > last).order_by(attempts.c.id).limit(_READ_AT_ONCE)
    ).all():
        yield from rows
        last = rows[-1].id
