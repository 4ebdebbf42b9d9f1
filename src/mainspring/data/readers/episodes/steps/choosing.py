"""Field selection: which fields of a recording become state, action, cameras and facts of an episode.

What somebody says by `--map` comes first, then the names that formats and labs use, in the order of the tables here.
Whatever else has one value a step stays as a column of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mainspring.data.features import ACTION, STATE
from mainspring.data.options import RATE_HZ_MAX, RATE_HZ_MIN, IngestOptions
from mainspring.data.readers.episodes.shaping import wanted_parts
from mainspring.data.readers.episodes.steps.fields import Kind, StepField, flattened
from mainspring.domain.errors import InvalidInput, nearest

OBSERVATIONS = ("obs", "observation", "observations")
EMBEDDING_DIMS_MIN = 256  # Sentence encoders give 512 and more numbers; no robot has as many joints.
_PICTURE_GROUPS = ("image", "images", "rgb_images", "depth_images", "rgb", "depth", "cameras")
_STATES: tuple[tuple[str, ...], ...] = (  # The first row all of whose names are there, each by its last part.
    (r"state",),
    (r"qpos",),
    (r"proprio|proprioception",),
    (r"robot\d*_eef_pos", r"robot\d*_eef_quat", r"robot\d*_gripper_qpos"),  # robomimic
    (r"robot\d*_eef_pos", r"robot\d*_eef_rot_axis_angle", r"robot\d*_gripper_width"),  # UMI
    (r"joint_states", r"gripper_states"),  # LIBERO
    (r"robot_state",),
    (r"robot_eef_pose",),  # diffusion policy, real robots
    (r"agent_pos",),
)
_ACTIONS = (r"action", r"actions")
_TIMES = (r"timestamps?", r"times?", r"time_ns", r"timestamps?_(ns|us|ms|s)")
_TASKS = (
    *("language_instruction", "instruction", "natural_language_instruction", "task_description", "language_raw"),
    *("task", "lang", "language", "prompt"),
)
_SCENES = ("env_name", "task_name", "scene")
_ROBOTS = ("robot_type", "robot", "robots", "robot_name", "embodiment")
_SUCCESSES = ("success", "is_success", "task_success", "next.success", "successful")
_RATES = ("rate_hz", "control_freq", "control_frequency", "control_hz", "fps", "frequency", "frame_rate", "hz")
_TRUE, _FALSE = ("true", "1", "1.0", "yes", "success"), ("false", "0", "0.0", "no", "failure", "fail")
_LISTED_MAX = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What a recording's fields become.

    Args:
        columns: Name here to the fields that are joined, in order.
        cameras: Name here to the field.
        time: The field that says when each step was; None when none does.
        said: How it was chosen where there was a choice, and what is left out; a clause each.
    """

    columns: Mapping[str, tuple[StepField, ...]]
    cameras: Mapping[str, StepField]
    time: StepField | None
    said: tuple[str, ...]


