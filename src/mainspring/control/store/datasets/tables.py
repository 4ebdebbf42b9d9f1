"""Tables of datasets: see `schema.py`, whose rules are the same."""

from __future__ import annotations

from sqlalchemy import Column, Double, Table

from mainspring.control.store.schema import id_column, metadata, word

dataset_owners = Table(
    "dataset_owners",  # Whose datasets are; one that is not here was there before anybody owned any: everybody's.
    metadata,
    id_column("name", primary_key=True),
    id_column("team", nullable=True),  # NULL for everybody's.
    Column("maker", word(255), nullable=False),  # Who began it, or gave it last.
    Column("made_s", Double, nullable=False),
)
