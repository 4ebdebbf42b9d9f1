from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.session.agent import Agent


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    agent = Agent(tmp_path)
    yield agent
    agent.hang_up()
