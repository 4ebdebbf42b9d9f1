"""An engine whose cluster is not its own: webhooks of others, their priorities, short nodes, credentials that end."""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from mainspring.app.base.system import SystemClock
from mainspring.domain.errors import Unavailable
from mainspring.domain.fleet import AllocationPhase, AllocationSeen, LaunchOrder
from mainspring.domain.ids import AllocationId, AttemptId, NodeName, RoleName
from mainspring.domain.ports import Engine
from mainspring.engines.kubernetes.api.client import ApiRefusal
from mainspring.engines.kubernetes.engine import STUCK_S_MAX
from mainspring.testing.kubernetes import KubernetesServer, kubernetes_missing
from mainspring.testing.kubernetes_pods import NO_IMAGE, pods_missing
from tests.contracts.on_kubernetes import KubernetesHarness, kubernetes_of

MISSING = kubernetes_missing() or pods_missing()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(MISSING), reason=MISSING)]
NAME = AllocationId("allocation-1")
NODES = ("alpha-1", "alpha-2")
PENDING, RUNNING, STOPPING, ENDED = AllocationPhase
HOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
ADMIN = x509.Name(
    [
        x509.NameAttribute(x509.NameOID.ORGANIZATION_NAME, "system:masters"),
        x509.NameAttribute(x509.NameOID.COMMON_NAME, "ada"),
    ]
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesServer]:
    with kubernetes_of(tmp_path_factory.mktemp("kubernetes"), len(NODES)) as server:
        server.call("POST", CLASSES, {"metadata": {"name": "theirs"}, "value": 1_000})
        yield server


@pytest.fixture
def kubeconfig(cluster: KubernetesServer, tmp_path: Path) -> Path:
    path = tmp_path / "kubeconfig"
    path.write_text(cluster.place.kubeconfig.read_text())
    return path


@pytest.fixture
def rig(cluster: KubernetesServer, kubeconfig: Path, tmp_path: Path) -> Iterator[KubernetesHarness]:
    made = KubernetesHarness(tmp_path, cluster, NODES, kubeconfig=kubeconfig)
    yield made
    pods = f"/api/v1/namespaces/{made.space}/pods"
    cluster.call("DELETE", f"/apis/batch/v1/namespaces/{made.space}/jobs", {"propagationPolicy": "Background"})
    cluster.call("DELETE", pods, {"gracePeriodSeconds": 0})
    made.until(lambda: cluster.call("GET", pods)["items"] == [])
    made.close()


def order() -> LaunchOrder:
    return LaunchOrder(
        allocation=NAME,
        attempt=AttemptId("attempt-1"),
        role=RoleName("main"),
        nodes=tuple(map(NodeName, NODES)),
        chip_milli=(8_000,) * len(NODES),
        controller="http://127.0.0.1:1",
        token="a-secret",
    )


def seen(engine: Engine) -> AllocationSeen:
    return next(one for one in engine.observe() if one.allocation == NAME)


def running(rig: KubernetesHarness, engine: Engine) -> None:
    """Launches, and waits until both agents have said hello."""
    engine.launch(order())
    rig.until(lambda: seen(engine).phase is RUNNING)
    rig.speak(NAME, len(NODES))


def answers(rig: KubernetesHarness, engine: Engine) -> bool:
    """Returns whether the cluster answers, a second later than at the last look."""
    rig.clock.advance(1.0)
    try:
        engine.observe()
    except Unavailable:
        return False
    return True


