"""One fake for each port."""

from mainspring.testing.fake_engine import FakeEngine
from mainspring.testing.time_and_chance import FakeClock, SeededDice

__all__ = ["FakeClock", "FakeEngine", "SeededDice"]
