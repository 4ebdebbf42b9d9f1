"""View manifest: recipe, shards, statistics of a training view."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from mainspring.data.features import ACTION, STATE, Features
from mainspring.data.video.coded import Coding
from mainspring.data.views.moments import Statistics
from mainspring.data.views.places import view_key
from mainspring.domain.codec import decode
from mainspring.domain.errors import InvalidInput, NotFound
from mainspring.domain.ids import VersionId
from mainspring.objects import Blob, ObjectStore

IMAGES = "images"  # The column that holds pixels when the codec is "raw".
RAW, H264, JPEG = CODECS = "raw", "h264", "jpeg"
IMAGE_SIZE_MAX = 1_024
GOP_MAX = 250  # A frame costs half a group on average; beyond this a key frame is no part of the size.
QUALITY_MAX = 51  # The scale of x264's constant rate factor: 0 is lossless, 51 the worst.
JPEG_QUALITY_MIN, JPEG_QUALITY_MAX = 1, 31  # The scale of FFmpeg's JPEG quantiser.
JPEG_QUALITY = 3  # About what other JPEGs call 90.
_QUALITY_SMALL, _QUALITY_LARGE = 14, 26  # Measured at these sizes: none of 64 moving pictures looked like another's.
_SIZE_SMALL, _SIZE_LARGE = 64, 224
_QUALITY_MIN = 10
SHARD_BYTES_MAX = 1 << 30
RATE_HZ_MIN = 0.01  # A row every 100 seconds: slower is no motion.
RATE_HZ_MAX = 100_000.0  # Beyond any sensor a robot carries.

Split: TypeAlias = Literal["train", "holdout"]


def h264_quality(image_size: int) -> int:
    """Returns x264's constant rate factor by which each picture of a moving scene is nearest to its own frame.

    Small pictures move by parts of a pixel, which a coarser one gives up: they then show an earlier frame.

    Args:
        image_size: Height and width, in pixels.
    """
    span = (_QUALITY_LARGE - _QUALITY_SMALL) * (image_size - _SIZE_SMALL) // (_SIZE_LARGE - _SIZE_SMALL)
    return min(_QUALITY_LARGE, max(_QUALITY_MIN, _QUALITY_SMALL + span))


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewRecipe:
    """What a view is made like.

    Args:
        image_size: Height and width of its images, in pixels, even; the picture's aspect is not kept.
        codec: How it keeps frames: "raw" as pixels, for small images; "h264" as video of short closed groups; "jpeg" as
            pictures, each decoded alone.
        gop: Frames in a group ("h264"): one read of any of them decodes those before it, and a larger group is smaller.
        quality: x264's constant rate factor ("h264"): lower is better and larger, 0 lossless, 51 the worst. For "jpeg"
            the scale of its tables, 1 to 31. None for the codec's own at this size of image: see `coding`.
        rate_hz: Rows per second: each is the step nearest in time. None keeps every step.
        cameras: Which, in name order; None for all.
        columns: Which, in name order; of the version, or of `layers`.
        layers: Ids of the layers that columns come from, beside the version's own.
        holdout_fraction: Share of episodes kept apart for evaluation, chosen by a hash of their ids, so that an
            episode stays on its side in every version. At least one is kept apart unless the fraction is 0.
        holdout_group: SQL for what episodes that belong together have in common, such as "metadata['session']": they
            stay on one side, by a hash of it.
        shard_bytes: Size that shards have on average; they end where their episodes' ids say, between half and twice
            of it, so that a version that grows or shrinks by some episodes keeps the shards of the others. The
            default is large enough for one request to be efficient, and small enough to fetch shards side by side.

    Raises:
        InvalidInput: A field is out of its range.
    """

    image_size: int = 64
    codec: str = RAW
    gop: int = 10
    quality: int | None = None
    rate_hz: float | None = None
    cameras: tuple[str, ...] | None = None
    columns: tuple[str, ...] = (ACTION, STATE)
    layers: tuple[str, ...] = ()
    holdout_fraction: float = 0.1
    holdout_group: str = "id"
    shard_bytes: int = 128 << 20

    def __post_init__(self) -> None:
        """Checks the ranges."""
        checks = {
            f"image_size 8 to {IMAGE_SIZE_MAX}, even": 8 <= self.image_size <= IMAGE_SIZE_MAX
            and self.image_size % 2 == 0,
            f"codec {', '.join(CODECS[:-1])} or {CODECS[-1]}": self.codec in CODECS,
            f"gop 1 to {GOP_MAX}": 1 <= self.gop <= GOP_MAX,
            f"quality 0 to {QUALITY_MAX}": self.quality is None or 0 <= self.quality <= QUALITY_MAX,
            f"quality {JPEG_QUALITY_MIN} to {JPEG_QUALITY_MAX} for jpeg": self.codec != JPEG
            or self.quality is None
            or JPEG_QUALITY_MIN <= self.quality <= JPEG_QUALITY_MAX,
            f"rate_hz {RATE_HZ_MIN} to {RATE_HZ_MAX}": self.rate_hz is None
            or RATE_HZ_MIN <= self.rate_hz <= RATE_HZ_MAX,
            "each camera once, in order": self.cameras is None or list(self.cameras) == sorted(set(self.cameras)),
            "columns, each once, in order": bool(self.columns) and list(self.columns) == sorted(set(self.columns)),
            "each layer once": len(self.layers) == len(set(self.layers)),
            "holdout_fraction from 0 to below 1": 0.0 <= self.holdout_fraction < 1.0,
            f"shard_bytes 1 to {SHARD_BYTES_MAX}": 1 <= self.shard_bytes <= SHARD_BYTES_MAX,
        }
        broken = [wanted for wanted, holds in checks.items() if not holds]
        if broken:
            raise InvalidInput("accept a view's recipe", got=str(self), wanted="; ".join(broken))

    @property
    def coding(self) -> Coding:
        """Returns how its frames are encoded when the codec has packets."""
        if self.codec == JPEG:
            quality = JPEG_QUALITY if self.quality is None else self.quality
            return Coding(size=self.image_size, gop=1, quality=quality, codec="mjpeg")
        quality = h264_quality(self.image_size) if self.quality is None else self.quality
        return Coding(size=self.image_size, gop=self.gop, quality=quality)

    def features(self, features: Features) -> Features:
        """Returns the columns and cameras of a view of a version.

        Args:
            features: The version's.

        Raises:
            InvalidInput: The version lacks one.
        """
        have = {camera.name: camera for camera in features.cameras}
        missing = [name for name in self.cameras or () if name not in have]
        if missing:
            raise InvalidInput("find a camera", got=", ".join(missing)[:200], wanted=f"one of {', '.join(have)}"[:400])
        return Features(
            columns=tuple(features.column(name) for name in self.columns),
            cameras=tuple(have[name] for name in (have if self.cameras is None else self.cameras)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Packets:
    """One camera's packets in a shard.

    Args:
        data: Packets of h264 (Annex B) or JPEG, one a row, one after the other. A key frame, with all a decoder must
            know, at every episode's first row and each `gop` rows after it; nothing refers across one, and none is
            reordered. JPEG holds limited range, as its comment CS=ITU601 says.
        ends: `.npy` int64 [rows + 1]: row r's packet is `data[ends[r] : ends[r + 1]]`.
    """

    data: Blob
    ends: Blob


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewShard:
    """Consecutive rows of a split, of whole episodes.

    Args:
        rows: How many.
        columns: A `.npy` blob for each column (float32 [rows, D]), and "images" (uint8 [rows, V, H, W, 3]) when the
            codec is "raw".
        videos: For each camera, when the codec has packets.
        summary: Moments and quantile sketches of its columns.
    """

    rows: int
    columns: Mapping[str, Blob]
    videos: Mapping[str, Packets] = field(default_factory=dict)
    summary: Blob


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitManifest:
    """One side of a view: its shards in row order, and an Arrow file with id, task and frames of its episodes."""

    rows: int
    episodes: int
    shards: tuple[ViewShard, ...]
    episode_table: Blob


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewManifest:
    """What a view is.

    Args:
        id: Hash of version, recipe and producer.
        version: The version it was made of.
        recipe: What it was made like.
        producer: Number of the code that made it; other code makes another view.
        features: Names of the dimensions, and cameras with the size of the source's frames.
        statistics: Of each column over the training split.
        splits: By name, "train" and "holdout".
        decoding: Number of the code that made packets pictures; views made before it was written here say 1.
    """

    id: str
    version: VersionId
    recipe: ViewRecipe
    producer: int
    features: Features
    statistics: Mapping[str, Statistics]
    splits: Mapping[str, SplitManifest]
    decoding: int = 1

    @property
    def state(self) -> Statistics:
        """Returns the statistics of what the robot senses."""
        return self.statistics[STATE]

    @property
    def action(self) -> Statistics:
        """Returns the statistics of what it was told."""
        return self.statistics[ACTION]


def view_manifest(store: ObjectStore, view_id: str) -> ViewManifest | None:
    """Returns what a view is, or None when it was not built.

    Args:
        store: Where the view lies.
        view_id: The view.
    """
    try:
        return decode(ViewManifest, store.get(view_key(view_id)))
    except NotFound:
        return None