@contextmanager
def webhook(cluster: KubernetesServer, space: str, resource: str, words: str) -> Iterator[None]:
    """Has a webhook of somebody else refuse what is made of a kind; "" lets it answer nothing that can be read."""

    class Refusing(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            said = {"uid": asked["request"]["uid"], "allowed": False, "status": {"message": words}}
            data = json.dumps(asked | {"response": said, "request": None}).encode() if words else b"?"
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing."""

    private = cluster.place.private
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(private / "server.pem", private / "server.key")
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as made:
        made.socket = context.wrap_socket(made.socket, server_side=True)
        Thread(target=made.serve_forever, daemon=True).start()
        trusted = base64.b64encode(cluster.place.authority.read_bytes()).decode()
        hook = {
            "name": "policy.example.org",
            "clientConfig": {"url": f"https://127.0.0.1:{made.server_address[1]}/", "caBundle": trusted},
            "rules": [{"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["CREATE"], "resources": [resource]}],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": space}},
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }
        cluster.call("POST", HOOKS, {"metadata": {"name": "theirs"}, "webhooks": [hook]})
        try:
            # It is asked some moments after it was made known.
            cluster.wait(lambda: refused(cluster, space, resource) != "", "kube-apiserver")
            yield
        finally:
            cluster.call("DELETE", f"{HOOKS}/theirs")
            made.shutdown()


def refused(cluster: KubernetesServer, space: str, resource: str) -> str:
    """Returns why what is made of a kind is refused now, "" where it is not."""
    pod: dict[str, Any] = {"restartPolicy": "Never", "containers": [{"name": "a", "image": NO_IMAGE}]}
    path, spec = f"/api/v1/namespaces/{space}/pods", pod
    if resource == "jobs":
        path, spec = f"/apis/batch/v1/namespaces/{space}/jobs", {"template": {"spec": pod}}
    try:
        cluster.call("POST", f"{path}?dryRun=All", {"metadata": {"name": "trial"}, "spec": spec})
    except Unavailable as error:
        return str(error)
    return ""


def launch_error(engine: Engine) -> Exception | None:
    try:
        engine.launch(order())
    except (ApiRefusal, Unavailable) as error:
        return error
    return None


@pytest.mark.parametrize(
    ("words", "kind", "told"),
    [("no jobs before noon", ApiRefusal, "no jobs before noon"), ("", Unavailable, "failed calling webhook")],
)
def test_webhook_of_others_refuses_a_launch_in_its_words_and_a_later_one_goes_through(
    rig: KubernetesHarness, cluster: KubernetesServer, words: str, kind: type[Exception], told: str
) -> None:
    engine = rig.engine()
    with webhook(cluster, rig.space, "jobs", words):
        error = launch_error(engine)
        assert isinstance(error, kind)
        assert told in str(error)
        assert seen(engine).phase is PENDING
    rig.until(lambda: launch_error(engine) is None)
    running(rig, engine)
    assert rig.starts() == len(NODES)


def test_webhook_of_others_that_keeps_pods_out_gives_the_nodes_back(
    rig: KubernetesHarness, cluster: KubernetesServer
) -> None:
    engine = rig.engine()
    with webhook(cluster, rig.space, "pods", "no pods before noon"):
        engine.launch(order())
        rig.until(lambda: answers(rig, engine) and "not made" in seen(engine).reason)
        rig.clock.advance(STUCK_S_MAX + 1.0)
        rig.until(lambda: answers(rig, engine) and seen(engine).phase is ENDED)
        assert seen(engine).taken
        assert rig.starts() == 0


def test_pods_of_others_that_matter_more_take_ours_which_end_in_good_order(
    rig: KubernetesHarness, cluster: KubernetesServer
) -> None:
    engine = rig.engine()
    running(rig, engine)
    amount = {"nvidia.com/gpu": "8"}
    for node in NODES:
        spec = {
            "priorityClassName": "theirs",
            "nodeSelector": {"kubernetes.io/hostname": node},
            "containers": [{"name": "main", "image": NO_IMAGE, "resources": {"limits": amount}}],
        }
        meta = {"name": f"theirs-{node}"}
        cluster.call("POST", f"/api/v1/namespaces/{rig.space}/pods", {"metadata": meta, "spec": spec})
    rig.until(lambda: seen(engine).phase is ENDED)
    over = seen(engine)
    assert over.taken
    assert "preempt" in over.reason
    assert len(rig.over(NAME)) == len(NODES)  # Each had its grace, and used it.
    assert all(words for words in rig.over(NAME))


def test_pod_that_a_short_node_ends_is_taken_in_its_kubelets_words_and_the_rest_goes_on(
    rig: KubernetesHarness, cluster: KubernetesServer
) -> None:
    engine = rig.engine()
    running(rig, engine)
    rig.pods.evict(NAME, 1, "The node was low on resource: memory.")
    rig.until(lambda: seen(engine).lost_nodes == ("alpha-2",))
    assert (seen(engine).phase, "low on resource: memory" in seen(engine).reason) == (RUNNING, True)
    rig.pods.evict(NAME, 0, "The node was low on resource: memory.")
    rig.until(lambda: seen(engine).phase is ENDED)
    assert (seen(engine).taken, rig.starts()) == (True, len(NODES))


def known_by(kubeconfig: Path, **user: str) -> None:
    """Writes anew who we are."""
    said = json.loads(kubeconfig.read_text())
    said["users"] = [{"name": said["users"][0]["name"], "user": user}]
    draft = kubeconfig.with_suffix(".new")
    draft.write_text(json.dumps(said))
    draft.replace(kubeconfig)


def certify(cluster: KubernetesServer, folder: Path, *, lasts_s: float) -> dict[str, str]:
    """Writes a certificate that the API takes for an administrator's; returns a kubeconfig's words for it."""
    authority = serialization.load_pem_private_key((cluster.place.private / "authority.key").read_bytes(), None)
    assert isinstance(authority, ec.EllipticCurvePrivateKey)
    issuer = x509.load_pem_x509_certificate(cluster.place.authority.read_bytes()).subject
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.fromtimestamp(SystemClock().now_s(), UTC)
    made = x509.CertificateBuilder(subject_name=ADMIN, issuer_name=issuer, public_key=key.public_key())
    made = made.serial_number(x509.random_serial_number()).not_valid_before(now - timedelta(hours=1))
    made = made.not_valid_after(now + timedelta(seconds=lasts_s))
    use = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
    pem = made.add_extension(use, critical=False).sign(authority, hashes.SHA256())
    (folder / "us.pem").write_bytes(pem.public_bytes(serialization.Encoding.PEM))
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "us.key").write_bytes(key.private_bytes(serialization.Encoding.PEM, *plain))
    return {"client-certificate": str(folder / "us.pem"), "client-key": str(folder / "us.key")}


def test_certificate_that_ends_makes_the_cluster_silent_until_it_is_renewed_and_what_runs_goes_on(
    rig: KubernetesHarness, cluster: KubernetesServer, kubeconfig: Path, tmp_path: Path
) -> None:
    known_by(kubeconfig, **certify(cluster, tmp_path, lasts_s=20.0))
    engine = rig.engine()
    running(rig, engine)
    rig.until(lambda: launch_error(engine) is not None)
    assert "Unauthorized" in str(launch_error(engine))
    certify(cluster, tmp_path, lasts_s=3_600.0)
    rig.until(lambda: launch_error(engine) is None and answers(rig, engine))
    engine.stop(NAME, grace_s=30.0)
    rig.until(lambda: seen(engine).phase is ENDED)
    assert rig.starts() == len(NODES)


def test_token_that_is_revoked_is_followed_by_the_one_that_is_written_next(
    rig: KubernetesHarness, cluster: KubernetesServer, kubeconfig: Path, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text(bound(cluster, "first"))
    known_by(kubeconfig, tokenFile=str(token))
    engine = rig.engine()
    running(rig, engine)
    cluster.call("DELETE", "/api/v1/namespaces/default/secrets/first")
    rig.until(lambda: launch_error(engine) is not None)  # The API believes a token for some seconds more.
    assert "Unauthorized" in str(launch_error(engine))
    token.write_text(bound(cluster, "second"))
    rig.until(lambda: launch_error(engine) is None and answers(rig, engine))
    assert (seen(engine).phase, rig.starts()) == (RUNNING, len(NODES))


def bound(cluster: KubernetesServer, name: str) -> str:
    """Returns a token that is good for as long as a Secret is there."""
    account = "/api/v1/namespaces/default/serviceaccounts"
    if not cluster.there(f"{account}/server"):
        cluster.make_admin("default", "server")
    made = cluster.call("POST", "/api/v1/namespaces/default/secrets", {"metadata": {"name": name}})
    holder = {"apiVersion": "v1", "kind": "Secret", "name": name, "uid": made["metadata"]["uid"]}
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"boundObjectRef": holder}}
    return str(cluster.call("POST", f"{account}/server/token", asked)["status"]["token"])
