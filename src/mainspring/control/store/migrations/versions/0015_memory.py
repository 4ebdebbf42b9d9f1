"""What has ended is found by indices, and counted as it ends; where jobs are that were archived.

Revision ID: 0015
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"

_ENDS = ("succeeded", "failed", "cancelled")
_LIVE = ("queued", "starting", "running", "stopping")
_USES = (
    "productive",
    "startup",
    "compile",
    "data",
    "snapshot",
    "restore",
    "repeated",
    "hang",
    "straggler",
    "resize",
    "recovery",
    "winddown",
)
# Name, table, columns, and which rows; None for all.
_INDICES: tuple[tuple[str, str, list[str], Any], ...] = (
    ("jobs_array_live", "jobs", ["array_id", "state"], sa.text(f"state IN {_LIVE}")),
    ("jobs_team", "jobs", ["team", "state", "ordinal"], None),
    ("jobs_owner", "jobs", ["owner", "team", "state", "ordinal"], None),
    ("jobs_ended", "jobs", ["ended_s"], None),
    ("attempts_granted", "attempts", ["granted_s"], None),
    ("attempts_uncounted", "attempts", ["ended_s"], sa.not_(sa.column("counted", sa.Boolean()))),
    ("whys_waiting", "whys", ["job_id"], sa.text("limit_name IS NOT NULL")),
)


def _word(length_max: int) -> sa.String:
    return sa.String(length_max).with_variant(sa.String(length_max, collation="C"), "postgresql")


def _counts() -> list[sa.Column[int]]:
    return [sa.Column(end, sa.BigInteger(), nullable=False, server_default="0") for end in _ENDS]


def upgrade() -> None:
    """Adds them; what has ended before is counted here, but for accounts, which servers make as they run."""
    op.add_column("attempts", sa.Column("counted", sa.Boolean(), nullable=False, server_default=sa.false()))
    for column in _counts():
        op.add_column("tallies", column)
    op.create_table("array_ends", sa.Column("array_id", _word(63), primary_key=True), *_counts())
    _count()
    whys, jobs = (
        sa.table("whys", *map(sa.column, ("job_id", "limit_name"))),
        sa.table("jobs", *map(sa.column, ("id", "state"))),
    )
    over = sa.select(jobs.c.id).where(jobs.c.state.in_(_ENDS))
    op.get_bind().execute(sa.delete(whys).where(whys.c.limit_name.is_not(None), whys.c.job_id.in_(over)))
    _add_tables()
    op.drop_index("jobs_team", "jobs")
    op.drop_index("allocations_ended", "allocations")
    for name, table, columns, rows in _INDICES:
        op.create_index(name, table, columns, sqlite_where=rows, postgresql_where=rows)


def _count() -> None:
    jobs = sa.table("jobs", *map(sa.column, ("owner", "team", "state", "spec", "array_id")))
    tallies, array_ends = (
        sa.table(name, *map(sa.column, columns))
        for name, columns in (
            ("tallies", ("owner", "team", "jobs", "letters", *_ENDS)),
            ("array_ends", ("array_id", *_ENDS)),
        )
    )
    live = jobs.c.state.in_(_LIVE)
    sums = (
        sa.func.sum(sa.case((live, 1), else_=0)),
        sa.func.sum(sa.case((live, sa.func.length(jobs.c.spec)), else_=0)),
    )
    ends = tuple(sa.func.sum(sa.case((jobs.c.state == end, 1), else_=0)) for end in _ENDS)
    op.get_bind().execute(sa.delete(tallies))
    counted = sa.select(jobs.c.owner, jobs.c.team, *sums, *ends).group_by(jobs.c.owner, jobs.c.team)
    op.get_bind().execute(sa.insert(tallies).from_select([column.name for column in tallies.c], counted))
    over = jobs.c.array_id.is_not(None) & jobs.c.state.in_(_ENDS)
    of_arrays = sa.select(jobs.c.array_id, *ends).where(over).group_by(jobs.c.array_id)
    op.get_bind().execute(sa.insert(array_ends).from_select([column.name for column in array_ends.c], of_arrays))


def _add_tables() -> None:
    op.create_table(
        "accounts",
        sa.Column("cluster", _word(63), primary_key=True),
        sa.Column("team", _word(63), primary_key=True),
        sa.Column("day", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("attempts", sa.BigInteger(), nullable=False),
        sa.Column("allocated_s", sa.Double(), nullable=False),
        sa.Column("waited_s", sa.Double(), nullable=False),
        sa.Column("preemptions", sa.BigInteger(), nullable=False),
        *(sa.Column(f"{use}_s", sa.Double(), nullable=False) for use in _USES),
    )
    op.create_table(
        "charges",
        sa.Column("ended", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("began", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("team", _word(63), primary_key=True),
        sa.Column("chips", _word(1_024), primary_key=True),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("dollars", sa.Double(), nullable=False),
    )
    op.create_table(
        "archives",
        sa.Column("number", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("jobs", sa.Integer(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("made_s", sa.Double(), nullable=False),
        sa.Column("first_s", sa.Double(), nullable=False),
        sa.Column("last_s", sa.Double(), nullable=False),
    )
    op.create_table(
        "archived",
        sa.Column("job_id", _word(63), primary_key=True),
        sa.Column("name", _word(63), nullable=False),
        sa.Column("team", _word(63), nullable=False),
        sa.Column("state", _word(16), nullable=False),
        sa.Column("submitted_s", sa.Double(), nullable=False),
        sa.Column("archive", sa.BigInteger(), sa.ForeignKey("archives.number"), nullable=False),
        sa.Column("offset", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.Integer(), nullable=False),
    )
    op.create_index("archived_name", "archived", ["name", "submitted_s"])
    op.create_index("archived_archive", "archived", ["archive"])


def downgrade() -> None:
    """Takes them back: older releases read what there is; what was archived stays in the object store."""
    for name, table, _, _ in reversed(_INDICES):
        op.drop_index(name, table)
    op.create_index("allocations_ended", "allocations", ["ended_s"])
    op.create_index("jobs_team", "jobs", ["team", "ordinal"])
    for name in ("archived", "archives", "charges", "accounts", "array_ends"):
        op.drop_table(name)
    for end in _ENDS:
        op.drop_column("tallies", end)
    op.drop_column("attempts", "counted")
