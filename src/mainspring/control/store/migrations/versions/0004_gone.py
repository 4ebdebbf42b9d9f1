"""Which agents their engines have seen end.

Revision ID: 0004
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Lets every agent be noted as gone."""
    op.add_column("agents", sa.Column("gone", sa.Boolean(), nullable=False, server_default=sa.false()))


def downgrade() -> None:
    """Forgets it."""
    op.drop_column("agents", "gone")
