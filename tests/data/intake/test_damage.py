from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.data.intake.making import arm, images, raw_images, recipe, said, video, write_log
from tests.data.making import ROBOTS, copy_humanoid, record
from tests.data.readers.logs import Sent

from mainspring.data.intake.ingest import ingest
from mainspring.data.intake.judge import OUR_FAULT
from mainspring.data.intake.logs.recipe import Cut, CutBy, Fact, MappingRecipe
from mainspring.objects import open_store
from mainspring.testing.time_and_chance import FakeClock

CAMERAS: dict[str, Callable[[int], Iterator[Sent]]] = {
    "/camera/compressed": images,
    "/video": video,
    "/raw": raw_images,
}
CUT = Cut(by=CutBy.FLAG, topic="/recording")
ROUNDS = 20


def assert_all_judged(folder: Path, by: MappingRecipe | None, count: int) -> None:
    report = ingest(folder, open_store("memory://"), "fuzz", clock=FakeClock(), recipe=by)
    assert report.recordings == count
    assert [entry for entry in report.left_out if OUR_FAULT in entry.reason] == []


def damaged(data: bytes, dice: np.random.Generator) -> bytes:
    """Some bytes changed, a stretch gone, or the end cut off."""
    changed = bytearray(data)
    for place in dice.integers(0, len(data), int(dice.integers(0, 8))).tolist():
        changed[place] = int(dice.integers(256))
    if dice.integers(3) == 0:
        begin = int(dice.integers(len(data)))
        del changed[begin : begin + int(dice.integers(200))]
    return bytes(changed[: int(dice.integers(len(data)))] if dice.integers(4) == 0 else changed)


@pytest.mark.slow
@pytest.mark.parametrize("topic", CAMERAS)
def test_damaged_log_is_taken_in_or_refused_with_a_reason_and_never_by_a_fault_of_ours(
    tmp_path: Path, topic: str
) -> None:
    begin_ns = next(iter(arm()))[1]
    words = [said("/task", begin_ns, "pour"), said("/recording", begin_ns, True), said("/success", begin_ns, True)]
    log = write_log(tmp_path / "whole.mcap", [*arm(), *CAMERAS[topic](50), *words], checksums=False)
    data, dice = log.read_bytes(), np.random.default_rng(len(topic))
    (tmp_path / "raw").mkdir()
    for number in range(ROUNDS):
        (tmp_path / "raw" / f"{number}.mcap").write_bytes(damaged(data, dice))
    by = recipe(25, camera=topic, cut=CUT, task=Fact(topic="/task"), success=Fact(topic="/success"))
    assert_all_judged(tmp_path / "raw", by, ROUNDS)


@pytest.mark.slow
def test_damaged_recording_of_ours_is_refused_with_a_reason_and_never_by_a_fault_of_ours(tmp_path: Path) -> None:
    data, dice = record(tmp_path / "whole.mcap").read_bytes(), np.random.default_rng(1)
    (tmp_path / "raw").mkdir()
    for number in range(ROUNDS):
        (tmp_path / "raw" / f"{number}.mcap").write_bytes(damaged(data, dice))
    assert_all_judged(tmp_path / "raw", None, ROUNDS)


@pytest.mark.slow
@pytest.mark.skipif(not ROBOTS.exists(), reason="the shared robot recordings are not here")
def test_damaged_video_of_a_real_dataset_is_refused_with_a_reason_and_never_by_a_fault_of_ours(tmp_path: Path) -> None:
    dice = np.random.default_rng(2)
    for number in range(3):
        root = copy_humanoid(tmp_path / "raw" / f"{number}", 1)
        (path,) = root.rglob("*.mp4" if number else "*.parquet")
        path.write_bytes(damaged(path.read_bytes(), dice))
    assert_all_judged(tmp_path / "raw", None, 3)
