"""Which jobs run which snapshot of code is found by an index.

Revision ID: 0018
"""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"

# Of specs as JSON; an array's first job has it, the others have "".
_TREE = {
    "sqlite": "json_extract(spec, '$.code.tree')",
    "postgresql": "CAST(spec AS json) -> 'code' ->> 'tree'",
}


def upgrade() -> None:
    """Adds the column, of every job with code."""
    op.add_column("jobs", sa.Column("code", _word(80), nullable=True))
    tree = _TREE[op.get_bind().dialect.name]
    op.execute(f"UPDATE jobs SET code = NULLIF({tree}, '') WHERE spec LIKE '{{%'")
    coded = sa.text("code IS NOT NULL")
    op.create_index("jobs_code", "jobs", ["code"], sqlite_where=coded, postgresql_where=coded)


def downgrade() -> None:
    """Takes it back: specs have it."""
    op.drop_index("jobs_code", "jobs")
    op.drop_column("jobs", "code")


def _word(length_max: int) -> sa.String:
    return sa.String(length_max).with_variant(sa.String(length_max, collation="C"), "postgresql")
