"""Tokens of people, who submitted a job, and the audit log.

Revision ID: 0009
"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"

_ID_LETTERS = 12
_COUNTER = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Gives every token a name to be spoken of by; nobody knows who holds those of before, or whose jobs are whose."""
    op.add_column("jobs", sa.Column("owner", sa.String(63), nullable=False, server_default=""))
    for name in ("id", "holder", "maker"):
        op.add_column("tokens", sa.Column(name, sa.String(63), nullable=False, server_default=""))
    for name in ("expires_s", "used_s"):
        op.add_column("tokens", sa.Column(name, sa.Double(), nullable=True))
    tokens = sa.table("tokens", *map(sa.column, ("sha256", "id")))
    named = sa.literal("token-") + sa.func.substr(tokens.c.sha256, 1, _ID_LETTERS)
    op.get_bind().execute(sa.update(tokens).values(id=named))
    op.create_index("tokens_id", "tokens", ["id"])
    op.create_index("tokens_attempt", "tokens", ["attempt_id"])
    op.create_table(
        "audit",
        sa.Column("sequence", _COUNTER, primary_key=True, autoincrement=True),
        sa.Column("time_s", sa.Double(), nullable=False),
        sa.Column("holder", sa.String(255), nullable=False),
        sa.Column("token", sa.String(63), nullable=False),
        sa.Column("address", sa.String(255), nullable=False),
        sa.Column("action", sa.String(32), nullable=False),
        sa.Column("target", sa.String(255), nullable=False),
        sa.Column("team", sa.String(63), nullable=False),
        sa.Column("outcome", sa.String(16), nullable=False),
        sa.Column("reason", sa.String(255), nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("audit_team", "audit", ["team", "sequence"])


def downgrade() -> None:
    """Keeps those tokens alone that open no more than they did, and forgets who holds them, and the audit log.

    Before, no token ended, nobody knew of operators and auditors, and every admin was one of the whole lab.
    """
    tokens = sa.table("tokens", *map(sa.column, ("role", "team", "expires_s")))
    more = (
        tokens.c.role.in_(["operator", "auditor"])
        | tokens.c.expires_s.is_not(None)
        | sa.and_(tokens.c.role == "admin", tokens.c.team != "lab")
    )
    op.get_bind().execute(sa.delete(tokens).where(more))
    op.drop_table("audit")
    op.drop_index("tokens_attempt", "tokens")
    op.drop_index("tokens_id", "tokens")
    for name in ("used_s", "expires_s", "maker", "holder", "id"):
        op.drop_column("tokens", name)
    op.drop_column("jobs", "owner")
