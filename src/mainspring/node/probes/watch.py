"""The watch over one node: asks each watcher in its time, and makes events of what they see."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import final

from mainspring.domain.hardware.health import HealthEvent
from mainspring.domain.ports import Clock
from mainspring.node.probes.files import NodeFiles
from mainspring.node.probes.sightings import Sighting, Teller, Watcher
from mainspring.node.probes.watchers.devices import DeviceReader, Devices
from mainspring.node.probes.watchers.kernel_log import KernelLog
from mainspring.node.probes.watchers.links import Links
from mainspring.node.probes.watchers.machine import Machine
from mainspring.node.probes.watchers.pcie import PcieLinks

_log = logging.getLogger(__name__)


def watchers_of(
    root: str, reader: DeviceReader | None, *, since_s: float = 0.0, others: Sequence[Watcher] = ()
) -> tuple[Watcher, ...]:
    """Returns all watchers of a node.

    Args:
        root: What stands for "/".
        reader: The driver of its GPUs, None where it has none.
        since_s: The kernel's log is read from then on, in seconds since the Unix epoch.
        others: Watchers of what this node alone has.
    """
    files = NodeFiles(root)
    watchers: tuple[Watcher, ...] = (KernelLog(files, since_s), Links(files), Machine(files), PcieLinks(files))
    return (*watchers, *others) if reader is None else (*watchers, Devices(reader), *others)


@final
class Watch:
    """Watches one node.

    Args:
        watchers: Asked in this order.
        teller: Makes events.
        left_out: Returns how many events could not be told since it was asked last.
        every_s: The least time between two looks of a watcher.
    """

    def __init__(
        self,
        watchers: Sequence[Watcher],
        teller: Teller,
        clock: Clock,
        *,
        left_out: Callable[[], int] = lambda: 0,
        every_s: float = 0.0,
    ) -> None:
        self._watchers = tuple(watchers)
        self._teller = teller
        self._clock = clock
        self._left_out = left_out
        self._every_s = every_s
        self._due_s = [float("-inf")] * len(self._watchers)

    @property
    def next_s(self) -> float:
        """Returns when the next watcher is to look, on the clock that never goes back."""
        return min(self._due_s)

    def look(self) -> list[HealthEvent]:
        """Returns what is news, of each watcher whose time has come."""
        monotonic_s, now_s = self._clock.monotonic_s(), self._clock.now_s()
        told: list[HealthEvent] = []
        for index, watcher in enumerate(self._watchers):
            if self._due_s[index] <= monotonic_s:
                every_s = max(watcher.every_s, self._every_s)
                next_s = self._due_s[index] + every_s
                self._due_s[index] = (
                    next_s if next_s > monotonic_s else monotonic_s + every_s
                )  # Nothing is made up for.
                told += self._teller.tell(watcher.name, self._seen(watcher, now_s), now_s)
        count = self._left_out()
        if count:
            words = f"{count} events were left out: nobody took them in time"
            told += self._teller.tell("probes", [Sighting(check="left-out", stands=False, message=words)], now_s)
        return told

    def close(self) -> None:
        """Has every watcher let go of what it holds."""
        for watcher in self._watchers:
            watcher.close()

    def _seen(self, watcher: Watcher, now_s: float) -> Sequence[Sighting]:
        try:
            return watcher.look(now_s)
        except Exception as error:  # noqa: BLE001  (our own fault: the other watchers go on)
            _log.exception("a fault in the watcher %s", watcher.name)
            words = f"a fault in the watcher {watcher.name}: {error!r}"
            return [Sighting(check="watcher", codes=(watcher.name,), message=words)]
