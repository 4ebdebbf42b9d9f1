"""Runs migrations on the connection that `store.open_store` hands over."""

from alembic import context

from mainspring.control.store.nodes.tables import maintenance, node_repairs
from mainspring.control.store.schema import metadata

assert {maintenance.name, node_repairs.name} <= set(metadata.tables)

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
