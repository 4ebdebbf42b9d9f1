"""TPUs: links between chips that are not as they should be, and clocks that are held down.

What libtpu says goes through `TpuReader`, so that tests, and machines without a TPU, have recorded answers. What it
does not tell is not judged; how much a chip is used, and how full its memory is, says nothing of its health.

Source: libtpu 0.0.52, `sdk.tpumonitoring.get_metric(...).description()`; Google Cloud, "TPU Monitoring Library".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, final

from mainspring.domain.hardware.health import Repair, ScopeKind
from mainspring.node.probes.files import NodeFiles
from mainspring.node.probes.sightings import Sighting, well

LINK_HEALTH, THROTTLE = "ici_link_health", "tpu_throttle_score"
METRICS = (LINK_HEALTH, THROTTLE)  # Of those that libtpu has: what says something of a chip's health.
PARTS_MAX = 256  # Chips and links of one host: 8 of 6 links each are the most that there are.
SLOW_LOOKS = 3  # A clock that is held down for a moment is as it should be.
DEVICES = "sys/bus/pci/devices"
GOOGLE, _NO_CHIPS = "0x1ae0", ("0x01", "0x02")  # Google's disks and network adapters are no TPUs.

_LINK = re.compile(r"(?P<part>[A-Za-z0-9][\w.-]{0,99}): *(?P<score>\d{1,2})")  # "tray1.chip3.ici0.int: 10"
_CHIP = re.compile(r"(?P<part>\d{1,4})-(?P<score>\d{1,2})")  # "1-1": the second chip, by 10 %.


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLevel:
    """What scores of a link from one on say.

    Args:
        score: The least of them.
        code: In a word.
        words: For people.
    """

    score: int
    code: str
    words: str
    repair: Repair
    fatal: bool = False


# The worst first.
LINK_LEVELS = (
    LinkLevel(score=10, code="unusable", words="the link cannot be used", repair=Repair.RESTART_NODE, fatal=True),
    LinkLevel(score=6, code="minor", words="a small fault that stays", repair=Repair.CALL_PEOPLE),
    LinkLevel(score=1, code="transient", words="a fault that may pass", repair=Repair.NONE),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TpuAnswer:
    """What libtpu said at one time.

    Args:
        metrics: The texts of each metric.
        trouble: Why it said nothing of something; "" where it said all.
    """

    metrics: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    trouble: str = ""


class TpuReader(Protocol):
    """What libtpu says. No call waits for it, and none raises."""

    def read(self) -> TpuAnswer | None:
        """Returns what it said since the last call, the newest; None for nothing."""

    def close(self) -> None:
        """Asks no more; it may be closed again."""


def has_tpu(files: NodeFiles) -> bool:
    """Returns whether a TPU is on the node's bus."""
    return any(
        files.text(f"{DEVICES}/{name}/vendor", 16) == GOOGLE
        and not files.text(f"{DEVICES}/{name}/class", 16).startswith(_NO_CHIPS)
        for name in files.names(DEVICES)
    )


@final
class Tpus:
    """Watches TPUs.

    Args:
        reader: Asks libtpu.
    """

    name = "libtpu"
    every_s = 5.0

    def __init__(self, reader: TpuReader) -> None:
        self._reader = reader
        self._slow: dict[str, int] = {}

    def look(self, now_s: float) -> Sequence[Sighting]:
        """Returns what a new answer says, and whether there is one."""
        answer = self._reader.read()
        if answer is None:
            return ()
        found = [Sighting(check="libtpu", message=answer.trouble) if answer.trouble else well("libtpu")]
        found += [_link(part, score) for part, score in _scores(answer, LINK_HEALTH, _LINK)]
        for part, score in _scores(answer, THROTTLE, _CHIP):
            at = f"tpu{part}"
            self._slow[at] = self._slow.get(at, 0) + 1 if score else 0
            if self._slow[at] >= SLOW_LOOKS:
                words = f"clocks of {at} are held down by {10 * score} %"
                repair = Repair.CALL_PEOPLE
                found.append(Sighting(check="clocks", kind=ScopeKind.DEVICE, part=at, message=words, repair=repair))
            elif not score:
                found.append(well("clocks", ScopeKind.DEVICE, at))
        return found

    def close(self) -> None:
        """Asks no more."""
        self._reader.close()


def _scores(answer: TpuAnswer, metric: str, pattern: re.Pattern[str]) -> Iterator[tuple[str, int]]:
    for text in answer.metrics.get(metric, ())[:PARTS_MAX]:
        known = pattern.fullmatch(text.strip())
        if known is not None:
            yield known["part"], int(known["score"])


def _link(part: str, score: int) -> Sighting:
    level = next((each for each in LINK_LEVELS if score >= each.score), None)
    if level is None:
        return well("ici-link", ScopeKind.DEVICE, part)
    return Sighting(
        check="ici-link",
        kind=ScopeKind.DEVICE,  # As NVLink: no switch of a leaf is between chips.
        part=part,
        codes=(level.code,),
        fatal=level.fatal,
        message=f"{level.words}: {part} has {score} of 10",
        repair=level.repair,
    )
