"""Tables of services: see `schema.py`, whose rules are the same."""

from __future__ import annotations

from sqlalchemy import Column, Integer, Table, Text

from mainspring.control.store.schema import id_column, metadata

services = Table("services", metadata, id_column("name", primary_key=True), Column("facts", Text, nullable=False))

service_replicas = Table(
    "service_replicas",  # Which jobs are replicas of which service.
    metadata,
    id_column("service", primary_key=True),
    id_column("job_id", primary_key=True),
    Column("version", Integer, nullable=False),
)
