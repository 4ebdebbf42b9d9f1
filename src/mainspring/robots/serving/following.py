"""A server that follows a training job: its newest checkpoint that is durable is put in use between two chunks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from mainspring.domain.errors import MainspringError
from mainspring.robots.serving.policy import ServedPolicy, warm
from mainspring.robots.serving.server import PolicyServer

REST_S = 0.01  # After each 8 MiB that is read, so that robots are answered meanwhile: of a gigabyte, over a second.
_log = logging.getLogger(__name__)


async def follow(
    server: PolicyServer,
    *,
    begun: int,
    newest: Callable[[], int],
    load: Callable[[int], ServedPolicy],
    every_s: float,
) -> None:
    """Looks for newer weights until it is cancelled; meanwhile two copies are in memory, and the old ones serve.

    What cannot be read, or does not warm up, is left alone until there is something newer.

    Args:
        server: Serves the weights of step `begun`.
        begun: Where it begins.
        newest: Returns the newest step there is; blocks.
        load: Returns the policy of a step; blocks, and leaves the processor to robots for `REST_S` again and again.
        every_s: Between two looks.
    """
    seen = begun
    while True:
        await asyncio.sleep(every_s)
        try:
            step = await asyncio.to_thread(newest)
            if step <= seen:
                continue
            seen = step
            server.swap(await asyncio.to_thread(_warmed, load, step))
        except MainspringError as error:
            _log.warning("%s", error)


def _warmed(load: Callable[[int], ServedPolicy], step: int) -> ServedPolicy:
    policy = load(step)
    warm(policy)
    return policy
