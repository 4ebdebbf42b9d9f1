"""Images of whole systems as releases: what is none is refused, and our own agents take none."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainspring.domain.answers import NewInstallation, NewRobot
from mainspring.domain.answers.policies.releases import Embodiment, ReleaseLineage, artifact_key
from mainspring.domain.errors import InvalidInput, NotFound
from mainspring.objects import open_store
from mainspring.robots.releases.images import put_image
from tests.control.releasing import PASSED, new_release
from tests.robots.fleet_world import FleetWorld
from tests.robots.test_edge_signed import Fleet
from tests.robots.test_swupdate import archive

IMAGE = archive({"sw-description": b"software = {}", "rootfs": b"bytes" * 100})
FIELDS = {"image": True, "gates": (), "lineage": ReleaseLineage(checkpoint=""), "fits": Embodiment()}


def test_image_is_put_once_under_the_hash_of_its_bytes(tmp_path: Path) -> None:
    store, path = open_store(f"file://{tmp_path}/objects"), tmp_path / "panel-2.swu"
    path.write_bytes(IMAGE)
    file, moved_bytes = put_image(store, path)
    assert (file.path, file.size_bytes, moved_bytes) == ("panel-2.swu", len(IMAGE), len(IMAGE))
    assert store.get_range(artifact_key(file.sha256), offset=0, size_bytes=len(IMAGE)) == IMAGE
    assert put_image(store, path) == (file, 0)


@pytest.mark.parametrize(
    ("name", "data", "wanted"),
    [
        ("panel.swu", b"", "sw-description"),
        ("panel.swu", b"PK" + IMAGE, "sw-description"),
        ("panel.swu", archive({"rootfs": b"x", "sw-description": b"y"}), "sw-description"),
        ("a b.swu", IMAGE, "letters"),
    ],
)
def test_file_that_is_no_image_is_refused_and_nothing_of_it_kept(
    name: str, data: bytes, wanted: str, tmp_path: Path
) -> None:
    store, path = open_store(f"file://{tmp_path}/objects"), tmp_path / name
    path.write_bytes(data)
    with pytest.raises(InvalidInput, match=rf"{wanted}.*next: (make it with swupdate's own tools|rename it)"):
        put_image(store, path)
    with pytest.raises(NotFound, match="next: make it with swupdate's own tools"):
        put_image(store, tmp_path / "none.swu")
    assert not list(store.list("artifacts"))


@pytest.mark.parametrize("fields", [{"gates": (PASSED,)}, {"dtype": "bfloat16"}, {"automatic": True}])
def test_image_is_one_file_of_which_no_gate_is_asked(fields: dict[str, object], tmp_path: Path) -> None:
    objects = f"file://{tmp_path}"
    assert new_release(objects, IMAGE, **FIELDS).image
    with pytest.raises(InvalidInput, match="one file"):
        new_release(objects, IMAGE, **{**FIELDS, **fields})
    with pytest.raises(InvalidInput, match="one file"):
        new_release(objects, IMAGE, b"more", **FIELDS)
    with pytest.raises(InvalidInput, match="no gate at all"):  # Of a policy they are.
        new_release(objects, IMAGE, **{**FIELDS, "image": False})


@pytest.mark.slow
def test_image_goes_to_plain_clients_alone(tmp_path: Path) -> None:
    fleet = FleetWorld(tmp_path)
    fleet.robot("arm-1")
    fleet.control.robots.invite(NewRobot(name="panel", plain=True))
    fleet.publish(IMAGE, **FIELDS)
    assert fleet.control.robots.install("panel", NewInstallation(release="arm")).release == "arm@1"
    with pytest.raises(InvalidInput, match="an image for plain clients"):
        fleet.control.robots.install("arm-1", NewInstallation(release="arm"))


@pytest.mark.slow
def test_image_is_refused_on_a_robot_with_our_agent_as_well(tmp_path: Path) -> None:
    (tmp_path / "server").mkdir()
    fleet = Fleet(tmp_path, robot=Embodiment())
    fleet.go(fleet.publish(IMAGE, **FIELDS))
    assert (fleet.robot.runs, fleet.agent.journal.told[-1].committed) == ((), False)
    assert "an image; wanted a policy; next: ms release create JOB@STEP" in fleet.agent.journal.told[-1].why
