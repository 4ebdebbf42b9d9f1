from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from mcap.reader import SeekingReader
from PIL import Image
from tests.robots.logs.making import BASE, RATE_HZ, SECOND, attempt, jpeg, noise, recorded, rules_of

from mainspring.data.recording import ACTION_TOPIC as DATA_ACTION
from mainspring.data.recording import STATE_TOPIC as DATA_STATE
from mainspring.domain.errors import InvalidInput, MainspringError
from mainspring.domain.job import Tier
from mainspring.robots.logs.clips import INTERVENTIONS_MAX, ROBOT_TOPIC
from mainspring.robots.logs.pictures import kept
from mainspring.robots.logs.reading import Seen, is_whole, mend, messages_in
from mainspring.robots.logs.recorder import ACTION_TOPIC, STATE_TOPIC, LogRecorder, RecorderThread
from mainspring.robots.logs.ring import Ring
from mainspring.robots.logs.rules import CameraRule, CameraUse, TopicRule, TriggerRule, rules_from_yaml

pytestmark = pytest.mark.slow  # Each syncs what it writes, as robots do.


def said_in(path: Path) -> dict[str, dict[str, str]]:
    with path.open("rb") as file:
        return {record.name: record.metadata for record in SeekingReader(file).iter_metadata()}


def gray(message: bytes) -> float:
    """Returns how bright the bright point of a picture is."""
    with Image.open(io.BytesIO(message[message.index(b"\xff\xd8") :])) as picture:
        return picture.convert("L").crop((9, 9, 10, 10)).tobytes()[0]


