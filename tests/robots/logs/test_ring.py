"""The ring of a robot whose disk is full, and whose clock is set."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.robots.logs.making import BASE, SECOND, full_disk, noise

from mainspring.robots.logs.reading import ALL_TIMES, Seen, is_whole, span_of
from mainspring.robots.logs.ring import Ring

pytestmark = pytest.mark.slow  # Each syncs what it writes, as robots do.

HOUR = 3_600 * SECOND
STATE = frozenset(("/state",))


def message(time_ns: int, *, topic: str = "/a", data: bytes = b"{}") -> Seen:
    return Seen(topic=topic, encoding="json", schema=("", "", b""), names="", time_ns=time_ns, data=data)


def fill(ring: Ring, begin_ns: int, count: int = 20, *, size: int = 100) -> list[int]:
    """Writes ten messages a second; returns their times."""
    times = [begin_ns + step * SECOND // 10 for step in range(count)]
    for step, time_ns in enumerate(times):
        ring.write(message(time_ns, data=noise(step, size)))
    return times


def found(ring: Ring, begin_ns: int, end_ns: int) -> list[int]:
    return [seen.time_ns for seen in ring.between(begin_ns, end_ns)]


@pytest.mark.parametrize("set_ns", [HOUR, -HOUR])
def test_messages_are_found_by_their_times_whatever_the_clock_was_when_their_file_began(
    tmp_path: Path, set_ns: int
) -> None:
    ring = Ring(tmp_path, 16 << 20)
    first = fill(ring, BASE)
    second = fill(ring, BASE + set_ns)  # In the same file ...
    ring.close()
    ring = Ring(tmp_path, 16 << 20)
    third = fill(ring, BASE + 2 * set_ns)  # ... in one of its own, whose name is later than the first one's ...
    fill(ring, BASE + 10 * HOUR, 1)  # ... and which did not end with them.
    for _ in range(2):
        for times in (first, second, third):
            assert found(ring, times[0], times[-1]) == times
        ring.close()
        ring = Ring(tmp_path, 16 << 20)


def test_state_that_was_said_before_the_clock_was_set_back_is_told_of_what_comes_after(tmp_path: Path) -> None:
    ring = Ring(tmp_path, 16 << 20, STATE)
    ring.write(message(BASE, topic="/state", data=b'{"by":"bob"}'))
    fill(ring, BASE)
    times = fill(ring, BASE - HOUR)
    held, *rest = ring.between(times[5], times[-1])
    assert (held.topic, held.time_ns, held.data) == ("/state", times[5], b'{"by":"bob"}')
    assert [seen.time_ns for seen in rest] == times[5:]


def test_times_of_files_that_are_cut_off_anywhere_are_all_times(tmp_path: Path) -> None:
    ring = Ring(tmp_path / "ring", 16 << 20)
    times = fill(ring, BASE)
    ring.close()
    (path,) = (tmp_path / "ring").glob("*.mcap")
    assert span_of(path) == (times[0], times[-1])
    whole, torn = path.read_bytes(), tmp_path / "torn.mcap"
    for cut in range(0, len(whole), max(1, len(whole) // 100)):
        torn.write_bytes(whole[:cut])
        assert span_of(torn) == ALL_TIMES
    assert span_of(tmp_path / "none.mcap") == ALL_TIMES


def test_file_that_was_cut_off_is_read_where_the_disk_has_no_room_to_make_it_whole(tmp_path: Path) -> None:
    ring = Ring(tmp_path, 16 << 20)
    times = fill(ring, BASE, size=1_000)
    ring.flush()
    (path,) = tmp_path.glob("*.mcap")
    left = path.read_bytes()
    for _ in range(2):
        with full_disk(4_096):
            again = Ring(tmp_path, 16 << 20)
        assert found(again, times[0], times[-1]) == times
        assert (again.mended, [*tmp_path.iterdir()], path.read_bytes() == left) == (0, [path], True)
    again = Ring(tmp_path, 16 << 20)  # There is room.
    assert (again.mended, is_whole(path)) == (len(times), True)
    assert found(again, times[0], times[-1]) == times


def test_what_the_disk_has_is_read_where_the_rest_cannot_be_written(tmp_path: Path) -> None:
    ring = Ring(tmp_path, 16 << 20)
    times = fill(ring, BASE, 11)
    fill(ring, times[-1] + SECOND // 10, 5)  # Not flushed yet.
    with full_disk():
        assert found(ring, BASE, BASE + HOUR) == times
    later = fill(ring, BASE + 10 * SECOND)
    assert found(ring, BASE, BASE + HOUR) == [*times, *later]


def test_ring_that_ends_on_a_full_disk_is_made_whole_by_the_next_start(tmp_path: Path) -> None:
    ring = Ring(tmp_path, 16 << 20)
    times = fill(ring, BASE, 11)
    with full_disk():
        ring.close()
        ring.close()
    (path,) = tmp_path.glob("*.mcap")
    assert not is_whole(path)
    assert found(ring, BASE, BASE + HOUR) == times
    again = Ring(tmp_path, 16 << 20)
    assert (again.mended, is_whole(path)) == (len(times), True)


def test_full_disk_costs_the_oldest_file_and_ends_no_recording(tmp_path: Path) -> None:
    ring = Ring(tmp_path, 1 << 20)
    fill(ring, BASE, 40, size=20_000)
    oldest = min(tmp_path.glob("*.mcap"))
    with full_disk():
        fill(ring, BASE + 10 * SECOND, 11)
    assert ring.lost > 0
    assert not oldest.exists()
    times = fill(ring, BASE + 20 * SECOND)
    assert found(ring, BASE + 20 * SECOND, BASE + HOUR) == times
