"""What allocations wait for in the queues of clusters that place work by themselves, and where they were placed.

Revision ID: 0005
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Lets every allocation be noted as waiting, and its machines be named."""
    op.add_column("allocations", sa.Column("queued", sa.Text(), nullable=True))
    op.add_column("allocations", sa.Column("hosts", sa.Text(), nullable=False, server_default="[]"))


def downgrade() -> None:
    """Forgets both."""
    for name in ("hosts", "queued"):
        op.drop_column("allocations", name)
