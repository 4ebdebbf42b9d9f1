"""Whose datasets are.

Revision ID: 0028
"""

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"


def upgrade() -> None:
    """Adds the table; of what is there already nobody has said whose it is, so it is everybody's."""
    op.create_table(
        "dataset_owners",
        sa.Column("name", _word(63), primary_key=True),
        sa.Column("team", _word(63)),
        sa.Column("maker", _word(255), nullable=False),
        sa.Column("made_s", sa.Double(), nullable=False),
    )


def downgrade() -> None:
    """Forgets it: every dataset is everybody's again, as it was."""
    op.drop_table("dataset_owners")


def _word(length_max: int) -> sa.String:
    return sa.String(length_max).with_variant(sa.String(length_max, collation="C"), "postgresql")
