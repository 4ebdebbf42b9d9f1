"""The way to a real API server: who we are there, pages, watches, and what is in the way."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from mainspring.domain.errors import InvalidSpec, NotFound, Unavailable
from mainspring.engines.kubernetes.api.access import Access, pod_access, read_kubeconfig
from mainspring.engines.kubernetes.api.client import APPLY, Api, ApiRefusal
from mainspring.engines.kubernetes.cluster.mirror import Known, Mirror
from mainspring.testing import FakeClock
from mainspring.testing.kubernetes import KubernetesServer

pytestmark = pytest.mark.slow
MAPS = "/api/v1/namespaces/default/configmaps"
# A credential plugin that counts how often it was asked, and hands out what a file says.
PLUGIN = """
import json, os, sys
with open("asked", "a") as file:
    file.write(os.environ["KUBERNETES_EXEC_INFO"] + "\\n")
with open("token") as file:
    print(json.dumps({"apiVersion": sys.argv[1], "kind": "ExecCredential", "status": json.load(file)}))
"""


def kubeconfig(server: KubernetesServer, folder: Path, **user: object) -> Path:
    """Writes a kubeconfig whose user is known by what is given; its context is "lab"."""
    said = yaml.safe_load(server.place.kubeconfig.read_text())
    said["users"] = [{"name": "test", "user": user}]
    said["contexts"].append({"name": "lab", "context": {"cluster": "test", "user": "test", "namespace": "robots"}})
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(said))
    return path


def reading(path: Path, context: str = "lab", clock: FakeClock | None = None) -> Callable[[], Access]:
    return lambda: read_kubeconfig(path, context, environment=os.environ, clock=clock or FakeClock())


def lists_nodes(api: Api) -> bool:
    """Returns whether the API takes us for somebody who may list nodes."""
    return "items" in api.call("GET", "/api/v1/nodes", attempted="list nodes")


@pytest.fixture
def api(server: KubernetesServer) -> Iterator[Api]:
    made = Api("ada", reading(server.place.kubeconfig, ""), call_s=60.0, page_items=2)
    yield made
    made.close()


def put(api: Api, name: str, **data: str) -> Any:
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}
    query = {"fieldManager": "mainspring"}
    return api.call("PATCH", f"{MAPS}/{name}", attempted="apply a map", body=body, kind=APPLY, query=query)


def test_copy_that_is_closed_together_with_its_api_ends_without_a_word(server: KubernetesServer) -> None:
    made, path = Api("ada", reading(server.place.kubeconfig, ""), call_s=60.0), "/api/v1/namespaces"

    def read(found: dict[str, Any]) -> None:
        copy.close()
        made.close()

    copy = Mirror[None](
        made, FakeClock(), path=path, query={}, key="name", read=read, keeps=Known[None](threading.Lock())
    )
    copy.begin()
    server.wait(lambda: all(thread.name != f"mirror {path}" for thread in threading.enumerate()), "etcd")


def test_context_names_the_cluster_the_user_and_the_namespace(server: KubernetesServer, tmp_path: Path) -> None:
    path = kubeconfig(server, tmp_path, token=server.place.token)
    access = reading(path)()
    assert (access.url, access.namespace) == (server.place.url, "robots")
    assert lists_nodes(Api("ada", lambda: access, call_s=60.0))
    with pytest.raises(NotFound, match="'lab'"):
        reading(path, "lap")()
    with pytest.raises(NotFound, match="no-such"):
        reading(tmp_path / "no-such")()


def test_kubeconfig_that_cannot_be_read_is_told_without_its_secrets(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text("users:\n- name: ada\n  user:\n    token: secret-word\n   client-key: [secret-word\n")
    with pytest.raises(InvalidSpec, match="no YAML from line 5 on") as refused:
        reading(path)()
    assert "secret-word" not in str(refused.value)
    assert refused.value.__suppress_context__  # Nor does a trace of the stack tell it.
    path.write_text("clusters: 7\n")
    with pytest.raises(InvalidSpec, match="a kubeconfig of API version v1"):
        reading(path)()


def test_account_of_the_pod_is_used_inside_of_a_cluster(server: KubernetesServer, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(server.place.token)
    (tmp_path / "ca.crt").write_bytes(server.place.authority.read_bytes())
    (tmp_path / "namespace").write_text("robots\n")
    inside = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(server.place.port)}
    assert pod_access({}, tmp_path) is None
    access = pod_access(inside, tmp_path)
    assert access is not None
    assert access.namespace == "robots"
    assert lists_nodes(Api("ada", lambda: access, call_s=60.0))


def test_token_that_is_written_anew_is_the_one_of_the_next_request(server: KubernetesServer, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("over")
    api = Api("ada", reading(kubeconfig(server, tmp_path, tokenFile="token")), call_s=60.0)
    with pytest.raises(Unavailable, match="Unauthorized"):
        lists_nodes(api)
    token.write_text(server.place.token)
    assert lists_nodes(api)


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_plugin_is_asked_once_until_its_token_is_over_or_refused(
    server: KubernetesServer, tmp_path: Path, version: str
) -> None:
    (tmp_path / "plugin").write_text(f"#!{sys.executable}\n{PLUGIN}")
    (tmp_path / "plugin").chmod(0o755)
    said = {"apiVersion": f"client.authentication.k8s.io/{version}", "command": "sh", "provideClusterInfo": True}
    said["args"] = ["-c", f"cd {tmp_path} && exec ./plugin {said['apiVersion']}"]
    clock = FakeClock()
    api = Api("ada", reading(kubeconfig(server, tmp_path, exec=said), clock=clock), call_s=60.0)

    def asked() -> list[str]:
        return (tmp_path / "asked").read_text().splitlines()

    def grant(token: str) -> None:
        ends = datetime.fromtimestamp(clock.now_s() + 3_600.0, UTC).isoformat().replace("+00:00", "Z")
        (tmp_path / "token").write_text(json.dumps({"token": token, "expirationTimestamp": ends}))

    grant(server.place.token)
    for _ in range(3):
        lists_nodes(api)
    assert len(asked()) == 1
    assert json.loads(asked()[0])["spec"]["cluster"]["server"] == server.place.url
    grant("revoked")
    clock.jump(3_600.0)  # Its end.
    with pytest.raises(Unavailable, match="Unauthorized"):
        lists_nodes(api)
    grant(server.place.token)
    assert lists_nodes(api)


def test_plugin_that_fails_says_why_in_its_own_words(server: KubernetesServer, tmp_path: Path) -> None:
    said = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "sh",
        "args": ["-c", "echo log in first >&2; exit 3"],
    }
    with pytest.raises(Unavailable, match="log in first"):
        lists_nodes(Api("ada", reading(kubeconfig(server, tmp_path, exec=said)), call_s=60.0))
    with pytest.raises(InvalidSpec, match="v1alpha1"):
        reading(kubeconfig(server, tmp_path, exec={**said, "apiVersion": "client.authentication.k8s.io/v1alpha1"}))()
    with pytest.raises(InvalidSpec, match="auth-provider"):
        reading(kubeconfig(server, tmp_path, **{"auth-provider": {"name": "gcp"}}))()


def test_api_that_nobody_trusted_vouches_for_is_not_spoken_to(server: KubernetesServer, tmp_path: Path) -> None:
    path = kubeconfig(server, tmp_path, token=server.place.token)
    said = yaml.safe_load(path.read_text())
    del said["clusters"][0]["cluster"]["certificate-authority"]
    path.write_text(yaml.safe_dump(said))
    api = Api("ada", reading(path), call_s=60.0)
    with pytest.raises(Unavailable, match="CERTIFICATE_VERIFY_FAILED"):
        lists_nodes(api)
    # The certificate is renewed: whoever writes the file anew is believed without a restart.
    kubeconfig(server, tmp_path, token=server.place.token)
    assert lists_nodes(api)


def test_collection_comes_in_pages_of_one_instant(api: Api) -> None:
    for name in ("a", "b", "c"):
        put(api, name)
    pages = api.pages(MAPS, attempted="list maps", query={"fieldSelector": "metadata.name!=kube-root-ca.crt"})
    seen = [next(pages)]
    put(api, "d")
    seen += pages
    assert [[each["metadata"]["name"] for each in page.items] for page in seen] == [["a", "b"], ["c"]]
    assert len({page.version for page in seen}) == 1
    for name in "abcd":
        api.call("DELETE", f"{MAPS}/{name}", attempted="tidy up")


def test_watch_goes_on_from_the_version_where_it_ended(api: Api) -> None:
    version = list(api.pages(MAPS, attempted="list maps", query={}))[-1].version
    put(api, "e", step="1")
    put(api, "e", step="2")
    api.call("DELETE", f"{MAPS}/e", attempted="tidy up")
    seen = []
    watch = api.watch(MAPS, version, attempted="watch maps", query={})
    for change in watch:
        seen.append((change.kind, change.object.get("data", {}).get("step")))
        if len(seen) == 3:
            break
    watch.close()  # type: ignore[attr-defined]
    for later in api.watch(MAPS, change.version, attempted="watch maps", query={}):
        seen.append((later.kind, later.object.get("data", {}).get("step")))
        if later.kind == "DELETED":
            break
    assert seen == [("BOOKMARK", None), ("ADDED", "1"), ("MODIFIED", "2"), ("BOOKMARK", None), ("DELETED", "2")]


def test_no_is_told_apart_from_no_answer(server: KubernetesServer, api: Api, tmp_path: Path) -> None:
    with pytest.raises(ApiRefusal, match='configmaps "z" not found') as refused:
        api.call("GET", f"{MAPS}/z", attempted="read a map")
    assert refused.value.reason == "NotFound"
    account = f"{MAPS.rpartition('/')[0]}/serviceaccounts/default/token"
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = api.call("POST", account, attempted="ask for a token", body=asked)["status"]["token"]
    with pytest.raises(ApiRefusal, match="cannot list resource") as refused:
        lists_nodes(Api("ada", reading(kubeconfig(server, tmp_path, token=token)), call_s=60.0))
    assert refused.value.reason == "Forbidden"
    gone = Access(url="https://127.0.0.1:1", trust=reading(server.place.kubeconfig, "")().trust)
    with pytest.raises(Unavailable, match="refused"):
        lists_nodes(Api("ada", lambda: gone))


def test_watch_of_a_server_that_has_stopped_ends_after_its_silence(server: KubernetesServer) -> None:
    api = Api("ada", reading(server.place.kubeconfig, ""), call_s=60.0, silent_s=0.5)
    version = list(api.pages(MAPS, attempted="list maps", query={}))[-1].version
    with pytest.raises(Unavailable, match="no answer within"):
        list(api.watch(MAPS, version, attempted="watch maps", query={}))
