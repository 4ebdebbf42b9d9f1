"""Pre-flight check: is this node fit to start the attempt's ranks? What it finds stays in the agent's folder."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mainspring.checkpoint import newest_claim
from mainspring.domain import codec, wire
from mainspring.domain.errors import StorageFull, Unavailable
from mainspring.domain.ids import JobId
from mainspring.node.snapshots.arena import memory_available_bytes
from mainspring.objects import ObjectStore

PROBE_FILE = "probe.json"
ROOM_BYTES_MIN = 64 << 20  # Logs and sockets; less than this is a disk that is as good as full.
CLOCK_OFF_S = 5.0  # Past the whole second of an HTTP date and a slow answer: worth a word, and no more than that.


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """What the probe found.

    Args:
        disk_free_bytes: Room where logs go.
        memory_free_bytes: Memory the kernel calls available.
        memory_wanted_bytes: What this node's ranks may use together, 0 for no bound.
        clock_ahead_s: How far this node's clock is ahead of the controller's, to the second.
        clock_off: Whether that is too far for times in logs to be compared.
    """

    disk_free_bytes: int
    memory_free_bytes: int
    memory_wanted_bytes: int
    clock_ahead_s: float
    clock_off: bool


def probe(
    work: Path,
    store: ObjectStore,
    *,
    job: JobId,
    roles: Sequence[wire.RoleOrders],
    places: Sequence[wire.RankPlace],
    clock_ahead_s: float,
    room_bytes: int = ROOM_BYTES_MIN,
) -> Probed:
    """Returns what was found, and writes it down as `PROBE_FILE`.

    Args:
        work: The agent's folder.
        store: The attempt's object store; it must answer.
        job: Whose part of it is asked for.
        places: This node's.
        clock_ahead_s: What the controller's answers showed.
        room_bytes: What must be free on its disk.

    Raises:
        StorageFull: The disk has no room for logs.
        Unavailable: The memory the ranks may use is not there, or the store does not answer.
    """
    memory_mib = {role.role: role.memory_mib for role in roles}
    found = Probed(
        disk_free_bytes=shutil.disk_usage(work).free,
        memory_free_bytes=memory_available_bytes(),
        memory_wanted_bytes=sum(memory_mib.get(place.role, 0) for place in places) << 20,
        clock_ahead_s=clock_ahead_s,
        clock_off=abs(clock_ahead_s) > CLOCK_OFF_S,
    )
    (work / PROBE_FILE).write_bytes(codec.encode(found))
    if found.disk_free_bytes < room_bytes:
        raise StorageFull(
            "start an agent",
            on=str(work),
            got=f"{found.disk_free_bytes} bytes free",
            wanted=f"{room_bytes} bytes free",
        )
    if found.memory_free_bytes < found.memory_wanted_bytes:
        raise Unavailable(
            "start an agent",
            on="this node's memory",
            got=f"{found.memory_free_bytes >> 20} MiB free",
            wanted=f"{found.memory_wanted_bytes >> 20} MiB for its ranks",
        )
    newest_claim(store, job)  # That it answers is all that counts.
    return found
