"""The store's tables, in SQLAlchemy Core; nothing here is particular to one database.

Values are kept as JSON text written by `domain.codec`, so that the store holds what the wire holds. Migrations build
these tables step by step; a test holds both to the same shape.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    not_,
    text,
)

from mainspring.domain.goodput import TimeUse
from mainspring.domain.ids import SECRET_NAME_LENGTH_MAX
from mainspring.domain.life import JobState, ended

ID_LENGTH_MAX = 63
REASON_LENGTH_MAX = 4_096
# Of why a job waits: it is in an index, and PostgreSQL takes no entry over 2,704 bytes. Source: its nbtree.h.
WAIT_BYTES_MAX = 2_000
KEY_LENGTH_MAX = 255
CODE_LENGTH_MAX = 80  # The name of a hash, and its 64 digits.
CHIPS_LENGTH_MAX = 1_024  # A few types, of names and counts.

metadata = MetaData()
COUNTER = BigInteger().with_variant(Integer, "sqlite")  # Only INTEGER counts by itself in SQLite.


def word(length_max: int) -> String:
    """Returns text that is ordered by its bytes, as in SQLite, whatever language a database is set up for.

    So lists go on where they ended; and no index is out of order once the database's machine sorts words otherwise.
    """
    return String(length_max).with_variant(String(length_max, collation="C"), "postgresql")


def id_column(name: str = "id", *, primary_key: bool = False, nullable: bool = False) -> Column[str]:
    """Returns a column of names that somebody, or we, drew."""
    return Column(name, word(ID_LENGTH_MAX), primary_key=primary_key, nullable=nullable)


# Literal, and the same in an index and in queries: databases use an index of some rows only where a query says so.
LIVE = text("state IN ('queued', 'starting', 'running', 'stopping')")
CODED = text("code IS NOT NULL")
ARRAYED = text("array_id IS NOT NULL")  # Most are of none, and statistics take equal NULLs for equal keys.
EVIDENCE = text("kind IN ('node_blamed', 'node_cleared')")

jobs = Table(
    "jobs",
    metadata,
    Column("ordinal", COUNTER, primary_key=True, autoincrement=True),
    Column("id", word(ID_LENGTH_MAX), nullable=False, unique=True),
    id_column("name"),
    id_column("team"),
    Column("state", word(16), nullable=False),
    Column("spec", Text, nullable=False),
    Column("submit_key", word(KEY_LENGTH_MAX), nullable=True),
    Column("submitted_s", Double, nullable=False),
    Column("ended_s", Double, nullable=True),
    Column("reason", Text, nullable=False, default=""),
    Column("step", BigInteger, nullable=False, default=-1),
    Column("metrics", Text, nullable=False, default="{}"),
    Column("result", Text, nullable=False, default="{}"),
    id_column("array_id", nullable=True),  # The array's first job; its row alone holds the spec, the others' hold "".
    Column("array_index", Integer, nullable=True),
    Column("array_count", Integer, nullable=True),
    Column("owner", word(ID_LENGTH_MAX), nullable=False, default=""),  # Who submitted it.
    Column("overrides", Text, nullable=True),  # What was said of it since; NULL for nothing.
    Column("code", word(CODE_LENGTH_MAX), nullable=True),  # The tree that it runs, beside its spec; NULL for none.
    UniqueConstraint("team", "submit_key", name="jobs_team_submit_key"),
    Index("jobs_array", "array_id", "array_index", sqlite_where=ARRAYED, postgresql_where=ARRAYED),
    Index("jobs_array_live", "array_id", "state", sqlite_where=LIVE, postgresql_where=LIVE),
    Index("jobs_state", "state", "ordinal", "id"),  # Ids are in it for those who look up nothing else of the job.
    Index("jobs_name", "name", "ordinal"),
    Index("jobs_team", "team", "state", "ordinal", "id", "array_id"),
    Index("jobs_owner", "owner", "team", "state", "ordinal"),
    Index("jobs_ended", "ended_s", "submitted_s"),
    Index("jobs_code", "code", sqlite_where=CODED, postgresql_where=CODED),
)

attempts = Table(
    "attempts",
    metadata,
    id_column(primary_key=True),
    Column("job_id", word(ID_LENGTH_MAX), ForeignKey("jobs.id"), nullable=False),
    Column("number", Integer, nullable=False),
    Column("state", word(16), nullable=False),
    id_column("cluster"),
    Column("simulated", Boolean, nullable=False),
    Column("plan", BigInteger, nullable=False),
    Column("granted_s", Double, nullable=False),
    Column("ended_s", Double, nullable=True),
    Column("stop_cause", word(16), nullable=False, default=""),
    Column("outcome", word(16), nullable=True),
    Column("reason", Text, nullable=False, default=""),
    Column("generation", COUNTER, nullable=False, default=0),
    Column("step", BigInteger, nullable=False, default=-1),
    Column("ranks", Text, nullable=False, default="[]"),
    Column("at_risk", Text, nullable=True),  # The work that would be lost, as its lead last reported.
    Column("events_seen", BigInteger, nullable=False, default=0),
    Column("heard_s", Double, nullable=True),  # When its lead last reported, or was named.
    Column("epoch", Integer, nullable=False, default=0),  # Counts its leads; 0 while agents are missing.
    Column("lead", Integer, nullable=False, default=0),  # The agent that leads.
    Column("led_s", Double, nullable=True),  # When its first lead was named: all agents had come.
    Column("seconds", Text, nullable=False, default="{}"),  # Its lead's ledger: node-seconds by use.
    Column("seconds_before", Text, nullable=False, default="{}"),  # The same, of the leads before.
    Column("counted", Boolean, nullable=False, default=False),  # Whether accounts have it: it has ended.
    Column("profile", Text, nullable=True),  # What was last asked of its ranks.
    Column("stacks_asked", Integer, nullable=False, default=0, server_default="0"),  # How often people asked for them.
    UniqueConstraint("job_id", "number", name="attempts_job_number"),
    Index("attempts_state", "state"),
    Index("attempts_ended", "ended_s", "granted_s"),
    Index("attempts_granted", "granted_s"),
)
# Of what has not ended, and of what was not counted yet.
UNCOUNTED = not_(attempts.c.counted)
Index("attempts_uncounted", attempts.c.ended_s, sqlite_where=UNCOUNTED, postgresql_where=UNCOUNTED)

allocations = Table(
    "allocations",
    metadata,
    id_column(primary_key=True),
    Column("attempt_id", word(ID_LENGTH_MAX), ForeignKey("attempts.id"), nullable=False),
    Column("place", Integer, nullable=False),  # Counts the attempt's allocations, those added later last.
    id_column("cluster"),
    Column("state", word(16), nullable=False),
    Column("launched_s", Double, nullable=True),
    Column("stopped_s", Double, nullable=True),  # When its engine last took a stop for it.
    Column("part", Text, nullable=False),  # What it holds of one role's grant.
    Column("agent_first", Integer, nullable=False),  # Its agents are numbered on from here; no number comes twice.
    Column("rank_first", Integer, nullable=False),  # The same of its ranks.
    # What accounts are made from: nodes, thousandths by chip type, their price, and from when until when they are held.
    Column("nodes", Integer, nullable=False),
    Column("chips", Text, nullable=False),
    Column("dollars_per_hour", Double, nullable=False),
    Column("granted_s", Double, nullable=False),
    Column("came_s", Double, nullable=True),  # When the last of its agents came.
    Column("ended_s", Double, nullable=True),  # When it was gone, or its attempt given up.
    Column("lost", Boolean, nullable=False, default=False),  # Whether an agent of it ended otherwise than well.
    Column("released", Boolean, nullable=False, default=False),  # Whether its attempt has gone on without it.
    Column("queued", Text, nullable=True),  # What it waits for in its cluster's own queue; "" once it has left that.
    Column("hosts", Text, nullable=False, default="[]"),  # The machines behind its nodes, where its cluster chose them.
    UniqueConstraint("attempt_id", "place", name="allocations_attempt_place"),
    Index("allocations_state", "state"),
)

agents = Table(
    "agents",
    metadata,
    Column("attempt_id", word(ID_LENGTH_MAX), ForeignKey("attempts.id"), primary_key=True),
    Column("agent", Integer, primary_key=True, autoincrement=False),
    Column("address", word(255), nullable=False),
    Column("gone", Boolean, nullable=False, default=False),  # Whether its engine has seen it end.
)

events = Table(
    "events",
    metadata,
    Column("sequence", COUNTER, primary_key=True, autoincrement=True),
    Column("time_s", Double, nullable=False),
    Column("kind", word(32), nullable=False),
    id_column("job_id", nullable=True),
    id_column("attempt_id", nullable=True),
    Column("detail", Text, nullable=False),
    Index("events_job", "job_id", "sequence"),
    Index("events_evidence", "time_s", sqlite_where=EVIDENCE, postgresql_where=EVIDENCE),
    sqlite_autoincrement=True,
)

plans = Table(
    "plans",
    metadata,
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("made_s", Double, nullable=False),
    Column("starts", Integer, nullable=False),
    Column("evicts", Integer, nullable=False),
    Column("waits", Integer, nullable=False),
)

whys = Table(
    "whys",
    metadata,
    Column("job_id", word(ID_LENGTH_MAX), ForeignKey("jobs.id"), primary_key=True),
    Column("plan", BigInteger, nullable=False),
    Column("summary", Text, nullable=False),
    Column("limit_name", word(16), nullable=True),
    Column("candidates", Text, nullable=False),
    Column("whose", word(ID_LENGTH_MAX), nullable=False, default=""),  # The cluster or team that sets the limit.
    Column("short_by", Double, nullable=False, default=0.0),
    Column("start_s", Double, nullable=True),
    Column("exact", Boolean, nullable=False, default=False),
)
WAITS = whys.c.limit_name.is_not(None)
# All that is asked of many who wait at once: the table's rows are long, by what was weighed.
_WAIT = (whys.c.job_id, whys.c.limit_name, whys.c.whose, whys.c.summary, whys.c.start_s, whys.c.exact)
Index("whys_waiting", *_WAIT, sqlite_where=WAITS, postgresql_where=WAITS)

teams = Table(
    "teams",
    metadata,
    id_column("name", primary_key=True),
    Column("facts", Text, nullable=False),
)

_ENDS = [state.value for state in JobState if ended(state)]

tallies = Table(
    "tallies",  # Each person's in each team: jobs that have not ended, letters of their specs, jobs by their end.
    metadata,
    id_column("owner", primary_key=True),
    id_column("team", primary_key=True),
    Column("jobs", BigInteger, nullable=False),
    Column("letters", BigInteger, nullable=False),
    *(Column(end, BigInteger, nullable=False, default=0) for end in _ENDS),
)

array_ends = Table(
    "array_ends",  # How many jobs of an array have ended, by how.
    metadata,
    id_column("array_id", primary_key=True),
    *(Column(end, BigInteger, nullable=False, default=0) for end in _ENDS),
)

accounts = Table(
    "accounts",  # What attempts came to that were granted on one day, counted from 1970, and have ended.
    metadata,
    id_column("cluster", primary_key=True),
    id_column("team", primary_key=True),
    Column("day", Integer, primary_key=True, autoincrement=False),
    Column("attempts", BigInteger, nullable=False),
    Column("allocated_s", Double, nullable=False),
    Column("waited_s", Double, nullable=False),
    Column("preemptions", BigInteger, nullable=False),
    *(Column(f"{use.value}_s", Double, nullable=False) for use in TimeUse),
)

charges = Table(
    "charges",  # What allocations came to that began in one hour and ended in one hour, both counted from 1970.
    metadata,
    Column("ended", Integer, primary_key=True, autoincrement=False),
    Column("began", Integer, primary_key=True, autoincrement=False),
    id_column("team", primary_key=True),
    Column("chips", word(CHIPS_LENGTH_MAX), primary_key=True),
    Column("seconds", Double, nullable=False),
    Column("dollars", Double, nullable=False),
)

tokens = Table(
    "tokens",
    metadata,
    Column("sha256", word(64), primary_key=True),
    Column("role", word(16), nullable=False),
    id_column("team"),
    id_column("attempt_id", nullable=True),
    Column("made_s", Double, nullable=False),
    Column("id", word(ID_LENGTH_MAX), nullable=False, default=""),  # What it is called, where it must not be shown.
    Column("holder", word(ID_LENGTH_MAX), nullable=False, default=""),
    Column("maker", word(ID_LENGTH_MAX), nullable=False, default=""),
    Column("expires_s", Double, nullable=True),
    Column("used_s", Double, nullable=True),
    Index("tokens_id", "id"),
    Index("tokens_attempt", "attempt_id"),
)

audit = Table(
    "audit",
    metadata,
    Column("sequence", COUNTER, primary_key=True, autoincrement=True),
    Column("time_s", Double, nullable=False),
    Column("holder", word(255), nullable=False),
    id_column("token"),
    Column("address", word(255), nullable=False),
    Column("action", word(255), nullable=False),
    Column("target", word(255), nullable=False),
    id_column("team"),
    Column("outcome", word(16), nullable=False),
    Column("reason", word(255), nullable=False),
    Index("audit_team", "team", "sequence"),
    sqlite_autoincrement=True,
)

secrets = Table(
    "secrets",
    metadata,
    id_column("team", primary_key=True),
    Column("name", word(SECRET_NAME_LENGTH_MAX), primary_key=True),
    Column("ciphertext", Text, nullable=False),
    Column("key_id", word(12), nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("maker", word(ID_LENGTH_MAX), nullable=False),
    Column("made_s", Double, nullable=False),
)

blocks = Table(
    "blocks",
    metadata,
    id_column("team", primary_key=True),
    id_column("holder", primary_key=True),
    id_column("maker"),
    Column("made_s", Double, nullable=False),
)

holds = Table(
    "holds",
    metadata,
    id_column("team", primary_key=True),  # "" for a cluster, or a node of one.
    id_column("cluster", primary_key=True),
    Column("node", word(255), primary_key=True),
    Column("drain", Boolean, nullable=False),
    Column("by", word(255), nullable=False),
    Column("reason", Text, nullable=False),
    Column("since_s", Double, nullable=False),
)

held = Table(
    "held",  # What clusters show, and the store knows nothing of, or no longer knows how it ended.
    metadata,
    id_column("allocation", primary_key=True),
    id_column("cluster"),
    id_column("job_id"),  # "" where nobody knows; it need not be one of ours.
    Column("nodes", Text, nullable=False),
    Column("over", Boolean, nullable=False),  # Whether it runs no more.
    Column("since_s", Double, nullable=False),
    Column("settled_by", word(255), nullable=False),  # Who had it ended, "" while nobody has.
)

lives = Table(
    "lives",  # One for each time that the store was found to have gone back in time.
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("began_s", Double, nullable=False),
    Column("cause", Text, nullable=False),
    Column("timeline", BigInteger, nullable=False),  # PostgreSQL's then, 0 elsewhere.
)

archives = Table(
    "archives",  # Files of the object store that hold jobs which were removed here.
    metadata,
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("jobs", Integer, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("made_s", Double, nullable=False),
    Column("first_s", Double, nullable=False),  # When the first of them was submitted,
    Column("last_s", Double, nullable=False),  # and when the last of them ended.
)

archived = Table(
    "archived",  # Where each job is that was removed here.
    metadata,
    id_column("job_id", primary_key=True),
    id_column("name"),
    id_column("team"),
    Column("state", word(16), nullable=False),
    Column("submitted_s", Double, nullable=False),
    Column("ended_s", Double, nullable=False, default=0.0),  # At the latest, of one archived by an older release.
    Column("archive", BigInteger, ForeignKey("archives.number"), nullable=False),
    Column("offset", BigInteger, nullable=False),
    Column("bytes", Integer, nullable=False),
    Index("archived_name", "name", "submitted_s"),
    Index("archived_archive", "archive"),
)

notices = Table(
    "notices",  # What teams are still to be told. How far events were looked at is the lease of the name "notices".
    metadata,
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),  # The event's.
    id_column("job_id", nullable=True),
    id_column("team"),
    Column("body", Text, nullable=False),
    Column("tries", Integer, nullable=False),
    Column("due_s", Double, nullable=False),
    Index("notices_team", "team", "due_s"),
)

repeats = Table(
    "repeats",
    metadata,
    id_column("token", primary_key=True),
    Column("key_sha256", word(64), primary_key=True),
    Column("fingerprint", word(64), nullable=False),  # Of the request that the key was drawn for.
    Column("answer", Text, nullable=False),  # Encrypted under the key, which is not kept.
    Column("made_s", Double, nullable=False),
    Index("repeats_made", "made_s"),
)

fleet = Table(
    "fleet",
    metadata,
    id_column("cluster", primary_key=True),
    Column("inventory", Text, nullable=False),
    Column("told_s", Double, nullable=False),  # When the inventory last changed.
    Column("answering", Boolean, nullable=False),
    Column("seen_s", Double, nullable=False),
)

node_states = Table(
    "node_states",  # Each state that a node was in, as its engine told it, but for slots; None until it was another.
    metadata,
    Column("ordinal", COUNTER, primary_key=True, autoincrement=True),
    id_column("cluster"),
    id_column("node"),
    Column("condition", word(16), nullable=False),
    Column("owner", word(255), nullable=False),
    Column("reason", word(255), nullable=False),
    Column("since_s", Double, nullable=False),
    Column("until_s", Double, nullable=True),
    Index("node_states_until", "until_s", "since_s"),
)

leases = Table(
    "leases",  # The lead; and how far events were looked at by those who tell of them, each under its own name.
    metadata,
    Column("name", word(32), primary_key=True),
    Column("holder", word(ID_LENGTH_MAX), nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("expires_s", Double, nullable=False),
)

health_events = Table(
    "health_events",  # What was seen of machines: samples, kept for a while.
    metadata,
    Column("number", COUNTER, primary_key=True, autoincrement=True),
    Column("told_s", Double, nullable=False),
    Column("teller", word(255), nullable=False),  # Who told it: an attempt, somebody, "" for the controller.
    id_column("source"),
    id_column("session"),
    Column("sequence", BigInteger, nullable=False),
    id_column("cluster"),
    id_column("node"),  # "" for what is of no one node.
    Column("event", Text, nullable=False),
    UniqueConstraint("teller", "source", "session", "sequence", name="health_events_source"),
    Index("health_events_node", "cluster", "node", "number"),
    sqlite_autoincrement=True,
)

node_health = Table(
    "node_health",  # What the leader's fold over those says of each node now, for servers that have no fold.
    metadata,
    id_column("cluster", primary_key=True),
    id_column("node", primary_key=True),
    Column("state", word(16), nullable=False),
    Column("findings", Text, nullable=False),
    Column("lemon_score", Double, nullable=False),
    Column("since_s", Double, nullable=False),
)

closures = Table(
    "closures",  # Each time that a node was closed, by people or by health.
    metadata,
    Column("number", COUNTER, primary_key=True, autoincrement=True),
    id_column("cluster"),
    id_column("node"),
    Column("kind", word(16), nullable=False),
    Column("owner", word(255), nullable=False),
    id_column("rule"),
    Column("reason", Text, nullable=False),
    Column("evidence", Text, nullable=False),
    Column("repair", word(16), nullable=False),
    Column("from_s", Double, nullable=False),
    Column("until_s", Double, nullable=True),
    Column("on_engine", Boolean, nullable=False),  # Whether its engine took a cordon for it that still stands.
    Column("refused", Text, nullable=False),
    Column("ended_s", Double, nullable=True),
    Column("ended_by", word(255), nullable=False),
    Column("ended_reason", Text, nullable=False),
    Index("closures_node", "cluster", "node", "number"),
    Index("closures_ended", "ended_s"),
    sqlite_autoincrement=True,
)

evaluation_rules = Table(
    "evaluation_rules",
    metadata,
    id_column("name", primary_key=True),
    id_column("team"),
    Column("owner", word(255), nullable=False),
    Column("made_s", Double, nullable=False),
    Column("rule", Text, nullable=False),
)
