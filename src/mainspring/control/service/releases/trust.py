"""What the server takes as signed, and what it signs itself: TUF's rules, by python-tuf, on bytes alone.

Root and targets are signed by people's keys, which are never here. Snapshot, timestamp and the delegated role of
automatic releases are signed by keys of the server, made of the lab's own key: every server of a store has the same,
and there is nothing to keep. Where metadata is stored is `keeping.py`'s.

Source: TUF specification 1.0.33.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from securesystemslib.signer import CryptoSigner
from tuf.api.exceptions import RepositoryError
from tuf.api.metadata import Metadata, MetaFile, Root, Signed, Snapshot, TargetFile, Targets, Timestamp

from mainspring.domain.answers.policies.releases import BY_SERVER
from mainspring.domain.errors import InvalidInput

ROOT, TARGETS, SNAPSHOT, TIMESTAMP = Root.type, Targets.type, Snapshot.type, Timestamp.type
AUTOMATIC = BY_SERVER  # The delegated role has its folder's name.
OWN_ROLES = (TIMESTAMP, SNAPSHOT, AUTOMATIC)
ISSUED = "issued"  # When a timestamp was made: robots keep the newest, so that a clock set back is noticed.
THRESHOLD_MIN = 2  # One stolen key signs nothing.
ONLINE_DAYS = (
    7.0  # A robot that is kept from the server notices within a week. Source: PEP 458 has a day; robots travel.
)
Kind = TypeVar("Kind", Root, Targets, Snapshot, Timestamp)


@final
class ServerKeys:
    """The server's own keys, by role.

    Args:
        key: What the lab's secrets are made from.
    """

    def __init__(self, key: str) -> None:
        self._signers = {role: _signer(key, role) for role in OWN_ROLES}

    def public(self) -> dict[str, str]:
        """Returns the public keys as JSON of TUF, by role."""
        return {
            role: json.dumps({"keyid": signer.public_key.keyid, **signer.public_key.to_dict()}, sort_keys=True)
            for role, signer in self._signers.items()
        }

    def keyid(self, role: str) -> str:
        """Returns the id of a role's key."""
        return self._signers[role].public_key.keyid

    def sign(self, role: str, signed: Signed) -> str:
        """Returns metadata of a role, signed."""
        made: Metadata[Any] = Metadata(signed)
        made.sign(self._signers[role])
        return text_of(made)


def _signer(key: str, role: str) -> CryptoSigner:
    drawn = HKDF(algorithm=SHA256(), length=32, salt=None, info=f"mainspring tuf {role}".encode())
    return CryptoSigner(Ed25519PrivateKey.from_private_bytes(drawn.derive(key.encode())))


def text_of(metadata: Metadata[Any]) -> str:
    """Returns metadata as it is stored and served."""
    return metadata.to_bytes().decode()


