from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.data.intake.making import SECOND_NS, START_NS, arm, recipe, write_log

from mainspring.data.catalog.choose.selections import merged
from mainspring.data.catalog.log import Version, Waiver
from mainspring.data.catalog.versions import candidates, newest_version
from mainspring.data.gates.freshness import freshness
from mainspring.data.gates.publishing import DAMAGE, DISTRIBUTION, judgements, publish_judged
from mainspring.data.intake.ingest import ingest
from mainspring.data.options import IngestOptions
from mainspring.data.recording import EpisodeWriter
from mainspring.domain.errors import Conflict, InvalidInput
from mainspring.objects import ObjectStore, open_store
from mainspring.testing.time_and_chance import FakeClock

STEPS, EPISODES = 300, 6
NAMES = ("shoulder", "elbow", "wrist")


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path / "store"))


def plain(values: Any) -> Any:
    return values


def take_in(
    store: ObjectStore,
    folder: Path,
    seed: int,
    change: Callable[[Any], Any] = plain,
    waivers: tuple[Waiver, ...] = (),
    dataset: str = "swing",
) -> Version | None:
    """Ingests some episodes of an arm that swings, past the gates."""
    for episode in range(EPISODES):
        dice = np.random.default_rng(100 * seed + episode)
        phase, time = dice.uniform(0, 6, 3), np.arange(STEPS)[:, None] / 40
        state = np.sin(time + phase) * np.array([1.0, 0.5, 2.0]) + dice.normal(0, 0.02, (STEPS, 3))
        path = folder / f"{seed}-{episode}.mcap"
        with EpisodeWriter(
            path, task="swing", robot="arm", rate_hz=20, state_names=NAMES, action_names=NAMES
        ) as writer:
            for step, values in enumerate(change(state.copy())):
                writer.write(step * 50_000_000, values, state[step])
            writer.finish(success=True)
    clock = FakeClock()
    return ingest(
        folder,
        store,
        dataset,
        clock=clock,
        publish=lambda store, candidate: publish_judged(store, candidate, clock=clock, waivers=waivers),
    ).version


def degrees(state: Any) -> Any:
    return np.degrees(state)


def dead_elbow(state: Any) -> Any:
    state[:, 1] = 0.25
    return state


def shifted_wrist(state: Any) -> Any:
    state[:, 2] = np.abs(state[:, 2]) * 0.2 + 1.6
    return state


@pytest.mark.slow
def test_episodes_like_those_before_are_published_without_a_word(store: ObjectStore, tmp_path: Path) -> None:
    first = take_in(store, tmp_path / "first", 1)
    second = take_in(store, tmp_path / "second", 2)
    assert first is not None
    assert second is not None
    assert (first.episodes, second.episodes, second.waivers) == (EPISODES, 2 * EPISODES, ())
    assert judgements(store, "swing") == ()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (degrees, "state shoulder (range)"),
        (dead_elbow, "state elbow (constant) always 0.25"),
        (shifted_wrist, "state wrist (shift)"),
    ],
)
def test_episodes_unlike_those_before_are_kept_back_with_what_differs(
    store: ObjectStore, tmp_path: Path, change: Callable[[Any], Any], wanted: str
) -> None:
    first = take_in(store, tmp_path / "first", 1)
    with pytest.raises(Conflict, match="waive") as caught:
        take_in(store, tmp_path / "second", 2, change)
    assert wanted in str(caught.value)
    assert newest_version(store, "swing") == first
    (judgement,) = judgements(store, "swing")
    assert judgement.version == ""
    assert judgement.candidate in candidates(store, "swing")


@pytest.mark.slow
def test_gate_waived_with_name_and_reason_lets_episodes_pass_and_is_kept(store: ObjectStore, tmp_path: Path) -> None:
    take_in(store, tmp_path / "first", 1)
    waiver = Waiver(gate=DISTRIBUTION, by="ada", reason="a new elbow")
    version = take_in(store, tmp_path / "second", 2, dead_elbow, (waiver,))
    assert version is not None
    assert version.waivers == (waiver,)
    assert version.episodes == 2 * EPISODES
    (judgement,) = judgements(store, "swing")
    assert (judgement.version, judgement.waivers) == ("swing@2", (waiver,))


