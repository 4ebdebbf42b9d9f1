"""Connects JAX to the coordination service the agent hosts, so that no rank hosts it and any rank may die.

`jax.distributed.initialize` always makes rank 0 the host. This file does what it does but for that, through private
names of JAX; it is the only file of the room that uses any, and it checks the version first.
"""

from __future__ import annotations

import atexit
import sys

import jax
from jax._src import distributed
from jaxlib import _jax

from mainspring.domain.errors import InvalidInput, Unavailable
from mainspring.session.session import Session

VERSIONS = ("0.10.",)  # Releases whose private names were read and tried.
CONNECT_LIMIT_S = 120  # The service is up before ranks start; the rest is ranks importing on a busy machine.


def initialize(session: Session) -> None:
    """Makes this process one of `session.world_size` JAX processes; does nothing when the world is 1.

    Must come before anything that starts a JAX backend. CPU collectives run over gloo.

    Args:
        session: The rank's session.

    Raises:
        InvalidInput: This JAX is of a release whose private names are not known.
        Unavailable: The agent hosts no coordination service, or it does not answer.
    """
    if session.world_size == 1:
        return
    if not jax.__version__.startswith(VERSIONS):
        raise InvalidInput(
            "connect JAX to its coordination service",
            got=f"JAX {jax.__version__}",
            wanted=f"a release that starts with one of {', '.join(VERSIONS)}",
        )
    if not session.coordinator:
        raise Unavailable(
            "connect JAX to its coordination service",
            got="an agent that hosts none",
            next_step="install jaxlib where the agent runs",
        )
    jax.config.update("jax_cpu_collectives_implementation", "gloo")  # type: ignore[no-untyped-call]
    try:
        client = _jax.get_distributed_runtime_client(
            session.coordinator, session.rank, init_timeout=CONNECT_LIMIT_S, use_compression=True
        )
        client.connect()
    except jax.errors.JaxRuntimeError as error:
        raise Unavailable(
            "connect JAX to its coordination service", on=session.coordinator, got=str(error)[:500]
        ) from error
    state = distributed.global_state
    state.client = client
    state.process_id = session.rank
    state.num_processes = session.world_size
    state.coordinator_address = session.coordinator
    atexit.register(_leave)


def _leave() -> None:
    """Skips JAX's farewell when the program failed: it waits for all ranks, and would hide the failure for minutes."""
    if getattr(sys, "last_value", None) is not None:
        distributed.global_state.client = None
