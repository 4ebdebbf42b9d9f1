"""How often people asked where the ranks of an attempt stand.

Revision ID: 0022
"""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"


def upgrade() -> None:
    """Nobody has asked yet."""
    op.add_column("attempts", sa.Column("stacks_asked", sa.Integer(), nullable=False, server_default="0"))


def downgrade() -> None:
    """Forgets it."""
    op.drop_column("attempts", "stacks_asked")
