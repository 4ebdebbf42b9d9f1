"""Decodes a few pictures of an episode, as PNG on standard output: `python -m mainspring pictures`.

A process of its own, bounded in time and memory: what it decodes came from robots.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
from pathlib import Path

from mainspring.data import EpisodeRow, episode_table, picture_strip, resolve
from mainspring.domain.codec import from_plain
from mainspring.domain.errors import MainspringError, NotFound
from mainspring.objects import open_store

MEMORY_BYTES_MAX = 4 << 30  # Of addresses: decoders of 4K video, with their threads, take half of it.
CPU_S_MAX = 120  # Twice what a server waits, of two cores.
_NICE = 10  # The controller of the same machine comes first.


def main() -> int:
    """Writes the picture; returns the exit code."""
    parser = argparse.ArgumentParser(description="Decodes a few pictures of an episode, as PNG.")
    parser.add_argument("--objects", required=True, help="URL of the object store")
    parser.add_argument("--version", required=True, help="such as pick@3")
    parser.add_argument("--episode", required=True, help="its whole id")
    words = parser.parse_args()
    os.nice(_NICE)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S_MAX, CPU_S_MAX))
    try:
        store = open_store(words.objects)
        version = resolve(store, words.version)
        at = episode_table(store, version, ["id"])["id"].to_pylist()
        if words.episode not in at:
            raise NotFound("find an episode", on=words.version, got=words.episode[:80])
        (row,) = episode_table(store, version).slice(at.index(words.episode), 1).to_pylist(maps_as_pydicts="strict")
        with tempfile.TemporaryDirectory() as folder:
            sys.stdout.buffer.write(picture_strip(store, from_plain(EpisodeRow, row), cache_dir=Path(folder)))
    except MainspringError as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
