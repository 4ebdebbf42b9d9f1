"""How many jobs that have not ended each person has in each team.

Revision ID: 0012
"""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"

_LIVE = ("queued", "starting", "running", "stopping")


def upgrade() -> None:
    """Adds the table, and counts the jobs of before."""
    tallies = op.create_table(
        "tallies",
        sa.Column("owner", sa.String(63), primary_key=True),
        sa.Column("team", sa.String(63), primary_key=True),
        sa.Column("jobs", sa.BigInteger, nullable=False),
        sa.Column("letters", sa.BigInteger, nullable=False),
    )
    jobs = sa.table("jobs", *map(sa.column, ("owner", "team", "state", "spec")))
    counted = (sa.func.count(), sa.func.sum(sa.func.length(jobs.c.spec)))
    live = sa.select(jobs.c.owner, jobs.c.team, *counted).where(jobs.c.state.in_(_LIVE))
    names = [column.name for column in tallies.columns]
    op.get_bind().execute(sa.insert(tallies).from_select(names, live.group_by(jobs.c.owner, jobs.c.team)))


def downgrade() -> None:
    """Drops the table: it holds nothing that jobs do not tell."""
    op.drop_table("tallies")
