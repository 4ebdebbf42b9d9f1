"""The policy server's process on a robot: the folder of its slot, and what is in it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring.app.edge.config import EdgeConfig
from mainspring.app.edge.policy import PolicyProcess
from mainspring.domain.answers.policies.releases import (
    SLOT_RELEASE,
    Embodiment,
    NewPolicyRelease,
    PolicyRelease,
    ReleaseFile,
    ReleaseLineage,
)
from mainspring.domain.codec import encode
from mainspring.domain.errors import Unavailable
from mainspring.robots.edge.trust import SignedFile
from tests.control.releasing import PASSED


class Slot:
    """A robot's folder, with files of releases."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process = PolicyProcess(EdgeConfig(command=("/bin/sleep", "600")), folder)
        self.place = folder / "slots" / "a"

    def put(self, data: bytes) -> str:
        sha256 = hashlib.sha256(data).hexdigest()
        (self.folder / f"file-{sha256}").write_bytes(data)
        return sha256

    def release(self, files: dict[str, bytes]) -> tuple[SignedFile, ...]:
        asked = NewPolicyRelease(
            name="pick",
            files=tuple(
                ReleaseFile(path=path, sha256=self.put(data), size_bytes=len(data)) for path, data in files.items()
            ),
            lineage=ReleaseLineage(checkpoint="job@1"),
            fits=Embodiment(),
            gates=(PASSED,),
            runtime="0.3.0",
        )
        words = encode(PolicyRelease(version=1, made_s=0.0, maker="ada", content=asked))
        return (SignedFile(path="releases/pick.1.json", size_bytes=len(words), sha256=self.put(words)),)


@pytest.fixture
def slot(tmp_path: Path) -> Iterator[Slot]:
    made = Slot(tmp_path)
    yield made
    made.process.end()


def test_folder_that_is_as_it_is_to_be_is_left_alone(slot: Slot) -> None:
    first, second = slot.release({"recipe.json": b"1", "weights/a": b"2"}), slot.release({"recipe.json": b"3"})
    slot.process.start("a", first)
    (slot.place / "mark").write_bytes(b"")
    slot.process.start("a", first)
    assert (slot.place / "mark").exists()
    slot.process.start("a", second)
    assert sorted(path.name for path in slot.place.iterdir()) == ["recipe.json", SLOT_RELEASE]
    assert (slot.place / "recipe.json").read_bytes() == b"3"


def test_file_of_a_release_does_not_stand_in_place_of_its_signed_words(slot: Slot) -> None:
    files = slot.release({SLOT_RELEASE: b"forged", "recipe.json": b"1"})
    slot.process.start("a", files)
    assert (slot.place / SLOT_RELEASE).resolve() == slot.folder.resolve() / f"file-{files[0].sha256}"


def test_server_that_cannot_be_laid_out_is_said_and_is_not_healthy(slot: Slot) -> None:
    files = slot.release({"recipe.json": b"1"})
    (slot.folder / "slots").write_bytes(b"no folder")
    with pytest.raises(Unavailable, match="lay out a slot"):
        slot.process.start("a", files)
    assert not slot.process.healthy("a")
    slot.process.keep("a", files)  # Not at once again.
    (slot.folder / "slots").unlink()
    slot.process.start("a", files)
    assert slot.process.healthy("a")
