from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.data.readers.lerobot_sets import FEATURES, FRONT, Rows, lerobot_set

from mainspring.data.intake.ingest import ingest
from mainspring.data.intake.proposals.propose_set import grouped, propose_set
from mainspring.data.options import IngestOptions
from mainspring.objects import open_store
from mainspring.testing.time_and_chance import FakeClock


def other_names(root: Path) -> None:
    names = {"observation.state": "joint_position", "action": "command"}
    features = {names[name]: feature for name, feature in FEATURES.items()}
    change = lambda _, columns: {names.get(name, name): values for name, values in columns.items()}  # noqa: E731
    lerobot_set(root, lengths=(30, 30), features=features, change=change)


def no_action(root: Path) -> None:
    lerobot_set(root, "v3.0", lengths=(30, 30), features={"observation.state": FEATURES["observation.state"]})


def slow(root: Path) -> None:
    def change(_: int, columns: Rows) -> Rows:
        return columns | {"timestamp": np.arange(30) / 12.5}

    lerobot_set(root, lengths=(30, 30), change=change)


def stale(root: Path) -> None:
    lerobot_set(root, lengths=(30, 30))
    lines = [{"episode_index": episode, "stats": {"action": {"max": [0.1, 0.1]}}} for episode in range(2)]
    (root / "meta/episodes_stats.jsonl").write_text("\n".join(map(json.dumps, lines)))


def without_films(root: Path) -> None:
    lerobot_set(root, lengths=(30, 30), videos={FRONT: [0, 0]})


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda root: lerobot_set(root, lengths=(30, 30)), ()),
        (other_names, ("--map", "observation.state=joint_position", "--map", "action=command")),
        (no_action, ("--action", "next:observation.state")),
        (slow, ("--resample", "12.5")),
        (stale, ("--stale-statistics",)),
        (without_films, ("--without-camera", FRONT)),
    ],
)
def test_proposal_is_what_ingest_takes(tmp_path: Path, made: Callable[[Path], Any], words: tuple[str, ...]) -> None:
    made(tmp_path / "set")
    proposal = propose_set(tmp_path / "set")
    assert (proposal.words, proposal.sound, proposal.tried) == (words, 2, 2)
    store = open_store(str(tmp_path / "store"))
    report = ingest(tmp_path / "set", store, "pick", clock=FakeClock(), options=_options(words))
    assert (report.episodes, report.refused) == (2, 0)


def test_what_few_episodes_need_is_told_and_not_proposed(tmp_path: Path) -> None:
    lengths = (30, 30, 30)
    root = lerobot_set(tmp_path / "set", lengths=lengths, videos={FRONT: lengths, "top": (30, 30, 0)})
    proposal = propose_set(root)
    assert (proposal.words, proposal.sound) == ((), 2)
    assert any("--without-camera top would let in 1 of 3" in doubt for doubt in proposal.doubts)


def test_reasons_alike_but_for_their_numbers_are_one() -> None:
    assert list(grouped(["no file a1", "late", "no file a2"])) == ["2 episodes: no file a1", "late"]


def _options(words: tuple[str, ...]) -> IngestOptions:
    names = dict(word.split("=") for word in words if "=" in word)
    plain = dict(itertools.pairwise(words))
    return IngestOptions(
        names=names,
        action=plain.get("--action", ""),
        resample_hz=float(plain["--resample"]) if "--resample" in plain else None,
        without_cameras=(plain["--without-camera"],) if "--without-camera" in plain else (),
        stale_statistics="--stale-statistics" in words,
    )
