"""Sixteen processes commit to one dataset at once, in a folder and in S3 servers: nothing is lost."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from mainspring.data.catalog.collect import gc
from mainspring.data.catalog.versions import candidates, episode_rows, resolve, versions
from mainspring.objects import open_store

from .making import GRACE_S, blobs_of, clock_of_now

pytest.importorskip("moto", reason="an S3 server is needed: pip install 'moto[server]'")

from .s3 import CEPH, CEPH_MISSING, moto, rados_gateway

WRITERS = 16
COMMITS = 2
LIMIT_S = 240.0
WRITER = """
import json, sys
from mainspring.data.catalog.versions import extend
from mainspring.objects import open_store
from tests.data.catalog.making import FEATURES, episodes
url, options, first, commits = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
store = open_store(url, options)
print("ready", flush=True)
sys.stdin.readline()
for commit in range(commits):
    extend(store, "pick", episodes(store, [first + commit, 7_000_000 + commit]), FEATURES)
"""


def race(url: str, options: Mapping[str, str]) -> None:
    """Runs the writers, each of which adds episodes of its own and some that all add; checks what came of it."""
    words = [sys.executable, "-c", WRITER, url, json.dumps(dict(options))]
    root = Path(__file__).parents[3]
    writers = [
        subprocess.Popen(
            [*words, str(1_000 * number), str(COMMITS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=root,
        )
        for number in range(1, WRITERS + 1)
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("\n")
        writer.stdin.flush()
    for writer in writers:
        _, errors = writer.communicate(timeout=LIMIT_S)
        assert writer.returncode == 0, errors[-2_000:]
    store = open_store(url, options)
    rows = episode_rows(store, resolve(store, "pick"))
    wanted = {1_000 * number + commit for number in range(1, WRITERS + 1) for commit in range(COMMITS)}
    wanted |= {7_000_000 + commit for commit in range(COMMITS)}
    assert sorted(row.source for row in rows) == sorted(f"{seed:06d}.mcap" for seed in wanted)
    log = versions(store, "pick")
    assert [version.number for version in log] == list(range(1, len(log) + 1))
    assert [version.parent for version in log] == ["", *(version.name for version in log[:-1])]
    assert len(log) == WRITERS * COMMITS
    assert candidates(store, "pick") == ()
    report = gc(store, clock=clock_of_now(), grace_s=GRACE_S)
    assert report.garbage.objects == 0
    assert all(store.size(blob.key) == blob.size_bytes for blob in blobs_of(rows))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_processes_that_commit_at_once_to_a_folder_lose_nothing(tmp_path: Path) -> None:
    race(str(tmp_path / "store"), {})


@pytest.mark.soak  # Half a minute; where Ceph is installed the test below does the same with a real server.
@pytest.mark.timeout(300)
def test_processes_that_commit_at_once_to_s3_lose_nothing(tmp_path: Path) -> None:
    with moto(tmp_path) as server:
        race("s3://lab/objects", server.options)


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_processes_that_commit_at_once_to_a_rados_gateway_lose_nothing(tmp_path: Path) -> None:
    if absent := [name for name in CEPH if shutil.which(name) is None]:
        pytest.skip(f"{CEPH_MISSING} (absent: {', '.join(absent)})")
    with rados_gateway(tmp_path) as server:
        race("s3://lab/objects", server.options)
