"""What a rank imports: join the agent, report steps, leave snapshots, restore, give results.

`join()` is the door. Nothing here imports JAX but `jax_state` and `jax_distributed`, which programs import by name.
"""

from mainspring.session.blocks import Block, Restored
from mainspring.session.join import join
from mainspring.session.session import Session

__all__ = ["Block", "Restored", "Session", "join"]
