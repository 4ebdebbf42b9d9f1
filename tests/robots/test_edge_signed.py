"""The agent on a real disk, installing what a real server publishes: signed, fitting, within a budget, and no other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tuf.api.metadata import Metadata

from mainspring.domain.answers import Revocation, SignedText
from mainspring.domain.answers.policies.releases import Embodiment, RobotChannel
from mainspring.domain.errors import InvalidInput
from mainspring.robots.edge.agent import EdgeAgent
from mainspring.robots.edge.folder import FolderDisk
from mainspring.robots.edge.machine import Phase
from mainspring.robots.edge.source import ByteBudget, SignedSource
from mainspring.robots.edge.trust import SignedFile
from mainspring.robots.releases.signing import next_root, signed_by
from mainspring.testing import FakeClock
from tests.control.conftest import World
from tests.control.releasing import People, new_release
from tests.robots.edge_world import LIMITS

HAND = Embodiment(action=(RobotChannel(name="hand", unit="m"),))


class Still:
    """A robot that may be restarted, and is healthy."""

    runs: tuple[SignedFile, ...] = ()

    def unsafe(self) -> str:
        return ""

    def start(self, slot: str, files: Sequence[SignedFile]) -> None:
        self.runs = tuple(files)

    def healthy(self, slot: str) -> bool:
        return True


class Fleet:
    """A server, people who sign, and one robot."""

    def __init__(self, folder: Path, *, robot: Embodiment = HAND, per_s: float | None = None) -> None:
        self.world = World(folder / "server")
        self.people = People(self.world.control)
        self.disk, self.robot = FolderDisk(folder / "robot"), Still()
        self.clock = FakeClock()  # The robot's own.
        self.clock.jump(self.world.clock.now_s() - self.clock.now_s())
        self.lie: Callable[[str, bytes], bytes] = lambda name, told: told  # What somebody makes of what comes.
        source = SignedSource(
            self.people.root.encode(),
            self.metadata,
            self.piece,
            robot=robot,
            budget=ByteBudget(self.clock, per_s),
            runtime="0.3.0",
        )
        self.agent = EdgeAgent(self.disk, source, self.robot, self.clock, limits=LIMITS)

    def metadata(self, name: str) -> bytes:
        return self.lie(name, self.world.control.releases.metadata(name))

    def piece(self, path: str, offset: int, size_bytes: int) -> bytes:
        folder, _, name = path.partition("/")
        told = self.world.control.releases.piece(folder, name, offset=offset, limit=size_bytes)
        return self.lie(path, told)

    def publish(self, *contents: bytes, **fields: object) -> str:
        given = {"fits": HAND, **fields}
        made = self.world.control.releases.create(new_release(f"file://{self.world.objects}", *contents, **given))
        live = [view for view in self.world.control.releases.ls() if view.state.value == "published"]
        self.people.sign(*(self.world.control.releases.show(view.release.reference) for view in live), made)
        return made.release.target

    def go(self, target: str, *, action: str = "1") -> int:
        self.agent.ask(target, action=action)
        for seconds in range(1_000):
            if self.agent.journal.phase is Phase.IDLE:
                return seconds
            self.agent.step()
            self.pass_s(1.0)
        raise AssertionError(self.agent.journal)

    def pass_s(self, seconds: float) -> None:
        """Lets time pass, for the server and the robot."""
        self.world.clock.advance(seconds)
        self.clock.advance(seconds)

    def held(self) -> list[bytes]:
        return [self.disk.path(f"file-{file.sha256}").read_bytes() for file in self.robot.runs[1:]]


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    (tmp_path / "server").mkdir()
    return Fleet(tmp_path)


def test_release_that_people_signed_is_installed(fleet: Fleet) -> None:
    target = fleet.publish(b"base", b"adapter")
    fleet.go(target)
    assert fleet.held() == [b"base", b"adapter"]
    assert fleet.agent.journal.floor.versions["targets"] == 2


@pytest.mark.slow
def test_release_that_is_revoked_is_not_installed(fleet: Fleet) -> None:
    first, second = fleet.publish(b"one"), fleet.publish(b"two")
    fleet.go(first)
    fleet.world.control.releases.revoke("arm@2", Revocation(reason="a test"))
    fleet.people.sign(fleet.world.control.releases.show("arm@1"))
    fleet.go(second)
    assert fleet.held() == [b"one"]
    assert not fleet.agent.journal.told[-1].committed


@pytest.mark.parametrize("fields", [{"fits": Embodiment()}, {"runtime": "0.4.0"}])
def test_release_that_does_not_fit_is_refused_on_the_robot(fields: dict[str, object], fleet: Fleet) -> None:
    fleet.go(fleet.publish(b"one", **fields))
    assert (fleet.robot.runs, fleet.agent.journal.told[-1].committed) == ((), False)


@pytest.mark.slow
def test_budget_of_bytes_is_kept(tmp_path: Path) -> None:
    (tmp_path / "server").mkdir()
    fleet = Fleet(tmp_path, per_s=1_000.0)
    target = fleet.publish(b"w" * 100_000)
    assert fleet.go(target) >= 90
    assert fleet.held() == [b"w" * 100_000]


@pytest.mark.slow
def test_robot_that_comes_back_after_a_year_installs_what_is_signed_now(fleet: Fleet) -> None:
    fleet.go(fleet.publish(b"one"))
    fleet.pass_s(300 * 86_400.0)  # People meet once a year at least.
    root = next_root(Metadata.from_bytes(fleet.people.root.encode()), fleet.world.clock.now_s())
    fleet.world.control.releases.put_root(SignedText(text=signed_by(root, fleet.people.keys[1:])))
    target = fleet.publish(b"two")
    fleet.pass_s(100 * 86_400.0)
    fleet.go(target)
    assert fleet.held() == [b"two"]


def test_names_that_leave_the_folder_are_refused(tmp_path: Path) -> None:
    for name in ("../up", "/etc/passwd", "", ".hidden", "a/b"):
        with pytest.raises(InvalidInput):
            FolderDisk(tmp_path).read(name)