@pytest.mark.slow
@pytest.mark.parametrize("waiver", [("tail", "ada", "why"), (DISTRIBUTION, " ", "why"), (DISTRIBUTION, "ada", "")])
def test_waiver_for_no_gate_or_without_name_or_reason_is_refused(
    store: ObjectStore, tmp_path: Path, waiver: tuple[str, str, str]
) -> None:
    gate, by, reason = waiver
    with pytest.raises(InvalidInput, match="waive a gate"):
        take_in(store, tmp_path / "first", 1, plain, (Waiver(gate=gate, by=by, reason=reason),))


@pytest.mark.slow
def test_freshness_counts_the_episodes_that_a_version_brought(store: ObjectStore, tmp_path: Path) -> None:
    take_in(store, tmp_path / "first", 1)
    second = take_in(store, tmp_path / "second", 2)
    assert second is not None
    fresh = freshness(store, second)
    assert (fresh.version, fresh.episodes) == ("swing@2", EPISODES)
    assert 0 < fresh.median_s <= fresh.late_s <= fresh.max_s


@pytest.mark.slow
def test_merge_of_unlike_datasets_is_kept_back_and_of_like_ones_is_not(store: ObjectStore, tmp_path: Path) -> None:
    for dataset, seed, change in (("swing", 1, plain), ("like", 2, plain), ("unlike", 3, degrees)):
        take_in(store, tmp_path / dataset, seed, change, dataset=dataset)
    clock = FakeClock()
    both = publish_judged(store, merged(store, ["swing", "like"], dataset="swing"), clock=clock)
    assert (both.name, both.episodes) == ("swing@2", 2 * EPISODES)
    mixed = merged(store, ["swing", "unlike"], dataset="all")
    with pytest.raises(Conflict, match="state shoulder"):
        publish_judged(store, mixed, clock=clock)
    assert candidates(store, "all") == (mixed.id,)
    waiver = Waiver(gate=DISTRIBUTION, by="ada", reason="two units are meant")
    forced = publish_judged(store, mixed, clock=clock, waivers=(waiver,))
    assert (forced.episodes, forced.waivers) == (3 * EPISODES, (waiver,))


@pytest.mark.parametrize("broken", [1, 2])
def test_recordings_that_begin_to_lose_things_close_a_gate(store: ObjectStore, tmp_path: Path, broken: int) -> None:
    clock = FakeClock()

    def take(folder: str, first: int, damaged: int, *waivers: Waiver) -> Version | None:
        for number in range(first, first + 10):
            arm_then = arm(begin_ns=START_NS + number * 10 * SECOND_NS)
            log = write_log(tmp_path / folder / f"{number}.mcap", arm_then)
            if number < first + damaged:
                log.write_bytes(log.read_bytes()[: log.stat().st_size * 7 // 10])
        return ingest(
            tmp_path / folder,
            store,
            "reach",
            clock=clock,
            recipe=recipe(),
            options=IngestOptions(lost_max=1.0),
            publish=lambda store, candidate: publish_judged(store, candidate, clock=clock, waivers=waivers),
        ).version

    assert take("first", 0, 0)
    if broken > 1:
        with pytest.raises(Conflict, match=r"2 of 10, wanted 0 of 10, at most 10 % now.*--waive damage"):
            take("second", 10, broken)
    version = take("second", 10, broken, Waiver(gate=DAMAGE, by="jo", reason="the disk was replaced"))
    assert version is not None
    assert (version.episodes, version.lossy, len(version.waivers)) == (20, broken, broken - 1)
    assert take("third", 20, broken) if broken > 1 else True  # As many as before are no news.
