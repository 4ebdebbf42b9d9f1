"""Rules by which checkpoints are evaluated by themselves, and the profile that was last asked of an attempt.

Revision ID: 0021
"""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"


def upgrade() -> None:
    """Adds the table and the column."""
    op.create_table(
        "evaluation_rules",
        sa.Column("name", _word(63), primary_key=True),
        sa.Column("team", _word(63), nullable=False),
        sa.Column("owner", _word(255), nullable=False),
        sa.Column("made_s", sa.Double(), nullable=False),
        sa.Column("rule", sa.Text(), nullable=False),
    )
    op.add_column("attempts", sa.Column("profile", sa.Text(), nullable=True))


def downgrade() -> None:
    """Forgets both."""
    op.drop_column("attempts", "profile")
    op.drop_table("evaluation_rules")


def _word(length_max: int) -> sa.String:
    return sa.String(length_max).with_variant(sa.String(length_max, collation="C"), "postgresql")
