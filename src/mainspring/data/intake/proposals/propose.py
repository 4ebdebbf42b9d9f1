"""Looks into a log and proposes the recipe by which it could be taken in."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from mainspring.data.episode import NANOSECONDS, Integers
from mainspring.data.features import ACTION, STATE
from mainspring.data.intake.logs.cameras import image_kind
from mainspring.data.intake.logs.recipe import (
    RATE_HZ_MIN,
    TOLERANCE_MS_MAX,
    Align,
    CameraPart,
    Cut,
    CutBy,
    Fact,
    MappingRecipe,
    RecipePart,
)
from mainspring.data.intake.logs.streams import checked_topics, needs_of
from mainspring.data.intake.proposals.rehearse import Spans, why_it_fails
from mainspring.data.intake.workers import scratch_folder
from mainspring.data.readers.log import open_log
from mainspring.data.readers.messages import Log, MessageField, Topic
from mainspring.data.recording import RATE_HZ_MAX
from mainspring.domain.codec import to_plain

LOOK_MESSAGES_MAX = 2_000_000  # Enough for rates and gaps; a longer log is not read to its end.
DIMS_MAX = 256  # A vector longer than this is no state of a robot: a point cloud, a map.
RATE_FALLBACK_HZ = 30.0
_SLACK = 1.5  # Periods of a stream that a message may be away: one is lost now and then.
_COMMAND = re.compile(r"(^|[^a-z])(cmd|command(?!er)|action|target|goal|setpoint|desired|reference)", re.IGNORECASE)
_STATE = re.compile(r"(^|[^a-z])(state|joint|pose|odom|position|proprio|encoder|attitude)", re.IGNORECASE)
_TASK = re.compile(r"(task|instruction|language|prompt)", re.IGNORECASE)
_SUCCESS = re.compile(r"(success|outcome|result)", re.IGNORECASE)
_FLAG = re.compile(r"(recording|episode|is_active|teleop_enabled)", re.IGNORECASE)
_PREFERRED = ("position", "data", "values")  # Vectors that say where a robot is, or should go, before how fast.
_EVERY_CAMERA = re.compile(r"(\.(compressed|image_raw|image|image_compressed|image_rect|video))+$")
_CHOOSE = "CHOOSE"
_NAMED_MAX = 12
_MESSAGES_MIN = 10  # Of a state, an action or a camera.
_SHARE_MIN = 0.5  # Of the longest stream's time: below it, most of the log would be left out.
_STEADY_MIN = 3
_PAUSE_PERIODS = 10  # As the doctor's limit: less is jitter.


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSeen:
    """What a log has on one topic.

    Args:
        topic: Its name, type and fields.
        messages: How many; of a log that was not read to its end, how many were seen.
        rate_hz: Messages per second: of a steady topic by the median of their distances, else by their mean; 0 with
            fewer than two.
        gap_s: The longest pause.
        backwards: How often the log's time jumps back.
        steady: Whether nine in ten distances are within half and twice the median.
        near_s: A twentieth of the distances are shorter.
        far_s: A twentieth are longer.
    """

    topic: Topic
    messages: int
    rate_hz: float
    gap_s: float
    backwards: int
    steady: bool = True
    near_s: float = 0.0
    far_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What was seen in a log, and how it could be taken in.

    Args:
        name: The log's.
        topics: What it has.
        seconds: From its first message to its last.
        damage: What could not be read; "" when everything could.
        whole: Whether it was read to its end.
        recipe: The recipe, when there is a sound guess for the state and for the action.
        works: Whether the log's beginning became sound episodes by it; where not, the doubts say why.
        doubts: What a person should decide, a sentence each.
        text: The recipe as YAML with the doubts as comments; of use as it is when there is a recipe.
    """

    name: str
    topics: tuple[TopicSeen, ...]
    seconds: float
    damage: str
    whole: bool
    recipe: MappingRecipe | None
    doubts: tuple[str, ...]
    text: str
    works: bool = False


def propose(path: Path, definitions: Mapping[str, str] | None = None) -> Proposal:
    """Returns what a log holds, and a recipe for it, tried on the log's beginning.

    Args:
        path: A log: MCAP, ROS 1 or ROS 2 bag, ULog.
        definitions: Of messages that it does not define.

    Raises:
        NotFound: Nothing is there.
        InvalidInput: It is something else.
        DamagedData: Nothing in it can be read.
    """
    with scratch_folder() as folder:
        return _proposed(open_log(path, definitions or {}, folder / "unpacked"), folder)


