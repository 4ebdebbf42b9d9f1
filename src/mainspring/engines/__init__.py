"""Adapters of the `Engine` port, one for each kind of cluster."""

from mainspring.engines.local.engine import LocalCluster, LocalEngine

__all__ = ["LocalCluster", "LocalEngine"]
