from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.data.intake import arrivals
from mainspring.data.intake.arrivals import Arrival, Inbox
from mainspring.domain.errors import Conflict, DamagedData, InvalidInput, Unavailable
from mainspring.objects import Blob, blob_of
from mainspring.testing.time_and_chance import FakeClock

DATA = bytes(range(256)) * 8


def arrival_of(data: bytes, name: str = "run-7.mcap") -> Arrival:
    return Arrival(blob=blob_of(data), name=name)


@pytest.mark.slow
@given(cuts=st.lists(st.integers(1, len(DATA) - 1), unique=True, max_size=6).map(sorted), again=st.booleans())
def test_recording_sent_in_any_pieces_appears_once_and_whole(
    cuts: list[int], again: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    inbox, arrival = Inbox(tmp_path_factory.mktemp("in")), arrival_of(DATA)
    for begin, end in pairwise([0, *cuts, len(DATA)]):
        assert not inbox.path(arrival).exists()
        assert inbox.offset(arrival) == begin
        assert inbox.append(arrival, begin, DATA[begin:end]) == end
    assert inbox.path(arrival).read_bytes() == DATA
    if again:  # Whoever did not hear the answer sends it again.
        assert inbox.offset(arrival) == inbox.append(arrival, 0, DATA[:10]) == len(DATA)
    assert [path.name for path in inbox.path(arrival).parent.iterdir() if not path.name.startswith(".")] == [
        inbox.path(arrival).name
    ]


def test_bytes_at_another_offset_are_refused_naming_the_right_one(tmp_path: Path) -> None:
    inbox, arrival = Inbox(tmp_path / "in"), arrival_of(DATA)
    inbox.append(arrival, 0, DATA[:100])
    for offset in (0, 99, 101):
        with pytest.raises(Conflict, match="wanted bytes at 100"):
            inbox.append(arrival, offset, DATA[offset : offset + 10])
    assert inbox.offset(arrival) == 100


def test_bytes_that_are_not_what_was_said_never_appear_and_can_be_sent_again(tmp_path: Path) -> None:
    inbox, arrival = Inbox(tmp_path / "in"), arrival_of(DATA)
    inbox.append(arrival, 0, DATA[:-1])
    with pytest.raises(DamagedData, match="send it again"):
        inbox.append(arrival, len(DATA) - 1, b"x")
    assert not inbox.path(arrival).exists()
    assert inbox.offset(arrival) == 0
    inbox.append(arrival, 0, DATA)
    assert inbox.path(arrival).read_bytes() == DATA


@pytest.mark.parametrize(
    "name", ["", "a.txt", "../a.mcap", "a/b.mcap", ".a.mcap", "a\0.mcap", "ä.mcap", "a" * 130 + ".bag"]
)
def test_name_that_is_no_plain_log_s_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="accept a recording"):
        arrival_of(DATA, name)


def test_sizes_out_of_bounds_are_refused(tmp_path: Path) -> None:
    for size_bytes in (0, arrivals.ARRIVAL_BYTES_MAX + 1):
        with pytest.raises(InvalidInput):
            Arrival(blob=Blob(id=blob_of(DATA).id, size_bytes=size_bytes), name="a.mcap")
    inbox, arrival = Inbox(tmp_path / "in"), arrival_of(DATA)
    with pytest.raises(InvalidInput, match="within"):
        inbox.append(arrival, 0, DATA + b"x")
    with pytest.raises(InvalidInput, match="within"):
        inbox.append(arrival, -1, DATA)


@pytest.mark.slow
def test_recordings_on_their_way_are_bounded(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path / "in")
    for number in range(arrivals.ARRIVING_MAX):
        inbox.append(arrival_of(DATA + number.to_bytes(2, "big")), 0, b"\0")
    with pytest.raises(Unavailable, match="fewer at once"):
        inbox.append(arrival_of(DATA), 0, b"\0")
    inbox.append(arrival_of(DATA + b"\0\0"), 1, b"\1")  # Who is on the way goes on.


def test_many_who_send_the_same_at_once_make_it_appear_once(tmp_path: Path) -> None:
    inbox, arrival = Inbox(tmp_path / "in"), arrival_of(DATA)

    def send(_: int) -> None:
        for _ in range(10_000):
            try:
                offset = inbox.offset(arrival)
                if inbox.append(arrival, offset, DATA[offset : offset + 64]) == len(DATA):
                    return
            except Conflict:
                continue
        raise AssertionError("never whole")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(send, range(4)))
    assert inbox.path(arrival).read_bytes() == DATA


def test_parts_nobody_goes_on_with_are_swept(tmp_path: Path) -> None:
    inbox, old, young = Inbox(tmp_path / "in"), arrival_of(DATA), arrival_of(DATA + b"x")
    inbox.append(old, 0, DATA[:10])
    inbox.append(young, 0, DATA[:10])
    for path in (tmp_path / "in" / ".arriving").iterdir():
        modified_s = 1_000 if old.blob.id in path.name else 1_900
        os.utime(path, (modified_s, modified_s))
    assert inbox.sweep(FakeClock(2_000.0), older_s=500) == 1
    assert (inbox.offset(old), inbox.offset(young)) == (0, 10)
