"""Snapshots of code: which of them no job names any more.

A job in the store names its own, whether it has ended or not. Whoever submits one that is there already says so beside
it, so what has lain for long and is named by none, nobody is about to name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import sqlalchemy as sa

from mainspring.control.store.records import chunks
from mainspring.control.store.schema import jobs
from mainspring.domain.job import CODE_FOLDER, CODE_SCHEME
from mainspring.objects import ObjectSeen, ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeSnapshot:
    """One archived tree: its content id, and the keys of all that is of it, itself first where it is there."""

    tree: str
    keys: tuple[str, ...]


def old_snapshots(
    objects: ObjectStore, *, before_s: float, bytes_max: float = inf, spared_s: float = 0.0
) -> Sequence[CodeSnapshot]:
    """Returns the snapshots that were last submitted before a time, or longest ago where all take more than a bound.

    Args:
        before_s: By the clock of the object store.
        bytes_max: How much all of them may take together.
        spared_s: What was submitted after this is not among them for any bound.

    Raises:
        MainspringError: As `ObjectStore.list` does.
    """
    files: dict[str, list[ObjectSeen]] = {}
    for seen in objects.list(CODE_FOLDER):
        tree = CODE_SCHEME + seen.key.removeprefix(f"{CODE_FOLDER}/").partition(".")[0]
        files.setdefault(tree, []).append(seen)
    found, taken = list[CodeSnapshot](), 0
    newest_s = {tree: max(seen.modified_s for seen in own) for tree, own in files.items()}
    for tree in sorted(files, key=lambda tree: -newest_s[tree]):
        taken += sum(seen.size_bytes for seen in files[tree])
        if newest_s[tree] < before_s or (taken > bytes_max and newest_s[tree] < spared_s):
            keys = sorted((seen.key for seen in files[tree]), reverse=True)
            found.append(CodeSnapshot(tree=tree, keys=tuple(keys)))
    return found


def unnamed(connection: sa.Connection, found: Sequence[CodeSnapshot]) -> Sequence[CodeSnapshot]:
    """Returns those of some snapshots that no job in the store names, in their order."""
    named: set[str] = set()
    for some in chunks(found):
        query = sa.select(jobs.c.code).where(jobs.c.code.in_([one.tree for one in some]))
        named |= set(connection.execute(query.distinct()).scalars())
    return [one for one in found if one.tree not in named]
