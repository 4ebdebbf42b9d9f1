"""Who a robot is: its key, made on it, and what it got for that when it was enrolled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from mainspring.domain.answers.policies.robots import (
    DEVICE_HEADER,
    Enrolled,
    RobotClaim,
    claim_words,
    device_words,
)
from mainspring.domain.codec import decode, encode, loads
from mainspring.domain.errors import Conflict, DamagedData, NotAllowed, Unavailable
from mainspring.robots.edge.ports import EdgeAnswer, EdgeDisk, EdgeHttp

IDENTITY = "identity.json"
BOOT_BITS = 128
_KEY = "device.key"


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeIdentity:
    """What a robot keeps of its enrolment, beside its key.

    Args:
        url: Where the server is.
        token: Its TargetToken.
        root: The root of trust.
    """

    url: str
    robot: str
    token: str
    root: str
    poll_s: float


def device_key(disk: EdgeDisk) -> Ed25519PrivateKey:
    """Returns a robot's key, made where there is none: it never leaves the robot."""
    raw = disk.read(_KEY)
    if raw is None:
        key = Ed25519PrivateKey.generate()
        _write(disk, _KEY, key.private_bytes_raw())
        return key
    try:
        return Ed25519PrivateKey.from_private_bytes(raw)
    except ValueError as error:
        step = "remove the agent's folder, then ms-edge enrol"
        raise DamagedData("read the robot's key", on=_KEY, got=f"{len(raw)} bytes", next_step=step) from error


def enrol(disk: EdgeDisk, http: EdgeHttp, url: str, token: str) -> EdgeIdentity:
    """Enrols a robot by its one-time token, and keeps who it is.

    Args:
        url: Where the server is, kept for later.

    Raises:
        NotAllowed: The server lets it not in.
        Conflict: Another robot has its key.
        Unavailable: Nobody answers.
    """
    key = device_key(disk)
    public = key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw).hex()
    claim = RobotClaim(token=token, key=public, signature=key.sign(claim_words(token)).hex())
    answer = http.call("POST", "/v1/robot-claims", {"Content-Type": "application/json"}, encode(claim))
    if answer.status != 200:
        kind = {409: Conflict, 403: NotAllowed, 401: NotAllowed}.get(answer.status, Unavailable)
        raise kind("enrol this robot", on=url, got=problem_of(answer))
    made = decode(Enrolled, answer.body)
    found = EdgeIdentity(url=url, robot=made.robot, token=made.token, root=made.root, poll_s=made.poll_s)
    _write(disk, IDENTITY, encode(found))
    return found


def identity(disk: EdgeDisk) -> EdgeIdentity | None:
    """Returns who a robot is, None where it is not enrolled."""
    kept = disk.read(IDENTITY)
    return None if kept is None else decode(EdgeIdentity, kept)


def problem_of(answer: EdgeAnswer) -> str:
    """Returns what an answer says that is no success, in words."""
    try:
        plain = loads(answer.body)
    except Exception:  # noqa: BLE001  Whoever answered may be no server of ours.
        plain = None
    told = plain.get("detail") if isinstance(plain, dict) else None
    return f"HTTP {answer.status}{f': {told}' if isinstance(told, str) else ''}"[:400]


def _write(disk: EdgeDisk, name: str, data: bytes) -> None:
    disk.remove(f"{name}.new")
    disk.append(f"{name}.new", data)
    disk.sync(f"{name}.new")
    disk.rename(f"{name}.new", name)
    disk.sync_names()


@final
class SignedCalls:
    """Calls as one robot, each signed by its key.

    Args:
        boot: Drawn when the agent started, hexadecimal: by it the server notices two devices of one key.
    """

    def __init__(self, http: EdgeHttp, found: EdgeIdentity, key: Ed25519PrivateKey, boot: str) -> None:
        self._http = http
        self._found = found
        self._key = key
        self._boot = boot
        self._base = f"/lab/controller/v1/{found.robot}"

    def call(self, method: str, path: str, body: bytes = b"", *, piece: tuple[int, int] | None = None) -> EdgeAnswer:
        """Returns the server's answer.

        Args:
            path: Below the robot's own, beginning with a slash, or "".
            piece: First byte, and how many, of a file.

        Raises:
            Unavailable: Nobody answers.
        """
        whole = f"{self._base}{path}"
        signature = self._key.sign(device_words(self._found.robot, self._boot, method, whole)).hex()
        headers = {"Authorization": f"TargetToken {self._found.token}", DEVICE_HEADER: f"{self._boot} {signature}"}
        if body:
            headers["Content-Type"] = "application/json"
        if piece is not None:
            headers["Range"] = f"bytes={piece[0]}-{piece[0] + piece[1] - 1}"
        return self._http.call(method, whole, headers, body)


def boot_of(bits: int) -> str:
    """Returns what an agent calls one start of it.

    Args:
        bits: Drawn, `BOOT_BITS` of them.
    """
    return f"{bits:0{BOOT_BITS // 4}x}"
