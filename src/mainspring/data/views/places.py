"""Where a view lies in the object store, for whoever gives access to it: importing this loads nothing else."""


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
