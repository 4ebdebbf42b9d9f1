"""Secrets of teams, encrypted.

Revision ID: 0010
"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Adds the table; the keys lie elsewhere."""
    op.create_table(
        "secrets",
        sa.Column("team", sa.String(63), primary_key=True),
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("ciphertext", sa.Text, nullable=False),
        sa.Column("key_id", sa.String(12), nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("maker", sa.String(63), nullable=False),
        sa.Column("made_s", sa.Double(), nullable=False),
    )


def downgrade() -> None:
    """Forgets them."""
    op.drop_table("secrets")
