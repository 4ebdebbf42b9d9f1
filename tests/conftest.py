"""What all tests share: properties are never timed, so that a busy machine fails none of them.

They draw the same cases each time in `make test`, so that what passed passes again; `make soak` looks for new ones, and
for more of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import settings

from mainspring.control import open_store
from mainspring.testing.postgres import PostgresServer, postgres_missing

# Where the compiler for TPUs is installed JAX would look for some, and libtpu takes from the process, and all that it
# starts, the right to ever become another user: no test after that could try sudo.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Of programs that compute for moments the compiler's optimizations take longer than all that they save.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
settings.register_profile("house", deadline=None, derandomize=True, max_examples=40)
settings.register_profile("search", deadline=None, derandomize=False)
settings.load_profile("house")
# A worker that gets no processor for longer than a server of ours would be silent is no test's business.
PATIENT = "&options=-c%20idle_in_transaction_session_timeout%3D120000"
TOGETHER = Path(__file__).parent / "engines" / "kubernetes"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leaves the tests of Kubernetes' engine beside each other, in whatever order: one control plane is for them all,
    and ends where another's test comes in between.
    """
    items.sort(key=lambda item: TOGETHER not in item.path.parents)


def pytest_runtest_teardown() -> None:
    """Takes back what SVT-AV1 does to the thread of root that encodes by it: nothing else gets a processor before it,
    nor before what it starts from then on, servers and ranks of the tests after it among them.
    """
    if os.sched_getscheduler(0) == os.SCHED_FIFO:
        for thread in os.listdir("/proc/self/task"):
            with suppress(ProcessLookupError):
                os.sched_setscheduler(int(thread), os.SCHED_OTHER, os.sched_param(0))


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One server for all tests of a process."""
    if missing := postgres_missing():
        pytest.skip(missing)
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="session")
def _empty_store(postgres: PostgresServer) -> str:
    """The name of a database in which all tables are made: to copy it takes a tenth of what they take."""
    url = postgres.new_database()
    open_store(url).close()
    return url.partition("?")[0].rpartition("/")[2]


@pytest.fixture
def postgres_url(postgres: PostgresServer, _empty_store: str) -> Iterator[str]:
    """A database of a test's own with the store's tables."""
    url = postgres.new_database(_empty_store)
    yield url + PATIENT
    postgres.drop_database(url)


@pytest.fixture
def unmade_postgres_url(postgres: PostgresServer) -> Iterator[str]:
    """A database of a test's own without any table."""
    url = postgres.new_database()
    yield url
    postgres.drop_database(url)
