"""A view's id implies its pictures, and each of them is its own frame's."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.data.making import CAMERA, write_lerobot_v2
from tests.data.video.kinds import FRAMES, KINDS, written
from tests.data.video.making import frames_of
from tests.data.views.making import built, opened, stamped_version

from mainspring.app.cli.data.data import ViewCodec
from mainspring.data import IngestOptions, Loader, Sampling, View, ViewProgress, ViewRecipe, build_view, ingest
from mainspring.data.catalog.versions import episode_rows
from mainspring.data.gates.golden import golden_of
from mainspring.data.video.coded import Coded
from mainspring.data.video.encode import encode_frames
from mainspring.data.video.frames import read_frames
from mainspring.data.video.gop import GopDecoder
from mainspring.data.video.packets import index_of_file
from mainspring.data.views.manifest import CODECS
from mainspring.objects import ObjectStore, open_store
from mainspring.testing.time_and_chance import FakeClock

pytestmark = pytest.mark.slow
SMALL = ViewRecipe(image_size=32, codec="h264", holdout_fraction=0.0)
NEIGHBOURS = 5
HOME = """
import sys
from pathlib import Path
from tests.data.views.test_pictures import home_of
print(*home_of(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])))
"""


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path / "store"))


def home_of(source: Path, home: Path, lost_max: float) -> tuple[str, str]:
    """Takes a source into a home of its own, and returns its view's id and the hash of its first batches."""
    store = open_store(str(home / "store"))
    options = IngestOptions(lost_max=lost_max)
    version = ingest(source, store, "pick", clock=FakeClock(), options=options).version
    assert version is not None
    view = opened(store, version, SMALL, home)
    return view.manifest.id, golden_of(view).hash


def dataset(root: Path, kind: str, episodes: int = 3) -> Path:
    """Writes a LeRobot dataset with videos of a kind."""
    write_lerobot_v2(root, [FRAMES] * episodes, video=True)
    for path in sorted(root.rglob("*.mp4")):
        written(KINDS[kind], path)
    return root


@pytest.mark.parametrize("kind", ["mpeg4", "h264"])
@pytest.mark.parametrize("damaged", [False, True])
def test_two_homes_in_two_processes_have_the_same_view_of_the_same_pictures(
    tmp_path: Path, kind: str, damaged: bool
) -> None:
    source = dataset(tmp_path / "raw", kind)
    if damaged:
        video = min(source.rglob("*.mp4"))
        index, data = index_of_file(video), bytearray(video.read_bytes())
        begin, size = int(index.offset[10]), int(index.size_bytes[10])
        data[begin + 5 : begin + size] = np.random.default_rng(2).bytes(size - 5)
        video.write_bytes(data)
    here = home_of(source, tmp_path / "here", 1.0)
    words = [sys.executable, "-c", HOME, str(source), str(tmp_path / "there"), "1.0"]
    there = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    assert tuple(there) == here


def test_damaged_video_is_refused_and_let_in_marked_when_as_much_may_be_lost(tmp_path: Path) -> None:
    source = dataset(tmp_path / "raw", "h264")
    video = min(source.rglob("*.mp4"))
    index, data = index_of_file(video), bytearray(video.read_bytes())
    begin, size = int(index.offset[10]), int(index.size_bytes[10])
    data[begin + 5 : begin + size] = np.random.default_rng(2).bytes(size - 5)
    video.write_bytes(data)
    store = open_store(str(tmp_path / "store"))
    strict = ingest(source, store, "pick", clock=FakeClock())
    assert strict.version is not None
    assert strict.version.episodes == 2
    told = str(strict)
    assert f"camera {CAMERA}" in told
    assert "frames lost" in told
    whole = ingest(source, store, "all", clock=FakeClock(), options=IngestOptions(lost_max=1.0)).version
    assert whole is not None
    assert sorted("lost" in row.metadata for row in episode_rows(store, whole)) == [False, False, True]
    assert opened(store, whole, SMALL, tmp_path).rows == 3 * FRAMES


