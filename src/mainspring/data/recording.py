"""Episode recorder: how a robot of ours writes one episode to one MCAP file, and the words the reader shares.

Two channels, `/observation/state` and `/action`, JSON with a JSON Schema, one message each per control step with the
same integer-nanosecond log time; a metadata record `episode` for what holds for the whole of it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import numpy as np
from mcap.writer import CompressionType, Writer
from numpy.typing import ArrayLike

from mainspring.domain.errors import InvalidInput
from mainspring.objects.files import sync_path

STATE_TOPIC = "/observation/state"
ACTION_TOPIC = "/action"
METADATA_NAME = "episode"
DIMS_MAX = 4_096
RATE_HZ_MAX = 100_000.0
_SCHEMA = json.dumps(
    {
        "title": "mainspring.Vector",
        "type": "object",
        "properties": {"values": {"type": "array", "items": {"type": "number"}}},
        "required": ["values"],
    }
).encode()


class EpisodeWriter:
    """Writes one episode; the file appears at its path when `finish` is called, never half, and there to stay.

    Used as a context manager it discards what was written unless `finish` was called inside.

    Args:
        path: Where the file will be, ending in `.mcap`; its folder is made when missing.
        task: What the robot was asked to do, in words.
        robot: Kind of robot.
        rate_hz: Control steps per second.
        state_names: One name for each dimension of the state; "state_0" and so on when empty.
        action_names: The same for the action.

    Raises:
        InvalidInput: The path has another ending, or the rate is out of range.
    """

    def __init__(
        self,
        path: Path,
        *,
        task: str,
        robot: str,
        rate_hz: float,
        state_names: Sequence[str] = (),
        action_names: Sequence[str] = (),
    ) -> None:
        if path.suffix != ".mcap" or not 0 < rate_hz <= RATE_HZ_MAX:
            raise InvalidInput(
                "record an episode", on=str(path), got=f"{rate_hz} Hz", wanted=f".mcap, and 0 to {RATE_HZ_MAX:.0f} Hz"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._partial = path.with_suffix(".mcap.partial")
        self._facts = {"task": task, "robot": robot, "rate_hz": repr(float(rate_hz))}
        self._names = {STATE_TOPIC: tuple(state_names), ACTION_TOPIC: tuple(action_names)}
        self._channels: dict[str, int] = {}
        self._dims: dict[str, int] = {}
        self._steps = 0
        self._time_ns = -1
        self._file = open(self._partial, "wb")  # noqa: SIM115 - closed by finish or __exit__.
        self._writer = Writer(self._file, compression=CompressionType.ZSTD)
        self._writer.start(profile="", library="mainspring")
        self._schema = self._writer.register_schema("mainspring.Vector", "jsonschema", _SCHEMA)

    def write(self, time_ns: int, state: ArrayLike, action: ArrayLike) -> None:
        """Records one control step: the state seen, and the action taken on it.

        Args:
            time_ns: Integer nanoseconds, later than the step before.
            state: Vector; the same length at every step.
            action: Vector; the same length at every step.

        Raises:
            InvalidInput: Time does not advance, or a vector has another length, or holds no finite numbers.
        """
        if time_ns <= self._time_ns:
            raise InvalidInput(
                "record a step", on=str(self._path), got=f"{time_ns} ns", wanted=f"over {self._time_ns} ns"
            )
        messages = {STATE_TOPIC: self._checked(STATE_TOPIC, state), ACTION_TOPIC: self._checked(ACTION_TOPIC, action)}
        for topic, values in messages.items():
            if topic not in self._channels:
                self._register(topic, len(values))
            self._writer.add_message(
                channel_id=self._channels[topic],
                log_time=time_ns,
                publish_time=time_ns,
                sequence=self._steps,
                data=json.dumps({"values": values}, separators=(",", ":")).encode(),
            )
        self._time_ns = time_ns
        self._steps += 1

    def finish(self, *, success: bool | None) -> None:
        """Closes the file and lets it appear.

        Args:
            success: Whether the task was done; None when nobody knows.
        """
        self._writer.add_metadata(
            METADATA_NAME, {**self._facts, "success": ("" if success is None else ("true" if success else "false"))}
        )
        self._writer.finish()  # type: ignore[no-untyped-call]
        self._file.flush()
        sync_path(self._partial)
        self._file.close()
        self._partial.rename(self._path)
        sync_path(self._path.parent)

    def __enter__(self) -> EpisodeWriter:
        """Returns the writer itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Discards the file unless it is finished."""
        if not self._file.closed:
            self._file.close()
            self._partial.unlink()

    def _register(self, topic: str, dims: int) -> None:
        names = self._names[topic]
        if names and len(names) != dims:
            raise InvalidInput("record a step", on=topic, got=f"{dims} values", wanted=f"{len(names)}, one per name")
        self._dims[topic] = dims
        self._channels[topic] = self._writer.register_channel(
            topic, "json", self._schema, {"names": json.dumps(names)} if names else {}
        )

    def _checked(self, topic: str, values: ArrayLike) -> list[float]:
        array = np.asarray(values, dtype=np.float64)
        wanted = self._dims.get(topic, len(array) if array.ndim == 1 else 0)
        listed: list[float] = array.tolist() if array.shape == (wanted,) and 0 < wanted <= DIMS_MAX else []
        if not listed or not all(map(math.isfinite, listed)):
            raise InvalidInput("record a step", on=topic, got=f"shape {array.shape}", wanted=f"{wanted} finite numbers")
        return listed
