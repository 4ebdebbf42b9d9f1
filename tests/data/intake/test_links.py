from __future__ import annotations

from pathlib import Path

import pytest
from tests.data.intake.making import recipe
from tests.data.making import record
from tests.data.readers.logs import robot_bag2

from mainspring.data.intake.ingest import ingest
from mainspring.objects import ObjectStore, open_store
from mainspring.testing.time_and_chance import FakeClock


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path / "store"))


@pytest.mark.slow
def test_links_that_lead_out_of_a_source_are_refused_with_a_reason(store: ObjectStore, tmp_path: Path) -> None:
    folder = tmp_path / "raw"
    inside = record(folder / "kept" / "a.mcap")
    outside = record(tmp_path / "elsewhere" / "b.mcap", seed=5)
    (folder / "b.mcap").symlink_to(outside)
    (folder / "more").symlink_to(outside.parent)
    (folder / "a.mcap").symlink_to(inside)
    (folder / "notes.txt").symlink_to("/etc/hostname")
    report = ingest(folder, store, "pick", clock=FakeClock())
    assert (report.episodes, report.refused) == (1, 2)
    assert [entry.source for entry in report.left_out] == ["b.mcap", "more"]
    assert all("a link that leads out of the source" in entry.reason for entry in report.left_out)


@pytest.mark.slow
def test_bag_with_a_link_that_leads_out_of_the_source_is_refused(store: ObjectStore, tmp_path: Path) -> None:
    bag = robot_bag2(tmp_path / "raw" / "bag", steps=6)
    log = (bag / "bag.db3").rename(tmp_path / "bag.db3")
    (bag / "bag.db3").symlink_to(log)
    for source, refused in ((tmp_path / "raw", "bag"), (bag, "bag")):
        report = ingest(source, store, "arm", clock=FakeClock(), recipe=recipe())
        assert [entry.source for entry in report.left_out] == [refused]
        assert "leads out" in report.left_out[0].reason


@pytest.mark.slow
def test_links_that_lead_nowhere_or_to_themselves_are_passed_over(store: ObjectStore, tmp_path: Path) -> None:
    folder = tmp_path / "raw"
    record(folder / "a.mcap")
    (folder / "itself.mcap").symlink_to("itself.mcap")
    (folder / "nowhere.mcap").symlink_to("gone.mcap")
    (folder / "round").symlink_to(folder)
    report = ingest(folder, store, "pick", clock=FakeClock())
    assert (report.episodes, report.recordings) == (1, 1)
