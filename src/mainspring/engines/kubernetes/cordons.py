"""Cordons of ours: one ConfigMap of the namespace has all of them, by node; Kubernetes is not told."""

from __future__ import annotations

from collections.abc import Mapping
from threading import Lock
from typing import Any, final

from mainspring.domain.codec import decode, encode
from mainspring.domain.errors import Conflict
from mainspring.domain.ids import NodeName
from mainspring.domain.ports import Clock
from mainspring.engines.common.records import Cordon
from mainspring.engines.kubernetes.api.client import MERGE, Api, ApiRefusal
from mainspring.engines.kubernetes.cluster.config import KubernetesCluster
from mainspring.engines.kubernetes.cluster.mirror import Known, Mirror

NAME = "mainspring-cordons"
_TRIES_MAX = 8  # Others write them too.


@final
class CordonBook:
    """Keeps up a copy of them, and changes them."""

    def __init__(self, cluster: KubernetesCluster, api: Api, clock: Clock) -> None:
        self._api = api
        self._call_s = cluster.call_s_max
        self._path = f"/api/v1/namespaces/{cluster.namespace}/configmaps"
        self._known = Known[Mapping[str, Cordon]](Lock())
        self._mirror = Mirror(
            api,
            clock,
            path=self._path,
            query={"fieldSelector": f"metadata.name={NAME}"},
            key="name",
            read=_read,
            keeps=self._known,
        )

    def by_node(self) -> Mapping[str, Cordon]:
        """Returns all of them.

        Raises:
            Unavailable: The API does not answer, and has not for some while.
        """
        self._mirror.check(self._call_s)
        return self._known.known.get(NAME, {})

    def change(self, node: NodeName, owner: str, wanted: Cordon | None, attempted: str) -> None:
        """Writes one, or takes it away; another owner's stands.

        Args:
            wanted: None to take it away.

        Raises:
            Conflict: Another owner has cordoned the node, or others change cordons all the time.
            Unavailable: The API does not answer.
        """
        for _ in range(_TRIES_MAX):
            found = self._found(attempted)
            known = _read(found)
            held = known.get(node)
            if held is not None and held.owner != owner:
                raise Conflict(attempted, on=node, got=f"a cordon of {held.owner}: {held.reason}", wanted="one's own")
            if held == wanted or self._write(node, wanted, found, attempted):
                others = {name: one for name, one in known.items() if name != node}
                self._known.put(NAME, others if wanted is None else {**others, node: wanted})
                return
        raise Conflict(attempted, on=node, got="others who change cordons all the time", next_step="try again")

    def close(self) -> None:
        """Ends its thread, once the API lets go of it."""
        self._mirror.close()

    def _found(self, attempted: str) -> Mapping[str, Any]:
        """Returns the object that holds them, nothing before there is one."""
        try:
            found: Mapping[str, Any] = self._api.call("GET", f"{self._path}/{NAME}", attempted=attempted)
        except ApiRefusal as error:
            if error.reason == "NotFound":
                return {}
            raise
        return found

    def _write(self, node: NodeName, wanted: Cordon | None, found: Mapping[str, Any], attempted: str) -> bool:
        """Returns whether a change was taken: not where the object has changed since it was read."""
        data = {node: None if wanted is None else encode(wanted).decode()}
        try:
            if found:
                body = {"metadata": {"resourceVersion": found["metadata"]["resourceVersion"]}, "data": data}
                self._api.call("PATCH", f"{self._path}/{NAME}", attempted=attempted, body=body, kind=MERGE)
            else:
                body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME}, "data": data}
                self._api.call("POST", self._path, attempted=attempted, body=body)
        except ApiRefusal as error:
            if error.reason in ("NotFound", "AlreadyExists", "Conflict"):
                return False
            raise
        return True


def _read(found: Mapping[str, Any]) -> Mapping[str, Cordon]:
    """Returns what the object holds.

    Raises:
        InvalidMessage: It cannot be read.
    """
    return {node: decode(Cordon, text.encode()) for node, text in (found.get("data") or {}).items()}
