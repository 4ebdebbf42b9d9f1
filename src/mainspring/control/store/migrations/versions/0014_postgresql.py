"""What PostgreSQL takes more exactly than SQLite: the order of words, and how large numbers may be; the fleet view.

Revision ID: 0014
"""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    """Adds the table of what the leader was told of clusters; orders text by its bytes; lets generations be large."""
    op.create_table(
        "fleet",
        sa.Column("cluster", sa.String(63), primary_key=True),
        sa.Column("inventory", sa.Text(), nullable=False),
        sa.Column("told_s", sa.Double(), nullable=False),
        sa.Column("answering", sa.Boolean(), nullable=False),
        sa.Column("seen_s", sa.Double(), nullable=False),
    )
    if op.get_bind().dialect.name != "sqlite":
        _collate("C")
        op.alter_column("attempts", "generation", type_=sa.BigInteger())


def downgrade() -> None:
    """Orders text as the database does, and forgets the rest."""
    op.drop_table("fleet")
    if op.get_bind().dialect.name != "sqlite":
        op.execute("UPDATE attempts SET generation = least(generation, 2147483647)")
        op.alter_column("attempts", "generation", type_=sa.Integer())
        _collate("default")


def _collate(collation: str) -> None:
    inspector = sa.inspect(op.get_bind())
    for table in sorted(set(inspector.get_table_names()) - {"alembic_version"}):
        for column in inspector.get_columns(table):
            if isinstance(column["type"], sa.VARCHAR) and not isinstance(column["type"], sa.Text):
                length_max = column["type"].length
                op.alter_column(table, column["name"], type_=sa.String(length_max, collation=collation))
