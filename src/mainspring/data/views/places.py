"""Where a view lies in the object store, and of which datasets it is, for whoever gives access to it.

Importing this loads no other room but `objects`.
"""

from __future__ import annotations

import re

from mainspring.objects import ObjectStore, checked_key

_DATASETS = "datasets_of_views"
_USE = re.compile(r"uses/([^/]+)/\d{6}/view/([^/]+)")


def view_key(view_id: str) -> str:
    """Returns where a view's manifest lies.

    Args:
        view_id: The view.
    """
    return f"views/{view_id}.json"


def golden_folder(view_id: str) -> str:
    """Returns the folder of the hashes of a view's first batches.

    Args:
        view_id: The view.
    """
    return f"golden/{view_id}"


def record_dataset(store: ObjectStore, view_id: str, dataset: str) -> None:
    """Records that a view is of a dataset. May be repeated; best done before the view exists.

    Args:
        store: Where it lies.
        view_id: The view.
        dataset: The dataset.
    """
    store.put_if_absent(f"{_DATASETS}/{view_id}/{dataset}", b"")


def datasets_of_view(store: ObjectStore, view_id: str) -> tuple[str, ...]:
    """Returns the datasets that a view is of, in order: several, where versions of theirs are equal.

    Of a view that a release made which only said what views each version has, all such are read, and what is found is
    recorded: they may be a million, and the next look is to be short.

    Args:
        store: Where it lies.
        view_id: The view, whether it was built or not.

    Raises:
        InvalidInput: It cannot be the id of one.
    """
    folder = f"{_DATASETS}/{view_id}"
    found = [seen.key.rpartition("/")[2] for seen in store.list(checked_key(folder, what="the id of a view"))]
    if not found and store.size(view_key(view_id)) is not None:
        uses = [match for seen in store.list("uses") if (match := _USE.fullmatch(seen.key)) and match[2] == view_id]
        found = sorted({match[1] for match in uses})
        for dataset in found:
            record_dataset(store, view_id, dataset)
    return tuple(found)
