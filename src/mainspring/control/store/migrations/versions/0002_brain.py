"""What planning with guarantees, arrays, prices and predictions needs to know.

Revision ID: 0002
"""

import json

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_READ_AT_ONCE = 1_000


def upgrade() -> None:
    """Adds columns, keeps a team as one text, and counts the chips of every attempt there has been."""
    op.add_column("jobs", sa.Column("array_id", sa.String(length=63), nullable=True))
    op.add_column("jobs", sa.Column("array_index", sa.Integer(), nullable=True))
    op.add_column("jobs", sa.Column("array_count", sa.Integer(), nullable=True))
    op.create_index("jobs_array", "jobs", ["array_id", "array_index"], unique=False)
    op.add_column("attempts", sa.Column("chips", sa.Text(), nullable=False, server_default="{}"))
    op.add_column("attempts", sa.Column("heard_s", sa.Double(), nullable=True))
    op.create_index("attempts_ended", "attempts", ["ended_s"], unique=False)
    op.add_column("whys", sa.Column("whose", sa.String(length=63), nullable=False, server_default=""))
    op.add_column("whys", sa.Column("short_by", sa.Double(), nullable=False, server_default="0"))
    op.add_column("whys", sa.Column("start_s", sa.Double(), nullable=True))
    op.add_column("whys", sa.Column("exact", sa.Boolean(), nullable=False, server_default=sa.false()))
    _count_chips()
    _keep_teams_as_text()


def downgrade() -> None:
    """Makes jobs of arrays stand by themselves, and takes teams apart again, of which little is kept."""
    _spread_specs()
    _take_teams_apart()
    for name in ("exact", "start_s", "short_by", "whose"):
        op.drop_column("whys", name)
    op.drop_index("attempts_ended", "attempts")
    for name in ("heard_s", "chips"):
        op.drop_column("attempts", name)
    op.drop_index("jobs_array", "jobs")
    for name in ("array_count", "array_index", "array_id"):
        op.drop_column("jobs", name)


def _spread_specs() -> None:
    jobs = sa.table("jobs", sa.column("id"), sa.column("spec"), sa.column("array_id"))
    first = sa.table("jobs", sa.column("id"), sa.column("spec")).alias("first")
    spec = sa.select(first.c.spec).where(first.c.id == jobs.c.array_id).scalar_subquery()
    op.get_bind().execute(sa.update(jobs).where(jobs.c.spec == "").values(spec=spec))


def _take_teams_apart() -> None:
    connection = op.get_bind()
    new = sa.table("teams", sa.column("name"), sa.column("facts"))
    known = connection.execute(sa.select(new)).all()
    op.drop_table("teams")
    op.create_table(
        "teams",
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("parent", sa.String(length=63), nullable=True),
        sa.Column("chip_milli_max", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("name"),
    )
    teams = sa.table("teams", sa.column("name"), sa.column("parent"), sa.column("chip_milli_max"))
    for row in known:
        facts = json.loads(row.facts)
        limit = facts.get("chips_max")
        milli = None if limit is None else round(limit * 1_000)
        values = {"name": row.name, "parent": facts.get("parent"), "chip_milli_max": milli}
        connection.execute(sa.insert(teams).values(values))


def _count_chips() -> None:
    connection = op.get_bind()
    jobs = sa.table("jobs", sa.column("id"), sa.column("spec"))
    attempts = sa.table("attempts", sa.column("id"), sa.column("job_id"), sa.column("grants"), sa.column("chips"))
    query = sa.select(attempts.c.id, attempts.c.grants, jobs.c.spec).join_from(
        attempts, jobs, attempts.c.job_id == jobs.c.id
    )
    last = ""
    while rows := connection.execute(
        query.where(attempts.c.id > last).order_by(attempts.c.id).limit(_READ_AT_ONCE)
    ).all():
        for row in rows:
            options = {role["name"]: role["options"] for role in json.loads(row.spec)["roles"]}
            chips: dict[str, int] = {}
            for grant in json.loads(row.grants):
                chip = options[grant["role"]][grant["option"]]["chip"]
                chips[chip] = chips.get(chip, 0) + sum(grant["chip_milli"])
            connection.execute(sa.update(attempts).where(attempts.c.id == row.id).values(chips=json.dumps(chips)))
        last = rows[-1].id


def _keep_teams_as_text() -> None:
    connection = op.get_bind()
    old = sa.table("teams", sa.column("name"), sa.column("parent"), sa.column("chip_milli_max"))
    known = connection.execute(sa.select(old)).all()
    op.drop_table("teams")
    op.create_table(
        "teams",
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("facts", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    teams = sa.table("teams", sa.column("name"), sa.column("facts"))
    for row in known:
        limit = None if row.chip_milli_max is None else row.chip_milli_max / 1_000
        facts = json.dumps({"name": row.name, "parent": row.parent, "chips_max": limit})
        connection.execute(sa.insert(teams).values(name=row.name, facts=facts))
