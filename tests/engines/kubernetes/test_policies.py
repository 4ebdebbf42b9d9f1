"""Policies of `ms cluster manifests kubernetes`, as a real API server enforces them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from mainspring.app.base.system import SystemClock
from mainspring.domain.errors import InvalidSpec
from mainspring.domain.fleet import AllocationPhase, LaunchOrder
from mainspring.domain.ids import AllocationId, AttemptId, NodeName, RoleName
from mainspring.engines.common.kind import CheckResult, EngineContext
from mainspring.engines.kubernetes.api.access import read_kubeconfig
from mainspring.engines.kubernetes.api.client import MERGE, Api, ApiRefusal
from mainspring.engines.kubernetes.cluster.config import CORDONED_BY
from mainspring.engines.kubernetes.kind import check
from mainspring.engines.kubernetes.setup.account import AccountWanted
from mainspring.testing.kubernetes import KubernetesServer, kubernetes_missing, settings_on
from mainspring.testing.kubernetes_kueue import kueue_missing, make_queues, start_kueue
from mainspring.testing.kubernetes_pods import pods_missing
from tests.contracts.on_kubernetes import KubernetesHarness, kubernetes_of
from tests.engines.kubernetes.applying import apply, somebody

MISSING = kubernetes_missing() or pods_missing()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(MISSING), reason=MISSING)]
SPACE = "/api/v1/namespaces/mainspring"
DEVICES = "/apis/resource.k8s.io/v1/namespaces/mainspring"
JOBS = "/apis/batch/v1/namespaces/{}/jobs"
NAME = AllocationId("allocation-1")
OURS: dict[str, str] = {"mainspring/allocation": NAME}
NODES = ("alpha-1", "alpha-2")
# Says of every pod what policies say of it.
AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata", "verbs": ["create"], "resources": [{"group": "", "resources": ["pods"]}]}],
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesServer]:
    folder = tmp_path_factory.mktemp("kubernetes")
    (folder / "audit.yaml").write_text(yaml.safe_dump(AUDIT))
    words = (f"--audit-policy-file={folder / 'audit.yaml'}", f"--audit-log-path={folder / 'audit.log'}")
    with kubernetes_of(folder, len(NODES), extra={"kube-apiserver": words}) as started:
        apply(started, AccountWanted().text())
        started.make_space("mainspring")
        yield started


@pytest.fixture(scope="module")
def stranger(server: KubernetesServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with somebody(server, tmp_path_factory.mktemp("stranger"), "stranger") as client:
        # A policy holds some moments after it was made.
        server.wait(lambda: claim(client).status_code == httpx.codes.FORBIDDEN, "kube-apiserver")
        yield client


def claim(client: httpx.Client, **labels: str) -> httpx.Response:
    meta = {"name": "theirs", "labels": labels or OURS}
    return client.post(f"{SPACE}/configmaps?dryRun=All", json={"metadata": meta})


def job(labels: dict[str, str], pods: dict[str, str], *, gpus: int = 0) -> dict[str, Any]:
    container: dict[str, Any] = {
        "name": "main",
        "image": "none",
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    if gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": str(gpus)}}
    safe = {"runAsNonRoot": True, "runAsUser": 1_000, "seccompProfile": {"type": "RuntimeDefault"}}
    pod = {"restartPolicy": "Never", "containers": [container], "securityContext": safe}
    template = {"metadata": {"labels": pods}, "spec": pod}
    return {"metadata": {"generateName": "theirs-", "labels": labels}, "spec": {"template": template}}


def pod(labels: dict[str, str], *, gpus: int = 0) -> dict[str, Any]:
    made = job({}, labels, gpus=gpus)["spec"]["template"]
    made["metadata"]["generateName"] = "theirs-"
    return dict(made)


def devices(labels: dict[str, str], made: dict[str, str] | None = None) -> dict[str, Any]:
    """Returns a claim of a device; of what `made` says, its template."""
    claim = {"devices": {"requests": [{"name": "a", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}}
    spec = claim if made is None else {"metadata": {"labels": made}, "spec": claim}
    return {"metadata": {"name": "theirs", "labels": labels}, "spec": spec}


def refused(answer: httpx.Response, policy: str = "mainspring-objects") -> bool:
    return answer.status_code == httpx.codes.FORBIDDEN and policy in answer.json()["message"]


def order() -> LaunchOrder:
    return LaunchOrder(
        allocation=NAME,
        attempt=AttemptId("attempt-1"),
        role=RoleName("main"),
        nodes=tuple(map(NodeName, NODES)),
        chip_milli=(8_000, 8_000),
        controller="http://127.0.0.1:1",
        token="a-secret",
    )


def test_stranger_makes_nothing_with_our_label_and_others_things_as_before(
    server: KubernetesServer, stranger: httpx.Client
) -> None:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": NAME, "uid": "none", "controller": True}
    forged = pod(OURS)
    forged["metadata"]["ownerReferences"] = [owner]
    jobs, pods = f"{JOBS.format('mainspring')}?dryRun=All", f"{SPACE}/pods?dryRun=All"
    answers = {
        "claim": claim(stranger),
        "secret": stranger.post(f"{SPACE}/secrets?dryRun=All", json={"metadata": {"name": "theirs", "labels": OURS}}),
        "job": stranger.post(jobs, json=job(OURS, {})),
        "job of such pods": stranger.post(jobs, json=job({}, OURS)),
        "pod": stranger.post(pods, json=pod(OURS)),
        "pod under a job": stranger.post(pods, json=forged),
        "devices": stranger.post(f"{DEVICES}/resourceclaims?dryRun=All", json=devices(OURS)),
        "template of such": stranger.post(f"{DEVICES}/resourceclaimtemplates?dryRun=All", json=devices({}, OURS)),
    }
    assert {what: answer.text for what, answer in answers.items() if not refused(answer)} == {}
    assert "made by Mainspring alone" in answers["pod"].text
    assert claim(stranger, app="theirs").is_success
    assert stranger.post(jobs, json=job({}, {"app": "theirs"})).is_success
    assert stranger.post(
        "/api/v1/namespaces/default/configmaps?dryRun=All",
        json={
            "metadata": {"name": "theirs", "labels": OURS},
        },
    ).is_success  # What bears it in another namespace is nothing to us.


def test_whole_life_of_an_allocation_goes_on_under_the_policies_and_no_stranger_changes_it(
    server: KubernetesServer, stranger: httpx.Client, tmp_path: Path
) -> None:
    path = tmp_path / "kubeconfig"
    server.write_kubeconfig(path, "mainspring", "mainspring")
    rig = KubernetesHarness(tmp_path, server, NODES, space="mainspring", kubeconfig=path)
    try:
        engine = rig.engine()
        engine.launch(order())
        rig.until(lambda: [one.phase for one in engine.observe()] == [AllocationPhase.RUNNING])
        rig.speak(NAME, len(NODES))
        merge = {"Content-Type": MERGE}
        stop: dict[str, Any] = {"metadata": {"annotations": {"mainspring/ended": "{}"}}}
        bare: dict[str, Any] = {"metadata": {"labels": {"mainspring/allocation": None}}}
        (first, _) = rig.pods.names(NAME)
        changes = {
            "end of a claim": stranger.patch(f"{SPACE}/configmaps/{NAME}", json=stop, headers=merge),
            "time of a job": stranger.patch(
                f"{JOBS.format('mainspring')}/{NAME}", json={"spec": {"activeDeadlineSeconds": 1}}, headers=merge
            ),
            "label of a pod": stranger.patch(f"{SPACE}/pods/{first}", json=bare, headers=merge),
        }
        assert {what: answer.text for what, answer in changes.items() if not refused(answer)} == {}
        engine.stop(NAME, grace_s=30.0)
        rig.until(lambda: [one.phase for one in engine.observe()] == [AllocationPhase.ENDED])
        # What is deleted, by whomever, takes with it what it owns: no policy is in the way of collectors.
        assert stranger.delete(f"{SPACE}/configmaps/{NAME}").is_success
        rig.until(lambda: server.call("GET", f"{SPACE}/pods")["items"] == [])
        rig.until(lambda: not server.there(f"{JOBS.format('mainspring')}/{NAME}"))
    finally:
        rig.close()


def test_our_account_changes_nothing_of_a_node_but_a_cordon_of_its_own(
    server: KubernetesServer, stranger: httpx.Client, tmp_path: Path
) -> None:
    path, node = tmp_path / "kubeconfig", "/api/v1/nodes/alpha-1"
    server.write_kubeconfig(path, "mainspring", "mainspring")
    access = read_kubeconfig(path, "", environment=os.environ, clock=SystemClock())
    api = Api("ours", lambda: access)

    def change(**change: object) -> None:
        api.call("PATCH", node, attempted="change a node", body=change, kind=MERGE)

    def shut(by: str | None, *, shut: bool) -> dict[str, Any]:
        return {"spec": {"unschedulable": shut}, "metadata": {"annotations": {CORDONED_BY: by}}}

    refused_all: tuple[dict[str, Any], ...] = (
        {"metadata": {"labels": {"pool": "ours"}}},
        {"metadata": {"annotations": {"other": "note"}}},
        {"spec": {"taints": [{"key": "ours", "effect": "NoSchedule"}]}},
        {"spec": {"unschedulable": True}},
        shut("other/health", shut=True),
    )
    for body in refused_all:
        with pytest.raises(ApiRefusal, match="mainspring-cordons"):
            change(**body)
    change(**shut("mainspring/health", shut=True))
    change(**shut(None, shut=False))
    for theirs in (shut(None, shut=True), shut("other/health", shut=True)):
        assert stranger.patch(node, json=theirs, headers={"Content-Type": MERGE}).is_success
        for body in (shut(None, shut=False), shut("mainspring/health", shut=True)):
            with pytest.raises(ApiRefusal, match="somebody else's"):
                change(**body)
    assert stranger.patch(node, json=shut(None, shut=False), headers={"Content-Type": MERGE}).is_success
    api.close()


def test_server_under_another_name_than_the_policies_say_is_refused_with_that_name(
    server: KubernetesServer, stranger: httpx.Client, tmp_path: Path
) -> None:
    rig = KubernetesHarness(tmp_path, server, NODES, space="mainspring")
    try:
        with pytest.raises(ApiRefusal, match="system:serviceaccount:mainspring:mainspring"):
            rig.engine().launch(order())
    finally:
        rig.close()
    cluster = settings_on(server)
    context = EngineContext(environment=os.environ, certificate="", clock=SystemClock())
    found = {each.name: each for each in check(cluster, context, "")}
    assert found["rights"].standing is CheckResult.OK
    assert found["namespace"].standing is CheckResult.FAILED
    assert "mainspring-objects" in found["namespace"].found
    assert "--account" in found["namespace"].fix


def test_accelerators_that_come_another_way_are_told_first_and_refused_once_that_is_said(
    server: KubernetesServer, stranger: httpx.Client
) -> None:
    pods = "/api/v1/namespaces/default/pods?dryRun=All"
    assert "Warning" not in stranger.post(pods, json=pod({}, gpus=1)).headers
    apply(server, AccountWanted(accelerators="audit").text())
    server.wait(lambda: "Warning" in stranger.post(pods, json=pod({}, gpus=1)).headers, "kube-apiserver")
    told = stranger.post(pods, json=pod({}, gpus=1))
    assert told.is_success
    assert "accelerators are given by Mainspring" in told.headers["Warning"]
    events = map(json.loads, (server.folder / "audit.log").read_text().splitlines())
    marks = [
        each.get("annotations", {}).get("validation.policy.admission.k8s.io/validation_failure", "") for each in events
    ]
    assert "mainspring-accelerators" in marks[-1]
    apply(server, AccountWanted(accelerators="deny").text())
    server.wait(lambda: not stranger.post(pods, json=pod({}, gpus=1)).is_success, "kube-apiserver")
    assert refused(stranger.post(pods, json=pod({}, gpus=1)), "mainspring-accelerators")
    for allowed in (pod({}), pod({"kueue.x-k8s.io/queue-name": "lab"}, gpus=1)):
        assert stranger.post(pods, json=allowed).is_success
    assert stranger.post(f"{SPACE}/pods?dryRun=All", json=pod({}, gpus=1)).is_success  # Our namespace is ours.
    label: dict[str, Any] = {"metadata": {"labels": {"mainspring/accelerators": "allowed"}}}
    server.call("PATCH", "/api/v1/namespaces/default", label, kind=MERGE)
    server.wait(lambda: stranger.post(pods, json=pod({}, gpus=1)).is_success, "kube-apiserver")


def test_controllers_of_a_namespace_that_the_operator_names_may_change_what_is_ours_but_not_its_label(
    server: KubernetesServer, stranger: httpx.Client, tmp_path: Path
) -> None:
    path, merge = tmp_path / "kubeconfig", {"Content-Type": MERGE}
    server.write_kubeconfig(path, "mainspring", "mainspring")
    api = Api("cloud", lambda: read_kubeconfig(path, "", environment=os.environ, clock=SystemClock()))
    api.call("POST", f"{SPACE}/configmaps", attempted="make", body={"metadata": {"name": "ours", "labels": OURS}})

    def patched(**meta: Any) -> httpx.Response:
        return stranger.patch(f"{SPACE}/configmaps/ours?dryRun=All", json={"metadata": meta}, headers=merge)

    assert refused(patched(annotations={"a": "b"}))
    apply(server, AccountWanted(controllers=("kueue-system", "default")).text())
    server.wait(lambda: patched(annotations={"a": "b"}).is_success, "kube-apiserver")
    assert refused(patched(labels={"mainspring/allocation": None}))
    assert refused(claim(stranger))
    apply(server, AccountWanted().text())
    server.wait(lambda: refused(patched(annotations={"a": "b"})), "kube-apiserver")
    api.call("DELETE", f"{SPACE}/configmaps/ours", attempted="take back")  # No engine could read it.
    api.close()


def test_labs_of_one_cluster_that_refuse_others_accelerators_let_each_other_have_theirs(
    server: KubernetesServer, stranger: httpx.Client
) -> None:
    labs, bindings = ("mainspring", "second-lab"), "validatingadmissionpolicybindings"
    for space in labs:
        apply(server, AccountWanted(namespace=space).text())
    for space in ("second-lab", "third"):
        server.make_space(space)

    def post(space: str) -> httpx.Response:
        return stranger.post(f"/api/v1/namespaces/{space}/pods?dryRun=All", json=pod({}, gpus=1))

    for space in labs:
        apply(server, AccountWanted(namespace=space, accelerators="deny").text())
        server.wait(lambda: refused(post("third"), f"{space}-accelerators"), "kube-apiserver")  # noqa: B023
        assert [post(one).status_code for one in labs] == [httpx.codes.CREATED] * 2
        path = f"/apis/admissionregistration.k8s.io/v1/{bindings}/{space}-accelerators"
        server.call("DELETE", path)
        server.wait(lambda: post("third").is_success, "kube-apiserver")


@pytest.mark.skipif(bool(kueue_missing()), reason=kueue_missing())
def test_jobs_of_others_that_kueue_lets_in_have_their_accelerators(
    tmp_path: Path,
) -> None:
    with kubernetes_of(tmp_path / "kubernetes", 1) as server:
        start_kueue(server)
        apply(server, AccountWanted(kueue=True, accelerators="deny").text())
        server.make_space("others")
        make_queues(server, "others", flavors={"gpus": {}}, queues={"lab": {"gpus": 8}})
        pods = "/api/v1/namespaces/others/pods"

        with somebody(server, tmp_path, "stranger") as stranger:
            server.wait(lambda: not stranger.post(f"{pods}?dryRun=All", json=pod({}, gpus=1)).is_success, "etcd")
        server.call("POST", JOBS.format("others"), job({"kueue.x-k8s.io/queue-name": "lab"}, {}, gpus=8))
        server.call("POST", JOBS.format("others"), job({}, {"by": "nobody"}, gpus=8))
        server.wait(lambda: server.call("GET", pods)["items"] != [], "kueue")
        (made,) = server.call("GET", pods)["items"]
        assert "by" not in made["metadata"]["labels"]


@pytest.mark.parametrize(
    ("identity", "wanted"),
    [
        ("", []),
        ("gke", [("169.254.169.254/32", 80), ("169.254.169.252/32", 988)]),
        ("eks", [("169.254.170.23/32", 80), ("fd00:ec2::23/128", 80)]),
    ],
)
def test_jobs_reach_the_metadata_server_of_the_provider_that_is_named_and_no_other(
    server: KubernetesServer, identity: str, wanted: list[tuple[str, int]]
) -> None:
    apply(server, AccountWanted(identity=identity).text())
    for name in ("mainspring-jobs", "mainspring-check"):
        made = server.call("GET", f"/apis/networking.k8s.io/v1/namespaces/mainspring/networkpolicies/{name}")
        blocks = [
            (to["ipBlock"]["cidr"], port["port"])
            for way in made["spec"]["egress"]
            for to in way.get("to", ())
            if "ipBlock" in to
            for port in way["ports"]
        ]
        assert blocks == wanted
        (anywhere,) = [way for way in made["spec"]["egress"] if "to" not in way]
        assert {port["port"] for port in anywhere["ports"]} == {53, 443, 7077}


@pytest.mark.parametrize(
    "wanted",
    [
        {"namespace": "a.b"},
        {"account": 'a"b'},
        {"ports": ("x",)},
        {"ports": ("70000",)},
        {"accelerators": "warn"},
        {"identity": "azure"},
        {"controllers": ("a.b",)},
    ],
)
def test_options_out_of_their_range_are_refused(wanted: dict[str, Any]) -> None:
    with pytest.raises(InvalidSpec, match=next(iter(wanted))):
        AccountWanted(**wanted)
