"""What a dataset says of its numbers, lengths and times, held against what they are."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mainspring.data.episode import Episode
from mainspring.data.options import IngestOptions

from .lerobot_sets import (
    FEATURES,
    FRONT,
    RATE_HZ,
    Rows,
    episodes,
    gray_of,
    grays,
    lerobot_set,
    outcome,
    rows,
    statistics,
)

STALE = IngestOptions(stale_statistics=True)
STEP_NS = 50_000_000
Numbers = np.ndarray[Any, np.dtype[Any]]


def one_pass(values: Numbers) -> Numbers:
    """Numbers whose statistics are those of LeRobot 0.4: mean square less squared mean, in float32."""

    class Running(np.ndarray[Any, np.dtype[Any]]):
        def std(self, axis: int) -> Numbers:  # type: ignore[override]
            plain = self.view(np.ndarray)
            variance = np.mean(plain**2, axis=axis) - np.mean(plain, axis=axis) ** 2
            return np.asarray(np.sqrt(np.maximum(0, variance)))

    return values.view(Running)


def with_statistics(
    root: Path, version: str, change: Callable[[int, dict[str, Any]], None] = lambda *_: None, like: Any = None
) -> Path:
    """Writes a dataset of two episodes with the statistics of its version."""
    told = []
    for episode, length in enumerate((200, 150)):
        columns = rows(episode, length)
        columns = {key: columns[key] for key in ("observation.state", "action", "timestamp", "index")}
        told.append(statistics(columns, like=like or (lambda values: values)))
        change(episode, told[-1])
    if version == "v3.0":
        flat = [
            {f"stats/{key}/{kind}": values for key, kinds in each.items() for kind, values in kinds.items()}
            for each in told
        ]
        return lerobot_set(root, "v3.0", (200, 150), said=lambda episode, said: {**said, **flat[episode]})
    lerobot_set(root, version, (200, 150))
    if version == "v2.1":
        lines = [{"episode_index": episode, "stats": each} for episode, each in enumerate(told)]
        (root / "meta/episodes_stats.jsonl").write_text("\n".join(map(json.dumps, lines)))
        return root
    whole = {
        key: {
            "min": np.minimum(told[0][key]["min"], told[1][key]["min"]).tolist(),
            "max": np.maximum(told[0][key]["max"], told[1][key]["max"]).tolist(),
        }
        for key in told[0]
    }
    (root / "meta/stats.json").write_text(json.dumps(whole))
    return root


def rewritten(root: Path, name: str, change: Callable[[Numbers], None]) -> None:
    """Changes a column of the second episode, as whoever edits a dataset does: Parquet then agrees with itself."""
    paths = sorted((root / "data").rglob("*.parquet"))
    table = pq.read_table(paths[-1])
    values = np.array(table[name].to_pylist())
    change(values[-150:])
    place = table.column_names.index(name)
    made = pa.array(values.tolist(), table.schema.field(name).type)
    pq.write_table(table.set_column(place, name, made), paths[-1])


def raised(values: Numbers) -> None:
    values[40, 1] = 9.0


def swapped(values: Numbers) -> None:
    values[40, 1] += 0.01


VERSIONS = ("v2.0", "v2.1", "v3.0")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("like", [np.float64, np.float32, one_pass], ids=["doubles", "singles", "running"])
def test_statistics_of_every_tool_agree_with_sound_numbers(tmp_path: Path, version: str, like: Any) -> None:
    def said(values: Numbers) -> Numbers:
        return like(values.astype(np.float32)) if like is one_pass else values.astype(like)

    assert [episode.note for episode in episodes(with_statistics(tmp_path / "set", version, like=said))] == ["", ""]


@pytest.mark.parametrize(
    ("version", "change", "wanted"),
    [
        ("v2.0", raised, "observation.state: max 9 where its statistics say"),
        ("v2.1", raised, "observation.state: max 9 where its statistics say"),
        ("v3.0", raised, "observation.state: max 9 where its statistics say"),
        ("v2.1", swapped, "observation.state: mean"),
        ("v3.0", swapped, "observation.state: mean"),
    ],
)
def test_numbers_that_their_statistics_disagree_with_are_refused_until_that_is_said(
    tmp_path: Path, version: str, change: Callable[[Numbers], None], wanted: str
) -> None:
    root = with_statistics(tmp_path / "set", version)
    rewritten(root, "observation.state", change)
    found = outcome(root)
    assert isinstance(found["episode_000000"], Episode)
    assert wanted in str(found["episode_000001"])
    assert "--stale-statistics lets it in" in str(found["episode_000001"])
    first, second = episodes(root, STALE)
    assert (first.note, "statistics disagree: observation.state" in second.note) == ("", True)


def test_statistics_of_other_rows_are_refused(tmp_path: Path) -> None:
    def change(episode: int, told: dict[str, Any]) -> None:
        told["action"]["count"] = [120 if episode else 200]

    found = outcome(with_statistics(tmp_path / "set", "v2.1", change))
    assert "action: 150 rows where its statistics say 120" in str(found["episode_000001"])


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_spread_that_is_another_is_refused_and_that_of_a_sample_is_not(tmp_path: Path, version: str) -> None:
    def change(episode: int, told: dict[str, Any]) -> None:
        factor = 1.01 if episode else np.sqrt(200 / 199)
        told["action"]["std"] = [value * factor for value in told["action"]["std"]]

    found = outcome(with_statistics(tmp_path / "set", version, change))
    assert "action: std" in str(found["episode_000001"])
    assert isinstance(found["episode_000000"], Episode)


def test_statistics_of_all_rows_but_the_last_agree_with_those(tmp_path: Path) -> None:
    root = lerobot_set(tmp_path / "set", lengths=[8])
    shorter = {key: values[:-1] for key, values in rows(0, 8).items() if key in ("observation.state", "action")}
    (root / "meta/episodes_stats.jsonl").write_text(json.dumps({"episode_index": 0, "stats": statistics(shorter)}))
    assert len(episodes(root)[0].time_ns) == 8


def test_statistics_that_overflowed_in_their_maker_object_to_nothing(tmp_path: Path) -> None:
    features = {**FEATURES, "level": {"dtype": "uint8", "shape": [1]}}
    level = (100 + np.arange(8)).astype(np.uint8)
    root = lerobot_set(
        tmp_path / "set", lengths=[8], features=features, change=lambda _, rows: {**rows, "level": level}
    )
    told = statistics({"level": level}) | {"action": {"count": [8]}}
    told["level"]["std"] = [0.0]
    (root / "meta/episodes_stats.jsonl").write_text(json.dumps({"episode_index": 0, "stats": told}))
    assert len(episodes(root)) == 1


def test_statistics_that_say_nothing_object_to_nothing(tmp_path: Path) -> None:
    def change(_: int, told: dict[str, Any]) -> None:
        told["action"]["max"] = [None, float("nan")]
        told["observation.state"] = {"min": "low"}

    assert len(episodes(with_statistics(tmp_path / "set", "v2.1", change))) == 2


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_number_flipped_inside_a_page_is_refused_though_the_file_can_be_read(tmp_path: Path, version: str) -> None:
    root = lerobot_set(tmp_path / "set", version, (200, 150))
    path = sorted((root / "data").rglob("*.parquet"))[-1]
    sink = io.BytesIO()
    pq.write_table(pq.read_table(path), sink, compression="none", use_dictionary=False)
    sound = pq.read_table(path)["action"].combine_chunks().flatten().to_numpy()
    path.write_bytes(_with_flip(sink.getvalue(), np.float32(sound.max()).tobytes()))
    assert (pq.read_table(path)["action"].combine_chunks().flatten().to_numpy() != sound).sum() == 1
    found = outcome(root)
    assert "action: " in str(found["episode_000001"])
    assert "its file's own statistics say" in str(found["episode_000001"])
    assert len(episodes(root, STALE)) == 2


def _with_flip(data: bytes, value: bytes) -> bytes:
    """Flips a bit of a value in a page: it lies behind the header of the page, which says it twice as an extreme."""
    changed = bytearray(data)
    place = -1
    for _ in range(3):
        place = changed.index(value, place + 1)
    changed[place + 2] ^= 0x40
    return bytes(changed)


def test_page_that_its_checksum_disagrees_with_is_refused(tmp_path: Path) -> None:
    root = lerobot_set(tmp_path / "set", "v2.1", (200, 150))
    path = sorted((root / "data").rglob("*.parquet"))[-1]
    sink = io.BytesIO()
    table = pq.read_table(path)
    pq.write_table(table, sink, compression="none", use_dictionary=False, write_page_checksum=True)
    data = bytearray(sink.getvalue())
    data[data.index(np.float32(table["action"][70].as_py()[0]).tobytes())] ^= 1
    path.write_bytes(data)
    assert "CRC" in str(outcome(root)["episode_000001"])


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
@pytest.mark.parametrize("off", [-1, 1])
def test_description_off_by_the_last_row_is_told_and_rows_decide(tmp_path: Path, version: str, off: int) -> None:
    said = lambda episode, told: {**told, "length": told["length"] + (off if episode else 0)}  # noqa: E731
    _, second = episodes(lerobot_set(tmp_path / "set", version, said=said))
    assert len(second.time_ns) == 11
    assert f"11 rows, its description says {11 + off}" in second.note
    assert second.losses == ()
    assert ("1 of 12 rows lost" in second.metadata.get("lost", "")) is (off == 1)


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
@pytest.mark.parametrize("frames", [10, 12])
def test_film_off_by_the_last_frame_gives_the_steps_that_have_both(tmp_path: Path, version: str, frames: int) -> None:
    first, second = episodes(lerobot_set(tmp_path / "set", version, videos={FRONT: [8, frames]}))
    assert [len(first.time_ns), len(second.time_ns)] == [8, min(11, frames)]
    assert f"{frames} frames for 11 rows" in second.note
    assert ("1 of 11 frames lost" in second.metadata.get("lost", "")) is (frames == 10)
    begin = 100 if version == "v2.1" else 8
    assert grays(second) == pytest.approx([gray_of(begin + step) for step in range(len(second.time_ns))], abs=2)


@pytest.mark.parametrize(("frames", "lost"), [(7, "4 of 11 frames lost"), (15, "4 of 15 rows lost")])
def test_film_of_another_length_is_a_loss(tmp_path: Path, frames: int, lost: str) -> None:
    _, second = episodes(lerobot_set(tmp_path / "set", videos={FRONT: [8, frames]}))
    assert lost in str(second.losses[0])
    assert len(second.time_ns) == min(11, frames)


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_rows_that_are_gone_are_a_loss(tmp_path: Path, version: str) -> None:
    change = lambda episode, columns: {key: values[: 7 if episode else 8] for key, values in columns.items()}  # noqa: E731
    _, second = episodes(lerobot_set(tmp_path / "set", version, change=change))
    assert str(second.losses[0]).startswith("rows: 4 of 11 rows lost")


def test_film_that_begins_before_its_rows_is_shown_from_where_their_times_say(tmp_path: Path) -> None:
    def change(_: int, columns: Rows) -> Rows:
        return columns | {"timestamp": columns["timestamp"] + 1.0}

    first, _ = episodes(lerobot_set(tmp_path / "set", change=change, videos={FRONT: [28, 31]}))
    assert grays(first) == pytest.approx([gray_of(20 + step) for step in range(8)], abs=2)
    assert first.losses == ()


def times(tmp_path: Path, stamps: Numbers | None, *, options: IngestOptions | None = None, **more: Any) -> Any:
    """Reads a set whose only episode has other timestamps, or none."""

    def change(_: int, columns: Rows) -> Rows:
        columns = {key: values for key, values in columns.items() if key not in more.get("without", ())}
        return columns if stamps is None else columns | {"timestamp": stamps}

    root = lerobot_set(tmp_path / "set", lengths=[20], change=change, videos=more.get("videos"))
    return outcome(root, options or IngestOptions())["episode_000000"]


GRID = np.arange(20) / RATE_HZ
JITTER = GRID + 0.03 * np.sin(np.arange(20) * 1.7)


@pytest.mark.parametrize(
    ("stamps", "begin_ns", "said"),
    [
        (GRID.astype(np.float32), 0, ""),
        (GRID + 0.02, 0, ""),
        (GRID + 3.2, 3_200_000_000, "begin at 3.2 s"),
        (GRID + 1_700_000_000.5, 1_700_000_000_500_000_000, "begin at 1.7e+09 s"),
        ((GRID + 1_700_000_000).astype(np.float32), 1_700_000_000_000_000_000, "128 s apart"),
        (np.round(GRID * 1e9).astype(np.int64) + 7_000_000_000, 7_000_000_000, "in nanoseconds"),
    ],
)
def test_even_timestamps_give_even_steps_wherever_they_begin(
    tmp_path: Path, stamps: Numbers, begin_ns: int, said: str
) -> None:
    episode = times(tmp_path, stamps)
    assert episode.time_ns.tolist() == [begin_ns + step * STEP_NS for step in range(20)]
    assert said in episode.note


@pytest.mark.parametrize("without", [("frame_index",), ("timestamp",), ("frame_index", "timestamp", "index")])
def test_rows_without_frame_numbers_or_times_are_in_order(tmp_path: Path, without: tuple[str, ...]) -> None:
    assert times(tmp_path, None, without=without).time_ns.tolist() == [step * STEP_NS for step in range(20)]


def test_irregular_timestamps_are_kept_and_told(tmp_path: Path) -> None:
    episode = times(tmp_path, JITTER)
    assert np.array_equal(episode.time_ns, np.round((JITTER - min(0, JITTER[0])) * 1e9).astype(np.int64))
    assert "irregular timestamps, up to" in episode.note


def test_irregular_timestamps_are_brought_to_a_rate_when_told_to(tmp_path: Path) -> None:
    slow = np.cumsum(np.full(20, 0.08)) + 0.01 * np.sin(np.arange(20))
    refused = times(tmp_path / "a", slow)
    assert "timestamps of 12." in refused
    assert "--resample 12." in refused
    options = IngestOptions(resample_hz=10.0)
    episode = times(tmp_path / "b", slow, options=options, videos={FRONT: [20]})
    assert np.diff(episode.time_ns).tolist() == [100_000_000] * (len(episode.time_ns) - 1)
    nearest = [int(np.abs(slow - slow[0] - step / 10).argmin()) for step in range(len(episode.time_ns))]
    assert np.array_equal(episode.columns["state"], rows(0, 20)["observation.state"][nearest])
    assert grays(episode) == pytest.approx([gray_of(row) for row in nearest], abs=2)
    assert "at 10 Hz" in episode.note


@pytest.mark.parametrize(
    ("stamps", "wanted"),
    [
        (np.zeros(20), "do not advance after step 0"),
        (np.concatenate([GRID[:9], GRID[3:14]]), "do not advance after step 8"),
        (np.where(np.arange(20) == 5, np.nan, GRID), "1 timestamps that are no numbers"),
        (GRID * 1e12, "timestamps up to"),
    ],
)
def test_timestamps_that_cannot_be_are_refused(tmp_path: Path, stamps: Numbers, wanted: str) -> None:
    assert wanted in times(tmp_path, stamps)


def test_gap_is_not_filled_by_a_rate(tmp_path: Path) -> None:
    stamps = np.where(np.arange(20) < 12, GRID, GRID + 1.5)
    assert "a gap of 1.55" in times(tmp_path, stamps, options=IngestOptions(resample_hz=20.0))
