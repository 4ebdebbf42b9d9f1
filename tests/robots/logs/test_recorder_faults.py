"""The recorder of a robot whose disk is full, whose clock is set, and whose program hands over what is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.robots.logs.making import BASE, RATE_HZ, SECOND, full_disk, jpeg, noise, rules_of

from mainspring.robots.logs.clips import ROBOT_TOPIC
from mainspring.robots.logs.reading import messages_in
from mainspring.robots.logs.recorder import STATE_TOPIC, LogRecorder, RecorderThread
from mainspring.robots.logs.rules import CameraRule, CameraUse, TriggerRule

pytestmark = pytest.mark.slow  # Each syncs what it writes, as robots do.

HOUR = 3_600 * SECOND
PENDING = (  # Of a failure, as a release before this one wrote it.
    b'{"triggers":["failed"],"priority":"critical","send":true,"fired_ns":1700000002000000000,'
    b'"begin_ns":1700000001000000000,"end_ns":1700000062000000000}'
)


def recorder_of(folder: Path, **more: Any) -> LogRecorder:
    """Returns a recorder whose clips are what was seen in the second before the button was pressed, and after it."""
    rule: dict[str, Any] = {"when": "button", "before_s": 1.0, "after_s": 1.0, "cooldown_s": 0.0, "hour_max": 60}
    return LogRecorder(folder, rules_of(triggers={"asked": TriggerRule(**rule | more)}))


def record(recorder: LogRecorder, begin_ns: int, seconds: int) -> None:
    for step in range(seconds * RATE_HZ):
        recorder.step(begin_ns + step * SECOND // RATE_HZ, [0.1 * step], [0.0])


def presses(recorder: LogRecorder) -> list[int]:
    """Returns when the button was pressed of which there are clips, in seconds, each with what was seen before it."""
    found = []
    for clip in recorder.clips.all():
        fired_ns = int(clip.entry.name.split("-")[-1].removesuffix(".mcap"))
        times = [each.time_ns for each in messages_in(recorder.clips.path(clip)) if each.topic == STATE_TOPIC]
        assert min(times) == clip.entry.begun_ns == fired_ns - SECOND
        found.append((fired_ns - BASE) // SECOND)
    return found


def kinds(folder: Path) -> set[str]:
    return {path.suffix for path in (folder / "clips").iterdir()}


def test_clips_for_which_there_was_no_room_are_cut_once_there_is(tmp_path: Path) -> None:
    recorder = recorder_of(tmp_path)
    record(recorder, BASE, 12)
    for press in (2, 4, 6):
        with full_disk():
            recorder.press(BASE + press * SECOND)  # Nor is there for what is pending.
            recorder.tick(BASE + press * SECOND + 3 * SECOND // 2)
    assert (presses(recorder), kinds(tmp_path)) == ([], set())
    assert not [*tmp_path.glob("*.new")]
    recorder.tick(BASE + 12 * SECOND)  # So soon nobody tries again.
    assert presses(recorder) == []
    record(recorder, BASE + 18 * SECOND, 1)
    assert presses(recorder) == [2, 4, 6]
    assert not (tmp_path / "pending.json").exists()


def test_clips_for_which_there_was_no_room_outlive_a_loss_of_power(tmp_path: Path) -> None:
    recorder = recorder_of(tmp_path)
    record(recorder, BASE, 12)
    recorder.ring.flush()
    for press in (2, 4):
        recorder.press(BASE + press * SECOND)
        with full_disk():
            recorder.tick(BASE + press * SECOND + 3 * SECOND // 2)
    recorder.press(BASE + 6 * SECOND)
    for _ in range(2):
        with full_disk(64):
            again = recorder_of(tmp_path)
        assert presses(again) == []
    again = recorder_of(tmp_path)
    assert presses(again) == [2, 4, 6]
    assert presses(recorder_of(tmp_path)) == [2, 4, 6]
    assert not (tmp_path / "pending.json").exists()


def test_recording_that_ends_on_a_full_disk_keeps_what_was_asked_for_until_the_next_start(tmp_path: Path) -> None:
    recorder = recorder_of(tmp_path)
    record(recorder, BASE, 5)
    recorder.ring.flush()
    for press in (2, 4):
        recorder.press(BASE + press * SECOND)
        with full_disk():
            recorder.close()
    assert presses(recorder) == []
    assert presses(recorder_of(tmp_path)) == [2, 4]


def test_clip_that_is_too_large_for_the_disk_keeps_no_smaller_one_waiting(tmp_path: Path) -> None:
    recorder = recorder_of(tmp_path)
    record(recorder, BASE, 12)
    for step in range(20):
        recorder.write("/scan", BASE + 2 * SECOND + step, noise(step, 10_000))
    recorder.ring.flush()
    with full_disk(64 << 10):
        for press in (2, 5, 8):
            recorder.press(BASE + press * SECOND)
            recorder.tick(BASE + press * SECOND + 3 * SECOND // 2)
        recorder.tick(BASE + 30 * SECOND)
        assert presses(recorder) == [5, 8]
    recorder.tick(BASE + 60 * SECOND)
    assert presses(recorder) == [2, 5, 8]


def test_no_more_clips_wait_for_room_than_a_few_and_the_oldest_goes_first(tmp_path: Path) -> None:
    recorder = recorder_of(tmp_path)
    record(recorder, BASE, 45)
    recorder.ring.flush()
    for press in range(2, 42, 2):
        recorder.press(BASE + press * SECOND)
        with full_disk():
            recorder.tick(BASE + press * SECOND + 3 * SECOND // 2)
    recorder.close()
    assert presses(recorder) == [*range(10, 42, 2)]


def test_clip_that_was_pending_in_an_earlier_release_is_cut(tmp_path: Path) -> None:
    recorder = recorder_of(tmp_path)
    record(recorder, BASE, 5)
    recorder.close()
    (tmp_path / "pending.json").write_bytes(PENDING)
    again = recorder_of(tmp_path)
    assert presses(again) == [2]
    assert again.clips.all()[0].entry.triggers == ("failed",)
    (tmp_path / "pending.json").write_bytes(b"\xff{")
    assert presses(recorder_of(tmp_path)) == [2]
    assert not (tmp_path / "pending.json").exists()


def test_message_that_says_nothing_of_the_robot_spoils_no_clip(tmp_path: Path) -> None:
    recorder = recorder_of(tmp_path)
    recorder.task(BASE, "pick")
    recorder.write(ROBOT_TOPIC, BASE + SECOND, b'{"task": 7')
    record(recorder, BASE, 3)
    recorder.press(BASE + 2 * SECOND)
    recorder.close()
    assert presses(recorder) == [2]
    assert recorder.clips.all()[0].entry.task == "pick"


def test_clock_that_is_set_back_ends_what_is_pending_and_keeps_no_button_from_counting(tmp_path: Path) -> None:
    recorder = recorder_of(tmp_path, cooldown_s=60.0, hour_max=2)
    recorder.task(BASE, "pick")
    record(recorder, BASE, 5)
    recorder.press(BASE + 4 * SECOND)
    record(recorder, BASE - HOUR, 5)
    assert presses(recorder) == [4]
    recorder.press(BASE - HOUR + 4 * SECOND)  # Since when nothing was asked for, and no task began.
    record(recorder, BASE - HOUR + 5 * SECOND, 5)
    assert presses(recorder) == [4 - 3_600, 4]
    record(recorder, BASE - 2 * HOUR, 5)
    recorder.press(BASE - 2 * HOUR + 4 * SECOND)
    recorder.press(BASE - 2 * HOUR + 5 * SECOND)  # Too soon, as ever.
    recorder.close()
    assert presses(recorder) == [4 - 7_200, 4 - 3_600, 4]


def test_condition_that_holds_while_the_clock_is_set_back_fires_in_its_time(tmp_path: Path) -> None:
    recorder = LogRecorder(
        tmp_path, rules_of(triggers={"hard": TriggerRule(when="effort > 40", for_s=2.0, before_s=1.0, after_s=1.0)})
    )
    recorder.tell(BASE, effort=50.0)
    record(recorder, BASE - HOUR, 5)
    recorder.tell(BASE - HOUR, effort=50.0)
    recorder.tell(BASE - HOUR + 3 * SECOND, effort=50.0)
    recorder.close()
    assert presses(recorder) == [3 - 3_600]


def test_thread_outlives_what_is_no_message_and_a_full_disk(tmp_path: Path) -> None:
    cameras = {"hall": CameraRule(use=CameraUse.BLUR)}
    recorder = LogRecorder(tmp_path, rules_of(cameras=cameras))
    thread = RecorderThread(recorder)
    thread.hand("step", BASE, [object()], [0.0])
    thread.hand("tell", BASE, effrt=1.0)
    thread.hand("picture", "no camera", BASE, jpeg())
    thread.hand("picture", "hall", "today", jpeg())
    thread.hand("task", BASE, "pick")
    for step in range(3 * RATE_HZ):
        thread.hand("step", BASE + step * SECOND // RATE_HZ, [0.0], [0.0])
    thread.hand("outcome", BASE + 3 * SECOND, success=False)
    thread.close()
    assert thread.lost == 4
    assert thread.why.startswith("picture: ")
    assert len(recorder.clips.all()) == 1


def test_thread_that_ends_on_a_full_disk_ends(tmp_path: Path) -> None:
    recorder = recorder_of(tmp_path)
    thread = RecorderThread(recorder)
    for step in range(3 * RATE_HZ):
        thread.hand("step", BASE + step * SECOND // RATE_HZ, [0.0], [0.0])
    with full_disk():
        thread.hand("press", BASE + 2 * SECOND)
        thread.close()
    assert not thread.why
