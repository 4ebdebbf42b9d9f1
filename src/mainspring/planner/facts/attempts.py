"""Live attempts as columns, kept up to date as they come and go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import cast

import numpy as np

from mainspring.domain.ids import AttemptId, ClusterName, JobId, NodeName
from mainspring.domain.job import MILLI, JobSpec
from mainspring.domain.plan import Grant
from mainspring.planner.facts.columns import HELD_COLUMNS, ClusterColumns, Table, held_rows
from mainspring.planner.facts.durations import Durations
from mainspring.planner.facts.snapshot import NONE, Flags, Floats, Integers, Live, sealed

PREDICTED_AGAIN_S = 600.0  # What ends meanwhile teaches something about those that still run.
_COLUMNS = {
    "shape": np.int64, "team": np.int64, "tier": np.int64, "submitted_s": np.float64, "granted_s": np.float64,
    "resized_s": np.float64, "attained_chip_s": np.float64, "durable_s": np.float64, "evicted_s": np.float64,
    "ends_s": np.float64, "ends_safe_s": np.float64, "predicted_s": np.float64, "stopping": np.bool_,
    "queued": np.bool_, "chip_milli": np.int64,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveAttempt:
    """An attempt that holds nodes.

    Args:
        attempt: Its id.
        job: Its job.
        spec: The job's spec.
        grants: What it was granted.
        submitted_s: When its job was submitted.
        granted_s: When it was granted.
        resized_s: When it was last given more or fewer nodes, minus infinity for never.
        attained_chip_s: Chip-seconds its job's earlier attempts had.
        durable_s: When its newest durable checkpoint was taken; None before the first.
        evicted_s: When an attempt of its job was last evicted.
        stopping: Whether it was asked to end already.
        queued: Whether it waits in its cluster's own queue: it has had nothing yet.
    """

    attempt: AttemptId
    job: JobId
    spec: JobSpec
    grants: tuple[Grant, ...]
    submitted_s: float
    granted_s: float
    resized_s: float = -inf
    attained_chip_s: float = 0.0
    durable_s: float | None = None
    evicted_s: float = -inf
    stopping: bool = False
    queued: bool = False


class Attempts:
    """Every live attempt.

    Args:
        durations: Says when they may end.
    """

    def __init__(self, durations: Durations) -> None:
        self._durations = durations
        self._table = Table(_COLUMNS)
        self._attempts: dict[str, LiveAttempt] = {}
        self._things: dict[str, Integers] = {}

    def put(self, attempt: LiveAttempt, *, shape: int, team: int, row_of: Mapping[NodeName, int]) -> None:
        """Adds an attempt; one that is known already is replaced.

        Args:
            attempt: The attempt.
            shape: Number of its shape.
            team: Number of its team.
            row_of: Rows of its cluster's nodes.
        """
        name = attempt.attempt
        known = self._attempts.get(name)
        self._attempts[name] = attempt
        durable_s = attempt.granted_s if attempt.durable_s is None else attempt.durable_s
        if known is not None and known.grants == attempt.grants:
            if known.granted_s != attempt.granted_s:
                self._table.set(name, "predicted_s", -inf)
            changes = {"granted_s": attempt.granted_s, "durable_s": durable_s, "stopping": attempt.stopping}
            for column, value in {**changes, "queued": attempt.queued}.items():
                self._table.set(name, column, value)
            return
        if known is not None:
            self._table.drop(name)
        self._things[name] = held_rows(attempt.spec, attempt.grants, row_of)
        self._table.put(
            name,
            0.0,
            {
                "shape": shape,
                "team": team,
                "tier": attempt.spec.tier.rank,
                "submitted_s": attempt.submitted_s,
                "granted_s": attempt.granted_s,
                "resized_s": attempt.resized_s,
                "attained_chip_s": attempt.attained_chip_s,
                "durable_s": durable_s,
                "evicted_s": attempt.evicted_s,
                "ends_s": inf,
                "ends_safe_s": inf,
                "predicted_s": -inf,
                "stopping": attempt.stopping,
                "queued": attempt.queued,
                "chip_milli": sum(sum(grant.chip_milli) for grant in attempt.grants),
            },
        )

    def drop(self, attempt: AttemptId) -> None:
        """Forgets an attempt; does nothing when it is not known.

        Args:
            attempt: The attempt.
        """
        if self._attempts.pop(attempt, None) is not None:
            self._table.drop(attempt)
            del self._things[attempt]

    def place(self, cluster: ClusterName, row_of: Mapping[NodeName, int]) -> None:
        """Finds the nodes of all attempts on a cluster anew.

        Args:
            cluster: Whose nodes changed.
            row_of: Their rows.
        """
        for name, attempt in self._attempts.items():
            if attempt.grants[0].cluster == cluster:
                self._things[name] = held_rows(attempt.spec, attempt.grants, row_of)

    def shapes(self) -> set[int]:
        """Returns the numbers of all shapes in use."""
        return set(self._table.column("shape", self._table.rows()).tolist())

    def renumber(self, shapes: Mapping[int, int]) -> None:
        """Gives shapes other numbers.

        Args:
            shapes: New numbers by old.
        """
        rows = self._table.rows()
        for name, old in zip(self._table.names(), self._table.column("shape", rows).tolist(), strict=True):
            self._table.set(name, "shape", shapes[old])

    def table(self, clusters: Sequence[ClusterColumns], team_row: Integers, now_s: float) -> Live:
        """Returns all of them as columns.

        Args:
            clusters: In order of name.
            team_row: Row of each team by its number.
            now_s: The time.
        """
        names, rows = self._table.names(), self._table.rows()
        own = [self._attempts[name] for name in names]
        self._predict(own, rows, now_s)
        column = self._table.column
        cluster_row = {each.inventory.cluster: row for row, each in enumerate(clusters)}
        first = np.cumsum([0, *(len(each.row_of) for each in clusters)])
        cluster = np.array([cluster_row.get(each.grants[0].cluster, NONE) for each in own], dtype=np.int64)
        parts = [self._things[name] for name in names]
        things = np.concatenate(parts) if parts else np.zeros((0, HELD_COLUMNS), dtype=np.int64)
        held_by = np.repeat(np.arange(len(own)), [len(part) for part in parts])
        where = cluster[held_by]
        node = np.where((where == NONE) | (things[:, 0] == NONE), NONE, things[:, 0] + first[where])
        columns = (np.ascontiguousarray(things[:, each]) for each in range(1, HELD_COLUMNS))
        whole, cpu, memory, chip, share = (sealed(each) for each in columns)
        milli = cast(Integers, column("chip_milli", rows))
        granted_s = np.where(column("queued", rows), now_s, cast(Floats, column("granted_s", rows)))
        ran_s = np.maximum(now_s - granted_s, 0.0)
        had = cast(Floats, column("attained_chip_s", rows)) + ran_s * milli / MILLI
        return Live(
            attempts=tuple(each.attempt for each in own),
            jobs=cast(tuple[JobId, ...], tuple(each.job for each in own)),
            grants=tuple(each.grants for each in own),
            shape=cast(Integers, column("shape", rows)),
            team=sealed(team_row[column("team", rows)] if len(rows) else team_row[:0]),
            tier=cast(Integers, column("tier", rows)),
            cluster=sealed(cluster),
            submitted_s=cast(Floats, column("submitted_s", rows)),
            granted_s=sealed(granted_s),
            resized_s=cast(Floats, column("resized_s", rows)),
            attained_chip_s=sealed(had),
            durable_s=cast(Floats, column("durable_s", rows)),
            evicted_s=cast(Floats, column("evicted_s", rows)),
            ends_s=cast(Floats, column("ends_s", rows)),
            ends_safe_s=cast(Floats, column("ends_safe_s", rows)),
            stopping=cast(Flags, column("stopping", rows)),
            chip_milli=milli,
            held_by=sealed(held_by),
            held_node=sealed(node),
            held_whole=whole,
            held_cpu_milli=cpu,
            held_memory_mib=memory,
            held_chip=chip,
            held_share_milli=share,
        )

    def _predict(self, own: Sequence[LiveAttempt], rows: Integers, now_s: float) -> None:
        """Guesses anew when those end whose guess is old, or has passed."""
        column = self._table.column
        old = now_s - cast(Floats, column("predicted_s", rows)) >= PREDICTED_AGAIN_S
        for place in np.flatnonzero(old | (cast(Floats, column("ends_s", rows)) <= now_s)).tolist():
            attempt, row = own[place], int(rows[place])
            chips = int(self._table.column("chip_milli", rows[place : place + 1])[0]) / MILLI
            before_s = attempt.attained_chip_s / chips if chips else 0.0
            began_s = (now_s if attempt.queued else attempt.granted_s) - before_s
            duration = self._durations.predict(attempt.spec, elapsed_s=max(0.0, now_s - began_s))
            ends_s = max(now_s, began_s + duration.expected_s)
            self._table.write(row, "ends_s", ends_s)
            self._table.write(row, "ends_safe_s", max(ends_s, began_s + duration.safe_s))
            self._table.write(row, "predicted_s", now_s)
