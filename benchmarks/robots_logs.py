"""Clips of robots come home: 1,000 of 10 MB, each broken off three times, beside reading and writing them once.

Run as `python -m benchmarks.robots_logs [--quick]`. A server is started as people start one. Robots send their clips
as `robots.logs` does, several at once; each connection is cut in the middle of a request three times, and what is there
is gone on with. `lost` counts clips whose bytes are not all there at the end, by their hash. `ratio` is the processor
time of both sides (the robots', with the hash by which a clip is named; the server's, less what its controller takes
while nobody sends) over that of reading the same files, CRC-32C, writing and syncing them, in one process. The program
that reads what arrived into a dataset is not part of it; these clips are noise, which it refuses and keeps.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import google_crc32c
import numpy as np
from blake3 import blake3

from mainspring.app.base.system import SystemClock
from mainspring.app.sdk.lab import Lab
from mainspring.domain.answers import ClipEntry
from mainspring.domain.codec import encode
from mainspring.domain.job import Tier
from mainspring.robots.logs.calls import HttpClips
from mainspring.robots.logs.clips import Clips
from mainspring.robots.logs.rules import LogRules
from mainspring.robots.logs.sending import IDLE_S, Sender

CLIPS, CLIPS_QUICK = 1_000, 40
CLIP_BYTES = 10_000_000
BREAKS = 3
WAVE = 8  # Robots that send at once, by one token; as many clips are on the disk, and judged together.
READ_BYTES = 1 << 20
IDLE_LOOKED_S = 10.0  # Ten turns of the controller's loop.
TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
DATASET = "noise"
DAY_MIB = 1 << 20


def cpu_s(pid: int) -> float:
    """Returns the processor time of a process, without its children."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) * TICK_S


def made(folder: Path, number: int) -> Path:
    """Writes a clip of noise as its recorder leaves it, but for what is known of it."""
    path = folder / f"robot-{number}" / "clips" / f"clip-{number}.mcap"
    path.parent.mkdir(parents=True)
    path.write_bytes(np.random.default_rng(number).bytes(CLIP_BYTES))
    return path


def named(path: Path, number: int) -> str:
    """Says what is known of a clip, with the hash that it is named by, as a recorder does; returns the hash."""
    hasher = blake3()
    with path.open("rb") as file:
        while part := file.read(READ_BYTES):
            hasher.update(part)
    entry = ClipEntry(
        id=hasher.hexdigest(),
        name=path.name,
        size_bytes=CLIP_BYTES,
        robot=f"robot-{number}",
        begun_ns=number,
        ended_ns=number + 1,
        triggers=("failed",),
        priority=Tier.CRITICAL,
        send=True,
    )
    path.with_suffix(".json").write_bytes(encode(entry))
    return entry.id


def broken_off(url: str, token: str, path: Path, id: str, offset: int, end: int) -> None:
    """Begins to send the rest of a clip, and cuts the connection in the middle."""
    at = urlsplit(url)
    with socket.create_connection((str(at.hostname), at.port or 80), timeout=60) as line, path.open("rb") as file:
        line.sendall(
            f"PUT /v1/datasets/{DATASET}/arrivals/{path.name}?id={id}&size={CLIP_BYTES}&offset={offset} HTTP/1.1\r\n"
            f"Host: {at.hostname}\r\nAuthorization: Bearer {token}\r\nContent-Length: {CLIP_BYTES - offset}\r\n\r\n"
            "".encode()
        )
        file.seek(offset)
        left = end - offset
        while left > 0 and (part := file.read(min(READ_BYTES, left))):
            line.sendall(part)
            left -= len(part)


def sent(url: str, token: str, path: Path, number: int) -> str:
    """Sends a clip as a robot does, broken off `BREAKS` times, and returns its hash."""
    id, folder = named(path, number), path.parent.parent
    rules = LogRules(robot=f"robot-{number}", dataset=DATASET, day_mib={Tier.CRITICAL: DAY_MIB})
    clips, server = Clips(path.parent, rules), HttpClips(url, token)
    (clip,) = clips.all()
    for turn in range(1, BREAKS + 1):
        here = server.look(DATASET, clip.entry).offset
        broken_off(url, token, path, id, here, max(here + 1, CLIP_BYTES * turn // (BREAKS + 1)))
    sender = Sender(folder, clips, server, rules, SystemClock())
    while (wait_s := sender.step()) != IDLE_S:
        time.sleep(wait_s)
    return id


def once_s(paths: list[Path]) -> float:
    """Returns the processor time of reading files, CRC-32C, writing and syncing them."""
    begun_s = time.process_time()
    for path in paths:
        checksum = google_crc32c.Checksum()  # type: ignore[no-untyped-call]
        with path.open("rb") as file, path.with_suffix(".copy").open("wb") as copy:
            while part := file.read(READ_BYTES):
                checksum.update(part)  # type: ignore[no-untyped-call]
                copy.write(part)
            copy.flush()
            os.fsync(copy.fileno())
    return time.process_time() - begun_s


def arrived(inbox: Path, id: str, name: str) -> bool:
    """Returns whether a clip is there, whole, and removes it."""
    for folder in (inbox, inbox / ".refused", inbox):  # It moves while this looks.
        path = folder / f"{id[:16]}-{name}"
        try:
            whole = blake3(path.read_bytes()).hexdigest() == id
        except FileNotFoundError:
            continue
        path.unlink(missing_ok=True)
        return whole
    return False


def measured(folder: Path, count: int) -> dict[str, float]:
    lab = Lab(folder / "home")
    lab.up(port=0)
    try:
        record = lab.home.server()
        assert record is not None
        token, lost = lab.home.token(), 0
        before_s = cpu_s(record.pid)
        time.sleep(IDLE_LOOKED_S)
        idle = (cpu_s(record.pid) - before_s) / IDLE_LOOKED_S
        ours: list[float] = []
        once: list[float] = []
        begun_s = time.perf_counter()
        for first in range(0, count, WAVE):
            numbers = range(first, min(first + WAVE, count))
            paths = [made(folder, number) for number in numbers]
            before_s, server_s, at_s = time.process_time(), cpu_s(record.pid), time.perf_counter()
            with ThreadPoolExecutor(WAVE) as robots:
                url = record.url
                ids = list(robots.map(lambda path, number, at=url: sent(at, token, path, number), paths, numbers))
            robots_s, server_s = time.process_time() - before_s, cpu_s(record.pid) - server_s
            server_s -= idle * (time.perf_counter() - at_s)
            ours.append(robots_s + server_s)
            once.append(once_s(paths))
            gone = [
                not arrived(lab.home.arrivals / DATASET, id, path.name) for id, path in zip(ids, paths, strict=True)
            ]
            lost += sum(gone)
            for number in numbers:
                shutil.rmtree(folder / f"robot-{number}")
            print(
                f"clips {first + len(paths)}: robots {robots_s:.2f} s, server {server_s:.2f} s, once {once[-1]:.2f} s"
            )
        wall_s = time.perf_counter() - begun_s
    finally:
        lab.down()
    return {
        "lost": lost,
        "ratio": round(statistics.median(one / other for one, other in zip(ours, once, strict=True)), 3),
        "clips": count,
        "cpu_ms_a_clip": round(1_000 * sum(ours) / count, 1),
        "once_ms_a_clip": round(1_000 * sum(once) / count, 1),
        "wall_s": round(wall_s, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    folder = Path(tempfile.mkdtemp(prefix="robots-logs-"))
    try:
        result: dict[str, Any] = measured(folder, CLIPS_QUICK if parser.parse_args().quick else CLIPS)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
