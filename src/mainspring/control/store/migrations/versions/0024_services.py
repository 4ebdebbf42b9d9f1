"""Services, and which jobs are their replicas.

Revision ID: 0024
"""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"


def upgrade() -> None:
    """Adds the tables."""
    op.create_table(
        "services",
        sa.Column("name", _word(63), primary_key=True),
        sa.Column("facts", sa.Text(), nullable=False),
    )
    op.create_table(
        "service_replicas",
        sa.Column("service", _word(63), primary_key=True),
        sa.Column("job_id", _word(63), primary_key=True),
        sa.Column("version", sa.Integer(), nullable=False),
    )


def downgrade() -> None:
    """Forgets them; their jobs go on by themselves."""
    op.drop_table("service_replicas")
    op.drop_table("services")


def _word(length_max: int) -> sa.String:
    return sa.String(length_max).with_variant(sa.String(length_max, collation="C"), "postgresql")
