"""`Backoff`: how long is waited between tries, everywhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.app.base import uploads
from mainspring.control.state import history
from mainspring.data.intake.staging import stage, web
from mainspring.domain.ports import Backoff
from mainspring.node import agent
from mainspring.node.lead import resume, saves
from mainspring.node.snapshots import peers, stores
from mainspring.testing import SeededDice


@pytest.mark.parametrize(
    ("backoff", "waits"),
    [
        (agent.BRING_AGAIN, (2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)),
        (history.AVOIDED, (60.0, 120.0, 240.0, 480.0, 960.0, 1_800.0, 1_800.0)),
        (resume.AGAIN, (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)),
        (saves.AGAIN, (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)),
        (peers.AGAIN, (0.5, 1.0, 2.0, 4.0, 5.0, 5.0, 5.0)),
        (stage.AGAIN, (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)),
        (stores.AGAIN, (0.5, 1.0, 2.0)),
        (uploads.AGAIN, (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)),
        (web.AGAIN, (0.5, 1.0, 2.0, 4.0)),
        (Backoff(first_s=0.1, factor=1.5, cap_s=0.3), (0.1, pytest.approx(0.15), pytest.approx(0.225), 0.3)),
    ],
)
def test_waits_grow_from_try_to_try_up_to_their_limit(backoff: Backoff, waits: tuple[float, ...]) -> None:
    assert tuple(backoff.wait_s(tries) for tries in range(1, len(waits) + 1)) == waits


@given(st.floats(0.01, 100.0), st.floats(1.0, 10.0), st.integers(1, 1 << 62))
def test_a_wait_is_never_shorter_than_the_first_nor_longer_than_the_limit(
    first_s: float, factor: float, tries: int
) -> None:
    backoff = Backoff(first_s=first_s, factor=factor, cap_s=first_s * 50)
    assert first_s <= backoff.wait_s(tries) <= backoff.wait_s(tries + 1) <= first_s * 50


def test_dice_spread_waits_over_half_to_one_and_a_half_times_their_length() -> None:
    dice = SeededDice(7)
    waits = [Backoff(first_s=10.0).wait_s(1, dice) for _ in range(1_000)]
    assert 5.0 <= min(waits) < 5.2
    assert 14.8 < max(waits) < 15.0
    assert 9.5 < sum(waits) / len(waits) < 10.5
