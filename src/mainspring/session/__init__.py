"""The session of a rank: join the agent, do steps, leave snapshots, restore, give results.

`join()` is the door. Nothing here imports JAX or PyTorch but the modules named after them, which programs import by
name.
"""

from mainspring.domain.goodput import TimeUse
from mainspring.domain.wire import EXIT_PREEMPTED, Part, Then
from mainspring.session.blocks import Block
from mainspring.session.join import join, open_named_store, open_view_store
from mainspring.session.restore import ArraySpec, Region, Restored
from mainspring.session.session import Session

__all__ = [
    "EXIT_PREEMPTED",
    "ArraySpec",
    "Block",
    "Part",
    "Region",
    "Restored",
    "Session",
    "Then",
    "TimeUse",
    "join",
    "open_named_store",
    "open_view_store",
]
