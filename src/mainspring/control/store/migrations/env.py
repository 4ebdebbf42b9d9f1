"""Runs migrations on the connection that `store.open_store` hands over."""

from alembic import context

from mainspring.control.store.nodes import tables
from mainspring.control.store.schema import metadata

assert tables.metadata is metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
