"""Releases for tests of the controller: small ones, and people's keys in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from securesystemslib.signer import CryptoSigner
from tuf.api.metadata import Metadata, Targets

from mainspring.control import Control
from mainspring.domain.answers import NewPolicyRelease, ReleaseView, SignedText, TrustView
from mainspring.domain.answers.policies.releases import (
    Embodiment,
    GateSeen,
    GateStanding,
    ReleaseFile,
    ReleaseLineage,
    artifact_key,
)
from mainspring.objects import open_store
from mainspring.robots.releases.signing import new_root, new_targets, next_targets, read_server_key, signed_by

PASSED = GateSeen(name="pick", standing=GateStanding.PASSED)


def new_release(objects: str, *contents: bytes, **fields: Any) -> NewPolicyRelease:
    """A release of some files, which are put into the object store."""
    store, files = open_store(objects), []
    for number, data in enumerate(contents or (b"weights",)):
        sha256 = hashlib.sha256(data).hexdigest()
        store.put_if_absent(artifact_key(sha256), data)
        files.append(ReleaseFile(path=f"weights/{number}", sha256=sha256, size_bytes=len(data)))
    given: dict[str, Any] = {
        "name": "arm",
        "files": tuple(files),
        "lineage": ReleaseLineage(checkpoint="job-a@10"),
        "fits": Embodiment(),
        "gates": (PASSED,),
        "runtime": "0.3.0",
    }
    return NewPolicyRelease(**{**given, **fields})


class People:
    """Three people with keys, at one controller."""

    def __init__(self, control: Control, *, automatic: bool = False) -> None:
        self.control = control
        self.keys = [CryptoSigner.generate_ed25519() for _ in range(3)]
        server = {role: read_server_key(text) for role, text in control.releases.trust().server.items()}
        root = new_root([key.public_key for key in self.keys], server, control.clock.now_s())
        self.root = signed_by(root, self.keys[:2])
        control.releases.put_root(SignedText(text=self.root))
        first = new_targets(control.clock.now_s(), automatic=server["automatic"] if automatic else None)
        control.releases.put_targets(SignedText(text=signed_by(first, self.keys[:2])))

    def targets(self, *views: ReleaseView) -> Metadata[Targets]:
        """What comes next, unsigned: these releases."""
        version = self.control.releases.trust().versions["targets"]
        before: Metadata[Targets] = Metadata.from_bytes(self.control.releases.metadata(f"{version}.targets.json"))
        return next_targets(before, views, self.control.clock.now_s())

    def sign(self, *views: ReleaseView, keys: Sequence[int] = (0, 1)) -> TrustView:
        """Hands in the next targets, signed by some of them."""
        made = self.targets(*views)
        return self.control.releases.put_targets(SignedText(text=signed_by(made, [self.keys[key] for key in keys])))
