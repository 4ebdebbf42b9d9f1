"""The client of a policy server for a robot's control loop, with real-time chunking: what to do in every step.

While one chunk is carried out, the next is asked for, and begins where the robot will be when it comes. When none
comes, the robot carries out the chunk that it has to its end, then holds, then is told to make its own safe stop, which
lasts until `reset`. Needs NumPy, msgpack and websockets alone.
Source: Black et al., "Real-Time Execution of Action Chunking Flow Policies", 2025; field names as in LeRobot's `rtc`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
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


@final
class RobotClient:
    """A robot's line to a policy server. `async with` it; call `step` once a control step, from the same event loop.

    Args:
        url: Such as `ws://host:port`.
        token: Shown as openpi's client does, "" for none.
        period_ms: Of the control loop.
        ask_every: Steps of a chunk that are carried out, at least, before the next is asked for.
        hold: The action by which this robot stays where it is, such as no velocity; None to repeat the last, as a robot
            takes positions.
        hold_steps: So many steps it holds; after that it stops.
        keep: Whether the server is to keep what it is asked, for somebody to look into.
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
        keep: bool = False,
    ) -> None:
        if period_ms <= 0 or ask_every < 1 or hold_steps < 0:
            raise InvalidInput("make a robot's client", got=f"{period_ms} ms, {ask_every}, {hold_steps} steps")
        self._url, self._token = url, token
        self._period_ms, self._every, self._keep = period_ms, ask_every, keep
        self._hold, self._hold_steps = hold, hold_steps
        self.metadata: Mapping[str, Any] = {}
        self.connected = asyncio.Event()  # Set once the server has been reached, for whoever waits for that to begin.
        self.trouble = ""  # Why the last request has no chunk.
        self._step = self._held = 0
        self._chunk: FloatArray | None = None
        self._begins = self._version = 0  # The step that the chunk's first action is of; the policy's version.
        self._last: FloatArray | None = None
        self._delays: deque[int] = deque(maxlen=DELAYS_SEEN)
        self._requests: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue(1)
        self.asking = False

    async def __aenter__(self) -> RobotClient:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    def reset(self) -> None:
        """Forgets the chunk, and ends a stop: an episode begins."""
        self._chunk, self._last, self._held = None, None, 0
        self._begins = self._step

    def step(self, observation: Mapping[str, Any]) -> Command:
        """Returns what the robot does now, and asks for a next chunk where it is time to. Never blocks.

        Args:
            observation: What the robot sees now.
        """
        now = self._step
        self._step += 1
        if not self.asking and (self._left(now) == 0 or now - self._begins >= self._every):
            self._ask(now, observation)
        if self._left(now) and self._held <= self._hold_steps and self._chunk is not None:
            self._held, self._last = 0, self._chunk[now - self._begins]
            return Command(doing=Doing.FOLLOW, action=self._last, policy_version=self._version)
        self._held = min(self._held + 1, self._hold_steps + 1)
        if self._held > self._hold_steps:
            return Command(doing=Doing.STOP, action=None)
        return Command(doing=Doing.HOLD, action=self._last if self._hold is None else self._hold)

    def _left(self, now: int) -> int:
        return 0 if self._chunk is None else max(0, self._begins + len(self._chunk) - now)

    def _ask(self, now: int, observation: Mapping[str, Any]) -> None:
        ours: dict[str, Any] = {"keep": True} if self._keep else {}
        left = self._left(now)
        if left and self._chunk is not None:
            delay = min(max(self._delays, default=1), left)
            ours["prev_chunk_left_over"] = self._chunk[now - self._begins :]
            ours |= {"inference_delay": delay, "execution_horizon": left}
            ours["deadline_ms"] = left * self._period_ms
        self.asking = True
        self._requests.put_nowait((now, pack({**observation, OURS: ours})))

    async def _run(self) -> None:
        headers = {"Authorization": f"Api-Key {self._token}"} if self._token else {}
        wait_s = AGAIN_S_MAX / 10
        while True:
            try:
                async with connect(
                    self._url, additional_headers=headers, compression=None, max_size=MESSAGE_BYTES_MAX
                ) as line:
                    self.metadata = unpack(_binary(await line.recv()))
                    wait_s = AGAIN_S_MAX / 10
                    self._forget_request()
                    self.connected.set()
                    await self._exchange(line)
            except (OSError, WebSocketException, InvalidMessage) as error:
                self.trouble = f"{type(error).__name__}: {error}"
            self._forget_request()
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, AGAIN_S_MAX)

    async def _exchange(self, line: ClientConnection) -> None:
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

    def _forget_request(self) -> None:
        """What was asked for does not come any more: the next step asks anew, of what it sees then."""
        with contextlib.suppress(asyncio.QueueEmpty):
            self._requests.get_nowait()
        self.asking = False

    def _take(self, asked: int, answer: Any) -> None:
        """Follows a chunk from the step on that is next, unless it is none or that step is past its end."""
        told = answer if isinstance(answer, dict) else {}
        chunk, ours = told.get("actions"), told.get(OURS)
        whole = isinstance(chunk, np.ndarray) and chunk.ndim == 2 and chunk.size and chunk.dtype.kind in "fiu"
        if not isinstance(chunk, np.ndarray) or not whole or not np.isfinite(chunk).all():
            self.trouble = "the server sent no chunk of numbers"
            return
        self._delays.append(self._step - asked)
        if asked >= self._begins and asked + len(chunk) > self._step:  # Not of an episode before, and not over yet.
            version = ours.get("policy_version") if isinstance(ours, dict) else None
            self._chunk, self._begins = chunk.astype(np.float32), asked
            self._version = version if isinstance(version, int) else 0
            self.trouble = ""


def _binary(frame: bytes | str) -> bytes:
    if isinstance(frame, str):
        raise InvalidMessage("read a message", got=frame[:200], wanted="a binary one")
    return frame