def chosen(fields: Sequence[StepField], options: IngestOptions, *, on: str, joined: bool = False) -> Choice:
    """Returns what a recording's fields become.

    Args:
        fields: All of them.
        options: What is said of the source.
        on: The recording, for messages.
        joined: Whether an action that is told in parts is all of them in name order, as in RLDS.

    Raises:
        InvalidInput: `--map` names what is not there, or neither a state nor an action is known.
    """
    said: list[str] = []
    following = [field for field in fields if field.name.split("/")[0].startswith("next_obs")]
    if following:
        said.append("next_obs is left out: it is what obs holds one step later")
    fields = [field for field in fields if field not in following]
    numbers = [field for field in fields if field.kind is Kind.NUMBERS]
    pictures = [field for field in fields if field.kind in (Kind.PIXELS, Kind.CODED)]
    columns: dict[str, tuple[StepField, ...]] = {}
    renamed: dict[str, StepField] = {}
    for ours, theirs in wanted_parts(options).items():
        found = tuple(_found(name, fields, ours, on) for name in theirs)
        if all(field.kind is Kind.NUMBERS for field in found):
            columns[ours] = found
        elif len(found) == 1 and found[0] in pictures:
            renamed[ours] = found[0]
        else:
            raise InvalidInput(
                "read --map",
                on=ours,
                got=", ".join(f"{field} ({field.kind.value})" for field in found)[:300],
                wanted="numbers, or one camera",
            )
    mapped = {field.name for parts in columns.values() for field in parts}
    time = None if options.rate_hz else _time(numbers, mapped)
    free = [field for field in numbers if field is not time]
    for ours, guess in ((ACTION, _action(free, joined=joined)), (STATE, _state(free))):
        if ours not in columns and guess:
            columns[ours] = guess
    if STATE not in columns and ACTION not in columns:
        raise _unknown(fields, on)
    for name in (STATE, ACTION):
        if len(columns.get(name, ())) > 1 and name not in wanted_parts(options):
            said.append(f"{name} is {' + '.join(field.name for field in columns[name])}")
    if ACTION not in columns and not options.action:
        said.append("there is no action, so no policy can be trained on it; --action next:state makes one")
    if STATE not in columns:
        said.append("there is no state")
    alone = {parts[0].name for parts in columns.values() if len(parts) == 1}
    for name, field in _named([field for field in free if field.name not in alone], taken=columns):
        columns[name] = (field,)
    cameras = {**renamed, **dict(_named([field for field in pictures if field not in renamed.values()], taken=renamed))}
    known = {**{name: name for name in cameras}, **{field.name: name for name, field in cameras.items()}}
    if unknown := [name for name in options.cameras or () if name not in known]:
        raise InvalidInput("read --camera", on=on, got=unknown[0], wanted=nearest(unknown[0], cameras))
    return Choice(
        columns=columns,
        cameras={name: field for name, field in cameras.items() if options.takes(name)},
        time=time,
        said=tuple(said),
    )


