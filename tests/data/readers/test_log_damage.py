"""No file, however broken, crashes a reader, hangs it or takes the memory: it is read as far as it goes, or refused."""

from __future__ import annotations

import functools
import resource
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mcap.writer import CompressionType

from mainspring.data.readers.log import open_log
from mainspring.domain.errors import MainspringError

from .logs import ROBOTS, everything, robot_bag1, robot_bag2, robot_mcap, robot_ulog

TRUNCATIONS = 20
GROWTH_KIB_MAX = 400 * 1024  # A chunk of the largest size that is read, twice, and what the libraries take at first.
KINDS = ("zstd.mcap", "plain.mcap", "lz4.mcap", "bare.mcap", "plain.bag", "lz4.bag", "bz2.bag", "a.db3", "a.ulg")
WORDS = (0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1)


def read_as_far_as_it_goes(path: Path) -> str:
    """Reads all of a log; returns what was said of its damage, or why it was refused."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        log = open_log(path)
        for batch in log.batches(everything(log)):
            assert all(len(values) == len(batch) for values in batch.fields.values())
        said = log.damage
    except MainspringError as error:
        said = str(error)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < GROWTH_KIB_MAX
    return said


@functools.cache
def small_logs() -> dict[str, bytes]:
    """Returns small logs of every kind, by the ending of their names."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = (
            robot_mcap(folder / "a.mcap", steps=6),
            robot_mcap(folder / "b.mcap", steps=6, compression=CompressionType.NONE, checksums=False),
            robot_mcap(folder / "c.mcap", steps=6, compression=CompressionType.LZ4, checksums=False),
            robot_mcap(folder / "d.mcap", steps=6, chunked=False, summary=False, checksums=False),
            robot_bag1(folder / "a.bag", steps=30),
            robot_bag1(folder / "b.bag", steps=30, compression="lz4"),
            robot_bag1(folder / "c.bag", steps=30, compression="bz2"),
            robot_bag2(folder / "bag", steps=6) / "bag.db3",
            robot_ulog(folder / "a.ulg", steps=20),
        )
        return {ending: path.read_bytes() for ending, path in zip(KINDS, paths, strict=True)}


@st.composite
def broken(draw: st.DrawFn) -> tuple[str, bytes]:
    """Draws a log with bytes changed, ranges moved within it or from another, words that lie, or its end cut off."""
    logs = small_logs()
    ending = draw(st.sampled_from(sorted(logs)))
    data = bytearray(logs[ending])
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(data) - 1))
        match draw(st.sampled_from(["byte", "word", "move", "insert", "cut", "splice"])):
            case "byte":
                data[place] = draw(st.integers(0, 255))
            case "word":
                size = draw(st.sampled_from([2, 4, 8]))
                word = draw(st.sampled_from(WORDS)) & (2 ** (8 * size) - 1)
                data[place : place + size] = word.to_bytes(size, "little")
            case "move":
                start, size = draw(st.integers(0, len(data) - 1)), draw(st.integers(1, 200))
                data[place : place + size] = data[start : start + size]
            case "insert":
                start, size = draw(st.integers(0, len(data) - 1)), draw(st.integers(1, 200))
                data[place:place] = data[start : start + size]
            case "splice":
                other = logs[draw(st.sampled_from(sorted(logs)))]
                start, size = draw(st.integers(0, len(other) - 1)), draw(st.integers(1, 400))
                data[place : place + size] = other[start : start + size]
            case _:
                del data[max(place, 1) :]
    return ending, bytes(data)


def check_broken(case: tuple[str, bytes]) -> None:
    ending, data = case
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, ending)
        path.write_bytes(data)
        read_as_far_as_it_goes(path)


@pytest.mark.slow
@settings(max_examples=400)
@given(case=broken())
def test_broken_log_is_read_as_far_as_it_goes_or_refused(case: tuple[str, bytes]) -> None:
    check_broken(case)


@pytest.mark.soak
@pytest.mark.timeout(4_000)
@settings(max_examples=100_000, database=None)  # About a quarter of an hour on one core.
@given(case=broken())
def test_broken_log_of_very_many_is_read_as_far_as_it_goes_or_refused(case: tuple[str, bytes]) -> None:
    check_broken(case)


@pytest.mark.slow
@pytest.mark.parametrize("ending", KINDS)
def test_log_cut_anywhere_says_so(ending: str, tmp_path: Path) -> None:
    whole = small_logs()[ending]
    path = tmp_path / ending
    for length in range(0, len(whole) - 1, max(len(whole) // 60, 1)):
        path.write_bytes(whole[:length])
        said = read_as_far_as_it_goes(path)
        # A ULog has no end of its own: cut between two messages it is whole.
        assert said or ending == "a.ulg", length


@pytest.mark.skipif(not ROBOTS.exists(), reason="the shared robot recordings are not here")
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_real_log_cut_at_random_places_is_read_as_far_as_it_goes_or_refused(seed: int, tmp_path: Path) -> None:
    dice = np.random.default_rng(seed)
    for sample in sorted((ROBOTS / "logs").iterdir()):
        whole = sample.read_bytes()
        path = tmp_path / f"cut{sample.suffix}"
        for length in dice.integers(0, len(whole), TRUNCATIONS // 2).tolist():
            path.write_bytes(whole[:length])
            read_as_far_as_it_goes(path)
