"""Releases of policies: what one holds, what it fits, where it stands, and how its files are signed.

A release of Mainspring itself is in `domain.release`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from mainspring.domain.codec import message
from mainspring.domain.errors import InvalidInput
from mainspring.domain.ids import TeamName, checked_name
from mainspring.domain.job import LAB

FILES_MAX = 1_000  # Weights of a trillion parameters in pieces of 4 GiB are half as many.
DIMS_MAX = 1_024  # As of a policy.
CAMERAS_MAX = 64
WORDS_MAX = 1_000
SIGNED_TEXT_MAX = 5_000_000  # What python-tuf's client reads of one role's metadata.
PIECE_BYTES_MAX = 4 << 20  # Of a file, in one answer.
BY_PEOPLE, BY_SERVER = "releases", "automatic"  # Folders of targets: one signed by people, one by the server alone.
SLOT_RELEASE = "release.json"  # In a robot's slot: what the release says; beside it its files, named as there.
ARTIFACTS = "artifacts"  # The folder of what releases that people sign are made of.
_SHA256 = re.compile("[0-9a-f]{64}")
_PATH = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*){0,7}")
_RUNTIME = re.compile(r"[0-9]{1,6}\.[0-9]{1,6}\.[0-9]{1,6}")
_REFERENCE = re.compile(r"([^@]+)@([0-9]{1,9})")
_TARGET = re.compile(rf"(?:{BY_PEOPLE}|{BY_SERVER})/(.+)\.([0-9]{{1,9}})\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseFile:
    """One file of a release.

    Args:
        path: What it is called in the release.
        sha256: Of its bytes.
    """

    path: str
    sha256: str
    size_bytes: int

    def __post_init__(self) -> None:
        """Checks that it can be a file, below any folder.

        Raises:
            InvalidInput: It cannot.
        """
        if len(self.path) > 200 or not _PATH.fullmatch(self.path):
            raise InvalidInput("accept a file of a release", got=repr(self.path[:80]), wanted="a plain path")
        if not _SHA256.fullmatch(self.sha256) or not 0 <= self.size_bytes < 1 << 50:
            got = f"{self.sha256[:80]!r}, {self.size_bytes} bytes"
            raise InvalidInput("accept a file of a release", on=self.path, got=got, wanted="SHA-256 and a length")


@dataclass(frozen=True, slots=True, kw_only=True)
class RobotChannel:
    """One dimension of a state or an action; its unit is "" where nobody said it."""

    name: str
    unit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CameraPort:
    """One camera, of frames of a size in pixels."""

    name: str
    width: int
    height: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Embodiment:
    """What a policy needs of a robot, or what a robot is.

    Args:
        state: In order.
        action: In order.
        rate_hz: Of the control loop; 0 where nobody said it.
        cameras: In order.
        controller: Version of the robot's own controller, "" where nobody said it.
    """

    state: tuple[RobotChannel, ...] = ()
    action: tuple[RobotChannel, ...] = ()
    rate_hz: float = 0.0
    cameras: tuple[CameraPort, ...] = ()
    controller: str = ""

    def __post_init__(self) -> None:
        """Checks the counts.

        Raises:
            InvalidInput: There are too many.
        """
        if max(len(self.state), len(self.action)) > DIMS_MAX or len(self.cameras) > CAMERAS_MAX:
            wanted = f"at most {DIMS_MAX} dimensions and {CAMERAS_MAX} cameras"
            raise InvalidInput("accept an embodiment", got=f"{len(self.state)} and {len(self.action)}", wanted=wanted)

    def mismatches(self, robot: Embodiment) -> tuple[str, ...]:
        """Returns in words what a robot is that this does not fit, nothing where it fits.

        What nobody said of either side is no mismatch: but dimensions and cameras are always said.

        Args:
            robot: What it is.
        """
        told = []
        for what, wanted, there in (("state", self.state, robot.state), ("action", self.action, robot.action)):
            told += _channels_apart(what, wanted, there)
        if self.rate_hz and robot.rate_hz and abs(self.rate_hz - robot.rate_hz) > 1e-6 * self.rate_hz:
            told.append(f"rate: wants {self.rate_hz:g} Hz, the robot runs at {robot.rate_hz:g} Hz")
        if self.cameras != robot.cameras:
            told.append(f"cameras: wants {_cameras(self.cameras)}, the robot has {_cameras(robot.cameras)}")
        if self.controller and robot.controller and self.controller != robot.controller:
            told.append(f"controller: wants {self.controller}, the robot has {robot.controller}")
        return tuple(told)


def _channels_apart(what: str, wanted: tuple[RobotChannel, ...], there: tuple[RobotChannel, ...]) -> list[str]:
    if len(wanted) != len(there):
        return [f"{what}: wants {len(wanted)} dimensions, the robot has {len(there)}"]
    for place, (one, other) in enumerate(zip(wanted, there, strict=True)):
        if one.name != other.name or (one.unit and other.unit and one.unit != other.unit):
            return [f"{what} {place}: wants {_channel(one)}, the robot has {_channel(other)}"]
    return []


def _channel(one: RobotChannel) -> str:
    return f"{one.name} [{one.unit or 'no unit'}]"


def _cameras(some: tuple[CameraPort, ...]) -> str:
    return ", ".join(f"{each.name} {each.width}x{each.height}" for each in some) or "none"


class GateStanding(str, Enum):
    """What a gate says of a checkpoint."""

    PASSED = "passed"
    FAILED = "failed"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True, kw_only=True)
class GateSeen:
    """A gate of a release's checkpoint.

    Args:
        seen: What it stands on, in words.
        waived: Why it does not count, "" where it does.
    """

    name: str
    standing: GateStanding
    seen: str = ""
    waived: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseLineage:
    """What a release came from.

    Args:
        checkpoint: "JOB@STEP".
        parents: The checkpoints that it was trained on from, nearest first.
        views: Training views.
        versions: Versions of data that they were made of.
        episodes: How many; the list of them is the file `lineage.json`.
        code: Content id of the code that trained it, "" for none.
        commit: Its Git commit, "" when unknown.
    """

    checkpoint: str
    parents: tuple[str, ...] = ()
    views: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()
    episodes: int = 0
    code: str = ""
    commit: str = ""


@message("NewPolicyRelease")
class NewPolicyRelease:
    """What is to be released; the server numbers it.

    Args:
        name: What its releases are called.
        files: In order of path.
        gates: Each passed, or waived by name with a reason.
        dtype: Type of its weights, "" for what they were trained in.
        runtime: The least release of Mainspring that runs it.
        team: Whose it is.
        automatic: Whether the server alone signs it.
        note: Why there is a release, in somebody's words.
        image: Whether it is no policy but an image of a machine's whole system, which plain clients of DDI install:
            one file, of which no gate is asked.
    """

    name: str
    files: tuple[ReleaseFile, ...]
    lineage: ReleaseLineage
    fits: Embodiment
    gates: tuple[GateSeen, ...]
    runtime: str
    dtype: str = ""
    team: TeamName = LAB
    automatic: bool = False
    note: str = ""
    image: bool = False

    def __post_init__(self) -> None:
        """Checks that it may be one.

        Raises:
            InvalidInput: It holds too much, a file twice, or a gate keeps it.
        """
        checked_name(self.name, "a release")
        paths = [file.path for file in self.files]
        if not 1 <= len(paths) <= FILES_MAX or len(set(paths)) != len(paths):
            raise InvalidInput("make a release", got=f"{len(paths)} files", wanted=f"1 to {FILES_MAX}, each once")
        if not _RUNTIME.fullmatch(self.runtime):
            raise InvalidInput("make a release", on="runtime", got=repr(self.runtime[:40]), wanted="such as 0.3.0")
        if len(self.note) > WORDS_MAX or any(len(gate.waived) > WORDS_MAX for gate in self.gates):
            raise InvalidInput("make a release", got="a longer note", wanted=f"at most {WORDS_MAX} letters")
        if self.image and (len(paths) != 1 or self.gates or self.dtype or self.automatic):
            given = {"gates": self.gates, "dtype": self.dtype, "automatic": self.automatic}
            got = ", ".join([f"{len(paths)} files", *(name for name, value in given.items() if value)])
            raise InvalidInput("release an image", got=got, wanted="one file, signed by people, and nothing else")
        kept = [gate for gate in self.gates if gate.standing is not GateStanding.PASSED and not gate.waived]
        if kept or not (self.gates or self.image):
            got = ", ".join(f"gate {gate.name} is {gate.standing.value}" for gate in kept) or "no gate at all"
            raise InvalidInput(
                "release a checkpoint",
                on=self.lineage.checkpoint,
                got=got,
                wanted="every gate passed",
                next_step="evaluate it (ms eval gate), or waive by name: --waive GATE=REASON",
            )
        if self.automatic and any(gate.waived for gate in self.gates):
            raise InvalidInput("release by itself", got="a waived gate", wanted="passed gates, or people's signatures")

    @property
    def size_bytes(self) -> int:
        """Returns the bytes of all files."""
        return sum(file.size_bytes for file in self.files)


@message("PolicyRelease")
class PolicyRelease:
    """One release, as robots read it: what is signed.

    Args:
        version: Counts the releases of a name, from 1.
        maker: Who made it.
    """

    version: int
    made_s: float
    maker: str
    content: NewPolicyRelease

    @property
    def reference(self) -> str:
        """Returns "NAME@VERSION"."""
        return f"{self.content.name}@{self.version}"

    @property
    def target(self) -> str:
        """Returns the path of the target that it is."""
        return target_of(self.content.name, self.version, automatic=self.content.automatic)

    def target_of_file(self, file: ReleaseFile) -> str:
        """Returns the path of the target that a file of it is.

        Args:
            file: One of its files.
        """
        return f"{BY_SERVER if self.content.automatic else ARTIFACTS}/{file.sha256}"


def target_of(name: str, version: int, *, automatic: bool = False) -> str:
    """Returns the path of the target that a release is.

    Args:
        name: What its releases are called.
        version: Its number.
        automatic: Whether the server alone signs it.
    """
    return f"{BY_SERVER if automatic else BY_PEOPLE}/{name}.{version}.json"


def reference_of(target: str) -> str:
    """Returns "NAME@VERSION" of the target that a release is, "" for what is none.

    Args:
        target: Its path.
    """
    found = _TARGET.fullmatch(target)
    return f"{found[1]}@{found[2]}" if found else ""


def artifact_key(sha256: str) -> str:
    """Returns where an object store keeps a file of releases.

    Args:
        sha256: Of its bytes.

    Raises:
        InvalidInput: It is none.
    """
    if not _SHA256.fullmatch(sha256):
        raise InvalidInput("find a file of a release", got=repr(sha256[:80]), wanted="64 hexadecimal letters")
    return f"{ARTIFACTS}/{sha256[:2]}/{sha256}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseReference:
    """A release as people name it: "NAME", which is the newest, or "NAME@VERSION"."""

    name: str
    version: int | None = None

    @classmethod
    def read(cls, text: str) -> ReleaseReference:
        """Returns what was typed.

        Args:
            text: What was typed.

        Raises:
            InvalidInput: It names no release.
        """
        found = _REFERENCE.fullmatch(text)
        if found is None and "@" in text:
            raise InvalidInput("read a release's name", got=repr(text[:80]), wanted="NAME or NAME@VERSION")
        return cls(name=found[1], version=int(found[2])) if found else cls(name=text)


class ReleaseState(str, Enum):
    """Where a release stands."""

    PENDING = "pending"  # Not enough of those whose keys count have signed it.
    PUBLISHED = "published"
    REVOKED = "revoked"


@message("ReleaseView")
class ReleaseView:
    """A release and where it stands.

    Args:
        reason: Why it was revoked.
        sha256: Of `text`.
        text: The bytes that are signed; "" in lists.
    """

    release: PolicyRelease
    state: ReleaseState
    reason: str = ""
    sha256: str
    text: str = ""


@message("Revocation")
class Revocation:
    """Why a release may be installed no more."""

    reason: str

    def __post_init__(self) -> None:
        """Checks that there is a reason.

        Raises:
            InvalidInput: There is none, or it is too long.
        """
        if not 1 <= len(self.reason.strip()) <= WORDS_MAX:
            raise InvalidInput("revoke a release", got=repr(self.reason[:40]), wanted=f"1 to {WORDS_MAX} letters")


@message("SignedText")
class SignedText:
    """Metadata of one role as TUF has it: JSON with its signatures."""

    text: str

    def __post_init__(self) -> None:
        """Checks its length.

        Raises:
            InvalidInput: It is too long for those who read it.
        """
        if len(self.text) > SIGNED_TEXT_MAX:
            raise InvalidInput("read metadata", got=f"{len(self.text)} letters", wanted=f"at most {SIGNED_TEXT_MAX}")


@message("TrustView")
class TrustView:
    """By whose keys releases are trusted.

    Args:
        versions: The newest of each role.
        expires: When that ends, by role, as ISO 8601.
        people: Ids of the keys that sign targets.
        threshold: How many of them it takes.
        server: The server's own public keys by role, as JSON of TUF, for a root to name.
        awaiting: Targets that not enough have signed, as TUF has them; "" for none.
        signed: Ids of the keys that have signed these.
    """

    versions: dict[str, int]
    expires: dict[str, str]
    people: tuple[str, ...]
    threshold: int
    server: dict[str, str]
    awaiting: str = ""
    signed: tuple[str, ...] = ()
