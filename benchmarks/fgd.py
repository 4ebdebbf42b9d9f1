"""Fragmentation gradient descent, rebuilt from its paper and checked against its published results: the peer.

Source: Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent",
    USENIX ATC 2023; details the paper leaves open follow its simulator, hkust-adsl/kubernetes-scheduler-simulator:
    the mix is the most popular pods up to 95 % of all; memory is filtered on but not scored; a score is the gradient's
    logistic, cut to an integer from 0 to 100; the first node wins a tie, and the first chip.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

POPULAR = 0.95
SCORE_MAX = 100.0
NOISE = 1e-9  # Keeps a gradient of nil from falling to either side of an integer.


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Ask:
    """What a pod asks for.

    Args:
        cpu_milli: Cores.
        milli: Thousandths of each chip.
        chips: How many chips.
        models: Types of chip it takes, all when empty.
        memory_mib: Memory.
    """

    cpu_milli: int
    milli: int
    chips: int
    models: tuple[str, ...] = ()
    memory_mib: int = 0


class Fgd:
    """Places pods one at a time.

    Args:
        cpu_milli: Cores of each node, in the order in which ties are broken.
        memory_mib: Memory of each.
        chips: Chips of each.
        models: Type of chip of each.
        pods: The pods whose mix is known.
    """

    def __init__(
        self,
        cpu_milli: Sequence[int],
        memory_mib: Sequence[int],
        chips: Sequence[int],
        models: Sequence[str],
        pods: Sequence[Ask],
    ) -> None:
        self._cpu = np.array(cpu_milli, dtype=np.int64)
        self._memory = np.array(memory_mib, dtype=np.int64)
        # A chip that is not there is a full one.
        self._width = max(chips)
        self._free = np.where(np.arange(self._width) < np.array(chips)[:, None], 1_000, 0)
        self._models = sorted(set(models))
        self._model = np.array([self._models.index(model) for model in models], dtype=np.int64)
        self._changed = np.ones(len(self._cpu), dtype=np.int64)
        self._seen: dict[Ask, Integers] = {}
        self._scores: dict[Ask, Floats] = {}
        self._chosen: dict[Ask, Integers] = {}
        asks, weights = typical(pods)
        self._weights = weights
        self._ask_cpu = np.array([ask.cpu_milli for ask in asks], dtype=np.int64)
        self._ask_milli = np.array([ask.milli for ask in asks], dtype=np.int64)
        self._ask_chips = np.array([ask.chips for ask in asks], dtype=np.int64)
        self._ask_takes = np.stack([self._takes(ask) for ask in asks], axis=1)
        self._lost = self._fragments(self._cpu, self._free, self._model)

    def place(self, ask: Ask) -> int | None:
        """Takes room for a pod and returns its node's row; None when it fits nowhere.

        Args:
            ask: What the pod asks for.
        """
        self._update(ask)
        scores = self._scores[ask]
        row = int(scores.argmax())
        if scores[row] < 0:
            return None
        self._cpu[row] -= ask.cpu_milli
        self._memory[row] -= ask.memory_mib
        if 0 < ask.milli < 1_000:
            self._free[row, self._chosen[ask][row]] -= ask.milli
        elif ask.chips:
            self._free[row, np.flatnonzero(self._free[row] == 1_000)[: ask.chips]] = 0
        self._changed[row] += 1
        self._lost[row] = self._fragments(self._cpu[[row]], self._free[[row]], self._model[[row]])[0]
        return row

    def _takes(self, ask: Ask) -> NDArray[np.bool_]:
        """Returns by model whether a pod may use it."""
        return np.array([not ask.models or model in ask.models for model in self._models], dtype=np.bool_)

    def _fragments(self, cpu: Integers, free: Integers, model: Integers) -> Floats:
        """Returns the expected thousandths of chips on each node that the mix could not use now."""
        total = free.sum(axis=1)[:, None]
        enough = free[:, None, :] >= self._ask_milli[None, :, None]
        usable = enough.sum(axis=2) >= self._ask_chips
        usable &= (self._ask_milli > 0) & (cpu[:, None] >= self._ask_cpu) & self._ask_takes[model]
        small = np.where(enough, 0, free[:, None, :]).sum(axis=2)
        lost: Floats = np.where(usable, small, total) @ self._weights
        return lost

    def _update(self, ask: Ask) -> None:
        """Scores the nodes that changed since the last such pod; those without room score -1."""
        if ask not in self._seen:
            self._seen[ask] = np.zeros(len(self._cpu), dtype=np.int64)
            self._scores[ask] = np.full(len(self._cpu), -1.0)
            self._chosen[ask] = np.zeros(len(self._cpu), dtype=np.int64)
        rows = np.flatnonzero(self._seen[ask] != self._changed)
        self._seen[ask][rows] = self._changed[rows]
        self._scores[ask][rows] = -1.0
        fits = (self._cpu[rows] >= ask.cpu_milli) & (self._memory[rows] >= ask.memory_mib)
        fits &= ((self._free[rows] >= ask.milli).sum(axis=1) >= ask.chips) & self._takes(ask)[self._model[rows]]
        rows = rows[fits]
        if not len(rows):
            return
        shared = 0 < ask.milli < 1_000
        free = self._free[rows]
        if shared:
            after = np.repeat(free[:, None, :], self._width, axis=1)
            after[:, np.arange(self._width), np.arange(self._width)] -= ask.milli
        else:
            whole = free == 1_000
            after = np.where(whole & (whole.cumsum(axis=1) <= ask.chips), 0, free)[:, None, :]
        ways = after.shape[1]
        lost = self._fragments(
            np.repeat(self._cpu[rows] - ask.cpu_milli, ways),
            after.reshape(-1, self._width),
            np.repeat(self._model[rows], ways),
        ).reshape(len(rows), ways)
        scores = np.floor(SCORE_MAX / (1.0 + np.exp((lost - self._lost[rows, None]) / 1_000.0)) + NOISE)
        if shared:
            scores[free < ask.milli] = -1.0
        chosen = scores.argmax(axis=1)
        self._chosen[ask][rows] = chosen
        self._scores[ask][rows] = scores[np.arange(len(rows)), chosen]


def typical(pods: Sequence[Ask]) -> tuple[list[Ask], Floats]:
    """Returns the most popular pods, and what part of these each is.

    Args:
        pods: All pods; their memory does not count.
    """
    counts = Counter(Ask(cpu_milli=pod.cpu_milli, milli=pod.milli, chips=pod.chips, models=pod.models) for pod in pods)
    asks = sorted(counts, key=lambda ask: (counts[ask], ask), reverse=True)
    running = np.cumsum([counts[ask] for ask in asks])
    kept = int(np.searchsorted(running, POPULAR * len(pods))) + 1
    return asks[:kept], np.array([counts[ask] for ask in asks[:kept]]) / running[kept - 1]
