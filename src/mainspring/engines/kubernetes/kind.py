"""The kind of cluster that Kubernetes runs: its options, how its engine is hosted, checked and shown."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

from mainspring.domain.codec import message
from mainspring.domain.errors import NotFound
from mainspring.domain.ports import Engine
from mainspring.domain.wire.trust import CERTIFICATE_VARIABLE
from mainspring.engines.common.kind import (
    CHIP_MEMORY,
    PRICES,
    AddOption,
    ClusterKind,
    EngineContext,
    Finding,
    Hosting,
    Manifests,
    OptionForm,
    in_pairs,
)
from mainspring.engines.kubernetes.cluster.config import KubernetesCluster
from mainspring.engines.kubernetes.setup.account import CONTROLLERS, PORTS, AccountWanted
from mainspring.engines.kubernetes.setup.findings import STEPS

if TYPE_CHECKING:
    from mainspring.engines.kubernetes.api.client import Api

# Of the API in one call of the engine, at most: a launch makes four objects, a stop reads and changes some.
CALLS_MAX = 8
# Looks read copies and ask the API for nothing; with what one takes, changes are in the planner's hands in a second.
LOOK_S = 0.75
STALE_S = 30.0  # An API server that is restarted, or fails over, is back by then.


@message("OpenKubernetes")
class OpenKubernetes:
    """Makes a host serve a Kubernetes cluster. Its agents are to trust the certificate, PEM text, if there is one.

    Args:
        run_as: Of no use here: pods run as the user of the cluster's settings.
    """

    cluster: KubernetesCluster
    certificate: str
    run_as: Mapping[str, str] = field(default_factory=dict)


def open_api(cluster: KubernetesCluster, context: EngineContext) -> Api:
    """Returns the API of a cluster, reached as its settings say.

    Args:
        context: Its variables name the usual kubeconfig, and are what credential plugins get.
    """
    from mainspring.engines.kubernetes.api.access import Access, pod_access, read_kubeconfig  # None else asks an API.
    from mainspring.engines.kubernetes.api.client import Api

    environment = context.environment

    def access() -> Access:
        named = cluster.kubeconfig or environment.get("KUBECONFIG", "").partition(":")[0]
        path = Path(named) if named else Path(environment.get("HOME", "/")) / ".kube" / "config"
        if not named and not path.exists():
            inside = pod_access(environment)
            if inside is not None:
                return inside
            raise NotFound(
                "reach a Kubernetes cluster",
                on=cluster.name,
                got=f"no {path}, and no account of a pod",
                next_step="name the file: kubeconfig in config.yaml, or ms cluster add kubernetes --kubeconfig PATH",
            )
        return read_kubeconfig(path, cluster.context, environment=environment, clock=context.clock)

    return Api(cluster.name, access, call_s=cluster.call_s_max)


def agents_environment(cluster: KubernetesCluster, context: EngineContext) -> dict[str, str]:
    """Returns the variables that agents get beside those of their image: nothing of this machine."""
    trusted = {CERTIFICATE_VARIABLE: context.certificate} if context.certificate else {}
    return {**trusted, **({"JAX_PLATFORMS": "cpu"} if cluster.simulated else {})}


def open_kubernetes(cluster: KubernetesCluster, context: EngineContext) -> Engine:
    """Returns the engine of a cluster that is reached from this machine."""
    from mainspring.engines.kubernetes.engine import KubernetesEngine  # No command but the server's launches.

    return KubernetesEngine(
        cluster,
        open_api(cluster, context),
        environment=agents_environment(cluster, context),
        clock=context.clock,
    )


def hosting(cluster: KubernetesCluster) -> Hosting:
    """Returns how its engine is reached: in a process of its own, with its copies and their threads."""
    return Hosting(
        ssh="",
        python=sys.executable,
        call_s=CALLS_MAX * cluster.call_s_max,
        inventory_s=LOOK_S,
        observe_s=LOOK_S,
        stale_s=STALE_S + cluster.call_s_max,
    )


def check(cluster: KubernetesCluster, context: EngineContext, controller: str) -> Iterator[Finding]:
    """Returns what a look at its set-up finds.

    Args:
        controller: Where agents will call; "" while no server runs.
    """
    from mainspring.engines.kubernetes.setup.check import ClusterSetUp  # Nothing but a check looks at a set-up.

    return ClusterSetUp(
        cluster,
        lambda: open_api(cluster, context),
        environment=agents_environment(cluster, context),
        controller=controller,
        clock=context.clock,
    ).findings()


def facts(cluster: KubernetesCluster, in_words: Callable[[float], str]) -> Mapping[str, str]:
    """Returns how a cluster is set up.

    Args:
        in_words: Puts a duration in words.
    """
    return {
        "kubeconfig": cluster.kubeconfig,
        "context": cluster.context,
        "namespace": cluster.namespace,
        "image": cluster.image,
        "bundle": cluster.bundle,
        "interpreter": "" if cluster.bundle else cluster.python,
        "nodes": cluster.nodes,
        "priority class": cluster.priority_class,
        "queue": cluster.queue,
        "queue by team": in_pairs(cluster.queues),
        "priority by tier": in_pairs(cluster.priorities),
        "waiting there": f"up to {cluster.queued_nodes_max} nodes, {in_words(cluster.queue_wait_s_max)}"
        if cluster.delegated
        else "",
        "offers": ", ".join(cluster.offers) + ("; Karpenter's NodePools" if cluster.karpenter else ""),
        "nodes are ordered by": cluster.provisioning_class,
        "levels": ", ".join(f"{level} = {label}" for level, label in cluster.levels.items()),
        "product to chip": in_pairs(cluster.chips),
        "volumes": ", ".join(f"{name} at {volume.path}" for name, volume in cluster.pods.volumes.items()),
        "devices": ", ".join(f"{amount} {name}" for name, amount in cluster.pods.devices.items()),
        "account by team": in_pairs(cluster.pods.accounts),
        "scheduler": cluster.pods.scheduler,
        "beyond restricted": ", ".join(cluster.pods.beyond),
        "grace": in_words(cluster.grace_s),
    }


MANIFESTS = Manifests(
    help="Print what a cluster's operators apply before it is added: kubectl apply -f -.",
    options=(
        AddOption(field="namespace", help="Namespace of jobs.", metavar="NAME", default="mainspring"),
        AddOption(
            field="account",
            help="What the cluster calls the server (kubectl auth whoami).",
            metavar="USER",
            shown_default="the account mainspring of that namespace",
        ),
        AddOption(field="kueue", form=OptionForm.FLAG, help="Jobs wait in queues of Kueue."),
        AddOption(field="offers", form=OptionForm.FLAG, help="Nodes are ordered of the cluster's autoscaler."),
        AddOption(
            field="controllers",
            form=OptionForm.NAMES,
            help="Namespace of controllers that may change what is ours: Kueue's, another scheduler's; repeat.",
            metavar="NAME",
            shown_default=CONTROLLERS[0],
        ),
        AddOption(
            field="ports",
            flag="--port",
            form=OptionForm.NAMES,
            help=f"TCP port that jobs reach anywhere, besides {' and '.join(PORTS)}; repeat.",
            metavar="PORT",
        ),
        AddOption(
            field="identity",
            help="Jobs reach the metadata server by which pods are known to this provider.",
            metavar="gke|eks",
            shown_default="none",
        ),
        AddOption(
            field="accelerators",
            help="What is done about pods with accelerators that come neither by us nor by Kueue.",
            metavar="audit|deny",
            shown_default="nothing",
        ),
    ),
    text=lambda given: AccountWanted(**given).text(),
)
KIND = ClusterKind(
    name=KubernetesCluster.kind,
    settings=KubernetesCluster,
    help="Add a Kubernetes cluster, after a look at its set-up: rights, nodes, image, a pod on a node.",
    options=(
        AddOption(
            field="image",
            help="What jobs run in; Mainspring is installed there, unless a bundle brings it.",
            metavar="IMAGE",
            required=True,
        ),
        AddOption(
            field="bundle",
            help="Image of a bundle by which agents come into pods, whatever is in the image of jobs.",
            metavar="IMAGE",
            shown_default="Mainspring is in the image of jobs",
        ),
        AddOption(field="context", help="Context of the kubeconfig.", metavar="NAME", shown_default="its current one"),
        AddOption(
            field="kubeconfig", help="File that says how it is reached.", metavar="PATH", shown_default="the usual one"
        ),
        AddOption(field="namespace", help="Namespace of its own.", metavar="NAME", default="mainspring"),
        AddOption(field="nodes", help="Label selector of the nodes to use.", metavar="SELECTOR", shown_default="all"),
        AddOption(
            field="python", help="Interpreter of the image that has Mainspring.", metavar="PATH", default="python3"
        ),
        AddOption(
            field="user", form=OptionForm.COUNT, help="Number of the user that jobs run as.", default=1_000, least=0
        ),
        PRICES,
        AddOption(
            field="chips",
            flag="--chip",
            form=OptionForm.PAIRS,
            help="Our name for a product of chips; repeat.",
            metavar="PRODUCT=CHIP",
        ),
        CHIP_MEMORY,
        AddOption(field="priority_class", help="Priority class of our pods.", metavar="NAME"),
        AddOption(
            field="queue",
            help="Kueue's LocalQueue of the namespace: it decides where and when.",
            metavar="NAME",
            shown_default="we choose nodes",
        ),
        AddOption(
            field="queues",
            flag="--team-queue",
            form=OptionForm.PAIRS,
            help="LocalQueue of a team; repeat.",
            metavar="TEAM=NAME",
        ),
        AddOption(
            field="priorities",
            flag="--tier-priority",
            form=OptionForm.PAIRS,
            help="Kueue's WorkloadPriorityClass of a tier; repeat.",
            metavar="TIER=NAME",
        ),
        AddOption(
            field="pull_secrets",
            flag="--pull-secret",
            form=OptionForm.NAMES,
            help="Secret by which the image is pulled; repeat.",
            metavar="NAME",
        ),
    ),
    engine=open_kubernetes,
    hosting=hosting,
    opening=OpenKubernetes,
    steps=STEPS,
    manifests=MANIFESTS,
    check=check,
    facts=facts,
)
