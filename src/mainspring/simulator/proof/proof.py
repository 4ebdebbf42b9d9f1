"""Fault proof: the real loop, store and leads against a world that fails, on virtual time, from one seed.

Safety phase: anything may fail, and nothing may be wrong. Liveness phase: faults stop, and everything ends within a
bounded number of ticks. What may never be wrong is in `laws`, and where it would show, in `nodes`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from mainspring.simulator.nodes.rare import Rare
from mainspring.simulator.proof.world import World

_MEMORY = Path("/dev/shm")  # Where a store's flushes cost nothing; nothing here outlives the run.


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What happened: one line an event of the world, the same for the same seed.

    Args:
        seed: Where everything came from.
        lines: What happened, in order.
        settle_ticks: Ticks from the end of faults to the end of the last job.
        seen: How often each rare state was seen.
    """

    seed: int
    lines: tuple[str, ...]
    settle_ticks: int
    seen: Mapping[Rare, int]

    @property
    def digest(self) -> str:
        """Returns a short name that differs when any line does."""
        return hashlib.sha256("\n".join(self.lines).encode()).hexdigest()[:16]


def prove(seed: int, *, steps: int = 150) -> Trace:
    """Runs one world through both phases and returns what happened.

    Args:
        seed: Where its size, its faults and its luck come from.
        steps: How long the safety phase is.

    Raises:
        AssertionError: A law was broken. This and any other error carries the seed and the last lines as its notes.
    """
    with TemporaryDirectory(prefix="mainspring-proof-", dir=_MEMORY if _MEMORY.is_dir() else None) as folder:
        world = World(seed, Path(folder))
        try:
            settle_ticks = world.run(steps)
        except BaseException as error:
            error.add_note(f"seed {seed}, {steps} steps; the last lines:\n" + "\n".join(world.lines[-30:]))
            raise
        finally:
            world.close()
    return Trace(seed=seed, lines=tuple(world.lines), settle_ticks=settle_ticks, seen=dict(sorted(world.seen.items())))
