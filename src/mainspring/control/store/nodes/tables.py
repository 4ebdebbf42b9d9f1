"""Tables of the care of nodes: what was done to those that failed, and when they are not there for work."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Double, Index, Table, Text

from mainspring.control.store.schema import COUNTER, id_column, metadata, word

node_repairs = Table(
    "node_repairs",  # What was done to nodes in quarantine.
    metadata,
    Column("number", COUNTER, primary_key=True, autoincrement=True),
    Column("closure", BigInteger, nullable=False),
    id_column("cluster"),
    id_column("node"),
    Column("step", word(16), nullable=False),
    id_column("job"),
    Column("begun_s", Double, nullable=False),
    Column("ended_s", Double, nullable=True),
    Column("outcome", word(16), nullable=True),
    Column("words", Text, nullable=False),
    Index("node_repairs_closure", "closure"),
    Index("node_repairs_node", "cluster", "node", "number"),
    sqlite_autoincrement=True,
)

maintenance = Table(
    "maintenance",  # Windows in which nodes are not there for work, announced.
    metadata,
    Column("number", COUNTER, primary_key=True, autoincrement=True),
    id_column("cluster"),
    Column("nodes", Text, nullable=False),
    Column("from_s", Double, nullable=False),
    Column("until_s", Double, nullable=False),
    Column("by", word(255), nullable=False),
    Column("reason", Text, nullable=False),
    Index("maintenance_until", "until_s"),
    sqlite_autoincrement=True,
)

rule_cases = Table(
    "rule_cases",  # Each time that a rule of health held for a node, and whether it was right.
    metadata,
    Column("number", COUNTER, primary_key=True, autoincrement=True),
    id_column("rule"),
    id_column("cluster"),
    id_column("node"),
    Column("from_s", Double, nullable=False),
    Column("until_s", Double, nullable=True),
    Column("right", Boolean, nullable=True),  # None while nobody has said so.
    Column("by", word(255), nullable=False),
    Column("words", Text, nullable=False),
    Index("rule_cases_node", "cluster", "node", "number"),
    Index("rule_cases_until", "until_s"),
    sqlite_autoincrement=True,
)

health_rules = Table(
    "health_rules",  # Rules that somebody lets act.
    metadata,
    id_column("rule", primary_key=True),
    Column("by", word(255), nullable=False),
    Column("since_s", Double, nullable=False),
    Column("reason", Text, nullable=False),
)

breakers = Table(
    "breakers",
    metadata,
    id_column("cluster", primary_key=True),
    Column("breaker", Text, nullable=False),
)
