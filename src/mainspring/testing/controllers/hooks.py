"""What controllers bring into a test's own Kubernetes: definitions of their objects, and webhooks.

The control plane has no network of services, so webhooks are called at their address on this machine, with the API
server's own certificate.
"""

from __future__ import annotations

import base64
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from mainspring.testing.kubernetes import KubernetesServer
from mainspring.testing.kubernetes_files import HOST, KubernetesPlace

CALL_S = 2.0


def define(server: KubernetesServer, api: str, files: Iterable[Path]) -> None:
    """Makes kinds of objects known, and returns once the API has all of them.

    Args:
        api: Where they are then, all in one group: "/apis/kueue.x-k8s.io/v1beta2".
        files: A definition each.

    Raises:
        Unavailable: It never had.
    """
    defined = [yaml.safe_load(path.read_text()) for path in files]
    for one in defined:
        server.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", one)
    server.wait(lambda: server.there(api) and len(_kinds(server, api)) == len(defined), "kube-apiserver")


def write_certificates(place: KubernetesPlace, folder: Path) -> None:
    """Writes the API server's certificate and its key where a controller looks for its own."""
    folder.mkdir(parents=True)
    for kind, suffix in (("pem", "crt"), ("key", "key")):
        shutil.copy(place.private / f"server.{kind}", folder / f"tls.{suffix}")


def register_hooks(
    server: KubernetesServer,
    file: Path,
    port: int,
    change: Callable[[dict[str, Any]], dict[str, Any] | None],
    *,
    name: str = "",
) -> None:
    """Has the API call webhooks that listen on a port of this machine.

    Args:
        file: Their configurations, as their publisher has them.
        change: Returns what is registered of each, None for nothing.
        name: What their names begin with.
    """
    authority = base64.b64encode(server.place.authority.read_bytes()).decode()

    def reached(hook: Mapping[str, Any]) -> dict[str, Any]:
        url = f"https://{HOST}:{port}{path_of(hook)}"
        return {**hook, "clientConfig": {"url": url, "caBundle": authority}}

    for found in yaml.safe_load_all(file.read_text()):
        own = [reached(hook) for one in found["webhooks"] if (hook := change(one)) is not None]
        meta = {"name": name + found["metadata"]["name"]}
        kind = f"{found['kind'].lower()}s"
        server.call(
            "POST", f"/apis/admissionregistration.k8s.io/v1/{kind}", found | {"metadata": meta, "webhooks": own}
        )


def path_of(hook: Mapping[str, Any]) -> str:
    """Returns where a webhook is called, which tells what it is about."""
    return str(hook["clientConfig"]["service"]["path"])


def answers(url: str) -> bool:
    """Returns whether a page of a program's own state says that it is well."""
    try:
        with urllib.request.urlopen(url, timeout=CALL_S) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _kinds(server: KubernetesServer, api: str) -> list[str]:
    return [one["name"] for one in server.call("GET", api)["resources"] if "/" not in one["name"]]
