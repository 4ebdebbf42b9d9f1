"""Earlier views: what views made before say of a lab, such as which episodes were held out."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from mainspring.data.views.manifest import ViewManifest, ViewRecipe, view_manifest
from mainspring.data.views.places import view_key
from mainspring.domain.errors import DamagedData, NotFound
from mainspring.objects import ObjectStore, get_blob


def known_views(store: ObjectStore) -> Iterator[ViewManifest]:
    """Yields every view's manifest, in the order of their ids.

    Args:
        store: Where they lie.
    """
    folder, _, suffix = view_key("*").partition("*")
    for entry in store.list(folder.rstrip("/")):
        manifest = view_manifest(store, entry.key.removeprefix(folder).removesuffix(suffix))
        if manifest is not None:  # Deleted meanwhile.
            yield manifest


def sides_before(store: ObjectStore, recipe: ViewRecipe) -> dict[str, bool]:
    """Returns whether each episode is held out that is in a view which is split as a recipe says.

    Args:
        store: Where the views lie.
        recipe: Its share held out and what groups go by.

    Raises:
        DamagedData: A view's table of episodes is not what it should be.
    """
    held: dict[str, bool] = {}
    for manifest in known_views(store):
        here = manifest.recipe
        if (here.holdout_fraction, here.holdout_group) != (recipe.holdout_fraction, recipe.holdout_group):
            continue
        for side in ("train", "holdout"):
            try:
                table = pa.ipc.open_file(pa.py_buffer(get_blob(store, manifest.splits[side].episode_table))).read_all()
            except NotFound:
                continue  # Collected meanwhile.
            except (pa.ArrowException, OSError) as error:
                raise DamagedData("read a view's episodes", on=manifest.id, got=str(error)[:200]) from error
            held |= dict.fromkeys(table["id"].to_pylist(), side == "holdout")
    return held
