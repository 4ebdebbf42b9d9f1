"""The account on the page of Kubernetes is enough for all that the engine does, and no more than it says."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from mainspring.app.base.system import SystemClock
from mainspring.app.cli import cluster as cluster_commands
from mainspring.domain.codec import from_plain
from mainspring.domain.fleet import AllocationPhase, LaunchOrder
from mainspring.domain.ids import AllocationId, AttemptId, NodeName, RoleName
from mainspring.engines.common.kind import CheckResult, EngineContext
from mainspring.engines.kubernetes.api.access import read_kubeconfig
from mainspring.engines.kubernetes.api.client import Api, ApiRefusal
from mainspring.engines.kubernetes.cluster.config import KubernetesCluster
from mainspring.engines.kubernetes.kind import check
from mainspring.testing import FakeClock
from mainspring.testing.kubernetes import KubernetesServer, kubernetes_missing, settings_on
from mainspring.testing.kubernetes_kueue import kueue_missing, start_kueue
from mainspring.testing.kubernetes_pods import pods_missing
from tests.contracts.on_kubernetes import KubernetesHarness, kubernetes_of
from tests.engines.kubernetes.applying import apply

MISSING = kubernetes_missing() or pods_missing()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(MISSING), reason=MISSING)]
PAGE = Path(__file__).parents[3] / "docs" / "engines" / "kubernetes.md"
SPACE = "/api/v1/namespaces/mainspring"
NAME = AllocationId("allocation-1")


def printed(words: str) -> str:
    """Returns what a command of the page prints for `kubectl apply -f -`."""
    assert f"\nms {words} | kubectl apply -f -\n" in PAGE.read_text()
    told = CliRunner().invoke(cluster_commands.app, words.removeprefix("cluster ").split())
    assert told.exit_code == 0, told.output
    return told.output


@pytest.fixture
def server(tmp_path: Path) -> Iterator[KubernetesServer]:
    """A control plane with the account of the page, and no other of ours."""
    with kubernetes_of(tmp_path / "kubernetes", 2) as started:
        apply(started, printed("cluster manifests kubernetes"))
        started.make_space("mainspring")
        yield started


def kubeconfig(server: KubernetesServer, folder: Path) -> Path:
    """Writes a kubeconfig of the page's account."""
    path = folder / "kubeconfig"
    server.write_kubeconfig(path, "mainspring", "mainspring")
    return path


def order(rig: KubernetesHarness) -> LaunchOrder:
    return LaunchOrder(
        allocation=NAME,
        attempt=AttemptId("attempt-1"),
        role=RoleName("main"),
        nodes=tuple(map(NodeName, rig.nodes)),
        chip_milli=(8_000, 8_000),
        controller="http://127.0.0.1:1",
        token="a-secret",
    )


def test_account_of_the_page_is_enough_for_a_whole_life_and_reads_no_secret(
    server: KubernetesServer, tmp_path: Path
) -> None:
    path = kubeconfig(server, tmp_path)
    rig = KubernetesHarness(tmp_path, server, ("alpha-1", "alpha-2"), space="mainspring", kubeconfig=path)
    try:
        cluster = settings_on(server, kubeconfig=str(path))
        context = EngineContext(environment=os.environ, certificate="", clock=SystemClock())
        found = list(check(cluster, context, ""))
        assert [one.name for one in found if one.standing is CheckResult.FAILED] == [], found
        assert next(one.found for one in found if one.name == "rights") in PAGE.read_text()
        assert not server.call("GET", f"{SPACE}/configmaps?labelSelector=mainspring/allocation")["items"]
        engine = rig.engine()
        engine.inventory()
        engine.launch(order(rig))
        rig.until(lambda: [one.phase for one in engine.observe()] == [AllocationPhase.RUNNING])
        rig.speak(NAME, 2)
        assert engine.logs(NAME, rank=1, since=0, limit=5).data == b"hello"
        engine.cordon(NodeName("alpha-1"), owner="ada", reason="noisy fan")
        engine.uncordon(NodeName("alpha-1"), owner="ada")
        engine.stop(NAME, grace_s=30.0)
        rig.until(lambda: [one.phase for one in engine.observe()] == [AllocationPhase.ENDED])
        access = read_kubeconfig(path, "", environment=os.environ, clock=FakeClock())
        api = Api("cloud", lambda: access)
        for refused in (f"{SPACE}/secrets", "/api/v1/namespaces/kube-system/configmaps"):
            with pytest.raises(ApiRefusal):
                api.call("GET", refused, attempted="look where we must not")
        api.close()
    finally:
        rig.close()


def test_claims_and_accounts_that_the_page_names_are_looked_for(server: KubernetesServer, tmp_path: Path) -> None:
    (told,) = [
        part for block in PAGE.read_text().split("```yaml\n") if (part := block.partition("```")[0])[:5] == "pods:"
    ]
    plain = {"name": "cloud", "kubeconfig": str(kubeconfig(server, tmp_path)), "image": "train", **yaml.safe_load(told)}
    cluster = from_plain(KubernetesCluster, plain, strict=True)
    context = EngineContext(environment=os.environ, certificate="", clock=SystemClock())

    def found(name: str) -> str:
        return next(one.found for one in check(cluster, context, "") if one.name == name)

    missing = "no PersistentVolumeClaim robot-data, no ServiceAccount trainer, no ServiceAccount vision-trainer"
    assert found("claims and accounts").startswith(missing)
    wanted = {"resources": {"requests": {"storage": "1Gi"}}, "accessModes": ["ReadWriteOnce"]}
    server.call("POST", f"{SPACE}/persistentvolumeclaims", {"metadata": {"name": "robot-data"}, "spec": wanted})
    for name in ("trainer", "vision-trainer"):
        server.call("POST", f"{SPACE}/serviceaccounts", {"metadata": {"name": name}})
    assert "only one node at a time can have claim robot-data" in found("claims and accounts")


@pytest.mark.skipif(bool(kueue_missing()), reason=kueue_missing())
def test_account_with_the_pages_rules_for_kueue_is_enough_where_that_decides(
    server: KubernetesServer, tmp_path: Path
) -> None:
    start_kueue(server)
    apply(server, printed("cluster manifests kubernetes --kueue"))
    path = kubeconfig(server, tmp_path)
    names = ("alpha-1", "alpha-2")
    rig = KubernetesHarness(tmp_path, server, names, space="mainspring", kubeconfig=path, queues={"lab": 16})
    try:
        cluster = settings_on(server, kubeconfig=str(path), queue="lab", priorities={"critical": "now"})
        context = EngineContext(environment=os.environ, certificate="", clock=SystemClock())
        found = list(check(cluster, context, ""))
        assert [one.name for one in found if one.standing is CheckResult.FAILED] == [], found
        unknown = list(check(replace(cluster, queue="nobody"), context, ""))
        assert [one.found for one in unknown if one.standing is CheckResult.FAILED] != []
        assert "nobody" in next(one.found for one in unknown if one.name == "queues")
        engine = rig.engine()
        assert tuple(node.name for node in engine.inventory().nodes) == rig.nodes
        engine.launch(order(rig))
        rig.until(lambda: [one.phase for one in engine.observe()] == [AllocationPhase.RUNNING])
        rig.speak(NAME, 2)
        engine.stop(NAME, grace_s=30.0)
        rig.until(lambda: [one.phase for one in engine.observe()] == [AllocationPhase.ENDED])
        assert not server.there(f"/apis/batch/v1/namespaces/mainspring/jobs/{NAME}")
    finally:
        rig.close()