def read(kind: type[Kind], text: str) -> Metadata[Kind]:
    """Returns metadata that somebody hands in.

    Raises:
        InvalidInput: It is none, or of another role.
    """
    try:
        found: Metadata[Any] = Metadata.from_bytes(text.encode())
    except (RepositoryError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidInput("read signed metadata", got=str(error)[:200], wanted="metadata of TUF") from error
    if not isinstance(found.signed, kind):
        raise InvalidInput("read signed metadata", got=f"metadata of {found.signed.type}", wanted=kind.type)
    return found


def accept_root(before: Metadata[Root] | None, text: str, keys: ServerKeys, now_s: float) -> Metadata[Root]:
    """Returns a root that may take the place of the one before.

    Raises:
        InvalidInput: Too few have signed it, it trusts too few, or it does not know the server's keys.
    """
    root = read(Root, text)
    _check_version(root.signed, 0 if before is None else before.signed.version, now_s)
    for role in (ROOT, TARGETS):
        if root.signed.roles[role].threshold < THRESHOLD_MIN:
            got = f"a threshold of {root.signed.roles[role].threshold}"
            raise InvalidInput("accept a root of trust", on=role, got=got, wanted=f"at least {THRESHOLD_MIN}")
    for role in (SNAPSHOT, TIMESTAMP):
        if keys.keyid(role) not in root.signed.roles[role].keyids or root.signed.roles[role].threshold != 1:
            raise InvalidInput(
                "accept a root of trust", on=role, got="other keys", wanted="the server's (ms release trust show)"
            )
    if not root.signed.consistent_snapshot:
        raise InvalidInput("accept a root of trust", got="no consistent snapshots", wanted="consistent_snapshot: true")
    for judge in (root, *(() if before is None else (before,))):
        check_signed(judge.signed, ROOT, root)
    return root


def check_signed(by: Root | Targets, role: str, found: Metadata[Any]) -> None:
    """Returns if as many have signed as somebody's word asks for.

    Raises:
        InvalidInput: They have not.
    """
    verdict = by.get_verification_result(role, found.signed_bytes, found.signatures)
    if not verdict.verified:
        got = f"{len(verdict.signed)} of {verdict.threshold} signatures"
        raise InvalidInput(f"accept signed {role}", got=got, wanted="enough", next_step="ms release sign --key FILE")


def signers(root: Root, found: Metadata[Targets]) -> tuple[str, ...]:
    """Returns the ids of the keys that count and have signed targets."""
    return tuple(sorted(root.get_verification_result(TARGETS, found.signed_bytes, found.signatures).signed))


def accept_targets(root: Root, before: Metadata[Targets] | None, text: str, now_s: float) -> Metadata[Targets]:
    """Returns targets that somebody at least who counts has signed.

    Raises:
        InvalidInput: Nobody has, or they do not follow those before.
    """
    found = read(Targets, text)
    _check_version(found.signed, 0 if before is None else before.signed.version, now_s)
    if not signers(root, found):
        raise InvalidInput("accept signed targets", got="no signature that counts", wanted="one of the root's keys")
    return found


def _check_version(signed: Root | Targets, before: int, now_s: float) -> None:
    if signed.version != before + 1:
        got, wanted = f"version {signed.version}", f"{before + 1}, which comes next"
        raise InvalidInput(f"accept signed {signed.type}", got=got, wanted=wanted, next_step="make it anew")
    if signed.is_expired(at(now_s)):
        raise InvalidInput(
            f"accept signed {signed.type}", got=f"what ended {signed.expires:%Y-%m-%d}", wanted="a later end"
        )


def delegates(targets: Targets) -> bool:
    """Returns whether targets let the server sign releases, in its own folder alone."""
    roles = (targets.delegations.roles or {}) if targets.delegations else {}
    role = roles.get(AUTOMATIC)
    return role is not None and role.paths == [f"{AUTOMATIC}/*"]


def new_automatic(keys: ServerKeys, version: int, files: Mapping[str, TargetFile], now_s: float) -> str:
    """Returns the delegated role's targets, signed."""
    ends = at(now_s) + timedelta(days=ONLINE_DAYS)
    return keys.sign(AUTOMATIC, Targets(version=version, expires=ends, targets=dict(files)))


def new_snapshot(keys: ServerKeys, version: int, versions: Mapping[str, int], now_s: float) -> str:
    """Returns which versions of targets belong together, signed."""
    meta = {f"{role}.json": MetaFile(number) for role, number in versions.items()}
    ends = at(now_s) + timedelta(days=ONLINE_DAYS)
    return keys.sign(SNAPSHOT, Snapshot(version=version, expires=ends, meta=meta))


def new_timestamp(keys: ServerKeys, version: int, snapshot: int, now_s: float) -> str:
    """Returns which snapshot is the newest, and when that was so, signed."""
    ends = at(now_s) + timedelta(days=ONLINE_DAYS)
    told = {ISSUED: f"{at(now_s):%Y-%m-%dT%H:%M:%SZ}"}
    made = Timestamp(version=version, expires=ends, snapshot_meta=MetaFile(snapshot), unrecognized_fields=told)
    return keys.sign(TIMESTAMP, made)


def at(now_s: float) -> datetime:
    """Returns a time as TUF counts it: whole seconds."""
    return datetime.fromtimestamp(int(now_s), UTC)
