"""Finds what was made of pictures by an earlier decoding path, which read beyond its packets.

Its pictures may be wrong, and others each time: most of all those of MPEG-4 Part 2 ("mp4v"), up to a fifth of them.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace

from mainspring.data.catalog.log import Version, datasets, versions
from mainspring.data.catalog.versions import episode_rows
from mainspring.data.layers.layer import known_layers, layer_table
from mainspring.data.layers.producer import LayerSpec
from mainspring.data.packs import read_piece
from mainspring.data.video.packet import DECODING
from mainspring.data.video.packets import index_from_parquet
from mainspring.data.views.earlier import known_views
from mainspring.data.views.manifest import ViewRecipe
from mainspring.objects import ObjectStore

SOUND_CODECS = ("av1", "mjpeg", "png")  # Their decoders never read on: a page behind a packet may be barred.
EPISODES_LOOKED_AT_MAX = 64  # Of a version, from its first to its last: a dataset's cameras rarely change their codec.


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A view or layer whose pictures are not to be trusted.

    Args:
        kind: "view" or "layer".
        id: Its id.
        version: Name of a version it was made of, "" when that is deleted.
        codecs: Of the videos, in order.
        command: Makes it again; "" when it cannot be.
    """

    kind: str
    id: str
    version: str
    codecs: tuple[str, ...]
    command: str


def suspects(store: ObjectStore) -> tuple[Suspect, ...]:
    """Returns the views and layers that an earlier decoding path made, and that nobody made again since.

    Args:
        store: Where they lie.
    """
    alive = [version for name in datasets(store) for version in versions(store, name)]
    seen = _Codecs(store)
    return (*_views(store, alive, seen), *_layers(store, alive, seen))


class _Codecs:
    """The codecs of versions' videos, each version looked at once."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._found: dict[str, tuple[str, ...]] = {}

    def of(self, version: Version) -> tuple[str, ...]:
        if version.id not in self._found:
            rows = episode_rows(self._store, version) if version.features.cameras else ()
            step = max(1, -(-len(rows) // EPISODES_LOOKED_AT_MAX))
            tracks = (track for row in rows[::step] for track in row.videos)
            found = {index_from_parquet(read_piece(self._store, track.index)).codec for track in tracks}
            self._found[version.id] = tuple(sorted(found.difference(SOUND_CODECS)))
        return self._found[version.id]


def _views(store: ObjectStore, alive: list[Version], seen: _Codecs) -> Iterator[Suspect]:
    by_id = {version.id: version for version in alive}
    made = [manifest for manifest in known_views(store) if manifest.features.cameras]
    again = [(manifest.version, manifest.recipe) for manifest in made if manifest.decoding >= DECODING]
    for manifest in made:
        if manifest.decoding >= DECODING or (manifest.version, manifest.recipe) in again:
            continue
        version = by_id.get(manifest.version)
        codecs = seen.of(version) if version else ("not known",)
        if codecs:
            yield Suspect(
                kind="view",
                id=manifest.id,
                version=version.name if version else "",
                codecs=codecs,
                command=f"ms data view {version.name}{_options(manifest.recipe)}" if version else "",
            )


def _options(recipe: ViewRecipe) -> str:
    """Returns the options that mean a recipe."""
    plain = ViewRecipe()
    words: list[str] = []
    for option, field in _OPTIONS:
        value, usual = getattr(recipe, field), getattr(plain, field)
        if value == usual:
            continue
        if field == "shard_bytes":
            value >>= 20
        for each in value if isinstance(value, tuple) else (value,):
            words += [option, str(each)]
    return "".join(f" {shlex.quote(word)}" for word in words)


_OPTIONS = (
    ("--image-size", "image_size"),
    ("--codec", "codec"),
    ("--gop", "gop"),
    ("--quality", "quality"),
    ("--rate", "rate_hz"),
    ("--camera", "cameras"),
    ("--column", "columns"),
    ("--layer", "layers"),
    ("--holdout", "holdout_fraction"),
    ("--holdout-by", "holdout_group"),
    ("--shard-mib", "shard_bytes"),
)


def _layers(store: ObjectStore, alive: list[Version], seen: _Codecs) -> Iterator[Suspect]:
    specs = known_layers(store)
    for spec in specs:
        if spec.decoding >= DECODING or replace(spec, decoding=DECODING) in specs:
            continue
        held = set(layer_table(store, spec.id)["id"].to_pylist())
        for version in reversed(alive):  # The newest that it was made of.
            if not seen.of(version) or held.isdisjoint(row.id for row in episode_rows(store, version)):
                continue
            yield Suspect(
                kind="layer", id=spec.id, version=version.name, codecs=seen.of(version), command=_made_by(spec, version)
            )
            break


def _made_by(spec: LayerSpec, version: Version) -> str:
    told = "".join(f" --set {shlex.quote(f'{name}={value}')}" for name, value in spec.parameters.items())
    read = "".join(f" --read {id[:12]}" for id in spec.inputs)
    return f"ms data layer {version.name} FILE.py:{spec.producer}{told}{read}"
