"""Live attempts as columns, kept up to date as they come and go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from math import inf
from typing import Any

import numpy as np

from mainspring.domain.ids import AttemptId, ClusterName, NodeName
from mainspring.domain.job import MILLI
from mainspring.planner.facts.columns import HELD_COLUMNS, ClusterColumns, held_rows
from mainspring.planner.facts.durations import Durations
from mainspring.planner.facts.services import serves
from mainspring.planner.facts.snapshot import NEVER, NONE, Column, Integers, Live, LiveAttempt
from mainspring.planner.facts.tables import GrowableTable, columns, table_of

PREDICTED_AGAIN_S = 600.0  # What ends meanwhile teaches something about those that still run.
_UNSHOWN = {"predicted_s": NEVER, "queued": Column(dtype=np.bool_)}  # Columns beside those of `Live`.
_GIVEN = tuple(each.name for each in fields(LiveAttempt) if each.name in {**columns(Live, ""), **_UNSHOWN})


class Attempts:
    """Every live attempt.

    Args:
        durations: Says when they may end.
    """

    def __init__(self, durations: Durations) -> None:
        self._durations = durations
        self._table = GrowableTable({**columns(Live, ""), **_UNSHOWN})
        self._attempts: dict[str, LiveAttempt] = {}
        self._things: dict[str, Integers] = {}

    def put(self, attempt: LiveAttempt, *, shape: int, team: int, row_of: Mapping[NodeName, int]) -> None:
        """Adds an attempt; one that is known already is replaced.

        Args:
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
            asked = {
                "shape": shape,
                "tier": attempt.spec.tier.rank,
                "sized": attempt.sized,
            }  # People may change what a job asks for.
            for column, value in {**changes, **asked, "queued": attempt.queued}.items():
                self._table.set(name, column, value)
            return
        if known is not None:
            self._table.drop(name)
        self._things[name] = held_rows(attempt.spec, attempt.grants, row_of)
        self._table.put(
            name,
            0.0,
            {name: getattr(attempt, name) for name in _GIVEN}
            | {
                "shape": shape,
                "team": team,
                "tier": attempt.spec.tier.rank,
                "durable_s": durable_s,
                "serves": serves(attempt.spec),
                "chip_milli": sum(sum(grant.chip_milli) for grant in attempt.grants),
            },
        )

    def drop(self, attempt: AttemptId) -> None:
        """Forgets an attempt; does nothing when it is not known."""
        if self._attempts.pop(attempt, None) is not None:
            self._table.drop(attempt)
            del self._things[attempt]

    def place(self, cluster: ClusterName, row_of: Mapping[NodeName, int]) -> None:
        """Finds the nodes of all attempts on a cluster anew.

        Args:
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
        """
        names, rows = self._table.names(), self._table.rows()
        own = [self._attempts[name] for name in names]
        self._predict(own, rows, now_s)
        column = self._table.column
        cluster_row = {each.inventory.cluster: row for row, each in enumerate(clusters)}
        first = np.cumsum([0, *(len(each.row_of) for each in clusters)])
        cluster = np.array([cluster_row.get(each.grants[0].cluster, NONE) for each in own], dtype=np.int64)
        parts = [self._things[name] for name in names]
        things = np.concatenate(parts) if parts else np.zeros((0, len(HELD_COLUMNS)), dtype=np.int64)
        held_by = np.repeat(np.arange(len(own)), [len(part) for part in parts])
        where = cluster[held_by]
        node = np.where((where == NONE) | (things[:, 0] == NONE), NONE, things[:, 0] + first[where])
        granted_s = np.where(column("queued", rows), now_s, column("granted_s", rows))
        ran_s = np.maximum(now_s - granted_s, 0.0)
        told: dict[str, Any] = {name: column(name, rows) for name in columns(Live, "")}
        told |= {
            "team": team_row[told["team"]] if len(rows) else team_row[:0],
            "cluster": cluster,
            "granted_s": granted_s,
            "attained_chip_s": told["attained_chip_s"] + ran_s * told["chip_milli"] / MILLI,
            **{name: np.ascontiguousarray(things[:, each]) for each, name in enumerate(HELD_COLUMNS)},
            "held_by": held_by,
            "held_node": node,
        }
        return table_of(
            Live,
            attempts=tuple(each.attempt for each in own),
            jobs=tuple(each.job for each in own),
            grants=tuple(each.grants for each in own),
            **told,
        )

    def _predict(self, own: Sequence[LiveAttempt], rows: Integers, now_s: float) -> None:
        """Guesses anew when those end whose guess is old, or has passed."""
        column = self._table.column
        old = now_s - column("predicted_s", rows) >= PREDICTED_AGAIN_S
        for place in np.flatnonzero(old | (column("ends_s", rows) <= now_s)).tolist():
            attempt, row = own[place], int(rows[place])
            chips = int(self._table.column("chip_milli", rows[place : place + 1])[0]) / MILLI
            before_s = attempt.attained_chip_s / chips if chips else 0.0
            began_s = (now_s if attempt.queued else attempt.granted_s) - before_s
            duration = self._durations.predict(attempt.spec, elapsed_s=max(0.0, now_s - began_s))
            ends_s = max(now_s, began_s + duration.expected_s)
            self._table.write(row, "ends_s", ends_s)
            self._table.write(row, "ends_safe_s", max(ends_s, began_s + duration.safe_s))
            self._table.write(row, "predicted_s", now_s)
