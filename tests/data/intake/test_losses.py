"""What is gone of a log is said of the episodes that it concerns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.data.intake.making import JOINTS, SECOND_NS, START_NS, arm, images, mapped, recipe, said, write_log

from mainspring.data.catalog.versions import episode_rows
from mainspring.data.intake.ingest import ingest
from mainspring.data.intake.logs.recipe import Cut, CutBy, RecipePart
from mainspring.data.loss import LOST
from mainspring.data.options import IngestOptions
from mainspring.objects import open_store
from mainspring.testing.time_and_chance import FakeClock

TOLERANT = RecipePart(topic="/joint_states", field="position", names=JOINTS, keys="name", tolerance_ms=200)
CAMERA = 3  # The channel of the images: topics are written in the order of `making.KINDS`.
CUT = Cut(by=CutBy.FLAG, topic="/recording")


def flags(count: int, seconds: int) -> list[tuple[str, int, bytes]]:
    """Says `count` times that something is recorded, each for as long, a second apart."""
    sent = []
    for number in range(count):
        begin_ns = START_NS + number * (seconds + 1) * SECOND_NS
        sent += [said("/recording", begin_ns, True), said("/recording", begin_ns + seconds * SECOND_NS, False)]
    return sent


def break_chunk(path: Path, chosen: Callable[[int, list[int]], bool]) -> None:
    """Flips a bit in the first chunk that is chosen by its last time and its channels."""
    data, at = bytearray(path.read_bytes()), 8
    while data[at] != 15:
        behind = at + 9 + int.from_bytes(data[at + 1 : at + 9], "little")
        if data[at] == 6:
            end_ns, chunk, channels = int.from_bytes(data[at + 17 : at + 25], "little"), at, []
            while data[behind] == 7:
                channels.append(int.from_bytes(data[behind + 9 : behind + 11], "little"))
                behind += 9 + int.from_bytes(data[behind + 1 : behind + 9], "little")
            if chosen(end_ns, channels):
                data[chunk + 70] ^= 1
                break
        at = behind
    path.write_bytes(data)


def break_chunk_at(path: Path, time_ns: int) -> None:
    break_chunk(path, lambda end_ns, _: end_ns >= time_ns)


def test_of_a_log_cut_into_episodes_those_of_the_time_that_is_gone_are_marked(tmp_path: Path) -> None:
    path = write_log(tmp_path / "a.mcap", [*arm(12.0), *flags(4, 2)], chunk_bytes=1_024)
    break_chunk_at(path, START_NS + 4 * SECOND_NS)
    found = mapped(path, recipe(cut=CUT, state=TOLERANT), tmp_path / "packets")
    assert [bool(one.episode and one.episode.losses) for one in found] == [False, True, False, False]
    assert found[1].episode is not None
    loss = next(loss for loss in found[1].episode.losses if loss.subject == "topic /joint_states")
    assert 0 < loss.lost < 20
    assert 190 <= loss.total <= 210  # The messages of the episode, not those of the log.


def test_of_a_log_cut_off_the_last_episode_is_marked(tmp_path: Path) -> None:
    path = write_log(tmp_path / "a.mcap", [*arm(14.0), *flags(4, 2)], chunk_bytes=1_024)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    found = [one.episode for one in mapped(path, recipe(cut=CUT), tmp_path / "packets") if one.episode]
    assert [[loss.total for loss in episode.losses] for episode in found] == [[], [], [0]]


def test_what_is_gone_of_topics_that_nobody_reads_takes_nothing_away(tmp_path: Path) -> None:
    path = write_log(tmp_path / "a.mcap", [*images(50), *arm()], chunk_bytes=512)
    break_chunk(path, lambda end_ns, channels: channels == [CAMERA] and end_ns > START_NS + SECOND_NS)
    store = open_store("memory://")
    plain = ingest(path, store, "reach", clock=FakeClock(), recipe=recipe())
    assert plain.version is not None
    assert (plain.added, plain.version.lossy) == (1, 0)
    refused = ingest(path, store, "seen", clock=FakeClock(), recipe=recipe(camera="/camera/compressed"))
    assert "topic /camera/compressed: 1 of 50 messages lost, 2 %" in refused.left_out[0].reason


def test_episode_that_lost_little_is_taken_in_and_says_what(tmp_path: Path) -> None:
    path = write_log(tmp_path / "a.mcap", arm(40.0), chunk_bytes=1_024)
    break_chunk_at(path, START_NS + 10 * SECOND_NS)
    store = open_store("memory://")
    report = ingest(path, store, "reach", clock=FakeClock(), recipe=recipe(state=TOLERANT))
    assert report.version is not None
    (row,) = episode_rows(store, report.version)
    assert "messages lost" in row.metadata[LOST]
    assert row.metadata[LOST] in report.noted[0].note
    options = IngestOptions(lost_max=0.0)
    strict = ingest(path, store, "none", clock=FakeClock(), recipe=recipe(state=TOLERANT), options=options)
    assert strict.version is None
    assert "at most 0 % may be gone" in strict.left_out[0].reason
