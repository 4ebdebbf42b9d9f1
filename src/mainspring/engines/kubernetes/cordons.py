"""Cordons of ours: a node is unschedulable, as `kubectl cordon` leaves it, and bears by whom and why.

Each is written to its node alone, in one call where what is known of the node is its newest; so cordons of many nodes
wait for no other. One that bears nothing of ours is somebody else's, and is never touched.
"""

from __future__ import annotations

from typing import Any

from mainspring.domain.errors import Conflict
from mainspring.engines.common.records import Cordon
from mainspring.engines.kubernetes.api.client import MERGE, Api, ApiRefusal
from mainspring.engines.kubernetes.cluster.config import CORDONED_BY, CORDONED_FOR
from mainspring.engines.kubernetes.cluster.machines import OWNER, KubernetesMachine, NodeCordon, read_cordon

_TRIES_MAX = 8  # Kubelets and controllers change nodes too.


def change_cordon(
    api: Api, namespace: str, machine: KubernetesMachine, owner: str, wanted: Cordon | None, attempted: str
) -> dict[str, Any]:
    """Writes a cordon, or takes it away, and returns the node's object; another owner's stands.

    Args:
        namespace: Ours, by which labs of one cluster tell their cordons apart.
        machine: What is known of the node.
        wanted: None to take it away.

    Raises:
        Conflict: Another owner has cordoned the node, or others change it all the time.
        ApiRefusal: The API will not have it.
        Unavailable: The API does not answer.
    """
    path, known = f"/api/v1/nodes/{machine.name}", machine.cordon
    for _ in range(_TRIES_MAX):
        if _is_to_change(known, owner, wanted):  # Else it is looked at, for what is known may be old.
            try:
                changed: dict[str, Any] = api.call(
                    "PATCH", path, attempted=attempted, body=_patch(namespace, known, wanted), kind=MERGE
                )
            except ApiRefusal as error:
                if error.reason != "Conflict":
                    raise
            else:
                return changed
        found: dict[str, Any] = api.call("GET", path, attempted=attempted)
        known = read_cordon(found, namespace)
        if _is_foreign(known, owner):
            held = known.ours or Cordon(owner=OWNER, reason="unschedulable")
            raise Conflict(
                attempted, on=machine.name, got=f"a cordon of {held.owner}: {held.reason}", wanted="one's own"
            )
        if not _is_to_change(known, owner, wanted):
            return found
    raise Conflict(attempted, on=machine.name, got="others who change it all the time", next_step="try again")


def _is_foreign(known: NodeCordon, owner: str) -> bool:
    return known.shut if known.ours is None else known.ours.owner != owner


def _is_to_change(known: NodeCordon, owner: str, wanted: Cordon | None) -> bool:
    return not _is_foreign(known, owner) and (known.ours != wanted or known.shut != (wanted is not None))


def _patch(namespace: str, known: NodeCordon, wanted: Cordon | None) -> dict[str, Any]:
    """Returns what makes it so, unless the node has changed since."""
    notes = {
        CORDONED_BY: None if wanted is None else f"{namespace}/{wanted.owner}",
        CORDONED_FOR: None if wanted is None else wanted.reason,
    }
    return {
        "metadata": {"resourceVersion": known.version, "annotations": notes},
        "spec": {"unschedulable": None if wanted is None else True},
    }
