"""Snapshots of code: which of them no job names any more.

A job in the store names its own, whether it has ended or not. Whoever submits one that is there already says so beside
it, so what has lain for long and is named by none, nobody is about to name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from mainspring.control.store.records import chunks
from mainspring.control.store.schema import jobs
from mainspring.domain.job import CODE_FOLDER, CODE_SCHEME
from mainspring.objects import ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeSnapshot:
    """One archived tree: its content id, and the keys of all that is of it, itself first where it is there."""

    tree: str
    keys: tuple[str, ...]


def old_snapshots(objects: ObjectStore, *, before_s: float) -> Sequence[CodeSnapshot]:
    """Returns the snapshots that were last submitted before a time.

    Args:
        before_s: By the clock of the object store.

    Raises:
        MainspringError: As `ObjectStore.list` does.
    """
    keys: dict[str, list[str]] = {}
    young: set[str] = set()
    for seen in objects.list(CODE_FOLDER):
        tree = CODE_SCHEME + seen.key.removeprefix(f"{CODE_FOLDER}/").partition(".")[0]
        keys.setdefault(tree, []).append(seen.key)
        if seen.modified_s >= before_s:
            young.add(tree)
    return [
        CodeSnapshot(tree=tree, keys=tuple(sorted(own, reverse=True)))
        for tree, own in keys.items()
        if tree not in young
    ]


def unnamed(connection: sa.Connection, found: Sequence[CodeSnapshot]) -> Sequence[CodeSnapshot]:
    """Returns those of some snapshots that no job in the store names, in their order."""
    named: set[str] = set()
    for some in chunks(found):
        query = sa.select(jobs.c.code).where(jobs.c.code.in_([one.tree for one in some]))
        named |= set(connection.execute(query.distinct()).scalars())
    return [one for one in found if one.tree not in named]
