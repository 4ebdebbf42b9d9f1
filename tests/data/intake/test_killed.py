from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.data.intake.making import arm, images, recipe, write_log

from mainspring.data.catalog.log import resolve
from mainspring.data.catalog.versions import episode_rows
from mainspring.data.intake.ingest import ingest
from mainspring.data.intake.proposals.propose import recipe_to_yaml
from mainspring.data.packs import read_piece
from mainspring.domain.errors import NotFound
from mainspring.objects import ObjectStore, get_blob, open_store
from mainspring.testing.time_and_chance import FakeClock

PROGRAM = """
import sys
from pathlib import Path
from mainspring.data import ingest, recipe_from_yaml
from mainspring.data.intake import ingest as module
from mainspring.objects import open_store
from mainspring.testing.time_and_chance import FakeClock

module.BATCH_LINES_MAX = 3
source, store, recipe = map(Path, sys.argv[1:])
report = ingest(
    source,
    open_store(str(store)),
    "reach",
    clock=FakeClock(),
    recipe=recipe_from_yaml(recipe),
    progress=lambda progress: print(progress.done, flush=True),
)
print(report.version.id, report.known, flush=True)
"""
LOGS = 24
KILLS = 6
CHILD_LIMIT_S = 100


@pytest.mark.slow
def test_ingest_killed_again_and_again_ends_in_the_version_of_one_that_was_not(tmp_path: Path) -> None:
    source, by = tmp_path / "raw", recipe(25, camera="/camera/compressed")
    for number in range(LOGS):
        write_log(source / f"{number:02d}.mcap", [*arm(1.0 + number / 25), *images(50)])
    (tmp_path / "recipe.yaml").write_text(recipe_to_yaml(by))
    clean = ingest(source, open_store("memory://"), "reach", clock=FakeClock(), recipe=by)
    assert clean.version is not None
    command = [sys.executable, "-c", PROGRAM, str(source), str(tmp_path / "store"), str(tmp_path / "recipe.yaml")]
    dice = np.random.default_rng(7)
    for _ in range(KILLS):
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert child.stdout is not None
        for _ in range(int(dice.integers(1, LOGS + 1))):  # Dies at any line, or between two, or while it publishes.
            if not child.stdout.readline():
                break
        child.kill()
        child.communicate(timeout=CHILD_LIMIT_S)
        assert_nothing_half_published(open_store(str(tmp_path / "store")))
    done = subprocess.run(command, capture_output=True, text=True, timeout=CHILD_LIMIT_S)
    assert done.returncode == 0, done.stderr
    version, known = done.stdout.splitlines()[-1].split()
    assert version == clean.version.id
    assert int(known) > 0
    assert resolve(open_store(str(tmp_path / "store")), "reach").number == 1


def assert_nothing_half_published(store: ObjectStore) -> None:
    """Every episode of every version can be read whole."""
    try:
        version = resolve(store, "reach")
    except NotFound:
        return
    assert version.episodes == LOGS
    for row in episode_rows(store, version):
        assert read_piece(store, row.columns)
        assert read_piece(store, row.videos[0].index)
        assert get_blob(store, row.videos[0].blob)
