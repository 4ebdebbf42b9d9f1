"""Evidence for and against nodes is found without reading all events.

Revision ID: 0007
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

_KINDS = sa.text("kind IN ('node_blamed', 'node_cleared')")


def upgrade() -> None:
    """Adds an index of those events alone, which are few."""
    op.create_index("events_evidence", "events", ["time_s"], sqlite_where=_KINDS, postgresql_where=_KINDS)


def downgrade() -> None:
    """Removes it."""
    op.drop_index("events_evidence", "events")
