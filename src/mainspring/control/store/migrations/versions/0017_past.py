"""What the fleet was at a time is found without a look at all that has ended: when nodes came, changed and went.

Revision ID: 0017
"""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"

# Name, table and columns, before and after.
_INDICES = (
    ("jobs_ended", "jobs", ["ended_s"], ["ended_s", "submitted_s"]),
    ("attempts_ended", "attempts", ["ended_s"], ["ended_s", "granted_s"]),
)


def upgrade() -> None:
    """Adds it; when a job ended that was archived before is known to its file."""
    op.create_table(
        "node_states",
        sa.Column("ordinal", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
        sa.Column("cluster", _word(63), nullable=False),
        sa.Column("node", _word(63), nullable=False),
        sa.Column("condition", _word(16), nullable=False),
        sa.Column("owner", _word(255), nullable=False),
        sa.Column("reason", _word(255), nullable=False),
        sa.Column("since_s", sa.Double(), nullable=False),
        sa.Column("until_s", sa.Double(), nullable=True),
    )
    op.create_index("node_states_until", "node_states", ["until_s", "since_s"])
    op.add_column("archived", sa.Column("ended_s", sa.Double(), nullable=False, server_default="0"))
    archived, archives = (
        sa.table("archived", *map(sa.column, ("archive", "ended_s"))),
        sa.table("archives", *map(sa.column, ("number", "last_s"))),
    )
    last = sa.select(archives.c.last_s).where(archives.c.number == archived.c.archive).scalar_subquery()
    op.get_bind().execute(sa.update(archived).values(ended_s=last))
    for name, table, _, columns in _INDICES:
        op.drop_index(name, table)
        op.create_index(name, table, columns)


def downgrade() -> None:
    """Forgets it."""
    for name, table, columns, _ in _INDICES:
        op.drop_index(name, table)
        op.create_index(name, table, columns)
    op.drop_column("archived", "ended_s")
    op.drop_table("node_states")


def _word(length_max: int) -> sa.String:
    return sa.String(length_max).with_variant(sa.String(length_max, collation="C"), "postgresql")
