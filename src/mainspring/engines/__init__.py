"""Adapters of the `Engine` port, one for each kind of cluster."""

from mainspring.engines.local import LocalCluster, LocalEngine

__all__ = ["LocalCluster", "LocalEngine"]
