from __future__ import annotations

from pathlib import Path

import pytest
from tests.data.intake.making import IMAGE_NS, JOINT_NS, JOINTS, KINDS, START_NS, arm, images, joints, said, write_log
from tests.data.making import ROBOTS
from tests.data.readers.logs import robot_bag1, robot_bag2, robot_mcap, robot_ulog

from mainspring.data.catalog.versions import episode_rows
from mainspring.data.intake.ingest import ingest
from mainspring.data.intake.logs.recipe import Align, CutBy, recipe_from_yaml
from mainspring.data.intake.proposals.propose import propose
from mainspring.domain.errors import InvalidInput, NotFound
from mainspring.objects import open_store
from mainspring.testing.time_and_chance import FakeClock


def test_proposal_of_a_usual_robot_can_be_run_at_once(tmp_path: Path) -> None:
    flag = [said("/recording", START_NS, True), said("/recording", START_NS + 150 * JOINT_NS, False)]
    sent = [*arm(2.0), *images(50), said("/task", START_NS, "pour"), *flag, said("/success", START_NS + 10**9, True)]
    log = write_log(tmp_path / "raw" / "a.mcap", sent)
    found = propose(log)
    assert found.recipe is not None
    (state,), (action,) = found.recipe.columns["state"], found.recipe.columns["action"]
    assert (state.topic, state.field, state.keys, state.names) == ("/joint_states", "position", "name", JOINTS)
    assert (action.topic, action.align) == ("/arm/command", Align.HOLD)
    assert (found.recipe.rate_hz, list(found.recipe.cameras), found.recipe.task.topic) == (25.0, ["camera"], "/task")
    (tmp_path / "recipe.yaml").write_text(found.text)
    assert recipe_from_yaml(tmp_path / "recipe.yaml") == found.recipe
    store = open_store("memory://")
    report = ingest(tmp_path / "raw", store, "pour", clock=FakeClock(), recipe=found.recipe)
    assert report.left_out == ()
    assert report.version is not None
    assert {row.task for row in episode_rows(store, report.version)} == {"pour"}


def test_proposal_tells_rates_gaps_and_jumps_of_each_topic(tmp_path: Path) -> None:
    sent = [*arm(1.0), *images(25), joints(START_NS + 300 * JOINT_NS, 3.0)]
    found = propose(write_log(tmp_path / "a.mcap", sent))
    seen = {one.topic.name: one for one in found.topics}
    assert seen["/joint_states"].rate_hz == pytest.approx(100)
    assert seen["/camera/compressed"].rate_hz == pytest.approx(1e9 / IMAGE_NS)
    assert seen["/joint_states"].gap_s == pytest.approx(2.01)
    assert found.seconds == pytest.approx(3.0)
    assert (found.whole, found.damage) == (True, "")
    assert any("/joint_states pauses for 2.01 s" in doubt for doubt in found.doubts)


def test_proposal_without_a_sound_guess_asks_and_proposes_nothing_to_run(tmp_path: Path) -> None:
    found = propose(write_log(tmp_path / "a.mcap", [*images(25), said("/start", START_NS, 1)]))
    assert found.recipe is None
    assert "# ? state: no topic is known" in found.text
    assert "CHOOSE" in found.text
    assert found.doubts


def test_cameras_whose_topics_differ_only_in_their_endings_keep_names_of_their_own(tmp_path: Path) -> None:
    topics = (
        "/camera/compressed",
        "/camera/image_raw/compressed",
        "/wrist/image/compressed",
        "/wrist.image.compressed",
    )
    sent = [
        *arm(1.0),
        *((topic, time_ns, data) for topic in topics for _, time_ns, data in images(25)),
    ]
    found = propose(write_log(tmp_path / "a.mcap", sent, dict.fromkeys(topics, KINDS["/camera/compressed"])))
    assert found.recipe is not None
    assert {name: part.topic for name, part in found.recipe.cameras.items()} == {
        "camera.compressed": "/camera/compressed",
        "camera.image_raw.compressed": "/camera/image_raw/compressed",
        "wrist.image.compressed": "/wrist.image.compressed",
        "wrist.image.compressed_": "/wrist/image/compressed",
    }


@pytest.mark.skipif(not ROBOTS.exists(), reason="the shared robot recordings are not here")
def test_proposal_for_a_flight_log_has_the_rate_of_the_state_it_takes() -> None:
    found = propose(ROBOTS / "logs" / "sample_log_small.ulg")
    assert found.recipe is not None
    assert found.recipe.columns["state"][0].topic == "vehicle_attitude"
    assert found.recipe.rate_hz == pytest.approx(204.58, rel=0.005)


def test_flag_in_a_log_is_proposed_to_cut_it(tmp_path: Path) -> None:
    sent = [*arm(1.0), said("/recording", START_NS, True)]
    found = propose(write_log(tmp_path / "a.mcap", sent))
    assert found.recipe is not None
    assert found.recipe.cut.by is CutBy.FLAG


