"""What clusters show beyond what is known here, held until an operator settles it; and when the store went back.

Revision ID: 0016
"""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    """Adds both tables."""
    op.create_table(
        "held",
        sa.Column("allocation", _word(63), primary_key=True),
        sa.Column("cluster", _word(63), nullable=False),
        sa.Column("job_id", _word(63), nullable=False),
        sa.Column("nodes", sa.Text(), nullable=False),
        sa.Column("over", sa.Boolean(), nullable=False),
        sa.Column("since_s", sa.Double(), nullable=False),
        sa.Column("settled_by", _word(255), nullable=False),
    )
    op.create_table(
        "lives",
        sa.Column("number", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("began_s", sa.Double(), nullable=False),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.Column("timeline", sa.BigInteger(), nullable=False),
    )


def downgrade() -> None:
    """Forgets both; the release before stops what it does not know."""
    op.drop_table("lives")
    op.drop_table("held")


def _word(length_max: int) -> sa.String:
    return sa.String(length_max).with_variant(sa.String(length_max, collation="C"), "postgresql")
