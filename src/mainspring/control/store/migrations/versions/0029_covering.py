"""Who waits for what, and the jobs of a team, are found by indices alone.

Revision ID: 0029
"""

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"

_LETTERS = 500  # Of a reason, as long as they may be: of four bytes each they fit into an entry of the index.
_WAITS = sa.text("limit_name IS NOT NULL")
# Name, table, columns before and columns now, and which rows; None for all.
_INDICES = (
    ("jobs_state", "jobs", ["state", "ordinal"], ["state", "ordinal", "id"], None),
    ("jobs_team", "jobs", ["team", "state", "ordinal"], ["team", "state", "ordinal", "id", "array_id"], None),
    (
        "whys_waiting",
        "whys",
        ["job_id"],
        ["job_id", "limit_name", "whose", "summary", "start_s", "exact"],
        _WAITS,
    ),
)


def upgrade() -> None:
    """Makes the indices anew; a reason that is too long for one is cut, as new ones are."""
    whys = sa.table("whys", *map(sa.column, ("limit_name", "summary")))
    long = (whys.c.limit_name.is_not(None), sa.func.length(whys.c.summary) > _LETTERS)
    op.execute(sa.update(whys).where(*long).values(summary=sa.func.substr(whys.c.summary, 1, _LETTERS)))
    for name, table, _, now, which in _INDICES:
        _remake(name, table, now, which)


def downgrade() -> None:
    """Makes them as they were."""
    for name, table, before, _, which in _INDICES:
        _remake(name, table, before, which)


def _remake(name: str, table: str, columns: list[str], which: sa.TextClause | None) -> None:
    op.drop_index(name, table)
    op.create_index(name, table, columns, sqlite_where=which, postgresql_where=which)
