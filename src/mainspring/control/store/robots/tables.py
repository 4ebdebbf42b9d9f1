"""Tables of robots and rollouts: see `schema.py`, whose rules are the same."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Double, ForeignKey, Index, Integer, Table, Text

from mainspring.control.store.schema import COUNTER, id_column, metadata, word

robots = Table(
    "robots",
    metadata,
    id_column("name", primary_key=True),
    id_column("team"),
    Column("group", word(63), nullable=False),
    Column("labels", Text, nullable=False),
    Column("state", word(16), nullable=False),
    Column("key", word(64), nullable=False),  # "" of a plain client of DDI.
    Column("sha256", word(64), nullable=False),  # Of its TargetToken; "" for none.
    Column("maker", word(255), nullable=False),
    Column("made_s", Double, nullable=False),
    Column("contact_s", Double),
    Column("address", word(255), nullable=False),
    Column("boots", Text, nullable=False),  # What its agent drew at its last starts, newest last.
    Column("clash_s", Double),
    Column("report", Text),
    Column("attributes", Text, nullable=False),
    Column("auto_confirm", Boolean, nullable=False),
    Index("robots_key", "key"),
    Index("robots_group", "group"),
)

robot_tokens = Table(
    "robot_tokens",  # One-time tokens, and that of gateways; by the hash of each.
    metadata,
    Column("sha256", word(64), primary_key=True),
    Column("robot", word(63), nullable=False),  # "" for gateways.
    Column("asked", Text, nullable=False),
    Column("maker", word(255), nullable=False),
    Column("made_s", Double, nullable=False),
    Column("expires_s", Double),
    Column("key", word(64), nullable=False),  # Whose it was when it was used, "" before.
)

robot_actions = Table(
    "robot_actions",  # What DDI calls an action: one installation on one robot.
    metadata,
    Column("number", COUNTER, primary_key=True, autoincrement=True),
    Column("robot", word(63), ForeignKey("robots.name"), nullable=False),
    Column("release", word(80), nullable=False),
    Column("rollout", BigInteger),
    Column("back", Boolean, nullable=False),  # Whether it takes back what a rollout brought.
    Column("state", word(16), nullable=False),
    Column("seen", Boolean, nullable=False),
    Column("made_s", Double, nullable=False),
    Column("changed_s", Double, nullable=False),
    Column("said", Integer, nullable=False),  # How often the robot said anything of it.
    Column("words", Text, nullable=False),
    Index("robot_actions_robot", "robot", "number"),
    Index("robot_actions_rollout", "rollout", "number"),
)

robot_tallies = Table(
    "robot_tallies",  # What each robot counted of each release.
    metadata,
    Column("robot", word(63), ForeignKey("robots.name"), primary_key=True),
    Column("release", word(80), primary_key=True),
    Column("tally", Text, nullable=False),
)

rollouts = Table(
    "rollouts",
    metadata,
    Column("number", COUNTER, primary_key=True, autoincrement=True),
    id_column("team"),
    Column("release", word(80), nullable=False),
    Column("state", word(16), nullable=False),  # Of `rollout_events`, kept beside them to be found by.
    Column("plan", Text, nullable=False),
    Column("maker", word(255), nullable=False),
    Column("made_s", Double, nullable=False),
    Index("rollouts_state", "state", "number"),
)

rollout_events = Table(
    "rollout_events",  # All that becomes of a rollout follows from these.
    metadata,
    Column("sequence", COUNTER, primary_key=True, autoincrement=True),
    Column("rollout", BigInteger, ForeignKey("rollouts.number"), nullable=False),
    Column("event", Text, nullable=False),
    Index("rollout_events_rollout", "rollout", "sequence"),
)

file_digests = Table(
    "file_digests",  # Hashes that clients of DDI want beside SHA-256.
    metadata,
    Column("sha256", word(64), primary_key=True),
    Column("sha1", word(40), nullable=False),
    Column("md5", word(32), nullable=False),
)