def short_name(path: str) -> str:
    """Returns a field's path without what says only that it was observed, joined by dots.

    Args:
        path: Parts joined by "/".
    """
    parts = path.split("/")
    parts = parts[1:] if len(parts) > 1 and parts[0] in OBSERVATIONS else parts
    parts = parts[1:] if len(parts) > 1 and parts[0] in _PICTURE_GROUPS else parts
    return ".".join(parts).replace(":", "_")


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known of the whole of a recording.

    Args:
        task: What the robot was asked to do.
        scene: What it may have been asked to do, by a name of a place or a set.
        robot: Kind of robot.
        success: Whether it was done; None when nobody says.
        rate_hz: Steps a second; None when nobody says.
        rate_by: Which fact says the rate.
    """

    task: str
    scene: str
    robot: str
    success: bool | None
    rate_hz: float | None
    rate_by: str


def known_from(facts: Mapping[str, str]) -> Known:
    """Returns what facts say, by the last part of their names; JSON texts are looked into.

    Args:
        facts: Path to text.
    """
    deep = flattened(facts)
    success = _said(deep, _SUCCESSES).lower()
    rate_hz, rate_by = None, ""
    for wanted in _RATES:
        for name, text in deep.items():
            if rate_hz is None and name.replace(".", "/").split("/")[-1] == wanted:
                rate_hz, rate_by = _rate(text), name
    return Known(
        task=_said(deep, _TASKS),
        scene=_said(deep, _SCENES),
        robot=_said(deep, _ROBOTS),
        success=True if success in _TRUE else False if success in _FALSE else None,
        rate_hz=rate_hz,
        rate_by=rate_by if rate_hz else "",
    )


def task_field(fields: Iterable[StepField]) -> StepField | None:
    """Returns the field that says at each step what the robot was asked to do.

    Args:
        fields: All of them.
    """
    texts = [field for field in fields if field.kind is Kind.TEXT]
    return next((field for wanted in _TASKS for field in texts if field.name.split("/")[-1] == wanted), None)


def success_column(columns: Iterable[str]) -> str | None:
    """Returns the name of the column that says at each step whether the task is done.

    Args:
        columns: Their names.
    """
    return next((name for name in columns if name in _SUCCESSES or name.split(".")[-1] in _SUCCESSES), None)


def _said(facts: Mapping[str, str], names: Sequence[str]) -> str:
    said = (
        text
        for wanted in names
        for name, text in facts.items()
        if name.split("/")[-1].lower() == wanted and text.strip()
    )
    return " ".join(next(said, "").split()).strip('"')


def _rate(text: str) -> float | None:
    try:
        rate_hz = float(text)
    except ValueError:
        return None
    return rate_hz if RATE_HZ_MIN <= rate_hz <= RATE_HZ_MAX else None


def _found(name: str, fields: Sequence[StepField], ours: str, on: str) -> StepField:
    """Returns the field of a name: its whole path with slashes or dots, or the last parts of only one."""
    wanted = name.strip("/").replace(".", "/")
    spelt = {field.name: field.name.replace(".", "/") for field in fields}
    for field in fields:
        if spelt[field.name] == wanted:
            return field
    ends = [field for field in fields if spelt[field.name].endswith(f"/{wanted}")]
    if len(ends) == 1:
        return ends[0]
    raise InvalidInput(
        "read --map",
        on=f"{on}, {ours}",
        got=f"{name}, which {len(ends)} of its fields end with" if ends else f"{name}, which it does not hold",
        wanted=nearest(wanted, spelt),
    )


def _last(field: StepField) -> str:
    return field.name.replace(".", "/").split("/")[-1]


def _time(numbers: Sequence[StepField], mapped: set[str]) -> StepField | None:
    for pattern in _TIMES:
        found = [field for field in numbers if re.fullmatch(pattern, _last(field)) and field.dims == 1]
        found = [field for field in found if field.name not in mapped]
        if len(found) == 1:
            return found[0]
        shallow = [field for field in found if "/" not in field.name or field.name.split("/")[0] in OBSERVATIONS]
        if len(shallow) == 1:
            return shallow[0]
    return None


def _action(numbers: Sequence[StepField], *, joined: bool) -> tuple[StepField, ...]:
    for pattern in _ACTIONS:
        if found := [field for field in numbers if field.name == pattern]:
            return (found[0],)
    ends = [field for field in numbers if _last(field) in _ACTIONS]
    if len(ends) == 1:
        return (ends[0],)
    parts = [field for field in numbers if joined and field.name.split("/")[0] in _ACTIONS]
    return tuple(sorted(parts, key=lambda field: field.name))


def _state(numbers: Sequence[StepField]) -> tuple[StepField, ...]:
    observed = [field for field in numbers if field.name.split("/")[0] in OBSERVATIONS]
    for row in _STATES:
        for among in (observed, [field for field in numbers if "/" not in field.name]):
            parts = [[field for field in among if re.fullmatch(pattern, _last(field))] for pattern in row]
            if all(parts) and (len(row) > 1 or len(parts[0]) == 1):
                all_parts = [field for found in parts for field in found]
                return tuple(sorted(all_parts, key=lambda field: _robot_order(field, row)))
    vectors = [field for field in observed if field.dims < EMBEDDING_DIMS_MIN and "embedding" not in field.name]
    return tuple(sorted(vectors, key=lambda field: field.name))


def _robot_order(field: StepField, row: tuple[str, ...]) -> tuple[int, int, str]:
    """Sorts a robot's parts together, and each robot's by the row's order."""
    number = re.search(r"\d+", _last(field))
    place = next(place for place, pattern in enumerate(row) if re.fullmatch(pattern, _last(field)))
    return int(number.group()[:9]) if number else 0, place, field.name


def _named(fields: Sequence[StepField], taken: Mapping[str, object]) -> list[tuple[str, StepField]]:
    """Returns a name for each field: its short one, else its whole path where that is another's too."""
    short = [short_name(field.name) for field in fields]
    names: list[tuple[str, StepField]] = []
    used = {*taken, "time_ns", "frame"}
    for brief, field in zip(short, fields, strict=True):
        whole = field.name.replace("/", ".").replace(":", "_")
        name = brief if short.count(brief) == 1 and brief not in used else whole
        while name in used:
            name += "_"
        used.add(name)
        names.append((name, field))
    return names


def _unknown(fields: Sequence[StepField], on: str) -> InvalidInput:
    listed = "; ".join(str(field) for field in fields[:_LISTED_MAX]) or "nothing"
    more = f"; and {len(fields) - _LISTED_MAX} more" if len(fields) > _LISTED_MAX else ""
    return InvalidInput(
        "know the state and the action of a recording", on=on, got=f"{listed}{more}", next_step=_map_help(fields)
    )


def _map_help(fields: Sequence[StepField]) -> str:
    vectors = [field.name for field in fields if field.kind is Kind.NUMBERS and 1 < field.dims < EMBEDDING_DIMS_MIN]
    state = next((name for name in vectors if not re.search(r"action|master|command|target", name)), "PATH")
    action = next((name for name in vectors if re.search(r"action|master|command|target", name)), "PATH")
    return f"--map state={state} --map action={action}; A+B joins several"
