"""First shape of the store.

Revision ID: 0001
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_COUNTER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Makes every table, and the two rows that writers and the leader lock."""
    _make_jobs()
    _make_attempts()
    _make_history()
    _make_keepers()
    leases = sa.table("leases", sa.column("name"), sa.column("holder"), sa.column("epoch"), sa.column("expires_s"))
    names = ("writer", "leader")
    op.bulk_insert(leases, [{"name": name, "holder": "", "epoch": 0, "expires_s": 0.0} for name in names])


def downgrade() -> None:
    """Removes every table."""
    for table in ("leases", "tokens", "teams", "plans", "events", "agents", "allocations", "attempts", "whys", "jobs"):
        op.drop_table(table)


def _make_jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("ordinal", _COUNTER, autoincrement=True, nullable=False),
        sa.Column("id", sa.String(length=63), nullable=False),
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("team", sa.String(length=63), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("submit_key", sa.String(length=255), nullable=True),
        sa.Column("submitted_s", sa.Double(), nullable=False),
        sa.Column("ended_s", sa.Double(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("metrics", sa.Text(), nullable=False),
        sa.Column("result", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("ordinal"),
        sa.UniqueConstraint("id"),
        sa.UniqueConstraint("team", "submit_key", name="jobs_team_submit_key"),
    )
    op.create_index("jobs_name", "jobs", ["name", "ordinal"], unique=False)
    op.create_index("jobs_state", "jobs", ["state", "ordinal"], unique=False)
    op.create_index("jobs_team", "jobs", ["team", "ordinal"], unique=False)
    op.create_table(
        "whys",
        sa.Column("job_id", sa.String(length=63), nullable=False),
        sa.Column("plan", sa.BigInteger(), nullable=False),
        sa.Column("summary", sa.Text(), nullable=False),
        sa.Column("limit_name", sa.String(length=16), nullable=True),
        sa.Column("candidates", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"],
            ["jobs.id"],
        ),
        sa.PrimaryKeyConstraint("job_id"),
    )


def _make_attempts() -> None:
    op.create_table(
        "attempts",
        sa.Column("id", sa.String(length=63), nullable=False),
        sa.Column("job_id", sa.String(length=63), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("cluster", sa.String(length=63), nullable=False),
        sa.Column("simulated", sa.Boolean(), nullable=False),
        sa.Column("plan", sa.BigInteger(), nullable=False),
        sa.Column("grants", sa.Text(), nullable=False),
        sa.Column("dollars_per_hour", sa.Double(), nullable=False),
        sa.Column("granted_s", sa.Double(), nullable=False),
        sa.Column("ended_s", sa.Double(), nullable=True),
        sa.Column("stop_cause", sa.String(length=16), nullable=False),
        sa.Column("outcome", sa.String(length=16), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("ranks", sa.Text(), nullable=False),
        sa.Column("events_seen", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"],
            ["jobs.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("job_id", "number", name="attempts_job_number"),
    )
    op.create_index("attempts_state", "attempts", ["state"], unique=False)
    op.create_table(
        "allocations",
        sa.Column("id", sa.String(length=63), nullable=False),
        sa.Column("attempt_id", sa.String(length=63), nullable=False),
        sa.Column("place", sa.Integer(), nullable=False),
        sa.Column("cluster", sa.String(length=63), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("launched_s", sa.Double(), nullable=True),
        sa.Column("stopped_s", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["attempt_id"],
            ["attempts.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("attempt_id", "place", name="allocations_attempt_place"),
    )
    op.create_index("allocations_state", "allocations", ["state"], unique=False)
    op.create_table(
        "agents",
        sa.Column("attempt_id", sa.String(length=63), nullable=False),
        sa.Column("agent", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("address", sa.String(length=255), nullable=False),
        sa.ForeignKeyConstraint(
            ["attempt_id"],
            ["attempts.id"],
        ),
        sa.PrimaryKeyConstraint("attempt_id", "agent"),
    )


def _make_history() -> None:
    op.create_table(
        "events",
        sa.Column("sequence", _COUNTER, autoincrement=True, nullable=False),
        sa.Column("time_s", sa.Double(), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("job_id", sa.String(length=63), nullable=True),
        sa.Column("attempt_id", sa.String(length=63), nullable=True),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("sequence"),
        sqlite_autoincrement=True,
    )
    op.create_index("events_job", "events", ["job_id", "sequence"], unique=False)
    op.create_table(
        "plans",
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("made_s", sa.Double(), nullable=False),
        sa.Column("starts", sa.Integer(), nullable=False),
        sa.Column("evicts", sa.Integer(), nullable=False),
        sa.Column("waits", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("number"),
    )


def _make_keepers() -> None:
    op.create_table(
        "teams",
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("parent", sa.String(length=63), nullable=True),
        sa.Column("chip_milli_max", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "tokens",
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("team", sa.String(length=63), nullable=False),
        sa.Column("attempt_id", sa.String(length=63), nullable=True),
        sa.Column("made_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("sha256"),
    )
    op.create_table(
        "leases",
        sa.Column("name", sa.String(length=32), nullable=False),
        sa.Column("holder", sa.String(length=63), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("expires_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
