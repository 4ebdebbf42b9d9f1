"""Makes episodes of a log by a recipe: reads its streams, cuts, aligns, and fetches the images that are shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from mainspring.data.episode import Episode, Floats, Integers, SourceFile, VideoFile, camera_of
from mainspring.data.features import Column, Features
from mainspring.data.intake.logs.align import Match, matched, steps_between
from mainspring.data.intake.logs.cameras import CameraPackets, image_kind
from mainspring.data.intake.logs.losses import garbled, losses_of
from mainspring.data.intake.logs.recipe import Align, CameraPart, CutBy, Fact, MappingRecipe, RecipePart
from mainspring.data.intake.logs.segments import TIME_NS_MAX, Segment, between_marks, between_pauses, while_true, whole
from mainspring.data.intake.logs.streams import Need, Stream, checked_topics, needs_of, read_streams, said_at, wanted_of
from mainspring.data.loss import Loss
from mainspring.data.readers.messages import Log, Topic
from mainspring.domain.errors import DamagedData, InvalidInput

STEPS_MIN = 2  # A single step has no duration.
_MILLISECOND = 1_000_000
_YES = ("true", "1", "1.0", "yes", "success")
_NO = ("false", "0", "0.0", "no", "failure")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapped:
    """One episode of a log, or why a stretch of it is none.

    Args:
        name: The log's name, with a number behind it when the recipe cuts.
        episode: The episode.
        reason: Why there is none.
        note: What was passed over to make it.
    """

    name: str
    episode: Episode | None = None
    reason: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Plan:
    """An episode whose steps are known, and which messages stand for them."""

    name: str
    segment: Segment
    next_ns: int
    time_ns: Integers
    columns: Mapping[str, tuple[Match, ...]]
    shown: Mapping[str, Integers]


def mapped_episodes(
    log: Log,
    recipe: MappingRecipe,
    *,
    name: str,
    files: tuple[SourceFile, ...],
    said: Mapping[str, str],
    folder: Path,
) -> Iterator[Mapped]:
    """Yields a log's episodes in the order of time.

    Args:
        log: The log; read twice when the recipe has cameras.
        recipe: How.
        name: Its name inside the source.
        files: The log's files.
        said: What the file says of itself in metadata.
        folder: Where the packets of its cameras go; they are the caller's to remove.

    Raises:
        InvalidInput: The recipe does not fit the log, and which topic or field is nearest.
        DamagedData: The log cannot be read, or a clock in it jumps back.
        StorageFull: There is no room in the folder.
    """
    needs = needs_of(recipe)
    with _told_of_damage(log):
        topics = checked_topics(needs, log.topics(), name)
        streams = read_streams(log, needs, topics)
        _check_streams(name, needs, streams, topics)
    segments = _segments(recipe, needs, streams)
    plans: list[_Plan] = []
    refused: list[tuple[str, str]] = []
    for number, segment in enumerate(segments):
        called = name if recipe.cut.by is CutBy.FILE else f"{name}#{number:04d}"
        after = segments[number + 1].begin_ns if number + 1 < len(segments) else TIME_NS_MAX
        try:
            plans.append(_planned(recipe, needs, streams, called, segment, after))
        except InvalidInput as error:
            refused.append((called, str(error)))
    if not segments:
        refused.append((name, "the recipe finds no episode in it: nothing starts one"))
    videos = _videos(log, recipe, needs, streams, topics, plans, folder)
    gone = (*log.losses(topics), *garbled(streams))
    for called, reason in refused:
        yield Mapped(name=called, reason=reason, note=_note(log, streams, ()))
    for number, plan in enumerate(plans):
        shown = tuple(videos[camera][number] for camera in sorted(videos))
        episode = _episode(recipe, needs, streams, plan, shown, files, said)
        losses = losses_of(gone, streams, recipe.cut, plan.segment)
        yield Mapped(name=plan.name, episode=replace(episode, losses=losses), note=_note(log, streams, losses))


@contextmanager
def _told_of_damage(log: Log) -> Iterator[None]:
    """Says of what a damaged log lacks that it is damaged."""
    try:
        yield
    except InvalidInput as error:
        if not log.damage:
            raise
        raise DamagedData(
            error.attempted,
            on=error.on,
            got=f"{error.got}; {log.name} is damaged: {log.damage[:300]}",
            wanted=error.wanted,
        ) from error


def _check_streams(
    name: str,
    needs: Mapping[str, tuple[Need, ...]],
    streams: Mapping[Need, Stream],
    topics: Mapping[str, Topic],
) -> None:
    facts = {need for purpose, group in needs.items() if purpose.startswith(("fact:", "cut:")) for need in group}
    for need, stream in sorted(streams.items(), key=lambda item: item[0].topic):
        if len(stream.time_ns) == 0 and need not in facts:
            raise DamagedData("map a log", on=f"{name} {need.topic}", got="no message that can be used", wanted="some")
        kind = image_kind(topics[need.topic]) if need.image else None
        if kind and kind.chained and len(stream.key) == 0:
            raise DamagedData("map a log", on=f"{name} {need.topic}", got="video without a key frame", wanted="one")


def _segments(
    recipe: MappingRecipe, needs: Mapping[str, tuple[Need, ...]], streams: Mapping[Need, Stream]
) -> tuple[Segment, ...]:
    def times(purpose: str) -> Integers:
        return streams[needs[purpose][0]].time_ns if needs[purpose] else np.empty(0, np.int64)

    match recipe.cut.by:
        case CutBy.FILE:
            return whole()
        case CutBy.GAP:  # A stream that is held is silent while its value stays.
            aligned = [
                (need, part.align)
                for name, parts in _parts(recipe).items()
                for need, part in zip(needs[name], parts, strict=True)
            ]
            flowing = tuple(streams[need].time_ns for need, align in aligned if align is not Align.HOLD)
            return between_pauses(flowing or tuple(streams[need].time_ns for need, _ in aligned), recipe.cut.gap_s)
        case CutBy.FLAG:
            flag = streams[needs["cut:flag"][0]]
            last_ns = int(flag.time_ns[-1]) if len(flag.time_ns) else -1
            spoken = map(_text, said_at(flag, int(flag.time_ns.min(initial=0)), last_ns))
            said = [bool(_truth_of(text)) for text in spoken]
            return while_true(flag.time_ns, np.array(said, np.bool_))
        case CutBy.MARKS:
            return between_marks(times("cut:start"), times("cut:stop"))


def _parts(recipe: MappingRecipe) -> dict[str, tuple[RecipePart | CameraPart, ...]]:
    return {**recipe.columns, **{f"camera:{name}": (camera,) for name, camera in recipe.cameras.items()}}


def _planned(
    recipe: MappingRecipe,
    needs: Mapping[str, tuple[Need, ...]],
    streams: Mapping[Need, Stream],
    name: str,
    segment: Segment,
    next_ns: int,
) -> _Plan:
    """Returns which messages stand for each step of a segment; raises when some step has none near enough."""
    parts = _parts(recipe)
    begins, ends, last = [segment.begin_ns], [segment.end_ns], []
    for purpose, group in parts.items():
        for need, part in zip(needs[purpose], group, strict=True):
            stream = streams[need]
            first = int(np.searchsorted(stream.number, stream.key[0])) if len(stream.key) else 0
            first = min(first, len(stream.number) - 1)  # Nothing before the first key frame can be decoded.
            begins.append(int(stream.time_ns[first]))
            last.append(int(stream.time_ns[-1]))
            ends.append(last[-1] + (part.tolerance_ns if part.align is Align.HOLD else 0))
    begin_ns, end_ns = max(begins), min(*ends, max(last))
    if recipe.steps:
        time_ns = streams[needs["cut:steps"][0]].time_ns
        time_ns = time_ns[(time_ns >= begin_ns) & (time_ns <= end_ns)]
    else:
        time_ns = steps_between(begin_ns, end_ns, recipe.rate)
    if len(time_ns) < STEPS_MIN:
        raise DamagedData(
            "align an episode",
            on=name,
            got=f"{len(time_ns)} steps in which every stream speaks",
            wanted=f"at least {STEPS_MIN}",
        )
    found = {
        purpose: tuple(
            _near(streams[need], time_ns, part, name) for need, part in zip(needs[purpose], group, strict=True)
        )
        for purpose, group in parts.items()
    }
    return _Plan(
        name=name,
        segment=segment,
        next_ns=next_ns,
        time_ns=time_ns,
        columns={column: found[column] for column in recipe.columns},
        shown={
            camera: streams[needs[f"camera:{camera}"][0]].number[found[f"camera:{camera}"][0].before]
            for camera in recipe.cameras
        },
    )


def _near(stream: Stream, time_ns: Integers, part: RecipePart | CameraPart, name: str) -> Match:
    found = matched(stream.time_ns, time_ns, part.align)
    missed = found.missed(part.tolerance_ns)
    if len(missed):
        step, far = int(missed[0]), int(found.distance_ns[missed[0]])
        got = f"{len(missed)} of {len(time_ns)} steps with no message near: step {step}, "
        got += f"{far / _MILLISECOND:.3f} ms away" if far >= 0 else "none on that side"
        raise DamagedData(
            "align an episode",
            on=f"{name} {part.topic}",
            got=got,
            wanted=f"{part.align.value} within {part.tolerance_ms:g} ms",
        )
    return found


def _videos(
    log: Log,
    recipe: MappingRecipe,
    needs: Mapping[str, tuple[Need, ...]],
    streams: Mapping[Need, Stream],
    topics: Mapping[str, Topic],
    plans: list[_Plan],
    folder: Path,
) -> dict[str, list[VideoFile]]:
    """Reads the images of all cameras in one more pass, and keeps those that some step shows."""
    if not plans or not recipe.cameras:
        return {}
    writers: dict[str, CameraPackets] = {}
    for place, camera in enumerate(sorted(recipe.cameras)):
        need = needs[f"camera:{camera}"][0]
        kind = image_kind(topics[need.topic])
        assert kind is not None, need.topic
        writers[camera] = CameraPackets(
            need.topic,
            kind,
            [plan.shown[camera] for plan in plans],
            streams[need].key,
            count=streams[need].count,
            folder=folder,
            prefix=f"camera-{place}",
        )
    images = {camera.topic for camera in recipe.cameras.values()}
    wanted = {topic: paths for topic, paths in wanted_of(needs, topics).items() if topic in images}
    try:
        for messages in log.batches(wanted):
            for camera, writer in writers.items():
                if recipe.cameras[camera].topic == messages.topic:
                    writer.take(messages)
        return {camera: writer.finish(camera) for camera, writer in writers.items()}
    finally:
        for writer in writers.values():
            writer.close()


def _episode(
    recipe: MappingRecipe,
    needs: Mapping[str, tuple[Need, ...]],
    streams: Mapping[Need, Stream],
    plan: _Plan,
    videos: tuple[VideoFile, ...],
    files: tuple[SourceFile, ...],
    said: Mapping[str, str],
) -> Episode:
    columns: dict[str, Floats] = {}
    names: dict[str, tuple[str, ...]] = {}
    for column, parts in recipe.columns.items():
        values = []
        for need, found in zip(needs[column], plan.columns[column], strict=True):
            own = streams[need].values
            if not isinstance(own, np.ndarray):
                raise InvalidInput("map a log", on=f"{need.topic} {need.field}", got="text", wanted="numbers")
            values.append(found.values(own))
        columns[column] = np.concatenate(values, axis=1)
        names[column] = tuple(
            name for part, own in zip(parts, values, strict=True) for name in _names(part, own.shape[1])
        )
    success = _fact("success", recipe.success, needs, streams, plan, said)
    return Episode(
        task=_fact("task", recipe.task, needs, streams, plan, said),
        robot=_fact("robot", recipe.robot, needs, streams, plan, said),
        success=_truth_of(success) if success else None,
        rate_hz=float(recipe.rate),
        features=Features(
            columns=tuple(Column(name=column, names=names[column]) for column in sorted(columns)),
            cameras=tuple(camera_of(video) for video in videos),
        ),
        time_ns=plan.time_ns,
        columns=columns,
        videos=videos,
        files=files,
        metadata={**said, **recipe.metadata},
    )


def _names(part: RecipePart, dims: int) -> tuple[str, ...]:
    if part.names:
        if len(part.names) != dims:
            raise InvalidInput(
                "map a log", on=f"{part.topic} {part.field}", got=f"{dims} values", wanted=f"{len(part.names)} names"
            )
        return part.names
    stem = f"{part.topic.strip('/')}.{part.field}"
    return (stem,) if dims == 1 else tuple(f"{stem}[{dim}]" for dim in range(dims))


def _fact(
    purpose: str,
    fact: Fact,
    needs: Mapping[str, tuple[Need, ...]],
    streams: Mapping[Need, Stream],
    plan: _Plan,
    said: Mapping[str, str],
) -> str:
    """Returns what is said of an episode, "" when nothing is."""
    if fact.metadata:
        return said.get(fact.metadata, "")
    if not fact.topic:
        return fact.text
    stream = streams[needs[f"fact:{purpose}"][0]]
    begin_ns, end_ns = int(plan.time_ns[0]), int(plan.time_ns[-1])
    if purpose == "success":  # Judged once it is over, before the next one begins.
        after = [*said_at(stream, begin_ns, max(end_ns, plan.next_ns - 1))]
        return _text(after[-1]) if after else ""
    before = int(np.searchsorted(stream.time_ns, begin_ns, side="right")) - 1
    if before >= 0:
        return _text(next(said_at(stream, int(stream.time_ns[before]), int(stream.time_ns[before]))))
    return next((_text(value) for value in said_at(stream, begin_ns, end_ns)), "")


def _text(value: object) -> str:
    return str(value).strip()


def _truth_of(text: str) -> bool | None:
    """Returns what a text says of truth: None when it says neither."""
    if text.lower() in _YES:
        return True
    if text.lower() in _NO:
        return False
    try:
        return float(text) != 0
    except ValueError:
        return None


def _note(log: Log, streams: Mapping[Need, Stream], losses: tuple[Loss, ...]) -> str:
    """Returns what was passed over, for the report, but for what the losses say."""
    dropped: dict[str, int] = {}
    for need, stream in streams.items():
        if stream.dropped:
            dropped[need.topic] = max(stream.dropped, dropped.get(need.topic, 0))
    repeated = [f"{count} messages on {topic} with the time of one before" for topic, count in sorted(dropped.items())]
    damage = [part for part in log.damage.split("; ") if part and not any(part in loss.what for loss in losses)]
    return "; ".join(damage + repeated)
