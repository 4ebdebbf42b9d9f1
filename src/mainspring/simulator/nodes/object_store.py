"""A job's checkpoints as the object store has them: claims, shares, manifests; and what may never happen to them."""

from __future__ import annotations

import zlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import final

from mainspring.checkpoint import KEEP_STEPS, Claim, share_file
from mainspring.domain.wire import ShareStored
from mainspring.node.lead.effects import WriteManifest

SLOW = 0.1  # How often an answer takes long: more often than for real, so that short runs meet some.


@dataclass(frozen=True, slots=True)
class Content:
    """What a rank's state is: equal values stand for equal bytes.

    Args:
        branch: The generation that computed it: attempt, epoch, generation. Ranks of another one, resumed at an
            earlier step, compute other bytes.
        step: The step it is the state after.
    """

    branch: str
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Durable:
    content: Content
    manifest: WriteManifest


@final
class JobStore:
    """One job's part of the object store, and its laws.

    Of a durable step every share is there, all are of one state, and none of its bytes ever changes.
    """

    def __init__(self) -> None:
        self.up = True
        self.slow = SLOW
        self.damaged: set[int] = set()
        self._claim: Claim | None = None
        self._shares: dict[str, Content] = {}
        self._durable: dict[int, _Durable] = {}

    @property
    def steps(self) -> tuple[int, ...]:
        """Returns the durable steps, newest first."""
        return tuple(sorted(self._durable, reverse=True))

    @property
    def claim(self) -> Claim | None:
        """Returns the newest claim, None before the first."""
        return self._claim

    def put_claim(self, claim: Claim) -> None:
        """Tells leads with older claims that they may write no more."""
        self._claim = max(claim, self._claim or claim)

    def keep(self, claim: Claim, *, generation: int, rank: int, content: Content) -> str:
        """Writes a rank's share, and returns its file's name.

        Raises:
            AssertionError: A durable step names that file, with other bytes.
        """
        file = f"{content.step}/{share_file(claim, generation=generation, rank=rank)}"
        before = self._shares.get(file)
        named = any(share.file == file for one in self._durable.values() for share in one.manifest.shares)
        assert before in (None, content) or not named, f"{file} of a durable step was {before} and is {content}"
        self._shares[file] = content
        return file

    def commit(self, manifest: WriteManifest, *, ranks: Collection[int]) -> bool:
        """Makes a step durable unless it is; returns whether this call did.

        Args:
            ranks: How many ranks there were in the generation the step was taken in; several where two leads used
                its number.

        Raises:
            AssertionError: A share is missing, or is of another state than the others.
        """
        step = manifest.step
        contents = {share.rank: self._shares[share.file] for share in manifest.shares}
        kinds = sorted({(one.branch, one.step) for one in contents.values()})
        assert len(kinds) == 1, f"durable step {step} would be mixed from {kinds}"
        assert kinds[0][1] == step, f"durable step {step} would hold the state after step {kinds[0][1]}"
        assert len(contents) in ranks, f"durable step {step} has {len(contents)} shares, of {sorted(ranks)} ranks"
        if manifest.replace and step in self.damaged:
            self._durable.pop(step, None)
            self.damaged.discard(step)
        if step in self._durable:
            return False
        self._durable[step] = _Durable(content=Content(*kinds[0]), manifest=manifest)
        for old in sorted(self._durable)[:-KEEP_STEPS]:
            if old != manifest.trusted:
                self._forget(old)
        return True

    def withdraw(self, after: int) -> None:
        """Makes later steps durable no more."""
        for step in [step for step in self._durable if step > after]:
            self._forget(step)

    def _forget(self, step: int) -> None:
        del self._durable[step]
        self.damaged.discard(step)

    def content(self, step: int) -> Content | None:
        """Returns what a durable step is, None where it is gone or damaged."""
        found = self._durable.get(step)
        return None if found is None or step in self.damaged else found.content


def stored(rank: int, content: Content, file: str, *, wrong: str = "") -> ShareStored:
    """Returns what an agent tells its lead of a share that is in the store.

    Args:
        wrong: How it differs from what it should be, "" where it does not.
    """
    told = zlib.crc32(f"{content} {wrong}".encode())
    return ShareStored(rank=rank, step=content.step, file=file, size_bytes=1, replicas_of=1, replicas=(told,))
