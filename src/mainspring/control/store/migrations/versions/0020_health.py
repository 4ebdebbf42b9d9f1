"""What was seen of machines, what closes nodes, which rules act.

Revision ID: 0020
"""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
_COUNTER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Adds the tables."""
    op.create_table(
        "health_events",
        sa.Column("number", _COUNTER, primary_key=True, autoincrement=True),
        sa.Column("told_s", sa.Double(), nullable=False),
        sa.Column("teller", _word(255), nullable=False),
        sa.Column("source", _word(63), nullable=False),
        sa.Column("session", _word(63), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("cluster", _word(63), nullable=False),
        sa.Column("node", _word(63), nullable=False),
        sa.Column("event", sa.Text(), nullable=False),
        sa.UniqueConstraint("teller", "source", "session", "sequence", name="health_events_source"),
        sqlite_autoincrement=True,
    )
    op.create_index("health_events_node", "health_events", ["cluster", "node", "number"])
    op.create_table(
        "node_health",
        sa.Column("cluster", _word(63), primary_key=True),
        sa.Column("node", _word(63), primary_key=True),
        sa.Column("state", _word(16), nullable=False),
        sa.Column("findings", sa.Text(), nullable=False),
        sa.Column("lemon_score", sa.Double(), nullable=False),
        sa.Column("since_s", sa.Double(), nullable=False),
    )
    op.create_table(
        "closures",
        sa.Column("number", _COUNTER, primary_key=True, autoincrement=True),
        sa.Column("cluster", _word(63), nullable=False),
        sa.Column("node", _word(63), nullable=False),
        sa.Column("kind", _word(16), nullable=False),
        sa.Column("owner", _word(255), nullable=False),
        sa.Column("rule", _word(63), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("evidence", sa.Text(), nullable=False),
        sa.Column("repair", _word(16), nullable=False),
        sa.Column("from_s", sa.Double(), nullable=False),
        sa.Column("until_s", sa.Double(), nullable=True),
        sa.Column("on_engine", sa.Boolean(), nullable=False),
        sa.Column("refused", sa.Text(), nullable=False),
        sa.Column("ended_s", sa.Double(), nullable=True),
        sa.Column("ended_by", _word(255), nullable=False),
        sa.Column("ended_reason", sa.Text(), nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("closures_node", "closures", ["cluster", "node", "number"])
    op.create_index("closures_ended", "closures", ["ended_s"])
    op.create_table(
        "health_rules",
        sa.Column("rule", _word(63), primary_key=True),
        sa.Column("by", _word(255), nullable=False),
        sa.Column("since_s", sa.Double(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
    )
    op.create_table(
        "breakers",
        sa.Column("cluster", _word(63), primary_key=True),
        sa.Column("breaker", sa.Text(), nullable=False),
    )


def downgrade() -> None:
    """Forgets all of it, and lets no watcher in: an older release knows no such role."""
    for name in ("breakers", "health_rules", "closures", "node_health", "health_events"):
        op.drop_table(name)
    tokens, leases = sa.table("tokens", sa.column("role")), sa.table("leases", sa.column("name"))
    op.get_bind().execute(sa.delete(tokens).where(tokens.c.role == "watcher"))
    op.get_bind().execute(sa.delete(leases).where(leases.c.name.in_(["health events", "health states"])))


def _word(length_max: int) -> sa.String:
    return sa.String(length_max).with_variant(sa.String(length_max, collation="C"), "postgresql")