def _proposed(log: Log, folder: Path) -> Proposal:
    topics = log.topics()
    times, whole = _times(log, [topic.name for topic in topics if not topic.problem])
    seen = tuple(_seen(topic, times.get(topic.name, np.empty(0, np.int64))) for topic in topics)
    spans = {name: (int(found.min()), int(found.max())) for name, found in times.items() if len(found)}
    guess = _guessed(log, [one for one in seen if not one.topic.problem and one.messages], spans)
    draft, doubts, fails = guess.draft, list(guess.doubts), ""
    if guess.recipe:
        fails = why_it_fails(log, draft, spans, folder)
        cut = _cut_at_pauses(draft) if fails and draft.cut.by is CutBy.FILE else draft
        if cut != draft and not why_it_fails(log, cut, spans, folder):
            doubts.append(f"it is cut at pauses over {cut.cut.gap_s:g} s: taken as one episode, {fails}")
            draft, fails = cut, ""
    if fails:
        doubts.append(f"by this recipe nothing of its beginning would be taken in: {fails}")
    return Proposal(
        name=log.name,
        topics=seen,
        seconds=(max(last for _, last in spans.values()) - min(first for first, _ in spans.values())) / NANOSECONDS
        if spans
        else 0.0,
        damage=log.damage,
        whole=whole,
        recipe=draft if guess.recipe else None,
        doubts=tuple(doubts),
        text=recipe_to_yaml(draft, doubts),
        works=guess.recipe is not None and not fails,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Guess:
    recipe: MappingRecipe | None
    draft: MappingRecipe
    doubts: tuple[str, ...]


def _times(log: Log, names: Iterable[str]) -> tuple[dict[str, Integers], bool]:
    found: dict[str, list[Integers]] = {name: [] for name in names}
    count, whole = 0, True
    for messages in log.batches(dict.fromkeys(found, ())) if found else ():
        found[messages.topic].append(messages.time_ns)
        count += len(messages)
        if count >= LOOK_MESSAGES_MAX:
            whole = False
            break
    return {name: np.concatenate([*parts, np.empty(0, np.int64)]) for name, parts in found.items()}, whole


def _seen(topic: Topic, time_ns: Integers) -> TopicSeen:
    steps = np.diff(time_ns)
    forward = steps[steps > 0]
    near, median, far = np.quantile(forward, (0.05, 0.5, 0.95)).tolist() if len(forward) else (1.0, 1.0, 1.0)
    steady = len(forward) > _STEADY_MIN and median <= 2 * near and far <= 2 * median
    mean = float(forward.sum()) / len(steps) if len(steps) and len(forward) else 1.0
    return TopicSeen(
        topic=topic,
        messages=max(len(time_ns), topic.count or 0),
        rate_hz=NANOSECONDS / (median if steady else mean) if len(forward) else 0.0,
        steady=steady,
        near_s=near / NANOSECONDS if len(forward) else 0.0,
        far_s=far / NANOSECONDS if len(forward) else 0.0,
        gap_s=float(steps.max()) / NANOSECONDS if len(steps) else 0.0,
        backwards=int(np.count_nonzero(steps < 0)),
    )


def _guessed(log: Log, seen: list[TopicSeen], spans: Spans) -> _Guess:
    weak = _weak(seen, spans)
    pictures = [one for one in seen if image_kind(one.topic)]
    images = [one for one in pictures if one.topic.name not in weak]
    numeric = [one for one in seen if one.rate_hz and _vector(one.topic)]
    actions = [one for one in numeric if _COMMAND.search(one.topic.name)]
    states = [one for one in numeric if one not in actions and (_is_joints(one.topic) or _STATE.search(one.topic.name))]
    states.sort(key=lambda one: (one.topic.name in weak, not _is_joints(one.topic), -one.rate_hz, one.topic.name))
    actions.sort(key=lambda one: (one.topic.name in weak, -one.messages, one.topic.name))
    rate_hz = min(max(_rate(images or states[:1] or numeric), RATE_HZ_MIN), RATE_HZ_MAX)  # Broken clocks give any.
    found = {STATE: states, ACTION: actions}
    columns = {
        column: _parts(log, ones[0], rate_hz, Align.HOLD if column == ACTION else Align.NEAREST)
        for column, ones in found.items()
        if ones
    }
    task = _fact(seen, _TASK, "text")
    draft = MappingRecipe(
        rate_hz=rate_hz,
        columns=columns
        or {STATE: (RecipePart(topic=_CHOOSE, field=_CHOOSE, tolerance_ms=float(np.ceil(1_000 / rate_hz))),)},
        cameras={
            name: CameraPart(topic=one.topic.name, tolerance_ms=_tolerance_ms(one, rate_hz, Align.NEAREST))
            for name, one in zip(_camera_names([one.topic.name for one in images]), images, strict=True)
        },
        cut=_cut(seen),
        task=task,
        success=_fact(seen, _SUCCESS, "number"),
    )
    doubts = [*_column_doubts(found, numeric), *_time_doubts([*states[:1], *actions[:1], *images])]
    used = [*states[:1], *actions[:1]]
    doubts += [f"{one.topic.name} was taken, but {weak[one.topic.name]}" for one in used if one.topic.name in weak]
    doubts += [
        f"{one.topic.name} was not taken as a camera: {weak[one.topic.name]}" for one in pictures if one not in images
    ]
    if not task.topic:
        doubts.append("task: nothing says what the robot was asked to do; write it as the text")
    sound = columns.keys() == {STATE, ACTION}
    if sound:
        checked_topics(needs_of(draft), [one.topic for one in seen], log.name)
    return _Guess(recipe=draft if sound else None, draft=draft, doubts=tuple(doubts))


def _cut_at_pauses(recipe: MappingRecipe) -> MappingRecipe:
    """Returns a recipe that begins another episode after every pause that its tolerances cannot bridge."""
    flowing = [part for parts in recipe.columns.values() for part in parts if part.align is not Align.HOLD]
    cameras = [camera.tolerance_ms for camera in recipe.cameras.values() if camera.align is not Align.HOLD]
    bridged_ms = [2 * tolerance_ms for tolerance_ms in (*(part.tolerance_ms for part in flowing), *cameras)]
    return replace(recipe, cut=Cut(by=CutBy.GAP, gap_s=min(bridged_ms) / 1_000)) if bridged_ms else recipe


def _weak(seen: list[TopicSeen], spans: Spans) -> dict[str, str]:
    """Returns the topics that say too little to be a state, an action or a camera of the log, and why."""
    flowing = {one.topic.name: one for one in seen if image_kind(one.topic) or _vector(one.topic)}
    lasts = {name: spans[name][1] - spans[name][0] for name in flowing if name in spans}
    longest = max((last for name, last in lasts.items() if flowing[name].messages >= _MESSAGES_MIN), default=0)
    found: dict[str, str] = {}
    for name, one in flowing.items():
        last = lasts.get(name, 0)
        if one.messages < _MESSAGES_MIN:
            found[name] = f"it has {one.messages} messages"
        elif last < _SHARE_MIN * longest:
            found[name] = f"it speaks for {last / NANOSECONDS:.1f} s of {longest / NANOSECONDS:.1f} s"
    return found


def _column_doubts(found: Mapping[str, list[TopicSeen]], numeric: list[TopicSeen]) -> list[str]:
    doubts = []
    for column, ones in found.items():
        if len(ones) > 1:
            others = ", ".join(one.topic.name for one in ones[1:_NAMED_MAX])
            doubts.append(f"{column}: {ones[0].topic.name} was taken; it could be, or have more parts of, {others}")
        if not ones:
            names = ", ".join(one.topic.name for one in numeric[:_NAMED_MAX]) or "none"
            doubts.append(f"{column}: no topic is known by its type or name; topics of numbers: {names}")
    return doubts


def _time_doubts(used: list[TopicSeen]) -> list[str]:
    doubts = [f"{one.topic.name} jumps back in time {one.backwards} times" for one in used if one.backwards]
    return doubts + [
        f"{one.topic.name} pauses for {one.gap_s:.2f} s, {one.gap_s * one.rate_hz:.0f} of its periods"
        for one in used
        if one.gap_s * one.rate_hz > _PAUSE_PERIODS
    ]


def _rate(ones: list[TopicSeen]) -> float:
    """Returns the rate of the slowest; as a whole number where it is near one."""
    rate_hz = min((one.rate_hz for one in ones if one.rate_hz), default=RATE_FALLBACK_HZ)
    whole = float(round(rate_hz))
    return whole if whole and abs(rate_hz / whole - 1) < 0.005 else round(rate_hz, 2) or RATE_FALLBACK_HZ


def _vector(topic: Topic) -> tuple[MessageField, ...]:
    """Returns the numbers of a message that may be a state or a command: a vector, else its single numbers."""
    if image_kind(topic):
        return ()
    numbers = [field for field in topic.fields if field.kind == "number" and not field.path.startswith("header.")]
    vectors = [field for field in numbers if field.dims and len(field.dims) == 1 and 0 < field.dims[0] <= DIMS_MAX]
    preferred = [field for name in _PREFERRED for field in vectors if field.path.rpartition(".")[2] == name]
    if vectors:
        return ((preferred or vectors)[0],)
    single = tuple(
        field for field in numbers if field.dims == () and "[" not in field.path and field.path != "timestamp"
    )
    return single if 0 < len(single) <= 16 else ()  # More are settings and diagnostics.


def _is_joints(topic: Topic) -> bool:
    return topic.type.endswith("JointState")


def _parts(log: Log, seen: TopicSeen, rate_hz: float, align: Align) -> tuple[RecipePart, ...]:
    topic = seen.topic
    stamp = "header.stamp" if any(field.path == "header.stamp" for field in topic.fields) else ""
    parts = tuple(
        RecipePart(
            topic=topic.name,
            field=field.path,
            tolerance_ms=_tolerance_ms(seen, rate_hz, align),
            align=align,
            stamp="" if _COMMAND.search(topic.name) else stamp,
        )
        for field in _vector(topic)
    )
    names = _joint_names(log, topic) if _is_joints(topic) else ()
    if names and len(parts) == 1 and len(names) == _dims(topic, parts[0].field):
        return (replace(parts[0], names=names, keys="name"),)
    return parts


def _dims(topic: Topic, path: str) -> int:
    dims = next(field.dims for field in topic.fields if field.path == path)
    return dims[0] if dims else 1


def _joint_names(log: Log, topic: Topic) -> tuple[str, ...]:
    if not any(field.path == "name" and field.kind == "text" for field in topic.fields):
        return ()
    for messages in log.batches({topic.name: ("name",)}):
        said: Any = messages.fields["name"]
        return tuple(str(name) for name in said[0])
    return ()


def _tolerance_ms(seen: TopicSeen, rate_hz: float, align: Align) -> float:
    """Returns how far a message may be, in whole milliseconds: one and a half of the stream's periods, or half a step.

    Of what is held, as long as it ever was silent; of the rest, half its longest pause where that is no real pause.
    """
    period_s = 1 / seen.rate_hz if seen.rate_hz else 1 / rate_hz
    least_s = max(_SLACK * period_s, 0.5 / rate_hz)
    away_s = seen.gap_s if align is Align.HOLD else seen.gap_s / 2 if seen.gap_s <= _PAUSE_PERIODS * period_s else 0.0
    return min(float(np.ceil(1_000 * max(least_s, away_s))), TOLERANCE_MS_MAX)


def _fact(seen: list[TopicSeen], words: re.Pattern[str], kind: str) -> Fact:
    for one in seen:
        said = [field for field in one.topic.fields if field.path == "data" and field.dims in ((), None)]
        if words.search(one.topic.name) and said and said[0].kind in (kind, "text"):
            return Fact(topic=one.topic.name)
    return Fact()


def _cut(seen: list[TopicSeen]) -> Cut:
    for one in seen:
        if _FLAG.search(one.topic.name) and any(
            field.path == "data" and field.kind == "number" and field.dims == () for field in one.topic.fields
        ):
            return Cut(by=CutBy.FLAG, topic=one.topic.name)
    return Cut()


def _camera_names(topics: list[str]) -> list[str]:
    """Returns a name of its own for each camera: its topic, without what most cameras' end with if that leaves one."""
    spelt = [".".join(part for part in topic.replace(":", "_").split("/") if part) or "camera" for topic in topics]
    short = [_EVERY_CAMERA.sub("", name) for name in spelt]
    names: list[str] = []
    for brief, whole in zip(short, spelt, strict=True):
        name = brief if short.count(brief) == 1 else whole
        while name in names:
            name += "_"
        names.append(name)
    return names


def recipe_to_yaml(recipe: MappingRecipe, doubts: Iterable[str] = ()) -> str:
    """Returns a recipe as people write it, without what is said by leaving it out.

    Args:
        recipe: The recipe.
        doubts: Comments that go on top.
    """
    head = [
        "# How the topics of a log become episodes. Read it through, change what is wrong, then take logs in by it."
    ]
    head += [f"# ? {doubt}" for doubt in doubts]
    plain = _spoken(recipe)
    assert isinstance(plain, dict)
    plain.setdefault("task", {"text": ""})
    text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, default_flow_style=None, width=110)
    return "\n".join([*head, "", text])


def _spoken(value: Any) -> Any:
    """Returns a value as plain ones, without fields that are what they are by default."""
    if is_dataclass(value):
        spoken: dict[str, Any] = {}
        for field in fields(value):
            own = getattr(value, field.name)
            default = field.default_factory() if field.default_factory is not MISSING else field.default
            if own != default:
                spoken[field.name] = _spoken(own)
        return spoken
    if isinstance(value, Mapping):
        return {key: _spoken(inner) for key, inner in value.items()}
    return [_spoken(inner) for inner in value] if isinstance(value, tuple) else to_plain(value)
