"""What an audit line says was done may be a sentence: whoever is refused something is refused by what they attempted.

Revision ID: 0026
"""

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"


def upgrade() -> None:
    """Lets it be as long as the other words of a line."""
    _widen(255)


def downgrade() -> None:
    """Cuts what is longer."""
    if op.get_bind().dialect.name != "sqlite":
        op.execute("UPDATE audit SET action = left(action, 32)")
    _widen(32)


def _widen(length_max: int) -> None:
    if op.get_bind().dialect.name == "sqlite":  # Which makes the table anew to have it said.
        with op.batch_alter_table("audit", table_kwargs={"sqlite_autoincrement": True}) as table:
            table.alter_column("action", type_=sa.String(length_max), existing_nullable=False)
    else:
        op.alter_column("audit", "action", type_=sa.String(length_max, collation="C"))
