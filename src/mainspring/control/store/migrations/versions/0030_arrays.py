"""Jobs of arrays are found by an index of theirs alone: statistics of one with all jobs said that it finds nothing.

Revision ID: 0030
"""

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"

_ARRAYED = sa.text("array_id IS NOT NULL")


def upgrade() -> None:
    """Makes the index anew, without jobs of no array."""
    _remake(_ARRAYED)


def downgrade() -> None:
    """Makes it with all jobs."""
    _remake(None)


def _remake(which: sa.TextClause | None) -> None:
    op.drop_index("jobs_array", "jobs")
    op.create_index("jobs_array", "jobs", ["array_id", "array_index"], sqlite_where=which, postgresql_where=which)
