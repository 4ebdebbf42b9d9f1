"""What was done to nodes in quarantine, windows of maintenance, and how often rules of health were right.

Revision ID: 0023
"""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
_COUNTER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Adds the tables."""
    op.create_table(
        "node_repairs",
        sa.Column("number", _COUNTER, primary_key=True, autoincrement=True),
        sa.Column("closure", sa.BigInteger(), nullable=False),
        sa.Column("cluster", _word(63), nullable=False),
        sa.Column("node", _word(63), nullable=False),
        sa.Column("step", _word(16), nullable=False),
        sa.Column("job", _word(63), nullable=False),
        sa.Column("begun_s", sa.Double(), nullable=False),
        sa.Column("ended_s", sa.Double(), nullable=True),
        sa.Column("outcome", _word(16), nullable=True),
        sa.Column("words", sa.Text(), nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("node_repairs_closure", "node_repairs", ["closure"])
    op.create_index("node_repairs_node", "node_repairs", ["cluster", "node", "number"])
    op.create_table(
        "maintenance",
        sa.Column("number", _COUNTER, primary_key=True, autoincrement=True),
        sa.Column("cluster", _word(63), nullable=False),
        sa.Column("nodes", sa.Text(), nullable=False),
        sa.Column("from_s", sa.Double(), nullable=False),
        sa.Column("until_s", sa.Double(), nullable=False),
        sa.Column("by", _word(255), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("maintenance_until", "maintenance", ["until_s"])
    op.create_table(
        "rule_cases",
        sa.Column("number", _COUNTER, primary_key=True, autoincrement=True),
        sa.Column("rule", _word(63), nullable=False),
        sa.Column("cluster", _word(63), nullable=False),
        sa.Column("node", _word(63), nullable=False),
        sa.Column("from_s", sa.Double(), nullable=False),
        sa.Column("until_s", sa.Double(), nullable=True),
        sa.Column("right", sa.Boolean(), nullable=True),
        sa.Column("by", _word(255), nullable=False),
        sa.Column("words", sa.Text(), nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("rule_cases_node", "rule_cases", ["cluster", "node", "number"])
    op.create_index("rule_cases_until", "rule_cases", ["until_s"])


def downgrade() -> None:
    """Forgets all of it: nodes in quarantine stay so until their time."""
    op.drop_table("rule_cases")
    op.drop_table("maintenance")
    op.drop_table("node_repairs")


def _word(length_max: int) -> sa.String:
    return sa.String(length_max).with_variant(sa.String(length_max, collation="C"), "postgresql")
