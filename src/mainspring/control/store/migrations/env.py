"""Runs migrations on the connection that `store.open_store` hands over."""

from alembic import context

from mainspring.control.store.datasets.tables import dataset_owners
from mainspring.control.store.nodes.tables import maintenance
from mainspring.control.store.releases.tables import policy_releases
from mainspring.control.store.robots.tables import robots
from mainspring.control.store.schema import metadata
from mainspring.control.store.services.tables import services

assert all(
    table.metadata is metadata for table in (dataset_owners, maintenance, policy_releases, robots, services)
)  # All are known by now.

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
