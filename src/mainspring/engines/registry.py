"""Registry of the kinds of cluster. A new engine is its package and one line here; nothing else names one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce
from importlib import import_module
from operator import or_
from typing import Any

from mainspring.domain.codec import from_plain, to_plain
from mainspring.domain.errors import InvalidSpec, nearest
from mainspring.engines.common.kind import ClusterKind, ClusterSettings

# Loaded when one is first wanted. Commands list them in this order.
ENGINES = {
    "slurm": "mainspring.engines.slurm.kind",
    "kubernetes": "mainspring.engines.kubernetes.kind",
    "local": "mainspring.engines.local.kind",
}
# Mainspring 0.1 kept the clusters of each engine under a key of its own, without their kind.
KEYS_BEFORE = {"clusters": "local", "slurm": "slurm"}


def kind_named(name: str) -> ClusterKind[Any]:
    """Returns a kind of cluster."""
    found: ClusterKind[Any] = import_module(ENGINES[name]).KIND
    return found


def kinds() -> Iterator[ClusterKind[Any]]:
    """Yields every kind of cluster."""
    return map(kind_named, ENGINES)


def openings() -> Any:
    """Returns the union of the messages that make a host serve a cluster."""
    return reduce(or_, (kind.opening for kind in kinds() if kind.opening))


def found_clusters() -> tuple[ClusterSettings, ...]:
    """Returns the clusters that are there without being set up."""
    return tuple(cluster for kind in kinds() for cluster in kind.found())


def cluster_from(plain: Mapping[str, object], *, where: str, kind_before: str) -> ClusterSettings:
    """Returns the cluster that an entry of the configuration describes.

    Args:
        plain: The entry: its kind, and the fields of that kind's settings.
        where: Its place in the configuration.
        kind_before: Its kind where it names none.

    Raises:
        InvalidSpec: There is no such kind, or a field is unknown, missing or wrong.
    """
    fields = dict(plain)
    kind = fields.pop("kind", kind_before)
    if not isinstance(kind, str) or kind not in ENGINES:
        raise InvalidSpec(
            "read a document", on=f"field '{where}.kind'", got=repr(kind), wanted=nearest(str(kind), ENGINES)
        )
    cluster: ClusterSettings = from_plain(kind_named(kind).settings, fields, strict=True, where=where)
    return cluster


def plain_from(cluster: ClusterSettings) -> dict[str, object]:
    """Returns a cluster's entry of the configuration."""
    return {"kind": cluster.kind, **to_plain(cluster)}
