from __future__ import annotations

from pathlib import Path

import pytest

from mainspring.data import View
from mainspring.data.views.manifest import Split

from .making import make_views

pytest.importorskip("jax", reason="the train extra is not installed")


@pytest.fixture(scope="session")
def views(tmp_path_factory: pytest.TempPathFactory) -> dict[Split, View]:
    return make_views(tmp_path_factory.mktemp("swing"))


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compiled")
