"""People who are kept out of teams.

Revision ID: 0013
"""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """Adds the table: nobody is, as it begins."""
    op.create_table(
        "blocks",
        sa.Column("team", sa.String(63), primary_key=True),
        sa.Column("holder", sa.String(63), primary_key=True),
        sa.Column("maker", sa.String(63), nullable=False),
        sa.Column("made_s", sa.Double(), nullable=False),
    )


def downgrade() -> None:
    """Removes the table: whoever was kept out may log in again."""
    op.drop_table("blocks")
