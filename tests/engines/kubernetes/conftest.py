"""One control plane for all tests of the engine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mainspring.testing.kubernetes import KubernetesServer, kubernetes_missing


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesServer]:
    if missing := kubernetes_missing():
        pytest.skip(missing)
    with KubernetesServer(tmp_path_factory.mktemp("kubernetes")) as started:
        yield started
