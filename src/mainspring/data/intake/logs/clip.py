"""Clips of a robot's own log, read without a recipe: what they hold, and what they say of themselves, is known."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

from mcap.exceptions import McapError
from mcap.reader import SeekingReader
from mcap.records import Channel

from mainspring.data.episode import Episode, SourceFile
from mainspring.data.intake.logs.mapping import mapped_episodes
from mainspring.data.intake.logs.recipe import CameraPart, Fact, MappingRecipe, RecipePart
from mainspring.data.intake.logs.said import said_by
from mainspring.data.readers.episodes.mcap_episode import McapRecording
from mainspring.data.readers.log import open_log
from mainspring.data.recording import ACTION_TOPIC, METADATA_NAME, STATE_TOPIC
from mainspring.domain.errors import DamagedData

CAMERA_PREFIX = "/camera/"  # What a robot's recorder calls a camera's topic.
TOLERANCE_STEPS = 3.0  # A message in three may be late or gone: more is a loss, which the doctor judges.
_CLIP = "clip."


@dataclass(frozen=True, slots=True)
class ClipRecording:
    """An MCAP file of our own recorders: a clip of a robot's log where it says so, else one episode.

    Args:
        file: The file.
    """

    file: McapRecording

    @property
    def name(self) -> str:
        """See `Recording.name`."""
        return self.file.name

    @property
    def parse_bytes(self) -> int:
        """See `Recording.parse_bytes`."""
        return self.file.parse_bytes

    @property
    def part(self) -> str:
        """See `Recording.part`."""
        return self.file.part

    def read(self, folder: Path) -> Episode:
        """See `Recording.read`."""
        said = said_by(self.file.path)
        if not any(key.startswith(_CLIP) for key in said):
            return self.file.read(folder)
        recipe = _recipe(self.file.path, float(said.get(f"{METADATA_NAME}.rate_hz", "nan")))
        files = (SourceFile(name=self.name, path=self.file.path),)
        found = list(
            mapped_episodes(open_log(self.file.path), recipe, name=self.name, files=files, said=said, folder=folder)
        )
        if len(found) != 1 or found[0].episode is None:
            raise DamagedData("read a clip", on=self.name, got=found[0].reason if found else "no episode")
        episode = found[0].episode
        facts = {key.removeprefix(_CLIP): value for key, value in said.items() if key.startswith(_CLIP)}
        told = {key: value for key, value in said.items() if not key.startswith((_CLIP, f"{METADATA_NAME}."))}
        return replace(episode, metadata={**told, **facts}, note=found[0].note)


def _recipe(path: Path, rate_hz: float) -> MappingRecipe:
    tolerance_ms = TOLERANCE_STEPS * 1_000.0 / rate_hz if rate_hz > 0 else 0.0
    channels = _channels(path)
    columns = {}
    for column, topic in (("state", STATE_TOPIC), ("action", ACTION_TOPIC)):
        names = tuple(json.loads(channels[topic].metadata.get("names", "[]"))) if topic in channels else ()
        columns[column] = (RecipePart(topic=topic, field="values", tolerance_ms=tolerance_ms, names=names),)
    return MappingRecipe(
        rate_hz=rate_hz,
        columns=columns,
        cameras={
            topic.removeprefix(CAMERA_PREFIX): CameraPart(topic=topic, tolerance_ms=max(tolerance_ms, 100.0))
            for topic in channels
            if topic.startswith(CAMERA_PREFIX)
        },
        task=Fact(metadata=f"{METADATA_NAME}.task"),
        success=Fact(metadata=f"{METADATA_NAME}.success"),
        robot=Fact(metadata=f"{METADATA_NAME}.robot"),
        steps=STATE_TOPIC,
    )


def _channels(path: Path) -> dict[str, Channel]:
    try:
        with path.open("rb") as file:
            summary = SeekingReader(file).get_summary()
    except (McapError, ValueError, LookupError, EOFError, OSError) as error:
        raise DamagedData("read a clip", on=path.name, got=str(error)[:200]) from error
    return {channel.topic: channel for channel in summary.channels.values()} if summary else {}
