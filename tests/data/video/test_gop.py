from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.data.video.making import ROBOTS, frames_of, number_of, scene, stamped

from mainspring.data.video.coded import Coded, Coding
from mainspring.data.video.encode import encode_frames
from mainspring.data.video.frames import frames_in, read_frames
from mainspring.data.video.gop import GopDecoder
from mainspring.data.video.packets import index_of_file
from mainspring.domain.errors import DamagedData

SIZE = 64
Pixels = NDArray[np.uint8]


def encoded(frames: list[Any], *, gop: int, size: int = SIZE, quality: int = 23) -> Coded:
    file = io.BytesIO()
    ends = encode_frames(frames, Coding(size=size, gop=gop, quality=quality), file)
    assert len(file.getvalue()) == ends[-1]
    return Coded(data=memoryview(file.getvalue()), ends=ends)


def part(coded: Coded, first: int, frames: int) -> Coded:
    begin = int(coded.ends[first - 1]) if first else 0
    ends = coded.ends[first : first + frames]
    return Coded(data=coded.data[begin : int(ends[-1])], ends=ends - begin)


def noise_ratio(one: NDArray[Any], other: NDArray[Any]) -> float:
    """Returns the peak signal to noise ratio in dB."""
    error = np.square(one.astype(np.float64) - other).mean()
    return float(10 * np.log10(255**2 / max(error, 1e-9)))


@pytest.fixture(scope="module")
def stamps() -> Coded:
    return encoded(frames_of(stamped(number, height=48, width=80) for number in range(43)), gop=7)


@settings(max_examples=25)
@given(st.data())
def test_any_group_decodes_to_its_own_frames_whatever_came_before(stamps: Coded, data: st.DataObject) -> None:
    decoder = GopDecoder()
    for group in data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=6)):
        first = group * 7
        rows = data.draw(st.integers(1, min(7, 43 - first)))
        if data.draw(st.booleans()):
            rgb = np.zeros((rows, SIZE, SIZE, 3), np.uint8)
            decoder.decode(part(stamps, first, rows), rgb, on="test")
            assert [number_of(image) for image in rgb] == list(range(first, first + rows))
        else:
            planes = np.zeros((rows, SIZE * 3 // 2, SIZE), np.uint8)
            decoder.decode(part(stamps, first, rows), planes, on="test")
            assert [number_of(image[:SIZE]) for image in planes] == list(range(first, first + rows))


def test_frames_nobody_wants_are_passed_over(stamps: Coded) -> None:
    wanted = np.zeros((SIZE, SIZE, 3), np.uint8)
    GopDecoder().decode(stamps, [*[None] * 12, wanted], on="test")
    assert number_of(wanted) == 12


@pytest.mark.parametrize("size", [64, 66, 90])
def test_decoded_frames_are_close_to_what_was_encoded(size: int) -> None:
    images = scene(20, size=size)
    coded = encoded(frames_of(images), gop=10, size=size)
    rgb = np.zeros((20, size, size, 3), np.uint8)
    decoder = GopDecoder()
    decoder.decode(coded, rgb, on="test")
    assert noise_ratio(rgb, np.stack(images)) > 36
    planes = np.zeros((20, size * 3 // 2, size), np.uint8)
    decoder.decode(coded, planes, on="test")
    assert noise_ratio(rgb_of(planes), rgb) > 40


def rgb_of(planes: Pixels) -> NDArray[np.float64]:
    """Converts YUV 4:2:0 by the formula. Source: ITU-R BT.601, limited range."""
    count, lines, width = planes.shape
    height = lines * 2 // 3
    y = (planes[:, :height].astype(np.float64) - 16) * 255 / 219
    chroma = planes[:, height:].reshape(count, 2, height // 2, width // 2).astype(np.float64) - 128
    u, v = chroma.repeat(2, axis=2).repeat(2, axis=3).transpose(1, 0, 2, 3) * 255 / 224
    rgb = np.stack([y + 1.402 * v, y - 0.344136 * u - 0.714136 * v, y + 1.772 * u], axis=3)
    clipped: NDArray[np.float64] = rgb.clip(0, 255)
    return clipped


def test_the_same_frames_give_the_same_bytes() -> None:
    images = scene(15, size=SIZE)
    one, other = encoded(frames_of(images), gop=5), encoded(frames_of(images), gop=5)
    assert one.data == other.data
    assert np.array_equal(one.ends, other.ends)


@pytest.mark.slow
def test_the_same_frames_give_the_same_bytes_however_many_are_encoded_at_once() -> None:
    images = [stamped(number, height=48, width=64) for number in range(40)]

    def bytes_of(_: int) -> bytes:
        return bytes(encoded(frames_of(images), gop=5, size=32).data)

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(bytes_of, range(400)))) == 1


def test_lower_quality_is_smaller() -> None:
    images = frames_of(scene(20, size=SIZE))
    sizes = [len(encoded(images, gop=10, quality=quality).data) for quality in (15, 23, 31)]
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize("damage", ["cut", "lost", "no key", "rubbish", "empty"])
def test_damaged_packet_is_named_and_does_no_harm_to_the_next_group(stamps: Coded, damage: str) -> None:
    decoder = GopDecoder()
    out = np.zeros((7, SIZE, SIZE, 3), np.uint8)
    group = part(stamps, 14, 7)
    data, ends = bytes(group.data), group.ends.copy()
    match damage:
        case "cut":  # Half of the fourth packet.
            size = int(ends[3] - ends[2])
            data = data[: ends[3] - size // 2] + data[ends[3] :]
            ends[3:] -= size // 2
        case "lost":
            data, ends = data[: int(ends[4])], ends.clip(max=ends[4])
        case "no key":
            data, ends = data[int(ends[0]) :], ends[1:] - ends[0]
        case "rubbish":
            data = np.random.default_rng(0).bytes(len(data))
        case _:
            data, ends = b"", ends * 0
    with pytest.raises(DamagedData, match="pick, row 14"):
        decoder.decode(Coded(data=memoryview(data), ends=ends), out, on="pick, row 14")
    decoder.decode(part(stamps, 21, 7), out, on="test")
    assert [number_of(image) for image in out] == list(range(21, 28))


@pytest.mark.parametrize("shape", [(SIZE // 2, SIZE // 2, 3), (SIZE * 3 // 4, SIZE // 2), (2 * SIZE, 2 * SIZE, 3)])
def test_frames_of_another_size_than_their_place_are_refused(stamps: Coded, shape: tuple[int, ...]) -> None:
    with pytest.raises(DamagedData):
        GopDecoder().decode(stamps, [np.zeros(shape, np.uint8)], on="test")


@pytest.mark.skipif(not ROBOTS.exists(), reason="the shared robot recordings are not here")
@pytest.mark.slow
def test_real_video_is_small_and_good() -> None:
    path: Path = min((ROBOTS / "unitree_g1_bottle").rglob("episode_000000.mp4"))
    frames = list(frames_in(path, index_of_file(path)))[:100]
    shown = np.zeros((100, 224, 224, 3), np.uint8)
    read_frames(frames, shown)
    coded = encoded(frames, gop=10, size=224)
    found = np.zeros_like(shown)
    GopDecoder().decode(coded, found, on="test")
    assert noise_ratio(found, shown) > 35
    assert len(coded.data) / 100 < 1_400
