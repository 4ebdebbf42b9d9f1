from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mainspring.data import View
from mainspring.data.views.manifest import Split

from .making import make_views

jax: Any = pytest.importorskip("jax", reason="the train extra is not installed")


@pytest.fixture
def compiled_at_once() -> Iterator[None]:
    """XLA leaves most optimizations out: for models this small they take longer than all that is computed."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="session")
def views(tmp_path_factory: pytest.TempPathFactory) -> dict[Split, View]:
    return make_views(tmp_path_factory.mktemp("swing"))


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compiled")