@pytest.mark.parametrize(
    "sent",
    [
        [(topic, START_NS + number, data) for number, (topic, _, data) in enumerate(arm(1.0))],
        [*arm(1.0), said("/arm/command", START_NS + 200_000 * 10**9, [1, 2])],
    ],
)
def test_log_with_an_absurd_clock_is_shown_with_a_recipe_that_may_be_written(
    tmp_path: Path, sent: list[tuple[str, int, bytes]]
) -> None:
    found = propose(write_log(tmp_path / "a.mcap", sent))
    assert found.recipe is not None
    (tmp_path / "recipe.yaml").write_text(found.text)
    assert recipe_from_yaml(tmp_path / "recipe.yaml") == found.recipe


def test_path_that_is_no_log_has_no_proposal(tmp_path: Path) -> None:
    (tmp_path / "a.mcap").write_bytes(b"nothing of the kind")
    with pytest.raises(InvalidInput):
        propose(tmp_path / "a.mcap")
    with pytest.raises(NotFound):
        propose(tmp_path / "b.mcap")


def test_topic_of_a_few_messages_is_no_state_action_or_camera_where_a_stream_is_there(tmp_path: Path) -> None:
    kinds = {"/a/joint_states": KINDS["/joint_states"], "/a/command": KINDS["/arm/command"]}
    kinds["/a/compressed"] = KINDS["/camera/compressed"]
    few = [
        ("/a/joint_states", time_ns, data) for _, time_ns, data in (joints(START_NS, 0.0), joints(START_NS + 1, 0.0))
    ]
    few += [("/a/command", time_ns, data) for _, time_ns, data in (said("/arm/command", START_NS, [1.0, 2.0]),)]
    few += [("/a/compressed", time_ns, data) for _, time_ns, data in images(2)]
    found = propose(write_log(tmp_path / "a.mcap", [*few, *arm(2.0), *images(50)], kinds))
    assert found.recipe is not None
    assert found.recipe.columns["state"][0].topic == "/joint_states"
    assert found.recipe.columns["action"][0].topic == "/arm/command"
    assert [part.topic for part in found.recipe.cameras.values()] == ["/camera/compressed"]
    assert any("/a/compressed was not taken as a camera: it has 2 messages" in doubt for doubt in found.doubts)
    assert found.works


def test_rate_of_an_irregular_topic_is_its_mean_and_said_to_be_irregular(tmp_path: Path) -> None:
    bursts = [said("/start", START_NS + (number // 5) * 10**9 + number % 5 * 10**6, 1) for number in range(100)]
    found = propose(write_log(tmp_path / "a.mcap", [*arm(2.0), *bursts]))
    seen = {one.topic.name: one for one in found.topics}
    assert seen["/joint_states"].steady
    assert not seen["/start"].steady
    assert seen["/start"].rate_hz == pytest.approx(99 / 19.004, rel=0.01)
    assert seen["/start"].near_s == pytest.approx(0.001)


def test_recipe_by_which_the_log_would_be_left_out_is_shown_with_the_reason(tmp_path: Path) -> None:
    late = [(topic, time_ns + 5 * 10**9 * (topic == "/arm/command"), data) for topic, time_ns, data in arm(2.0)]
    found = propose(write_log(tmp_path / "a.mcap", sorted(late, key=lambda one: one[1])))
    assert found.recipe is not None
    assert not found.works
    assert any("would be taken in" in doubt for doubt in found.doubts)
    report = ingest(tmp_path, open_store("memory://"), "pick", clock=FakeClock(), recipe=found.recipe)
    assert report.episodes == 0


def test_log_that_pauses_is_proposed_to_be_cut_there(tmp_path: Path) -> None:
    sent = [*arm(2.0), *arm(2.0, begin_ns=START_NS + 5 * 10**9)]
    found = propose(write_log(tmp_path / "a.mcap", sent))
    assert found.recipe is not None
    assert (found.recipe.cut.by, found.works) == (CutBy.GAP, True)
    assert any("cut at pauses" in doubt for doubt in found.doubts)
    (tmp_path / "recipe.yaml").write_text(found.text)
    assert recipe_from_yaml(tmp_path / "recipe.yaml") == found.recipe
    report = ingest(tmp_path / "a.mcap", open_store("memory://"), "pick", clock=FakeClock(), recipe=found.recipe)
    assert report.episodes == 2


def _logs(folder: Path) -> list[Path]:
    made = [robot_mcap(folder / "made.mcap"), robot_bag1(folder / "made.bag"), robot_bag2(folder / "bag")]
    made.append(write_log(folder / "usual.mcap", [*arm(2.0), *images(50), said("/task", START_NS, "pick")]))
    return [*made, robot_ulog(folder / "made.ulg"), *(sorted((ROBOTS / "logs").iterdir()) if ROBOTS.exists() else [])]


@pytest.mark.slow
def test_recipe_that_is_said_to_work_takes_episodes_from_every_kind_of_log(tmp_path: Path) -> None:
    worked = 0
    for log in _logs(tmp_path):
        found = propose(log)
        if found.recipe is None:
            continue
        report = ingest(log, open_store("memory://"), "pick", clock=FakeClock(), recipe=found.recipe)
        assert bool(report.episodes) or not found.works, (log.name, report.left_out)
        assert found.works or any("would be taken in" in doubt for doubt in found.doubts)
        worked += found.works
    assert worked
