"""Frames per CPU-second of the packet path: ours, the one before it, and PyAV's own `container.decode`.

Run as `python -m benchmarks.data_decode [--quick]`. Two videos of 640x480, h264 with B-frames and AV1, are decoded in
one thread: from end to end, and group by group in a random order. Ours makes each packet with padding behind it; that
before, kept here, made packets of bytes as they lay (`av.Packet(bytes)`), behind which FFmpeg read on. Both decode the
same packets by the same index with the same decoder, and frames are thrown away. They take turns; figures are medians
of the turns, ratios medians of the turns' own, and of codec and access the worst counts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

from mainspring.data.video.frames import frames_in
from mainspring.data.video.packets import PacketIndex, index_of_file

HEIGHT, WIDTH, GROUP = 480, 640, 30
ENCODERS: Mapping[str, tuple[str, Mapping[str, str]]] = MappingProxyType(
    {
        "h264": ("libx264", {"crf": "23", "preset": "fast", "x264-params": f"keyint={GROUP}:scenecut=0:bframes=2"}),
        "av1": ("libsvtav1", {"crf": "30", "preset": "11", "g": str(GROUP)}),
    }
)
DECODERS = MappingProxyType({"h264": "h264", "av1": "libdav1d"})
FRAMES, FRAMES_QUICK = 120, 90
TURNS, TURNS_QUICK = 25, 5  # Each is short: what else runs on the machine then meets all ways alike.
LOOP = 6_000_000


def pictures(count: int) -> Iterator[NDArray[np.uint8]]:
    """Yields a scene with sharp things that move, and a camera's noise."""
    dice = np.random.default_rng(0)
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    ground = (np.sin(x / 23) * 40 + np.cos(y / 17) * 40 + 120)[:, :, None] + np.zeros(3)
    noise = dice.normal(0, 3, (8, HEIGHT, WIDTH, 3))
    for number in range(count):
        picture = ground + noise[number % 8]
        for thing in range(5):
            left, top = (number * (3 + thing) + 90 * thing) % (WIDTH - 60), (number * 2 + 70 * thing) % (HEIGHT - 60)
            picture[top : top + 50, left : left + 60] = (50 * thing, 220 - 40 * thing, 30 * thing)
        yield picture.clip(0, 255).astype(np.uint8)


def write_video(path: Path, codec: str, count: int) -> Path:
    encoder, options = ENCODERS[codec]
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream(encoder, rate=30, options=dict(options))
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for number, picture in enumerate(pictures(count)):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, 30)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def ours(path: Path, index: PacketIndex) -> int:
    return sum(1 for _ in frames_in(path, index))


def old(path: Path, index: PacketIndex) -> int:
    """Decodes as it was done before: packets made of bytes, without padding."""
    found = 0
    context: Any = av.CodecContext.create(DECODERS[index.codec], "r")
    context.thread_count = 1
    context.extradata = index.extradata or None
    shown = index.frame.tolist()
    with open(path, "rb") as file:
        for at, (offset, size) in enumerate(zip(index.offset.tolist(), index.size_bytes.tolist(), strict=True)):
            file.seek(offset)
            packet = av.Packet(file.read(size))
            packet.pts = packet.dts = shown[at]
            for frame in context.decode(packet):
                found += frame.pts >= 0 and (frame.height, frame.width) == (index.height, index.width)
    return int(found) + sum(1 for frame in context.decode(None) if frame.pts >= 0)


def pyav(path: Path) -> int:
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        return sum(1 for _ in container.decode(stream))


def groups(index: PacketIndex, dice: np.random.Generator) -> list[PacketIndex]:
    """Returns each group's index, in a random order; frames shown before a group's key frame come with it."""
    starts = np.sort(index.frame[index.key]).tolist()
    ends = [*starts[1:], index.frames]
    parts = [index.cut(start, end - start) for start, end in zip(starts, ends, strict=True)]
    return [parts[place] for place in dice.permutation(len(parts)).tolist()]


def rate(work: Callable[[], int], wanted: int) -> float:
    """Returns frames per CPU-second."""
    begun = time.process_time()
    found = work()
    spent = time.process_time() - begun
    assert found == wanted, f"{found} of {wanted} frames"
    return found / spent


def measured(path: Path, turns: int) -> dict[str, list[float]]:
    """Returns the rates of each way, by turn."""
    index = index_of_file(path)
    parts = groups(index, np.random.default_rng(1))
    ways: dict[str, Callable[[], int]] = {
        "in order, ours": lambda: ours(path, index),
        "in order, old": lambda: old(path, index),
        "in order, PyAV": lambda: pyav(path),
        "groups, ours": lambda: sum(ours(path, part) for part in parts),
        "groups, old": lambda: sum(old(path, part) for part in parts),
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(-1, turns):  # The first warms up.
        order = list(ways) if turn % 2 else [*reversed(ways)]
        for name in order:
            found = rate(ways[name], index.frames)
            if turn >= 0:
                rates[name].append(found)
    return rates


def loop_s() -> float:
    """Returns the CPU time of a loop of Python's, to compare machines by."""
    begun, total = time.process_time(), 0
    for i in range(LOOP):
        total += i * i % 7
    return time.process_time() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="shorter videos and fewer turns")
    quick = parser.parse_args().quick
    figures: dict[str, float] = {}
    vs_old, vs_pyav = [], []
    with tempfile.TemporaryDirectory() as folder:
        for codec in ENCODERS:
            path = write_video(Path(folder) / f"{codec}.mp4", codec, FRAMES_QUICK if quick else FRAMES)
            rates = measured(path, TURNS_QUICK if quick else TURNS)
            figures |= {f"{codec} {name}": round(statistics.median(found)) for name, found in rates.items()}
            for access in ("in order", "groups"):
                pairs = zip(rates[f"{access}, ours"], rates[f"{access}, old"], strict=True)
                vs_old.append(statistics.median(one / other for one, other in pairs))
            pairs = zip(rates["in order, ours"], rates["in order, PyAV"], strict=True)
            vs_pyav.append(statistics.median(one / other for one, other in pairs))
    for name, found in figures.items():
        print(f"{name:24} {found:8.0f} frames per CPU-second")
    ratios = {"vs_old": round(min(vs_old), 4), "vs_pyav": round(min(vs_pyav), 4)}
    print(json.dumps({"figures": figures, "loop_s": round(loop_s(), 3), "ratios": ratios, **ratios}))


if __name__ == "__main__":
    main()
