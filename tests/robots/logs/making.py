"""A robot that records, for tests."""

from __future__ import annotations

import hashlib
import io
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image

from mainspring.robots.logs.recorder import LogRecorder
from mainspring.robots.logs.rules import LogRules, TriggerRule

BASE = 1_700_000_000_000_000_000
SECOND = 1_000_000_000
RATE_HZ = 20


def rules_of(**more: Any) -> LogRules:
    """Returns rules of a robot whose failures come home."""
    failed = TriggerRule(when="failure", before_s=60.0, after_s=1.0)
    fields: dict[str, Any] = {"triggers": {"failed": failed}, "values": ("effort",), "ring_mib": 16, "rate_hz": RATE_HZ}
    return LogRules(**{"robot": "arm-1", "dataset": "pick", **fields, **more})


def jpeg(level: int = 128, *, size: tuple[int, int] = (64, 48)) -> bytes:
    """Returns a picture: the left half dark, with a bright point in it."""
    image = Image.new("RGB", size, (level, level, level))
    image.paste((255, 255, 255), (8, 8, 10, 10))
    sink = io.BytesIO()
    image.save(sink, "JPEG", quality=95)
    return sink.getvalue()


@contextmanager
def full_disk(bytes_max: int = 0) -> Iterator[None]:
    """While it lasts, the kernel lets no file of this process be written beyond so many bytes, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_max, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def noise(seed: int, size: int) -> bytes:
    """Returns bytes that nothing compresses."""
    return hashlib.shake_128(bytes([seed % 256, seed // 256])).digest(size)


def attempt(
    recorder: LogRecorder, begin_ns: int, *, success: bool, seconds: int = 4, held: bool = True, camera: bool = True
) -> int:
    """Records a task from its beginning to its outcome, held by ada from second 1 to 2; returns when it ended."""
    recorder.runs(begin_ns, release="arm@3", ring="canary")
    recorder.task(begin_ns, "pick")
    for step in range(seconds * RATE_HZ + 1):
        at_ns = begin_ns + step * SECOND // RATE_HZ
        if held and step == RATE_HZ:
            recorder.hold(at_ns, "ada")
        if held and step == 2 * RATE_HZ:
            recorder.hold(at_ns, "")
        wave = (step % 7) / 7
        recorder.step(at_ns, [wave, step / 100, 0.5], [wave, -wave])
        if camera:
            recorder.picture("wrist", at_ns, jpeg(step % 200))
    end_ns = begin_ns + seconds * SECOND
    recorder.outcome(end_ns, success=success)
    return end_ns


def recorded(folder: Path, rules: LogRules, *, success: bool = False, **more: Any) -> LogRecorder:
    """Returns a closed recorder that has recorded one attempt."""
    recorder = LogRecorder(folder, rules)
    recorder.tick(attempt(recorder, BASE, success=success, **more) + 2 * SECOND)
    recorder.close()
    return recorder
