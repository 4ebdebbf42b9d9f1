"""Adapters of the `Engine` port, one package for each kind of cluster; `registry` names them."""
