"""Durable state of jobs: one data file a rank and one manifest a step, written last, that makes it real."""

from mainspring.checkpoint.format import KEEP_STEPS, Manifest, crc32c_of
from mainspring.checkpoint.store import (
    Fetched,
    Loaded,
    PassedOver,
    commit,
    durable_steps,
    fetch,
    load,
    prune,
    read_manifest,
    share_key,
    verify,
)

__all__ = [
    "KEEP_STEPS",
    "Fetched",
    "Loaded",
    "Manifest",
    "PassedOver",
    "commit",
    "crc32c_of",
    "durable_steps",
    "fetch",
    "load",
    "prune",
    "read_manifest",
    "share_key",
    "verify",
]
