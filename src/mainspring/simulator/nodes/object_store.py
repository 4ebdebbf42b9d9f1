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
        agreed: The newest step up to it on whose state all devices are known to have agreed, -1 for none.
    """

    branch: str
    step: int
    agreed: int = -1


def branch_of(claim: Claim, generation: int) -> str:
    """Returns what a generation computes."""
    return f"{claim.number}.{claim.epoch}.{generation}"


@dataclass(slots=True, kw_only=True)
class _Doubt:
    """What was told to be wrong.

    Args:
        claim: Which lead was told.
        limit: Later steps are wrong,
        branches: of these branches.
        asked: Whether that lead has asked the store to withdraw it.
        withdrawn: Whether the store has.
    """

    claim: Claim
    limit: int
    branches: frozenset[str]
    asked: bool = False
    withdrawn: bool = False


@final
class Courses:
    """What became of one job's states, and the laws of those that are told to be wrong.

    Once a lead is told that a device stands alone, no generation of it begins from what was computed since all agreed
    for the last time, nor does any of a later attempt once the lead has had it withdrawn, which it has before it ends.
    """

    def __init__(self) -> None:
        self._begun: dict[str, Content] = {}
        self._agreed: dict[str, int] = {}
        self._doubts: list[_Doubt] = []

    def began(self, branch: str, state: Content) -> None:
        """Takes note of what a generation begins from."""
        self._begun.setdefault(branch, state)

    def agreed(self, branch: str, step: int) -> None:
        """Takes note of a state on which all devices agreed, before they did the next step: so is all it came from."""
        for each, last in self._course(Content(branch, step)):
            self._agreed[each] = max(last, self._agreed.get(each, -1))

    def doubt(self, claim: Claim, state: Content, *, oldest: int) -> None:
        """Takes note that devices were told to differ.

        Args:
            claim: Of the lead that was told.
            state: The one that they computed with.
            oldest: The oldest durable step that can be had, which has to do where nothing as old as it should be is.
        """
        course = self._course(state)
        proven = max((min(step, self._agreed.get(branch, -1)) for branch, step in course), default=-1)
        limit = max(proven, oldest)
        branches = frozenset(branch for branch, step in course if step > limit)
        open_ones = [one for one in self._doubts if one.claim == claim and not one.withdrawn]
        asked = any(one.asked and one.limit <= limit for one in open_ones)
        self._doubts.append(_Doubt(claim=claim, limit=limit, branches=branches, asked=asked))

    def asked(self, claim: Claim, after: int) -> None:
        """Takes note that a lead asks the store to withdraw what came after a step."""
        for doubt in self._doubts:
            doubt.asked |= doubt.claim == claim and after <= doubt.limit

    def withdrawn(self, claim: Claim, after: int, *, stays: int) -> None:
        """Takes note that the store has withdrawn for a lead what came after a step.

        Args:
            stays: The last that stayed: a newer one, where what was to stay was gone by then.
        """
        for doubt in self._doubts:
            if doubt.claim == claim and after <= doubt.limit:
                doubt.withdrawn, doubt.limit = True, max(doubt.limit, stays)

    def check_start(self, claim: Claim, state: Content) -> None:
        """Checks what a generation begins from, as its lead lets ranks start.

        A lead that follows one that was told and died knows nothing of it, and the next check finds the device again.

        Raises:
            AssertionError: It is told to be wrong.
        """
        found = [doubt for doubt in self._doubts if self._is_wrong(state, doubt)]
        for doubt in found:
            known = doubt.claim == claim or (doubt.withdrawn and doubt.claim.number != claim.number)
            assert not known, f"{claim} begins from {state}, of which {doubt} is told"
            self._doubts.remove(doubt)

    def check_over(self, claim: Claim, last: Content | None) -> None:
        """Checks what a lead that is over has left behind.

        Args:
            last: The state in which the program came to its end, None where it did not.

        Raises:
            AssertionError: That is told to be wrong, or nobody has asked the store to withdraw what is.
        """
        for doubt in self._doubts:
            if doubt.claim == claim:
                assert doubt.asked, f"{claim} is over, and the store was never asked to withdraw what {doubt} tells of"
                assert last is None or not self._is_wrong(last, doubt), f"{claim} ends well with {last}: {doubt}"

    def _is_wrong(self, state: Content, doubt: _Doubt) -> bool:
        return any(step > doubt.limit and branch in doubt.branches for branch, step in self._course(state))

    def _course(self, state: Content) -> list[tuple[str, int]]:
        """Returns by which branches, and up to which step of each, a state came about; newest first."""
        found, at = list[tuple[str, int]](), state
        while at.step >= 0 and at.branch in self._begun:
            found.append((at.branch, at.step))
            at = self._begun[at.branch]
        return found


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
        self.withdrawn = 0
        """How many durable steps ever were."""
        self.courses = Courses()
        self._claim: Claim | None = None
        self._shares: dict[str, Content] = {}
        self._durable: dict[int, _Durable] = {}

    @property
    def steps(self) -> tuple[int, ...]:
        """Returns the durable steps, newest first."""
        return tuple(sorted(self._durable, reverse=True))

    @property
    def oldest(self) -> int:
        """Returns the oldest durable step that can be had; where all are damaged, the newest: nobody may know."""
        sound = (step for step in self._durable if step not in self.damaged)
        return min(sound, default=max(self._durable, default=-1))

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
        kinds = sorted({(one.branch, one.step, one.agreed) for one in contents.values()})
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

    def withdraw(self, after: int) -> int:
        """Makes later steps durable no more, as `checkpoint.withdraw` does; returns after which."""
        stays = max(after, min(self._durable, default=after)) if after >= 0 else after
        for step in [step for step in self._durable if step > stays]:
            self._forget(step)
            self.withdrawn += 1
        return stays

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
