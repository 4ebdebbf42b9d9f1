"""Reads the MCAP files that `EpisodeWriter` and robots like ours write; one file is one episode."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zstandard
from mcap.exceptions import McapError
from mcap.reader import McapReader, SeekingReader
from mcap.summary import Summary

from mainspring.data.episode import FRAMES_MAX, Episode, Floats, Integers, SourceFile
from mainspring.data.features import ACTION, STATE, Column, Features
from mainspring.data.loss import losses_text
from mainspring.data.readers.mcap_log import MAGIC, McapContainer
from mainspring.data.readers.messages import RECORD_BYTES_MAX
from mainspring.data.readers.topics import TopicLog
from mainspring.data.recording import ACTION_TOPIC, DIMS_MAX, METADATA_NAME, RATE_HZ_MAX, STATE_TOPIC
from mainspring.domain.errors import DamagedData, InvalidInput

VALUES_BYTES_MAX = 2 << 30  # Of one file's states and actions: 8 hours of 1,000 numbers at 100 Hz.
_TOPICS = (STATE_TOPIC, ACTION_TOPIC)
_BROKEN = (  # Everything the reader and its decompressors raise on bytes that are not what they claim.
    McapError,
    zstandard.ZstdError,
    struct.error,
    ValueError,
    LookupError,
    TypeError,
    OverflowError,
    EOFError,
    OSError,
    RuntimeError,
    StopIteration,
    MemoryError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class McapRecording:
    """One MCAP file, not yet read.

    Args:
        name: Path inside the source.
        path: The file.
        parse_bytes: Its length.
    """

    name: str
    path: Path
    parse_bytes: int

    @property
    def part(self) -> str:
        """See `Recording.part`."""
        return ""

    def read(self, folder: Path) -> Episode:
        """See `Recording.read`."""
        try:
            if self.path.stat().st_size == 0:
                raise DamagedData("read an MCAP recording", on=self.name, got="an empty file")
            with open(self.path, "rb") as file:
                return self._read(SeekingReader(file, validate_crcs=True, record_size_limit=RECORD_BYTES_MAX))
        except DamagedData:
            raise
        except (InvalidInput, *_BROKEN) as error:
            raise DamagedData(
                "read an MCAP recording",
                on=self.name,
                got=f"a damaged file: {str(error)[:200] or type(error).__name__}",
            ) from error

    def _read(self, reader: McapReader) -> Episode:
        summary = reader.get_summary()
        if summary is None:
            raise DamagedData("read an MCAP recording", on=self.name, got=self._unfinished())
        self._check(summary)
        facts = next((record.metadata for record in reader.iter_metadata() if record.name == METADATA_NAME), None)
        if facts is None:
            raise DamagedData("read an MCAP recording", on=self.name, wanted=f"a metadata record {METADATA_NAME!r}")
        read = self._columns()
        (time_ns, state), (action_ns, action) = read[STATE_TOPIC], read[ACTION_TOPIC]
        if not np.array_equal(time_ns, action_ns):
            raise DamagedData(
                "read an MCAP recording",
                on=self.name,
                got=f"{len(time_ns)} states and {len(action_ns)} actions",
                wanted="a state and an action at each time",
            )
        return Episode(
            task=facts.get("task", ""),
            robot=facts.get("robot", ""),
            success={"true": True, "false": False}.get(facts.get("success", "")),
            rate_hz=self._rate_hz(facts.get("rate_hz", "")),
            features=Features(
                columns=(
                    Column(name=ACTION, names=self._names(summary, ACTION_TOPIC, action.shape[1], ACTION)),
                    Column(name=STATE, names=self._names(summary, STATE_TOPIC, state.shape[1], STATE)),
                )
            ),
            time_ns=time_ns,
            columns={STATE: state, ACTION: action},
            files=(SourceFile(name=self.name, path=self.path),),
        )

    def _unfinished(self) -> str:
        """Returns what is wrong with a file that has no summary."""
        with open(self.path, "rb") as file:
            file.seek(max(self.path.stat().st_size - len(MAGIC), 0))
            closed = file.read() == MAGIC
        return "a file without a summary, which our recorder writes" if closed else "it was never closed, or cut off"

    def _check(self, summary: Summary) -> None:
        channels = [channel for channel in summary.channels.values() if channel.message_encoding == "json"]
        if missing := sorted(set(_TOPICS) - {channel.topic for channel in channels}):
            topics = ", ".join(sorted(channel.topic for channel in summary.channels.values())[:10])
            raise DamagedData(
                "read an MCAP recording",
                on=self.name,
                got=f"topics {topics or 'none'}",
                wanted=f"JSON messages on {' and '.join(missing)}",
            )
        counts = summary.statistics.channel_message_counts if summary.statistics else {}
        largest = max((index.uncompressed_size for index in summary.chunk_indexes), default=0)
        if max(counts.values(), default=0) > FRAMES_MAX or largest > RECORD_BYTES_MAX:
            raise DamagedData("read an MCAP recording", on=self.name, got="too many messages or too large a chunk")

    def _columns(self) -> dict[str, tuple[Integers, Floats]]:
        """Returns the times and vectors of each topic; read as any log is, so that no chunk takes more than it says."""
        times: dict[str, list[Integers]] = {topic: [] for topic in _TOPICS}
        values: dict[str, list[Any]] = {topic: [] for topic in _TOPICS}
        log = TopicLog(self.path, McapContainer(self.path))
        size_bytes = 0
        for messages in log.batches(dict.fromkeys(_TOPICS, ("values",))):
            times[messages.topic].append(messages.time_ns)
            values[messages.topic].append(messages.fields["values"])
            size_bytes += getattr(values[messages.topic][-1], "nbytes", 0) + messages.time_ns.nbytes
            if size_bytes > VALUES_BYTES_MAX:
                raise DamagedData("read an MCAP recording", on=self.name, got=f"over {VALUES_BYTES_MAX} bytes")
        if found := log.damage or losses_text(gone.loss for gone in log.losses(_TOPICS)):
            raise DamagedData("read an MCAP recording", on=self.name, got=f"a damaged file: {found[:300]}")
        return {
            topic: (np.concatenate([*times[topic], np.empty(0, np.int64)]), self._vectors(topic, values[topic]))
            for topic in _TOPICS
        }

    def _vectors(self, topic: str, values: list[Any]) -> Floats:
        if not values:
            raise DamagedData("read an MCAP recording", on=self.name, got=f"no message on {topic}")
        array: Floats = np.concatenate(values).astype(np.float64, copy=False)  # Raises ValueError when lengths differ.
        if array.ndim != 2 or not 0 < array.shape[1] <= DIMS_MAX:
            raise DamagedData("read an MCAP recording", on=f"{self.name} {topic}", got=f"shape {array.shape}")
        return array

    def _rate_hz(self, text: str) -> float:
        rate_hz = float(text)
        if not 0 < rate_hz <= RATE_HZ_MAX:
            raise DamagedData("read an MCAP recording", on=self.name, got=f"rate_hz {text[:40]!r}")
        return rate_hz

    def _names(self, summary: Summary, topic: str, dims: int, prefix: str) -> tuple[str, ...]:
        for channel in summary.channels.values():
            if channel.topic == topic and (text := channel.metadata.get("names")):
                names = tuple(str(name) for name in json.loads(text))
                if len(names) != dims:
                    raise DamagedData(
                        "read an MCAP recording", on=f"{self.name} {topic}", got=f"{len(names)} names, {dims} values"
                    )
                return names
        return tuple(f"{prefix}_{dim}" for dim in range(dims))
