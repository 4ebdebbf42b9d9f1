"""Robots, what is installed on them, rollouts, and what became of those.

Revision ID: 0027
"""

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"


def upgrade() -> None:
    """Adds the tables."""
    _add_robots()
    _add_actions()
    _add_rollouts()
    op.create_table(
        "file_digests",
        sa.Column("sha256", _word(64), primary_key=True),
        sa.Column("sha1", _word(40), nullable=False),
        sa.Column("md5", _word(32), nullable=False),
    )


def _add_robots() -> None:
    op.create_table(
        "robots",
        sa.Column("name", _word(63), primary_key=True),
        sa.Column("team", _word(63), nullable=False),
        sa.Column("group", _word(63), nullable=False),
        sa.Column("labels", sa.Text(), nullable=False),
        sa.Column("state", _word(16), nullable=False),
        sa.Column("key", _word(64), nullable=False),
        sa.Column("sha256", _word(64), nullable=False),
        sa.Column("maker", _word(255), nullable=False),
        sa.Column("made_s", sa.Double(), nullable=False),
        sa.Column("contact_s", sa.Double()),
        sa.Column("address", _word(255), nullable=False),
        sa.Column("boots", sa.Text(), nullable=False),
        sa.Column("clash_s", sa.Double()),
        sa.Column("report", sa.Text()),
        sa.Column("attributes", sa.Text(), nullable=False),
        sa.Column("auto_confirm", sa.Boolean(), nullable=False),
    )
    op.create_index("robots_key", "robots", ["key"])
    op.create_index("robots_group", "robots", ["group"])
    op.create_table(
        "robot_tokens",
        sa.Column("sha256", _word(64), primary_key=True),
        sa.Column("robot", _word(63), nullable=False),
        sa.Column("asked", sa.Text(), nullable=False),
        sa.Column("maker", _word(255), nullable=False),
        sa.Column("made_s", sa.Double(), nullable=False),
        sa.Column("expires_s", sa.Double()),
        sa.Column("key", _word(64), nullable=False),
    )


def _add_actions() -> None:
    op.create_table(
        "robot_actions",
        sa.Column("number", _counter(), primary_key=True, autoincrement=True),
        sa.Column("robot", _word(63), sa.ForeignKey("robots.name"), nullable=False),
        sa.Column("release", _word(80), nullable=False),
        sa.Column("rollout", sa.BigInteger()),
        sa.Column("back", sa.Boolean(), nullable=False),
        sa.Column("state", _word(16), nullable=False),
        sa.Column("seen", sa.Boolean(), nullable=False),
        sa.Column("made_s", sa.Double(), nullable=False),
        sa.Column("changed_s", sa.Double(), nullable=False),
        sa.Column("said", sa.Integer(), nullable=False),
        sa.Column("words", sa.Text(), nullable=False),
    )
    op.create_index("robot_actions_robot", "robot_actions", ["robot", "number"])
    op.create_index("robot_actions_rollout", "robot_actions", ["rollout", "number"])
    op.create_table(
        "robot_tallies",
        sa.Column("robot", _word(63), sa.ForeignKey("robots.name"), primary_key=True),
        sa.Column("release", _word(80), primary_key=True),
        sa.Column("tally", sa.Text(), nullable=False),
    )


def _add_rollouts() -> None:
    op.create_table(
        "rollouts",
        sa.Column("number", _counter(), primary_key=True, autoincrement=True),
        sa.Column("team", _word(63), nullable=False),
        sa.Column("release", _word(80), nullable=False),
        sa.Column("state", _word(16), nullable=False),
        sa.Column("plan", sa.Text(), nullable=False),
        sa.Column("maker", _word(255), nullable=False),
        sa.Column("made_s", sa.Double(), nullable=False),
    )
    op.create_index("rollouts_state", "rollouts", ["state", "number"])
    op.create_table(
        "rollout_events",
        sa.Column("sequence", _counter(), primary_key=True, autoincrement=True),
        sa.Column("rollout", sa.BigInteger(), sa.ForeignKey("rollouts.number"), nullable=False),
        sa.Column("event", sa.Text(), nullable=False),
    )
    op.create_index("rollout_events_rollout", "rollout_events", ["rollout", "sequence"])


def downgrade() -> None:
    """Forgets all of them."""
    for index, table in (("rollout_events_rollout", "rollout_events"), ("rollouts_state", "rollouts")):
        op.drop_index(index, table)
        op.drop_table(table)
    op.drop_table("robot_tallies")
    op.drop_index("robot_actions_rollout", "robot_actions")
    op.drop_index("robot_actions_robot", "robot_actions")
    op.drop_table("robot_actions")
    op.drop_table("robot_tokens")
    op.drop_index("robots_group", "robots")
    op.drop_index("robots_key", "robots")
    op.drop_table("robots")
    op.drop_table("file_digests")


def _counter() -> sa.BigInteger:
    return sa.BigInteger().with_variant(sa.Integer, "sqlite")


def _word(length_max: int) -> sa.String:
    return sa.String(length_max).with_variant(sa.String(length_max, collation="C"), "postgresql")
