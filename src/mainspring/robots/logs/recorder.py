"""The recorder of a robot: takes in what the robot sees, keeps a ring of it, and cuts clips out when triggers fire.

It computes nothing of what it records: messages are bytes. Times are the robot's own, in nanoseconds since the Unix
epoch, and are what everything here goes by. Used by one thread; a control loop hands it over to `RecorderThread`.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, final

from mainspring.domain.codec import decode, encode
from mainspring.domain.errors import InvalidInput, InvalidMessage, nearest
from mainspring.robots.logs.clips import (
    ROBOT_TOPIC,
    Clips,
    Pending,
    RobotSays,
    names_of,
    replace_file,
    says_message,
    vector_message,
)
from mainspring.robots.logs.expression import Value
from mainspring.robots.logs.pictures import DEFINITION, ENCODING, TYPE, image_message, kept
from mainspring.robots.logs.reading import Seen
from mainspring.robots.logs.ring import Ring
from mainspring.robots.logs.rules import CLIP_S_MAX, CameraRule, LogRules, TopicRule, TriggerRule, checked_camera

STATE_TOPIC, ACTION_TOPIC, CAMERA_PREFIX = "/observation/state", "/action", "/camera/"
QUEUE_BYTES_MAX = 8 << 20  # Four seconds of two cameras: a disk that sleeps longer costs messages, which are counted.
_IMAGE = (TYPE, "ros2msg", DEFINITION)
_VECTOR = ("mainspring.Vector", "jsonschema", b'{"type": "object"}')
_SAYS = ("mainspring.RobotSays", "jsonschema", b'{"type": "object"}')
_SECOND = 1_000_000_000
_HOUR_NS = 3_600 * _SECOND
_SET_BACK_NS = 10 * _SECOND  # Messages lie in some disorder; a time before that of others by more is another clock's.
_RETRY_NS = 10 * _SECOND  # Between tries to cut what there was no room for.
_WAITING_MAX = 16  # Clips for which there is no room; the oldest goes first, as in the ring.


@final
class LogRecorder:
    """Records one robot. Made anew after a loss of power, it cuts the clip that was pending of what is left.

    Args:
        folder: Its own; made when missing.
        rules: What is kept.
        names: Names of the numbers of `STATE_TOPIC` and `ACTION_TOPIC`.

    Raises:
        InvalidInput: The rules contradict each other.
    """

    def __init__(self, folder: Path, rules: LogRules, names: Mapping[str, Sequence[str]] | None = None) -> None:
        self.ring = Ring(folder / "ring", rules.ring_mib << 20, frozenset((ROBOT_TOPIC,)))
        self.clips = Clips(folder / "clips", rules)
        self.clips.tidy()
        self._rules = rules
        self._names = {topic: names_of(names or {}, topic) for topic in (STATE_TOPIC, ACTION_TOPIC)}
        self._says = RobotSays()
        self._task_ns = 0
        self._triggers = _Triggers(rules)
        self._next_ns: dict[str, int] = {}
        self._pending_path = folder / "pending.json"
        self._pending: Pending | None = None
        self._waiting = self._left_over()  # For room on the disk: who is tried next comes first.
        self._tried_ns = 0
        self._cut_waiting()

    def write(
        self,
        topic: str,
        time_ns: int,
        data: bytes,
        *,
        encoding: str = "json",
        schema: tuple[str, str, bytes] = ("", "", b""),
    ) -> None:
        """Records a message, unless a rule drops it.

        Args:
            encoding: Of its bytes, as MCAP names them: "json", "cdr", "protobuf".
            schema: Name, encoding and text of what defines it.
        """
        rule = self._rules.topics.get(topic, TopicRule())
        if not rule.drop and self._is_due(topic, time_ns, rule.rate_hz):
            self._record(topic, time_ns, data, encoding, schema)

    def step(self, time_ns: int, state: Sequence[float], action: Sequence[float]) -> None:
        """Records a control step: what was seen, and what was done."""
        self.write(STATE_TOPIC, time_ns, vector_message(state), schema=_VECTOR)
        self.write(ACTION_TOPIC, time_ns, vector_message(action), schema=_VECTOR)

    def picture(self, camera: str, time_ns: int, picture: bytes) -> None:
        """Records a JPEG or PNG picture as the camera's rule has it: as it is, blurred, or not at all."""
        rule = self._rules.cameras.get(camera) or CameraRule()
        topic = CAMERA_PREFIX + checked_camera(camera)
        if not self._is_due(topic, time_ns, rule.rate_hz):
            return
        picture_kept = kept(picture, rule.use)
        if picture_kept is not None:
            self._record(topic, time_ns, image_message(time_ns, camera, picture_kept), ENCODING, _IMAGE)

    def tell(self, time_ns: int, **values: Value) -> None:
        """Says values that conditions ask for; each stays until it is said again."""
        if unknown := sorted(set(values) - set(self._rules.values)):
            raise InvalidInput("tell a value", got=unknown[0][:80], wanted=nearest(unknown[0], self._rules.values))
        self._triggers.values.update(values)
        self._look(time_ns)

    def runs(self, time_ns: int, *, release: str, ring: str = "") -> None:
        """Says which release runs from now on, and to which ring the robot belongs."""
        self._say(time_ns, replace(self._says, release=release, ring=ring))

    def task(self, time_ns: int, text: str) -> None:
        """Says that the robot begins a task: no clip reaches over it."""
        if self._pending is not None and self._pending.end_ns > time_ns:
            self._pending = replace(self._pending, end_ns=time_ns - 1)
            self._cut()
        self._task_ns = time_ns
        self._triggers.values["failure"] = False
        self._say(time_ns, replace(self._says, task=text, success=None))
        self._look(time_ns)

    def outcome(self, time_ns: int, *, success: bool) -> None:
        """Says how the task ended; of a failure the value `failure` holds until the next task."""
        self._say(time_ns, replace(self._says, success=success))
        self._triggers.values["failure"] = not success
        self._look(time_ns)

    def hold(self, time_ns: int, by: str) -> None:
        """Says who holds the robot from now on, in the policy's place; "" gives it back."""
        self._say(time_ns, replace(self._says, held_by=by))
        self._triggers.values["held"] = bool(by)
        self._look(time_ns)

    def press(self, time_ns: int) -> None:
        """Says that the operator's button was pressed: the value `button` holds for this moment."""
        self._triggers.values["button"] = True
        self._look(time_ns)
        self._triggers.values["button"] = False
        self._look(time_ns)

    def tick(self, time_ns: int) -> None:
        """Does what is due: call it once a second at least while nothing is recorded."""
        self._look(time_ns)
        self._cut_due(time_ns)

    def close(self) -> None:
        """Ends the recording; a clip that is pending is cut of what there is."""
        if self._pending is not None:
            self._cut()
        else:
            self._cut_waiting()
        self.ring.close()

    def _record(self, topic: str, time_ns: int, data: bytes, encoding: str, schema: tuple[str, str, bytes]) -> None:
        names = self._names.get(topic, "")
        self.ring.write(Seen(topic=topic, encoding=encoding, schema=schema, names=names, time_ns=time_ns, data=data))
        self._cut_due(time_ns)

    def _say(self, time_ns: int, says: RobotSays) -> None:
        self._says = says
        self._record(ROBOT_TOPIC, time_ns, says_message(says), "json", _SAYS)

    def _is_due(self, topic: str, time_ns: int, rate_hz: float | None) -> bool:
        """Returns whether a topic's rate lets a message pass."""
        if rate_hz is None:
            return True
        period_ns = round(_SECOND / rate_hz)
        due_ns = self._next_ns.get(topic, time_ns)
        if time_ns < due_ns <= time_ns + period_ns:  # Further ahead only after the clock was set back.
            return False
        self._next_ns[topic] = max(due_ns + period_ns, time_ns + period_ns // 2)
        return True

    def _look(self, time_ns: int) -> None:
        for name, trigger in self._triggers.fired(time_ns):
            task_ns = self._task_ns if self._task_ns < time_ns + _SET_BACK_NS else 0
            begin_ns = min(time_ns, max(time_ns - round(trigger.before_s * _SECOND), task_ns))
            wanted = Pending(
                triggers=(name,),
                priority=trigger.priority,
                send=trigger.send,
                fired_ns=time_ns,
                begin_ns=begin_ns,
                end_ns=time_ns + round(trigger.after_s * _SECOND),
            )
            self._pending = wanted if self._pending is None else _joined(self._pending, wanted)
            self._note()

    def _note(self) -> None:
        """Keeps what is not cut yet; where the disk has no room for that, until power is lost."""
        uncut = [*([self._pending] if self._pending is not None else []), *self._waiting]
        with suppress(OSError):
            if uncut:
                replace_file(self._pending_path, encode(replace(uncut[0], others=tuple(uncut[1:]))))
            else:
                self._pending_path.unlink(missing_ok=True)

    def _cut_due(self, time_ns: int) -> None:
        """Cuts what ended, by this time or because the clock was set back, and now and then what waits for room."""
        pending = self._pending
        if pending is not None and not pending.fired_ns - _SET_BACK_NS <= time_ns <= pending.end_ns:
            self._cut()
        elif self._waiting and abs(time_ns - self._tried_ns) >= _RETRY_NS:
            self._cut_waiting()
        else:
            return
        self._tried_ns = time_ns

    def _cut(self) -> None:
        assert self._pending is not None
        self._waiting.insert(0, self._pending)
        self._pending = None
        self._cut_waiting()

    def _cut_waiting(self) -> None:
        """Cuts what waits, up to one for which the disk has no room: the others come before it the next time."""
        for pending in [*self._waiting]:
            self._waiting.remove(pending)
            try:
                self.clips.cut(self.ring, pending)
            except OSError:
                self._waiting.append(pending)
                break
            with suppress(OSError):
                self.clips.sweep(pending.end_ns)
        if len(self._waiting) > _WAITING_MAX:
            self._waiting.remove(min(self._waiting, key=lambda waits: waits.fired_ns))
        self._note()

    def _left_over(self) -> list[Pending]:
        try:
            first = decode(Pending, self._pending_path.read_bytes())
        except (FileNotFoundError, InvalidMessage):
            return []
        return [replace(first, others=()), *first.others]


@final
class RecorderThread:
    """Lets a control loop hand over what is recorded, without ever waiting for a disk. Calls come from many threads.

    Args:
        recorder: Used by this thread alone from now on.
    """

    def __init__(self, recorder: LogRecorder) -> None:
        self.lost = 0  # Calls for which there was no room, or that failed.
        self.why = ""  # The last one failed.
        self._recorder = recorder
        self._calls: queue.SimpleQueue[tuple[Callable[..., None], tuple[Any, ...], dict[str, Any]] | None]
        self._calls = queue.SimpleQueue()
        self._waiting_bytes = 0
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()

    def hand(self, method: str, *words: Any, size_bytes: int = 1_024, **more: Any) -> None:
        """Has a method of the recorder called soon, in order; where too much waits, nothing is, and it is counted.

        Args:
            size_bytes: Of what is handed over.
        """
        with self._lock:
            if self._waiting_bytes + size_bytes > QUEUE_BYTES_MAX:
                self.lost += 1
                return
            self._waiting_bytes += size_bytes
        self._calls.put((getattr(self._recorder, method), words, {**more, "size_bytes": size_bytes}))

    def close(self) -> None:
        """Returns once everything that was handed over is recorded, and the recording has ended."""
        self._calls.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            method, words, more = call
            size_bytes = more.pop("size_bytes")
            why = ""
            try:
                method(*words, **more)
            except Exception as error:  # noqa: BLE001  Whatever is wrong with one message, the next ones are recorded.
                why = f"{method.__name__}: {type(error).__name__}: {error}"
            with self._lock:
                self._waiting_bytes -= size_bytes
                self.lost, self.why = self.lost + bool(why), why or self.why
        self._recorder.close()


@final
class _Triggers:
    """Which triggers fire: those whose condition begins to hold, held long enough, and were not too many."""

    def __init__(self, rules: LogRules) -> None:
        self.values: dict[str, Value] = {"failure": False, "button": False, "held": False}
        self._rules = rules.triggers
        self._conditions = rules.conditions()
        self._since_ns: dict[str, int] = {}
        self._done: set[str] = set()
        self._fired_ns: dict[str, deque[int]] = {
            name: deque(maxlen=rule.hour_max) for name, rule in self._rules.items()
        }

    def fired(self, time_ns: int) -> list[tuple[str, TriggerRule]]:
        """Returns the triggers that fire now, in order of name."""
        return [(name, rule) for name, rule in sorted(self._rules.items()) if self._fires(name, rule, time_ns)]

    def _fires(self, name: str, rule: TriggerRule, time_ns: int) -> bool:
        if not self._conditions[name].holds(self.values):
            self._since_ns.pop(name, None)
            self._done.discard(name)
            return False
        since_ns = self._since_ns[name] = min(time_ns, self._since_ns.get(name, time_ns))
        if name in self._done or time_ns - since_ns < rule.for_s * _SECOND:
            return False
        self._done.add(name)
        fired = self._fired_ns[name]
        too_soon = bool(fired) and -_SET_BACK_NS < time_ns - fired[-1] < rule.cooldown_s * _SECOND
        too_many = len(fired) == rule.hour_max and -_SET_BACK_NS < time_ns - fired[0] < _HOUR_NS
        if too_soon or too_many:
            return False
        fired.append(time_ns)
        return True


def _joined(one: Pending, other: Pending) -> Pending:
    """Returns one clip for two that overlap, as urgent as the more urgent of them, and no longer than a clip may be."""
    begin_ns = min(one.begin_ns, other.begin_ns)
    return Pending(
        triggers=tuple(dict.fromkeys((*one.triggers, *other.triggers))),
        priority=min(one.priority, other.priority, key=lambda tier: tier.rank),
        send=one.send or other.send,
        fired_ns=one.fired_ns,
        begin_ns=begin_ns,
        end_ns=min(max(one.end_ns, other.end_ns), begin_ns + round(CLIP_S_MAX * _SECOND)),
    )
