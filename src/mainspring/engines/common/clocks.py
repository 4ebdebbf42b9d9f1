"""How far a node's clock may be from the server's, and how far it is, as a check of a set-up tells it."""

from __future__ import annotations

from mainspring.engines.common.kind import CheckResult, Finding

# NTP keeps machines within a second; what runs on leases of 15 s must not differ by a good part of one.
CLOCK_S_MAX = 5.0


def outside_s(time_s: float, *, begun_s: float, over_s: float) -> float:
    """Returns how far a clock is ahead that said a time between two looks at ours; 0 where it may be right.

    Args:
        begun_s: The look before, by our clock.
        over_s: The look after.
    """
    return min(0.0, time_s - begun_s) + max(0.0, time_s - over_s)


def clock_finding(name: str, whose: str, ahead_s: float) -> Finding:
    """Returns whether a clock is near enough to the server's.

    Args:
        name: Of the step.
        whose: The clock's machine, for people.
        ahead_s: How far it is ahead.
    """
    found = f"{whose} is {abs(ahead_s):.1f} s {'behind' if ahead_s < 0 else 'ahead'}"
    if abs(ahead_s) > CLOCK_S_MAX:
        fix = f"run NTP on both; at most {CLOCK_S_MAX:g} s apart"
        return Finding(name=name, standing=CheckResult.FAILED, found=found, fix=fix)
    return Finding(name=name, standing=CheckResult.OK, found=found if abs(ahead_s) >= 1 else "within a second")