def test_shard_of_other_pictures_is_not_taken_over(store: ObjectStore, tmp_path: Path) -> None:
    built(store, stamped_version(store, tmp_path / "small", [23, 31]), SMALL, tmp_path)
    for entry in store.list("view_shards"):
        record = json.loads(store.get(entry.key))
        record["pictures"] = {camera: ["0" * 32 for _ in texts] for camera, texts in record["pictures"].items()}
        store.put(entry.key, json.dumps(record).encode())
    told: list[ViewProgress] = []
    grown = stamped_version(store, tmp_path / "large", [23, 31, 12])
    manifest = build_view(store, grown, SMALL, scratch_dir=tmp_path / "scratch", progress=told.append)
    assert (told[-1].done, told[-1].reused, told[-1].refused) == (3, 0, 1)
    fresh = open_store("memory://")
    assert built(fresh, stamped_version(fresh, tmp_path / "large", [23, 31, 12]), SMALL, tmp_path) == manifest


def moving(count: int, *, speed: float) -> list[NDArray[np.uint8]]:
    """Renders discs that move fast over a still ground."""
    size = 256
    y, x = np.mgrid[0:size, 0:size]
    ground = np.sin(0.15 * x + 3) * 40 + np.cos(0.07 * y) * 40 + 120
    images = []
    for number in range(count):
        image = np.repeat(ground[:, :, None], 3, axis=2)
        for disc in range(4):
            angle = speed * number / size * 2 + 1.7 * disc
            across = size / 2 + size / 3 * np.sin(angle)
            down = size / 2 + size / 3 * np.cos(1.15 * angle + 0.4 * disc)
            inside = (x - across) ** 2 + (y - down) ** 2 < (size / 10) ** 2
            image[inside] = (60 * disc, 200 - 30 * disc, 90 * disc % 255)
        images.append(image.clip(0, 255).astype(np.uint8))
    return images


def nearest(shown: NDArray[Any], sources: NDArray[Any]) -> list[int]:
    """Returns how far from its own frame lies the one that each picture is nearest to, of its neighbours."""
    found = []
    for number, picture in enumerate(shown.astype(np.float32)):
        first = max(0, number - NEIGHBOURS)
        near = sources[first : number + NEIGHBOURS + 1].astype(np.float32)
        found.append(first + int(np.square(near - picture).mean(axis=(1, 2, 3)).argmin()) - number)
    return found


@pytest.mark.parametrize("speed", [2.0, 3.0, 8.0])
@pytest.mark.parametrize(("codec", "size"), [("h264", 64), ("h264", 96), ("h264", 128), ("jpeg", 64)])
def test_each_picture_of_fast_motion_is_nearest_to_its_own_frame(codec: str, size: int, speed: float) -> None:
    frames = frames_of(moving(64, speed=speed))
    sources, shown = (np.zeros((64, size, size, 3), np.uint8) for _ in range(2))
    read_frames(frames, sources)
    file = io.BytesIO()
    ends = encode_frames(frames, ViewRecipe(image_size=size, codec=codec).coding, file)
    GopDecoder().decode(Coded(data=memoryview(file.getvalue()), ends=ends), shown, on="test")
    assert nearest(shown, sources) == [0] * 64


def test_codecs_of_views_and_of_the_command_are_the_same() -> None:
    assert tuple(codec.value for codec in ViewCodec) == CODECS


def test_jpeg_view_gives_each_row_alone_in_the_layouts_of_h264(store: ObjectStore, tmp_path: Path) -> None:
    version = stamped_version(store, tmp_path / "raw", [23, 12])

    def planes(recipe: ViewRecipe) -> tuple[View, NDArray[np.uint8]]:
        view = opened(store, version, recipe, tmp_path)
        out = np.zeros((view.gop, 48, 32), np.uint8)
        GopDecoder().decode(view.packets(CAMERA, view.gop, view.gop), out, on="test")
        return view, out

    jpeg, one = planes(ViewRecipe(image_size=32, codec="jpeg", holdout_fraction=0.0))
    h264, other = planes(ViewRecipe(image_size=32, codec="h264", gop=1, holdout_fraction=0.0))
    assert (jpeg.gop, h264.gop) == (1, 1)
    assert np.abs(one.astype(np.int32) - other).mean() < 3  # In the same range: not stretched.
    sampling = Sampling(batch_size=16, seed=0, horizon=4)
    with Loader(jpeg, sampling).stream(0) as here, Loader(jpeg, sampling, workers=1).stream(0) as there:
        first, second = next(here), next(there)
        assert np.array_equal(first["images"], second["images"])
        assert first["images"].std() > 20
