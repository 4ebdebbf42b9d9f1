"""What people sign, with keys in files of their own: roots of trust, and targets that hold releases.

Nothing here asks a server: what is signed goes there as text. Keys are Ed25519 in PKCS #8, as `openssl genpkey
-algorithm ed25519` writes them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from securesystemslib.signer import CryptoSigner, Key
from tuf.api.metadata import DelegatedRole, Delegations, Metadata, Role, Root, Snapshot, TargetFile, Targets, Timestamp

from mainspring.domain.answers import ReleaseView
from mainspring.domain.answers.policies.releases import BY_SERVER
from mainspring.domain.errors import Conflict, InvalidInput, NotFound

PEOPLE, THRESHOLD = 3, 2  # One may lose a key, and one stolen key signs nothing.
PEOPLE_MAX = 16
YEAR = timedelta(days=365)  # Roots and targets: people meet once a year at least. Source: PEP 458.
KEY_BYTES_MAX = 16_384


def new_key(path: Path) -> CryptoSigner:
    """Makes a key in a file that only its owner reads, and returns it.

    Raises:
        Conflict: There is a file.
    """
    signer = CryptoSigner.generate_ed25519()
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(signer.private_bytes)
    except FileExistsError as error:
        raise Conflict("make a key", on=str(path), got="a file", wanted="a name that is free") from error
    return signer


def read_key(path: Path) -> CryptoSigner:
    """Returns the key in a file.

    Raises:
        NotFound: There is no such file.
        InvalidInput: It holds no key of Ed25519.
    """
    try:
        key = load_pem_private_key(path.read_bytes()[:KEY_BYTES_MAX], password=None)
    except OSError as error:
        raise NotFound("read a key", on=str(path), got=str(error.strerror)) from error
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise InvalidInput(
            "read a key", on=str(path), got=str(error)[:100], wanted="PEM without a passphrase"
        ) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise InvalidInput("read a key", on=str(path), got=type(key).__name__, wanted="a private key of Ed25519")
    return CryptoSigner(key)


def read_server_key(text: str) -> Key:
    """Returns a public key that a server told.

    Raises:
        InvalidInput: It is none.
    """
    try:
        plain = json.loads(text)
        return Key.from_dict(plain.pop("keyid"), plain)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInput("read a server's key", got=text[:100], wanted="a public key of TUF") from error


def new_root(
    people: Sequence[Key], server: Mapping[str, Key], now_s: float, *, threshold: int = THRESHOLD
) -> Metadata[Root]:
    """Returns the first root of trust, unsigned.

    Args:
        people: Whose signatures count for root and targets.
        server: Its keys of snapshot and timestamp.

    Raises:
        InvalidInput: There are too few or too many people.
    """
    if not threshold <= len({key.keyid for key in people}) <= PEOPLE_MAX:
        got, wanted = f"{len(people)} keys", f"{threshold} to {PEOPLE_MAX} that differ"
        raise InvalidInput("make a root of trust", got=got, wanted=wanted)
    own = [key.keyid for key in people]
    roles = {Root.type: Role(own, threshold), Targets.type: Role(own, threshold)}
    roles |= {kind: Role([server[kind].keyid], 1) for kind in (Snapshot.type, Timestamp.type)}
    keys = {key.keyid: key for key in (*people, server[Snapshot.type], server[Timestamp.type])}
    return Metadata(Root(version=1, expires=_ends(now_s), keys=keys, roles=roles, consistent_snapshot=True))


def next_root(before: Metadata[Root], now_s: float) -> Metadata[Root]:
    """Returns the root of trust that comes next, unsigned: the same keys, for another year."""
    signed = deepcopy(before.signed)
    signed.version, signed.expires = signed.version + 1, _ends(now_s)
    return Metadata(signed)


def new_targets(now_s: float, *, automatic: Key | None) -> Metadata[Targets]:
    """Returns the first targets, unsigned: without releases.

    Args:
        automatic: The server's key, where it may sign releases of its own folder; None where it may not.
    """
    return Metadata(Targets(version=1, expires=_ends(now_s), delegations=_delegations(automatic)))


def _delegations(automatic: Key | None) -> Delegations | None:
    if automatic is None:
        return None
    role = DelegatedRole(BY_SERVER, [automatic.keyid], 1, terminating=True, paths=[f"{BY_SERVER}/*"])
    return Delegations({automatic.keyid: automatic}, {BY_SERVER: role})


def next_targets(before: Metadata[Targets], releases: Iterable[ReleaseView], now_s: float) -> Metadata[Targets]:
    """Returns the targets that come next, unsigned: these releases and no others.

    Args:
        before: Those before: delegations stay as they were.
        releases: With what is signed of them.
    """
    files: dict[str, TargetFile] = {}
    for view in releases:
        release = view.release
        files[release.target] = TargetFile.from_data(release.target, view.text.encode(), ["sha256"])
        for file in release.content.files:
            path = release.target_of_file(file)
            files[path] = TargetFile(file.size_bytes, {"sha256": file.sha256}, path)
    signed = before.signed
    made = Targets(version=signed.version + 1, expires=_ends(now_s), targets=files, delegations=signed.delegations)
    return Metadata(made)


def signed_by(metadata: Metadata[Root] | Metadata[Targets], signers: Iterable[CryptoSigner]) -> str:
    """Returns metadata with signatures added, as text."""
    for signer in signers:
        metadata.sign(signer, append=True)
    return metadata.to_bytes().decode()


def _ends(now_s: float) -> datetime:
    return datetime.fromtimestamp(int(now_s), UTC) + YEAR
