"""`ms rollout start`: what takes a release back is a count of robots, or a share of a ring; nothing else."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from mainspring.app.cli.robots.rollout import app
from mainspring.domain.answers import NewRollout
from mainspring.domain.errors import InvalidInput


class Asked(Exception):
    """What would have been sent."""


class Nowhere:
    """A lab whose server is not called."""

    def start_rollout(self, asked: NewRollout) -> None:
        raise Asked(asked.rules.unhealthy, asked.rules.unhealthy_share)


@pytest.mark.parametrize(
    ("text", "count", "share"), [("7", 7, None), ("5%", 3, 0.05), ("12.5%", 3, 0.125), ("100%", 3, 1.0)]
)
def test_count_or_share_is_sent(text: str, count: int, share: float | None) -> None:
    error = CliRunner().invoke(app, ["start", "arm", "--unhealthy", text], obj=Nowhere()).exception
    assert isinstance(error, Asked)
    assert error.args == (count, share)


@pytest.mark.parametrize("text", ["many", "", "%", "2.5", "-1", "0", "0%", "101%", "-5%", "nan%", "inf%", "5%%"])
def test_what_is_neither_is_refused(text: str) -> None:
    error = CliRunner().invoke(app, ["start", "arm", f"--unhealthy={text}"], obj=Nowhere()).exception
    assert isinstance(error, InvalidInput)
