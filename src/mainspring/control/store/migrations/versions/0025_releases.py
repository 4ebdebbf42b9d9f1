"""Releases of policies, their files, and the metadata by which they are trusted.

Revision ID: 0025
"""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"


def upgrade() -> None:
    """Adds the tables."""
    counter = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    op.create_table(
        "policy_releases",
        sa.Column("ordinal", counter, primary_key=True, autoincrement=True),
        sa.Column("name", _word(63), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("team", _word(63), nullable=False),
        sa.Column("state", _word(16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("sha256", _word(64), nullable=False),
        sa.Column("release", sa.Text(), nullable=False),
        sa.UniqueConstraint("name", "version", name="policy_releases_name_version"),
    )
    op.create_index("policy_releases_state", "policy_releases", ["state", "ordinal"])
    op.create_table(
        "release_files",
        sa.Column("sha256", _word(64), primary_key=True),
        sa.Column(
            "release",
            sa.BigInteger(),
            sa.ForeignKey("policy_releases.ordinal"),
            primary_key=True,
            autoincrement=False,
        ),
    )
    op.create_table(
        "trust",
        sa.Column("role", _word(63), primary_key=True),
        sa.Column("version", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("body", sa.Text(), nullable=False),
    )


def downgrade() -> None:
    """Forgets all of them."""
    op.drop_table("trust")
    op.drop_table("release_files")
    op.drop_index("policy_releases_state", "policy_releases")
    op.drop_table("policy_releases")


def _word(length_max: int) -> sa.String:
    return sa.String(length_max).with_variant(sa.String(length_max, collation="C"), "postgresql")
