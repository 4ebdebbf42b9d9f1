"""The release verbs of the SDK, `lab.policies`: the same as `ms release`."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

from tuf.api.metadata import Metadata, Root, Targets

from mainspring.app.base.client import Client
from mainspring.app.sdk.checkpoints import CheckpointFinder
from mainspring.app.sdk.lab import Lab
from mainspring.domain.answers import (
    NewPolicyRelease,
    ReleaseState,
    ReleaseView,
    Revocation,
    SignedText,
    TrustView,
)
from mainspring.domain.answers.policies.releases import Embodiment, ReleaseFile, ReleaseLineage, artifact_key
from mainspring.domain.errors import Conflict, DamagedData, InvalidInput
from mainspring.domain.ids import TeamName
from mainspring.domain.job import LAB
from mainspring.domain.release import RELEASE
from mainspring.domain.routes import LIST_MAX
from mainspring.robots.edge.trust import TrustFloor, refreshed
from mainspring.robots.releases.contents import gates_seen, make_contents
from mainspring.robots.releases.images import put_image
from mainspring.robots.releases.signing import (
    PEOPLE,
    new_key,
    new_root,
    new_targets,
    next_root,
    next_targets,
    read_key,
    read_server_key,
    signed_by,
)

_READ_BYTES = 8 << 20  # Of a file that is checked, at a time.


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseMade:
    """A release that was made.

    Args:
        moved_bytes: Of the files that the object store did not have.
        signed: How many have signed it.
        threshold: How many it takes.
    """

    view: ReleaseView
    moved_bytes: int
    signed: int
    threshold: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseDifference:
    """What one release has that another has not.

    Args:
        added: Files of the second whose bytes the first has not: what a robot that runs the first fetches.
        gone: Files of the first whose bytes the second has not.
        same_bytes: Of what both have.
        words: What else differs, in words.
    """

    first: str
    second: str
    added: tuple[ReleaseFile, ...]
    gone: tuple[ReleaseFile, ...]
    same_bytes: int
    words: tuple[str, ...]

    @property
    def moved_bytes(self) -> int:
        """Returns the bytes that a robot that runs the first fetches for the second."""
        return sum({file.sha256: file.size_bytes for file in self.added}.values())


@final
class ReleaseVerbs:
    """What can be done with releases of policies. RELEASE is "NAME", which is the newest, or "NAME@VERSION".

    Args:
        lab: The lab.
    """

    def __init__(self, lab: Lab) -> None:
        self._lab = lab

    def create(
        self,
        checkpoint: str,
        *,
        name: str,
        dtype: str = "",
        gates: Sequence[str] = (),
        waive: Mapping[str, str] | None = None,
        keys: Sequence[Path] = (),
        fits: Embodiment | None = None,
        runtime: str = RELEASE,
        team: TeamName = LAB,
        automatic: bool = False,
        note: str = "",
        progress: Callable[[int], None] = lambda done: None,
    ) -> ReleaseMade:
        """Releases a checkpoint: puts its files into the object store, numbers it, and signs it.

        Args:
            checkpoint: "JOB" or "JOB@STEP"; the newest step without one.
            name: What its releases are called.
            dtype: Of weights: bfloat16, float16, float32; "" for what they were trained in.
            gates: Names of gates that it must have passed; none for all that were asked of it.
            waive: Reasons by the names of gates that are not to count.
            keys: Files of people's keys to sign with here and now.
            fits: The embodiment; None for what the training view says.
            runtime: The least release of Mainspring that runs it.
            team: Whose it is.
            automatic: Whether the server alone signs it.
            note: Why there is a release.
            progress: Told of bytes of weights as they are written.

        Raises:
            NotFound: There is no such checkpoint.
            InvalidInput: A gate keeps it, or a field is out of its range.
            NotAllowed: One may not make releases of this team.
        """
        for path in keys:
            read_key(path)  # Before gigabytes are written.
        finder = CheckpointFinder(self._lab)
        opened = finder.open(checkpoint)
        seen = gates_seen(finder.store, opened.manifest.job, opened.manifest.step, gates, dict(waive or {}))
        asked = NewPolicyRelease(  # A first time, without files, so that what is refused costs nothing.
            name=name,
            files=(ReleaseFile(path="none", sha256="0" * 64, size_bytes=0),),
            lineage=ReleaseLineage(checkpoint=f"{opened.manifest.job}@{opened.manifest.step}"),
            fits=fits or Embodiment(),
            gates=seen,
            runtime=runtime,
            dtype=dtype,
            team=team,
            automatic=automatic,
            note=note,
        )
        cache = self._lab.home.cache / "views"
        made = make_contents(finder.store, opened, dtype=dtype, cache=cache, progress=progress)
        asked = replace(asked, files=made.files, lineage=made.lineage, fits=fits or made.fits)
        return self._made(asked, keys, made.moved_bytes)

    def image(
        self, path: Path, *, name: str, keys: Sequence[Path] = (), team: TeamName = LAB, note: str = ""
    ) -> ReleaseMade:
        """Releases an image of SWUpdate, which robots that are plain clients of DDI install.

        Args:
            path: The image, as SWUpdate's own tools made and signed it.
            name: What its releases are called.
            keys: Files of people's keys to sign with here and now.
            team: Whose it is.
            note: Why there is a release.

        Raises:
            NotFound: There is no such file.
            InvalidInput: It is no image, or a field is out of its range.
            NotAllowed: One may not make releases of this team.
        """
        for key in keys:
            read_key(key)  # Before gigabytes are written.
        file, moved_bytes = put_image(self._lab.objects(), path)
        asked = NewPolicyRelease(
            name=name,
            files=(file,),
            lineage=ReleaseLineage(checkpoint=""),
            fits=Embodiment(),
            gates=(),
            runtime=RELEASE,
            team=team,
            note=note,
            image=True,
        )
        return self._made(asked, keys, moved_bytes)

    def _made(self, asked: NewPolicyRelease, keys: Sequence[Path], moved_bytes: int) -> ReleaseMade:
        with self._lab.client() as client:
            view = client.create_release(asked)
            if keys:
                trust = self._sign(client, view.release.reference, keys)
                view = client.release(view.release.reference)
            else:
                trust = client.trust()
        count = trust.threshold if view.state is ReleaseState.PUBLISHED else len(trust.signed) if keys else 0
        return ReleaseMade(view=view, moved_bytes=moved_bytes, signed=count, threshold=trust.threshold)

    def ls(self, name: str = "", *, limit: int = 50) -> tuple[ReleaseView, ...]:
        """Returns releases, newest first.

        Args:
            name: Only those of this name.
            limit: At most so many.
        """
        return self._lab.releases(name=name or None, limit=limit)

    def show(self, release: str) -> ReleaseView:
        """Returns one release.

        Args:
            release: RELEASE.
        """
        return self._lab.release(release)

    def revoke(self, release: str, *, reason: str, keys: Sequence[Path] = ()) -> ReleaseView:
        """Revokes a release, and returns it; robots are told once targets without it are signed.

        Args:
            release: RELEASE.
            reason: Why.
            keys: Files of people's keys to sign targets without it with.
        """
        with self._lab.client() as client:
            view = client.revoke_release(release, Revocation(reason=reason))
            if keys:
                self._sign(client, "", keys)
            return view

    def diff(self, first: str, second: str) -> ReleaseDifference:
        """Returns what the second release has that the first has not.

        Args:
            first: RELEASE.
            second: RELEASE.
        """
        one, other = self.show(first).release, self.show(second).release
        ours, theirs = one.content.files, other.content.files
        have, want = {file.sha256 for file in ours}, {file.sha256 for file in theirs}
        words = list(one.content.fits.mismatches(other.content.fits))
        for what, left, right in (
            ("checkpoint", one.content.lineage.checkpoint, other.content.lineage.checkpoint),
            ("weights", one.content.dtype or "as trained", other.content.dtype or "as trained"),
            ("runtime", one.content.runtime, other.content.runtime),
        ):
            words += [f"{what}: {left}, then {right}"] if left != right else []
        return ReleaseDifference(
            first=one.reference,
            second=other.reference,
            added=tuple(file for file in theirs if file.sha256 not in have),
            gone=tuple(file for file in ours if file.sha256 not in want),
            same_bytes=sum(file.size_bytes for file in theirs if file.sha256 in have),
            words=tuple(words),
        )

    def verify(self, release: str, *, root: bytes | None = None) -> ReleaseView:
        """Checks a release as a robot does, by its signatures, and every byte of it; returns it.

        Args:
            release: RELEASE.
            root: The root of trust to begin with; None for the server's first, which is then taken at its word.

        Raises:
            DamagedData: It is not signed, or a file is not what was signed.
        """
        with self._lab.client() as client:
            view = client.release(release)
            first = root if root is not None else client.trust_metadata("1.root.json")
            with refreshed(first, b"", client.trust_metadata, now_s=time.time(), floor=TrustFloor()) as trusted:
                signed = trusted.find(view.release.target)
                text = view.text.encode()
                if (len(text), hashlib.sha256(text).hexdigest()) != (signed.size_bytes, signed.sha256):
                    raise DamagedData("verify a release", on=release, got="other words than were signed")
                for file in view.release.content.files:
                    found = trusted.find(view.release.target_of_file(file))
                    if (found.size_bytes, found.sha256) != (file.size_bytes, file.sha256):
                        raise DamagedData("verify a release", on=file.path, got="another file than was signed")
        for file in view.release.content.files:
            if self._digest(file) != file.sha256:
                raise DamagedData("verify a release", on=file.path, got="other bytes", wanted=file.sha256[:16])
        return view

    def _digest(self, file: ReleaseFile) -> str:
        store, found = self._lab.objects(), hashlib.sha256()
        for offset in range(0, file.size_bytes, _READ_BYTES):
            size = min(_READ_BYTES, file.size_bytes - offset)
            found.update(store.get_range(artifact_key(file.sha256), offset=offset, size_bytes=size))
        return found.hexdigest()

    # ---------------------------------------------------------------- signatures

    def sign(self, release: str, *, keys: Sequence[Path]) -> TrustView:
        """Signs what is published and one more release, and returns what then waits.

        Args:
            release: RELEASE that is to be published; "" to sign what is published without what was revoked.
            keys: Files of people's keys.

        Raises:
            InvalidInput: Other targets wait for signatures, or a key does not count.
            Conflict: There is no root of trust yet.
        """
        with self._lab.client() as client:
            return self._sign(client, release, keys)

    def _sign(self, client: Client, release: str, keys: Sequence[Path]) -> TrustView:
        signers = [read_key(path) for path in keys]
        trust = client.trust()
        for path, signer in zip(keys, signers, strict=True):
            if signer.public_key.keyid not in trust.people:
                wanted = "one of the root's keys" if trust.people else "a root of trust: ms release trust new"
                raise InvalidInput("sign a release", on=str(path), got="a key that does not count", wanted=wanted)
        if not trust.versions.get(Targets.type):
            raise Conflict("sign a release", got="no root of trust", next_step="ms release trust new KEYS")
        published = client.releases(state=ReleaseState.PUBLISHED, limit=LIST_MAX)
        chosen = [view for view in published if not view.release.content.automatic]
        if release:
            view = client.release(release)
            if view.state is ReleaseState.REVOKED:
                raise Conflict("sign a release", on=release, got="one that is revoked", wanted="another")
            chosen += [view] if view.state is ReleaseState.PENDING else []
        full = [client.release(view.release.reference) for view in chosen]
        name = f"{trust.versions[Targets.type]}.{Targets.type}.json"
        before: Metadata[Targets] = Metadata.from_bytes(client.trust_metadata(name))
        made = next_targets(before, full, time.time())
        if trust.awaiting:
            waits: Metadata[Targets] = Metadata.from_bytes(trust.awaiting.encode())
            if waits.signed.targets == made.signed.targets and waits.signed.version == made.signed.version:
                made = waits  # What another has signed: the same, so the same bytes are signed.
        return client.set_targets(SignedText(text=signed_by(made, signers)))

    def new_trust(self, folder: Path, *, automatic: bool = False) -> TrustView:
        """Makes three keys, of which any two sign, and the lab's root of trust; hand the keys to three people.

        Args:
            folder: Where the keys are written: person-1.pem and so on, and root.json, for robots.
            automatic: Whether the server may sign releases of its own folder by itself.

        Raises:
            Conflict: There is a root of trust, or a key.
            NotAllowed: One may not say whose keys are trusted.
        """
        with self._lab.client() as client:
            trust = client.trust()
            if trust.versions:
                raise Conflict("make a root of trust", got="one that is there", next_step="ms release trust show")
            server = {role: read_server_key(text) for role, text in trust.server.items()}
            signers = [new_key(folder / f"person-{number}.pem") for number in range(1, PEOPLE + 1)]
            root = signed_by(new_root([signer.public_key for signer in signers], server, time.time()), signers)
            (folder / "root.json").write_text(root)
            client.set_root(SignedText(text=root))
            targets = new_targets(time.time(), automatic=server["automatic"] if automatic else None)
            return client.set_targets(SignedText(text=signed_by(targets, signers)))

    def renew_trust(self, *, keys: Sequence[Path]) -> TrustView:
        """Makes the root of trust, and targets as they are, good for another year.

        Args:
            keys: Files of people's keys, as many as it takes.

        Raises:
            NotFound: There is no root of trust yet.
            InvalidInput: They are too few, or do not count.
        """
        signers = [read_key(path) for path in keys]
        with self._lab.client() as client:
            before: Metadata[Root] = Metadata.from_bytes(client.trust_metadata("root.json"))
            client.set_root(SignedText(text=signed_by(next_root(before, time.time()), signers)))
            return self._sign(client, "", keys)

    def trust(self) -> TrustView:
        """Returns by whose keys releases are trusted, and what waits for signatures."""
        return self._lab.trust()
