"""Steps of a look at a cluster's set-up, one finding each: a step whose ground is missing is skipped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from mainspring.domain.errors import MainspringError
from mainspring.engines.common.kind import CheckResult, Finding

Look = Callable[[], Finding]
Step = tuple[str, Look, tuple[str, ...]]  # Its name, what it does, and the steps that it needs.


def walk(steps: Sequence[Step], fixes: Mapping[str, str]) -> Iterator[Finding]:
    """Yields what each step found, as soon as it has.

    Args:
        fixes: What to do where a step fails whose error does not say, by the step's name.
    """
    broken: set[str] = set()
    for name, step, needs in steps:
        finding = look(name, step, [need for need in needs if need in broken], fixes)
        if finding.standing in (CheckResult.FAILED, CheckResult.SKIPPED):
            broken.add(name)
        yield finding


def look(name: str, step: Look, broken: Sequence[str], fixes: Mapping[str, str]) -> Finding:
    """Returns what one step found, or why it failed.

    Args:
        broken: Steps that it needs and that failed: then it is skipped.
    """
    if broken:
        return Finding(name=name, standing=CheckResult.SKIPPED, found=f"waits for: {broken[0]}")
    try:
        return step()
    except MainspringError as error:
        found = f"{error.got or error}{f', on {error.on}' if error.on else ''}"
        return Finding(name=name, standing=CheckResult.FAILED, found=found, fix=error.next_step or fixes[name])
    except OSError as error:
        return Finding(name=name, standing=CheckResult.FAILED, found=str(error), fix=fixes[name])


def as_advice(found: Finding) -> Finding:
    """Returns a finding that keeps nobody from using the node."""
    return replace(found, standing=CheckResult.WARNING) if found.standing is CheckResult.FAILED else found


def in_one(name: str, found: Sequence[Finding]) -> Finding:
    """Returns many findings as one.

    Args:
        name: Of that one.
    """
    wrong = [each for each in found if each.standing is CheckResult.WARNING]
    if wrong:
        words = "; ".join(f"{each.name}: {each.found}" for each in wrong)
        fixes = "; ".join(each.fix for each in wrong if each.fix)
        return Finding(name=name, standing=CheckResult.WARNING, found=words, fix=fixes)
    well = [f"{each.name}: {each.found}" for each in found if each.standing is CheckResult.OK]
    return Finding(name=name, standing=CheckResult.OK, found="; ".join(well) or "nothing to set up")
