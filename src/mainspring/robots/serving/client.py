"""The client of a policy server for a robot's control loop, with real-time chunking: what to do in every step.

While one chunk is carried out, the next is asked for. When none comes, the robot ends the chunk that it has, then
holds, then is told to make its own safe stop, which lasts until `reset`. Needs NumPy, msgpack and websockets alone.
Source: Black et al., "Real-Time Execution of Action Chunking Flow Policies", 2025; field names as in LeRobot's `rtc`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from mainspring.domain.errors import InvalidInput, InvalidMessage
from mainspring.robots.serving.wire import OURS, pack, unpack

FloatArray = NDArray[np.float32]
AGAIN_S_MAX = 2.0  # Between two tries to connect, at most; the first comes after a tenth of it.
ANSWER_S_MAX = 10.0  # A server that takes longer is another's turn: one connects anew.
MESSAGE_BYTES_MAX = 16 << 20  # A chunk of 1,024 actions of 1,024 numbers is a quarter of it.
TROUBLES = (OSError, WebSocketException, InvalidMessage)
DELAYS_SEEN = 10  # The delay to expect is the longest of so many, as in LeRobot's `latency_tracker`.


class Doing(str, Enum):
    """What a robot does in a step."""

    FOLLOW = "follow"  # A chunk of the policy.
    HOLD = "hold"  # It stays where it is: no chunk is left.
    STOP = "stop"  # Its own safe stop: no chunk came for too long.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Command:
    """One step of a robot.

    Args:
        action: None for the robot's own safe stop, and to hold when there is nothing to repeat.
        policy_version: Of the chunk that the action is from, 0 for none.
    """

    doing: Doing
    action: FloatArray | None
    policy_version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Followed:
    """A chunk, the step that its first action is of, and the version of its policy."""

    actions: tuple[FloatArray, ...] = ()
    begins: int = 0
    version: int = 0

    def left(self, now: int) -> tuple[FloatArray, ...]:
        return self.actions[max(0, now - self.begins) :]


@final
class RobotClient:
    """A robot's line to a policy server. `async with` it; call `step` once a control step, from the same event loop.

    Args:
        url: Such as `ws://host:port`.
        token: Shown as openpi's client does, "" for none.
        period_ms: Of the control loop.
        ask_every: Steps of a chunk that are carried out, at least, before the next is asked for.
        hold: The action by which it stays where it is, such as no velocity; None to repeat the last, of positions.
        hold_steps: So many steps it holds; after that it stops.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str = "",
        period_ms: float,
        ask_every: int,
        hold: FloatArray | None = None,
        hold_steps: int = 50,
    ) -> None:
        if min(period_ms, ask_every, hold_steps + 1) <= 0:
            raise InvalidInput("make a robot's client", got=f"{period_ms} ms, {ask_every}, {hold_steps} steps")
        headers = {"Authorization": f"Api-Key {token}"} if token else {}
        given: dict[str, Any] = {"compression": None, "max_size": MESSAGE_BYTES_MAX, "close_timeout": 1}
        self._connect = partial(connect, url, additional_headers=headers, **given)
        self._period_ms, self._every, self._hold, self._hold_steps = period_ms, ask_every, hold, hold_steps
        self.metadata: Any = {}  # What the server greets with.
        self.connected = asyncio.Event()  # Set once the server has been reached, for whoever waits for that to begin.
        self.trouble = ""  # Why the last request has no chunk.
        self._step = self._held = 0
        self._followed = _Followed()
        self._delays: deque[int] = deque(maxlen=DELAYS_SEEN)
        self._requests: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue(1)
        self.asking = False

    async def __aenter__(self) -> RobotClient:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def reset(self) -> None:
        """Forgets the chunk, and ends a stop: an episode begins."""
        self._followed, self._held = _Followed(begins=self._step), 0

    def step(self, observation: Mapping[str, Any]) -> Command:
        """Returns what the robot does now, and asks for a next chunk where it is time to. Never blocks.

        Args:
            observation: What the robot sees now; under `mainspring` what else the server is to know (`seed`, `keep`).
        """
        now, followed = self._step, self._followed
        self._step += 1
        if not self.asking and (not followed.left(now) or now - followed.begins >= self._every):
            self._ask(now, observation)
        if followed.left(now) and self._held <= self._hold_steps:
            self._held = 0
            return Command(doing=Doing.FOLLOW, action=followed.left(now)[0], policy_version=followed.version)
        self._held += 1
        if self._held > self._hold_steps:
            return Command(doing=Doing.STOP, action=None)
        last = followed.actions[-1] if followed.actions else None
        return Command(doing=Doing.HOLD, action=last if self._hold is None else self._hold)

    def _ask(self, now: int, observation: Mapping[str, Any]) -> None:
        ours = dict(observation.get(OURS, {}))
        left = self._followed.left(now)
        if left:
            ours |= {"prev_chunk_left_over": np.stack(left), "execution_horizon": len(left)}
            ours["inference_delay"] = min(max(self._delays, default=1), len(left))
            ours["deadline_ms"] = len(left) * self._period_ms
        self.asking = True
        self._requests.put_nowait((now, pack({**observation, OURS: ours})))

    async def _run(self) -> None:
        wait_s = AGAIN_S_MAX / 10
        while True:
            try:
                async with self._connect() as line:
                    greeting = await line.recv()
                    self.metadata = unpack(greeting.encode() if isinstance(greeting, str) else greeting)
                    wait_s = AGAIN_S_MAX / 10
                    self._forget_request()
                    self.connected.set()
                    async with asyncio.TaskGroup() as both:
                        exchange = both.create_task(self._exchange(line))
                        await line.wait_closed()  # Whoever asks nothing just now is to know, too.
                        exchange.cancel()
            except TROUBLES as error:
                self.trouble = f"{type(error).__name__}: {error}"
            self._forget_request()
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, AGAIN_S_MAX)

    async def _exchange(self, line: ClientConnection) -> None:
        try:
            while True:
                asked, request = await self._requests.get()
                async with asyncio.timeout(ANSWER_S_MAX):
                    await line.send(request)
                    answer = await line.recv()
                if isinstance(answer, str):
                    self.trouble = answer
                else:
                    self._take(asked, unpack(answer))
                self.asking = False
        except TROUBLES as error:
            self.trouble = f"{type(error).__name__}: {error}"
            await line.close()

    def _forget_request(self) -> None:
        """The next step asks anew, of what it sees then."""
        self._requests, self.asking = asyncio.Queue(1), False

    def _take(self, asked: int, answer: Any) -> None:
        """Follows a chunk from the step on that is next, unless it is none or that step is past its end."""
        told: dict[str, Any] = answer if isinstance(answer, dict) else {}
        chunk, ours = told.get("actions"), told.get(OURS)
        array = chunk if isinstance(chunk, np.ndarray) and chunk.dtype.kind in "fiu" else np.zeros(())
        if array.ndim != 2 or not array.size or not np.isfinite(array).all():
            self.trouble = "the server sent no chunk of numbers"
            return
        self._delays.append(self._step - asked)
        if asked >= self._followed.begins and asked + len(array) > self._step:  # Of this episode, and not over yet.
            version = ours.get("policy_version", 0) if isinstance(ours, dict) else 0
            actions = tuple(array.astype(np.float32))
            self._followed = _Followed(actions=actions, begins=asked, version=version)
            self.trouble = ""
