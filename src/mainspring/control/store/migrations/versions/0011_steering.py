"""What was said of jobs since they were submitted, what is paused and drained, and answers kept for repeats.

Revision ID: 0011
"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Adds the column and the tables."""
    op.add_column("jobs", sa.Column("overrides", sa.Text, nullable=True))
    op.create_table(
        "holds",
        sa.Column("team", sa.String(63), primary_key=True),
        sa.Column("cluster", sa.String(63), primary_key=True),
        sa.Column("node", sa.String(255), primary_key=True),
        sa.Column("drain", sa.Boolean, nullable=False),
        sa.Column("by", sa.String(255), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("since_s", sa.Double(), nullable=False),
    )
    op.create_table(
        "repeats",
        sa.Column("token", sa.String(63), primary_key=True),
        sa.Column("key_sha256", sa.String(64), primary_key=True),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("answer", sa.Text, nullable=False),
        sa.Column("made_s", sa.Double(), nullable=False),
    )
    op.create_index("repeats_made", "repeats", ["made_s"])


def downgrade() -> None:
    """Takes them back."""
    op.drop_table("repeats")
    op.drop_table("holds")
    op.drop_column("jobs", "overrides")
