"""Tables of releases: see `schema.py`, whose rules are the same."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, ForeignKey, Index, Integer, Table, Text, UniqueConstraint

from mainspring.control.store.schema import COUNTER, ID_LENGTH_MAX, metadata, word

policy_releases = Table(
    "policy_releases",
    metadata,
    Column("ordinal", COUNTER, primary_key=True, autoincrement=True),
    Column("name", word(ID_LENGTH_MAX), nullable=False),
    Column("version", Integer, nullable=False),
    Column("team", word(ID_LENGTH_MAX), nullable=False),
    Column("state", word(16), nullable=False),
    Column("reason", Text, nullable=False),
    Column("sha256", word(64), nullable=False),
    Column("release", Text, nullable=False),  # The bytes that are signed.
    UniqueConstraint("name", "version", name="policy_releases_name_version"),
    Index("policy_releases_state", "state", "ordinal"),
)

release_files = Table(
    "release_files",  # What may be fetched: files of releases, by the hash of their bytes.
    metadata,
    Column("sha256", word(64), primary_key=True),
    Column("release", BigInteger, ForeignKey("policy_releases.ordinal"), primary_key=True, autoincrement=False),
)

trust = Table(
    "trust",  # Metadata of TUF's roles, signed.
    metadata,
    Column("role", word(ID_LENGTH_MAX), primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("body", Text, nullable=False),
)
