"""What teams are still to be told.

Revision ID: 0019
"""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    """Adds the table."""
    op.create_table(
        "notices",
        sa.Column("sequence", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("job_id", _word(63), nullable=True),
        sa.Column("team", _word(63), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("due_s", sa.Double(), nullable=False),
    )
    op.create_index("notices_team", "notices", ["team", "due_s"])


def downgrade() -> None:
    """Forgets what was not sent."""
    op.drop_table("notices")
    leases = sa.table("leases", sa.column("name"))
    op.get_bind().execute(sa.delete(leases).where(leases.c.name == "notices"))


def _word(length_max: int) -> sa.String:
    return sa.String(length_max).with_variant(sa.String(length_max, collation="C"), "postgresql")