def message(step: int, size: int = 400) -> Seen:
    data = json.dumps({"step": step, "fill": f"{step:x}" * (size // 8)}).encode()
    return Seen(topic="/a", encoding="json", schema=("", "", b""), names="", time_ns=BASE + step, data=data)


def test_topics_are_those_that_readers_of_episodes_know() -> None:
    assert (STATE_TOPIC, ACTION_TOPIC) == (DATA_STATE, DATA_ACTION)


def test_files_cut_off_anywhere_give_every_whole_chunk_and_nothing_else(tmp_path: Path) -> None:
    ring = Ring(tmp_path / "ring", 16 << 20)
    flushed: dict[int, int] = {}
    (path,) = [path for step in range(60) for path in _written(ring, tmp_path, step, flushed)][-1:]
    ring.close()
    whole = path.read_bytes()
    steps = [json.loads(seen.data)["step"] for seen in messages_in(path)]
    assert steps == list(range(60))
    torn = tmp_path / "torn.mcap"
    for cut in range(0, len(whole), max(1, len(whole) // 120)):
        torn.write_bytes(whole[:cut])
        seen = [json.loads(each.data)["step"] for each in messages_in(torn)]
        assert seen == list(range(len(seen)))
        assert len(seen) >= max((steps for steps, size in flushed.items() if size <= cut), default=0)
        assert not is_whole(torn)
        if cut % 5 == 0:
            assert mend(torn) == len(seen)
            assert torn.exists() is bool(seen)
            if seen:
                with torn.open("rb") as file:
                    summary = SeekingReader(file, validate_crcs=True).get_summary()
                assert summary is not None
                assert summary.statistics is not None
                assert summary.statistics.message_count == len(seen)


def _written(ring: Ring, folder: Path, step: int, flushed: dict[int, int]) -> list[Path]:
    ring.write(message(step))
    (path,) = (folder / "ring").glob("*.mcap")
    if step % 10 == 9:
        ring.flush()
        flushed[step + 1] = path.stat().st_size
    return [path]


def test_damage_within_a_file_ends_it_there(tmp_path: Path) -> None:
    ring = Ring(tmp_path / "ring", 16 << 20)
    for step in range(40):
        _written(ring, tmp_path, step, {})
    ring.close()
    (path,) = (tmp_path / "ring").glob("*.mcap")
    whole = path.read_bytes()
    for at in range(100, len(whole) - 100, max(1, len(whole) // 30)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        seen = [json.loads(each.data)["step"] for each in messages_in(path)]
        assert seen == list(range(len(seen)))


def test_rings_never_take_more_than_they_may_and_lose_the_oldest(tmp_path: Path) -> None:
    most = 1 << 20
    ring = Ring(tmp_path / "ring", most)
    for step in range(300):
        data = noise(step, 9_000)
        ring.write(Seen(topic="/a", encoding="json", schema=("", "", b""), names="", time_ns=BASE + step, data=data))
        assert sum(path.stat().st_size for path in (tmp_path / "ring").iterdir()) <= most
        assert ring.size_bytes <= most
    kept_ns = [seen.time_ns - BASE for seen in ring.between(0, BASE * 2)]
    assert kept_ns == list(range(kept_ns[0], 300))
    assert kept_ns[0] > 0
    with pytest.raises(InvalidInput):
        ring.write(Seen(topic="/a", encoding="", schema=("", "", b""), names="", time_ns=BASE, data=bytes(most)))


def test_failures_become_clips_that_say_where_they_are_from(tmp_path: Path) -> None:
    recorder = recorded(tmp_path, rules_of())
    (clip,) = recorder.clips.all()
    entry = clip.entry
    assert (entry.robot, entry.release, entry.ring, entry.task) == ("arm-1", "arm@3", "canary", "pick")
    assert (entry.triggers, entry.success, entry.interventions) == (("failed",), False, 1)
    assert (entry.begun_ns, entry.ended_ns) == (BASE, BASE + 4 * SECOND)
    said = said_in(recorder.clips.path(clip))
    assert said["episode"] == {"task": "pick", "robot": "arm-1", "rate_hz": "20.0", "success": "false"}
    assert said["clip"]["trigger"] == "failed"
    assert said["intervention"] == {"00": f"{BASE + SECOND} {BASE + 2 * SECOND} ada"}
    counts: dict[str, int] = {}
    for seen in messages_in(recorder.clips.path(clip)):
        counts[seen.topic] = counts.get(seen.topic, 0) + 1
    assert counts[STATE_TOPIC] == counts[ACTION_TOPIC] == counts["/camera/wrist"] == 4 * RATE_HZ + 1


def test_clips_do_not_reach_over_the_next_task_nor_the_one_before(tmp_path: Path) -> None:
    recorder = LogRecorder(tmp_path, rules_of(triggers={"failed": TriggerRule(when="failure", after_s=60.0)}))
    middle_ns = attempt(recorder, BASE, success=True, camera=False) + SECOND
    after_ns = attempt(recorder, middle_ns, success=False, camera=False) + SECOND
    attempt(recorder, after_ns, success=True, camera=False)
    (clip,) = recorder.clips.all()
    times = [seen.time_ns for seen in messages_in(recorder.clips.path(clip)) if seen.topic == STATE_TOPIC]
    assert middle_ns <= min(times)
    assert max(times) < after_ns


def test_a_hold_that_began_before_the_clip_is_told_with_it(tmp_path: Path) -> None:
    button = TriggerRule(when="button", before_s=1.0, after_s=0.5)
    recorder = LogRecorder(tmp_path, rules_of(triggers={"button": button}))
    recorder.hold(BASE, "bob")
    for step in range(100):
        recorder.step(BASE + step * SECOND // RATE_HZ, [0.0], [0.0])
    recorder.press(BASE + 4 * SECOND)
    recorder.tick(BASE + 10 * SECOND)
    (clip,) = recorder.clips.all()
    begin, end, who = said_in(recorder.clips.path(clip))["intervention"]["00"].split()
    assert (int(begin), who) == (BASE + 3 * SECOND, "bob")
    assert int(end) == clip.entry.ended_ns


def test_many_holds_stay_within_what_readers_keep(tmp_path: Path) -> None:
    recorder = LogRecorder(tmp_path, rules_of())
    recorder.task(BASE, "pick")
    for turn in range(100):
        recorder.hold(BASE + turn * SECOND // 10, "ada" if turn % 2 == 0 else "")
    recorder.outcome(BASE + 11 * SECOND, success=False)
    recorder.close()
    (clip,) = recorder.clips.all()
    assert clip.entry.interventions == 50 <= INTERVENTIONS_MAX
    assert len(said_in(recorder.clips.path(clip))["intervention"]) == 50


def test_triggers_hold_for_a_while_cool_down_and_are_limited(tmp_path: Path) -> None:
    rule = TriggerRule(when="effort > 40", for_s=1.0, before_s=0.1, after_s=0.1, cooldown_s=5.0, hour_max=3)
    recorder = LogRecorder(tmp_path, rules_of(triggers={"hard": rule}))
    fired = []
    for step in range(400):
        at_ns = BASE + step * SECOND // 10
        recorder.step(at_ns, [0.0], [0.0])
        recorder.tell(at_ns, effort=50.0 if step % 20 < 15 else 0.0)
        recorder.tick(at_ns)
        fired.append(len(recorder.clips.all()))
    assert [step for step in range(1, 400) if fired[step] > fired[step - 1]] == [12, 72, 132]
    with pytest.raises(InvalidInput, match="effort"):
        recorder.tell(BASE, efort=1.0)


def test_overlapping_triggers_share_one_clip_as_urgent_as_the_more_urgent(tmp_path: Path) -> None:
    failed = TriggerRule(when="failure", after_s=2.0, priority=Tier.CRITICAL)
    button = TriggerRule(when="button", after_s=2.0, priority=Tier.OPPORTUNISTIC, send=False)
    recorder = LogRecorder(tmp_path, rules_of(triggers={"failed": failed, "button": button}))
    end_ns = attempt(recorder, BASE, success=False, camera=False)
    recorder.press(end_ns + SECOND)
    recorder.tick(end_ns + 9 * SECOND)
    (clip,) = recorder.clips.all()
    assert clip.entry.triggers == ("failed", "button")
    assert (clip.entry.priority, clip.entry.send) == (Tier.CRITICAL, True)


def test_a_clip_that_was_pending_in_a_loss_of_power_is_cut_of_what_is_left(tmp_path: Path) -> None:
    recorder = LogRecorder(tmp_path, rules_of(triggers={"failed": TriggerRule(when="failure", after_s=60.0)}))
    attempt(recorder, BASE, success=False)
    recorder.ring.flush()
    (path,) = (tmp_path / "ring").glob("*.mcap")
    path.write_bytes(path.read_bytes()[:-50])
    (tmp_path / "clips" / "x.mcap.partial").write_bytes(b"half")
    again = LogRecorder(tmp_path, rules_of())
    assert again.ring.mended > 0
    (clip,) = again.clips.all()
    assert clip.entry.triggers == ("failed",)
    assert clip.entry.ended_ns > BASE + 2 * SECOND
    assert {path.suffix for path in (tmp_path / "clips").iterdir()} == {".mcap", ".json"}
    assert not (tmp_path / "pending.json").exists()
    assert len(LogRecorder(tmp_path, rules_of()).clips.all()) == 1


def test_cameras_are_kept_blurred_or_dropped_by_rule(tmp_path: Path) -> None:
    cameras = {"hall": CameraRule(use=CameraUse.BLUR, rate_hz=5.0), "door": CameraRule(use=CameraUse.DROP)}
    topics = {"/noise": TopicRule(drop=True), "/tf": TopicRule(rate_hz=2.0)}
    recorder = LogRecorder(tmp_path, rules_of(cameras=cameras, topics=topics))
    recorder.task(BASE, "pick")
    for step in range(2 * RATE_HZ):
        at_ns = BASE + step * SECOND // RATE_HZ
        for camera in ("hall", "door", "wrist"):
            recorder.picture(camera, at_ns, jpeg())
        recorder.write("/noise", at_ns, b"{}")
        recorder.write("/tf", at_ns, b"{}")
    recorder.outcome(BASE + 2 * SECOND, success=False)
    recorder.close()
    (clip,) = recorder.clips.all()
    seen = list(messages_in(recorder.clips.path(clip)))
    counts = {topic: sum(each.topic == topic for each in seen) for topic in {each.topic for each in seen}}
    assert counts == {"/camera/hall": 10, "/camera/wrist": 40, "/tf": 4, ROBOT_TOPIC: 2}
    (hall, wrist) = (
        next(each.data for each in seen if each.topic == f"/camera/{camera}") for camera in ("hall", "wrist")
    )
    assert gray(hall) < 160 < 230 < gray(wrist)


def test_pictures_that_cannot_be_blurred_are_not_kept() -> None:
    assert kept(b"\xff\xd8 no picture", CameraUse.BLUR) is None
    assert kept(jpeg()[:200], CameraUse.BLUR) is None
    assert kept(b"anything", CameraUse.KEEP) == b"anything"


def test_clips_make_room_for_the_next_by_what_counts_least(tmp_path: Path) -> None:
    recorder = LogRecorder(
        tmp_path, rules_of(clips_mib=1, triggers={"failed": TriggerRule(when="failure", cooldown_s=0)})
    )
    for turn in range(6):
        begin_ns = BASE + turn * 10 * SECOND
        recorder.task(begin_ns, f"task {turn}")
        recorder.picture("wrist", begin_ns, noise(turn, 300_000))
        recorder.outcome(begin_ns + SECOND, success=False)
        recorder.tick(begin_ns + 7 * SECOND)
    names = [clip.entry.task for clip in recorder.clips.all()]
    assert names == [f"task {turn}" for turn in range(6 - len(names), 6)]
    assert 0 < sum(clip.entry.size_bytes for clip in recorder.clips.all()) <= 1 << 20
    recorder.clips.sweep(BASE + 100 * 86_400 * SECOND)
    assert recorder.clips.all() == ()


def test_rules_are_read_strictly(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text("robot: arm-1\ndataset: pick\ntriggers: {failed: {when: failure, priority: critical}}\n")
    assert rules_from_yaml(path).triggers["failed"].priority is Tier.CRITICAL
    head = "robot: arm-1\ndataset: pick\n"
    for text, word in (
        (f"{head}triggers: {{failed: {{when: failur}}}}", "failure"),
        (f"{head}trigers: {{}}", "triggers"),
        (f"{head}ring_mib: 1", "ring_mib"),
        (f"{head}cameras: {{hall: {{use: smear}}}}", "blur"),
        (f"{head}triggers: {{a: {{when: failure, before_s: 999}}}}", "600"),
        (f"{head}values: [held]", "held"),
        ("robot: ARM 1\ndataset: pick", "ARM 1"),
        ("]", "YAML"),
        ("", "LogRules"),
    ):
        path.write_text(text)
        with pytest.raises(MainspringError, match=word):
            rules_from_yaml(path)
    with pytest.raises(MainspringError, match="No such file"):
        rules_from_yaml(tmp_path / "none.yaml")


def test_control_loops_hand_over_and_never_wait(tmp_path: Path) -> None:
    thread = RecorderThread(LogRecorder(tmp_path, rules_of()))
    thread.hand("task", BASE, "pick")
    for step in range(50):
        thread.hand("step", BASE + step * SECOND // RATE_HZ, [0.0], [0.0])
    thread.hand("step", BASE, [0.0], [0.0], size_bytes=1 << 30)
    thread.hand("outcome", BASE + 3 * SECOND, success=False)
    thread.close()
    assert thread.lost == 1
    assert len(LogRecorder(tmp_path, rules_of()).clips.all()) == 1


def test_recording_two_cameras_stays_light(tmp_path: Path) -> None:
    program = f"""
import hashlib, sys
from pathlib import Path
from mainspring.robots.logs.recorder import LogRecorder
from mainspring.robots.logs.rules import CameraRule, CameraUse, LogRules, TriggerRule
failed = TriggerRule(when="failure", before_s=10.0, after_s=0.0)
rules = LogRules(robot="a", dataset="a", ring_mib=64, cameras={{"hall": CameraRule(use=CameraUse.BLUR)}},
    triggers={{"failed": failed}})
recorder = LogRecorder(Path({str(tmp_path)!r}), rules)
picture = Path({str(tmp_path / "picture.jpg")!r}).read_bytes()
for step in range(450):
    now = {BASE} + step * {SECOND} // 30
    recorder.step(now, [0.1] * 14, [0.2] * 14)
    recorder.picture("hall", now, picture)
    recorder.picture("wrist", now, b"\\xff\\xd8" + hashlib.shake_128(b"%d" % step).digest(40_000))
recorder.outcome(now + 1, success=False)
recorder.close()
assert not {{"numpy", "av", "pydantic", "httpx"}} & set(sys.modules)
peak, = [line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
print(len(recorder.clips.all()), peak)
"""
    (tmp_path / "picture.jpg").write_bytes(jpeg(90, size=(640, 480)))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    clips, peak_kib = map(int, done.stdout.split())
    assert clips == 1
    assert peak_kib <= 60 << 10
    assert sum(path.stat().st_size for path in (tmp_path / "clips").glob("*.mcap")) > 300 * 40_000
