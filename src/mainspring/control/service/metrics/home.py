"""What Prometheus is told of the machine that a server runs on: its certificate, disk, back-ups, and recordings."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import final

from cryptography import x509
from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector


@final
class HomeCollector(Collector):
    """Looks anew for each scrape; what cannot be read is not told.

    Args:
        certificate: PEM file that the API is served with, None for plain HTTP.
        store_folder: Where an embedded store is, None where the store is elsewhere.
        backed_up_s: When `ms backup` last ran here; 0 for never, None where others see to back-ups.
        unread_s: For how long the recording that waits longest has not been read, 0 for none.
    """

    def __init__(
        self,
        *,
        certificate: Path | None,
        store_folder: Path | None,
        backed_up_s: Callable[[], float | None],
        unread_s: Callable[[], float],
    ) -> None:
        self._certificate = certificate
        self._store_folder = store_folder
        self._backed_up_s = backed_up_s
        self._unread_s = unread_s

    def collect(self) -> Iterator[Metric]:
        """Returns what there is to tell."""
        yield from _told(
            "mainspring_certificate_expiry_timestamp_seconds",
            "When the certificate of the API ends.",
            lambda: None if self._certificate is None else _expiry_s(self._certificate),
        )
        yield from _told(
            "mainspring_store_free_ratio",
            "Free part of the disk that an embedded store is on.",
            lambda: None if self._store_folder is None else _free(self._store_folder),
        )
        yield from _told(
            "mainspring_backup_timestamp_seconds", "When the store was last backed up, 0 for never.", self._backed_up_s
        )
        yield from _told(
            "mainspring_arrivals_oldest_seconds",
            "How long the recording that waits longest has been here and is in no dataset, 0 for none.",
            self._unread_s,
        )


def _told(name: str, words: str, read: Callable[[], float | None]) -> Iterator[Metric]:
    try:
        value = read()
    except (OSError, ValueError):
        return
    if value is not None:
        yield GaugeMetricFamily(name, words, value=value)


def _expiry_s(certificate: Path) -> float:
    """Returns when the first certificate of a chain ends, the server's own."""
    return x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc.timestamp()


def _free(folder: Path) -> float:
    usage = shutil.disk_usage(folder)
    return usage.free / usage.total
