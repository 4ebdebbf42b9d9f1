"""What a lab may decide about planning."""

from __future__ import annotations

from math import nan

import pytest

from mainspring.domain.errors import InvalidInput
from mainspring.planner import Policy


def test_policy_with_a_negative_number_names_the_field() -> None:
    with pytest.raises(InvalidInput, match="cooldown_s") as caught:
        Policy(cooldown_s=-1.0)
    assert caught.value.got == "-1"


def test_policy_with_no_number_at_all_is_refused() -> None:
    with pytest.raises(InvalidInput, match="restart_s"):
        Policy(restart_s=nan)


def test_policy_with_falling_levels_is_refused() -> None:
    with pytest.raises(InvalidInput, match="rising"):
        Policy(attained_levels_chip_s=(2.0, 1.0))


def test_policy_may_forbid_orders_of_nodes() -> None:
    assert Policy(provision_after_s=-1.0).provision_after_s == -1.0
