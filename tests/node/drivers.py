"""Drivers of GPUs, without any."""

from __future__ import annotations

from collections.abc import Sequence

from mainspring.node.probes.watchers.devices import DeviceReading, XidSeen


class RecordedDriver:
    """A driver that answers what it was told to."""

    def __init__(self, answers: Sequence[DeviceReading]) -> None:
        self.answers = list(answers)
        self.told: list[XidSeen] = []

    def read(self) -> Sequence[DeviceReading]:
        return self.answers

    def xids(self) -> Sequence[XidSeen]:
        told, self.told = self.told, []
        return told

    def close(self) -> None:
        self.answers = []
