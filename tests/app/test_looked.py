"""Looks at what nobody tells of by itself."""

from __future__ import annotations

from mainspring.app.base.system import looked


def test_looks_until_it_is_as_wanted_and_not_once_more() -> None:
    seen = iter(range(10))
    assert looked(lambda: next(seen), lambda number: number == 3, every_s=0.001, timeout_s=60.0) == 3
    assert next(seen) == 4


def test_time_that_is_over_gives_what_was_seen_last_after_one_look_at_least() -> None:
    seen = iter(range(1_000_000))
    assert looked(lambda: next(seen), lambda number: False, every_s=0.001, timeout_s=0.0) == 0
    assert looked(lambda: next(seen), lambda number: False, every_s=60.0, timeout_s=0.01) == 2
