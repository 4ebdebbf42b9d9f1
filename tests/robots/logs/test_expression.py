from __future__ import annotations

import pytest

from mainspring.domain.errors import InvalidInput
from mainspring.robots.logs.expression import LENGTH_MAX, Condition, Value

KNOWN = ("effort", "battery", "mode", "held")


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("effort > 40", True),
        ("0 < effort <= 41.5 and not held", True),
        ("abs(-effort) == 41.5 and max(battery, 1, 0) == 1", True),
        ("mode == 'teach' or mode != 'run'", False),
        ("(effort + 1) * 2 - 3 > 82 - min(battery)", True),
        ("effort / 0 > 1", False),
        ("mode > 3", False),
        ("mode * 3 == 'runrunrun'", False),
        ("True", True),
    ],
)
def test_conditions_hold_of_values(text: str, holds: bool) -> None:
    values: dict[str, Value] = {"effort": 41.5, "battery": 0.25, "mode": "run", "held": False}
    assert Condition(text, KNOWN).holds(values) is holds


def test_conditions_do_not_hold_while_a_value_is_unknown() -> None:
    assert not Condition("not held", KNOWN).holds({})


@pytest.mark.parametrize(
    "text",
    [
        *("", "effort >", "efort > 1", "__import__('os')", "effort.real > 1", "effort[0]", "[1 for x in effort]"),
        *("lambda: 1", "effort ** 9 ** 9 > 1", "open('x')", "abs", "abs()", "max(a=1)", "effort if held else 1"),
        *("f'{effort}'", "effort in (1, 2)", "(effort := 3) > 1", "1 << 9", "b'x' == b'x'", "None", "\0"),
        *("(" * 300 + "1" + ")" * 300, "+".join("1" * 60), "1" * (LENGTH_MAX + 1), "effort; held"),
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="condition"):
        Condition(text, KNOWN)
