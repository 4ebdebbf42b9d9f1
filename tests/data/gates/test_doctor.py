from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.data.making import CAMERA, HEIGHT, RATE_HZ, ROBOTS, WIDTH, write_video

from mainspring.data.episode import Episode, VideoFile
from mainspring.data.features import Camera, Column, Features
from mainspring.data.gates.doctor import examined
from mainspring.data.readers.episodes.lerobot import lerobot_recordings

STEPS = 200
NAMES = ("shoulder", "elbow", "wrist")


def reasons_of(episode: Episode) -> tuple[str, ...]:
    return examined(episode).reasons


def episode_of(**changes: Any) -> Episode:
    """An arm that follows its actions a step later, as a sound robot does."""
    dice = np.random.default_rng(1)
    moved = np.cumsum(dice.normal(size=(STEPS + 20, 3)), axis=0)
    fields: dict[str, Any] = {
        "task": "pick",
        "robot": "arm",
        "success": True,
        "rate_hz": float(RATE_HZ),
        "features": Features(columns=(Column(name="action", names=NAMES), Column(name="state", names=NAMES))),
        "time_ns": np.arange(STEPS, dtype=np.int64) * (10**9 // RATE_HZ),
        "columns": {"action": moved[1 : STEPS + 1], "state": moved[:STEPS]},
    }
    return Episode(**{**fields, **changes})


def with_state(change: Any) -> Episode:
    episode = episode_of()
    state = change(episode.columns["state"].copy())
    return replace(episode, columns={**episode.columns, "state": state})


def stuck(state: Any, steps: int) -> Any:
    state[50 : 50 + steps] = state[50]
    return state


def test_doctor_finds_nothing_wrong_with_a_sound_episode() -> None:
    assert reasons_of(episode_of()) == ()


def test_doctor_finds_a_state_that_froze_while_the_action_moved() -> None:
    assert reasons_of(with_state(lambda state: stuck(state, RATE_HZ))) == ()
    (problem,) = reasons_of(with_state(lambda state: stuck(state, 3 * RATE_HZ)))
    assert problem.startswith("the same state for 3.0")
    assert "s from step 50 on, while the action moves" in problem


def test_doctor_allows_a_robot_that_waits() -> None:
    episode = episode_of()
    waiting = {name: stuck(values.copy(), 3 * RATE_HZ) for name, values in episode.columns.items()}
    assert reasons_of(replace(episode, columns=waiting)) == ()


@pytest.mark.parametrize(("late", "found"), [(4, False), (14, True), (-14, True)])
def test_doctor_finds_a_state_that_follows_its_action_too_late(late: int, found: bool) -> None:
    dice = np.random.default_rng(2)
    moved = np.cumsum(dice.normal(size=(STEPS + 40, 3)), axis=0)
    columns = {"action": moved[20 : STEPS + 20], "state": moved[20 - late : STEPS + 20 - late]}
    told = reasons_of(episode_of(columns=columns))
    assert [f"by {late / RATE_HZ:.2f} s" in problem for problem in told] == [True] * found


@pytest.mark.parametrize(
    ("damage", "wanted"),
    [
        (lambda time_ns: np.where(np.arange(STEPS) == 9, time_ns - 10**9, time_ns), "does not advance"),
        (lambda time_ns: time_ns * 2, "10.00 steps per second"),
        (lambda time_ns: time_ns + (np.arange(STEPS) > 70) * 10**9, "a gap of 1.050 s after step 70"),
    ],
)
def test_doctor_finds_times_that_jump_drift_or_leave_gaps(damage: Any, wanted: str) -> None:
    assert wanted in "; ".join(reasons_of(episode_of(time_ns=damage(episode_of().time_ns))))


@pytest.mark.slow
@pytest.mark.parametrize("frozen", [False, True])
def test_doctor_finds_a_camera_that_froze_while_the_robot_moved(tmp_path: Path, frozen: bool) -> None:
    path = tmp_path / "front.mp4"
    write_video(path, [(30 if frozen and 60 < step < 120 else step) for step in range(STEPS)])
    features = episode_of().features
    told = reasons_of(
        episode_of(
            features=replace(features, cameras=(Camera(name=CAMERA, height=HEIGHT, width=WIDTH),)),
            videos=(VideoFile(camera=CAMERA, path=path),),
        )
    )
    assert [("one picture for" in problem and CAMERA in problem) for problem in told] == [True] * frozen


@pytest.mark.skipif(not ROBOTS.exists(), reason="the shared robot recordings are not here")
@pytest.mark.slow
def test_doctor_finds_nothing_wrong_with_a_real_humanoid() -> None:
    for recording in lerobot_recordings(ROBOTS / "unitree_g1_bottle")[:2]:
        assert examined(recording.read(Path())).reasons == ()


def test_doubt_that_the_owner_allows_for_is_told_and_no_reason() -> None:
    episode = with_state(lambda state: stuck(state, 3 * RATE_HZ))
    (reason,) = examined(episode).reasons
    assert reason.endswith("(--allow frozen-state lets it in)")
    assert examined(episode, allow=["lag"]).reasons == (reason,)
    allowed = examined(episode, allow=["frozen-state"])
    assert (allowed.reasons, len(allowed.allowed)) == ((), 1)
