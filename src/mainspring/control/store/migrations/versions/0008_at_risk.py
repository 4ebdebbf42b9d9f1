"""The work of each attempt that would be lost now.

Revision ID: 0008
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Gives leads room for what they report of it; nothing is known of attempts so far."""
    op.add_column("attempts", sa.Column("at_risk", sa.Text(), nullable=True))


def downgrade() -> None:
    """Forgets it."""
    op.drop_column("attempts", "at_risk")
