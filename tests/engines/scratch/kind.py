"""A kind of cluster as an engine package declares it, with something for each part of `ClusterKind`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from mainspring.domain.codec import message
from mainspring.domain.errors import InvalidSpec
from mainspring.domain.fleet import Inventory, Node
from mainspring.domain.ids import ChipName, ClusterName, NodeName
from mainspring.domain.ports import Engine
from mainspring.engines.common.kind import (
    AddOption,
    CheckResult,
    ClusterKind,
    EngineContext,
    Finding,
    Hosting,
    OptionForm,
)
from mainspring.testing import FakeEngine

H100 = ChipName("h100")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScratchCluster:
    kind: ClassVar[str] = "scratch"

    name: ClusterName
    nodes: int
    lease_s: float = 0.0
    racks: tuple[str, ...] = ()
    delegated: bool = False
    simulated: bool = True

    def __post_init__(self) -> None:
        if self.nodes < 1:
            raise InvalidSpec("accept a scratch cluster", on="field 'nodes'", got=str(self.nodes), wanted="at least 1")


@message("OpenScratch")
class OpenScratch:
    cluster: ScratchCluster
    certificate: str
    run_as: Mapping[str, str] = field(default_factory=dict)


def open_scratch(cluster: ScratchCluster, context: EngineContext) -> Engine:
    nodes = tuple(Node(name=NodeName(f"{cluster.name}-{n}"), chip=H100, chips=8) for n in range(cluster.nodes))
    inventory = Inventory(
        cluster=cluster.name, engine="scratch", simulated=True, dollars_per_chip_hour={H100: 1.0}, nodes=nodes
    )
    return FakeEngine(inventory, context.clock)


def hosting(cluster: ScratchCluster) -> Hosting:
    return Hosting(ssh="", python="", call_s=20.0, inventory_s=1.0, observe_s=1.0, stale_s=60.0)


def check(cluster: ScratchCluster, context: EngineContext, controller: str) -> Iterator[Finding]:
    few = cluster.nodes < 2
    yield Finding(name="paper", standing=CheckResult.OK, found=context.certificate or "no certificate")
    yield Finding(
        name="pencil",
        standing=CheckResult.FAILED if few else CheckResult.OK,
        found=f"{cluster.nodes} nodes",
        fix="--nodes 2" if few else "",
    )


def facts(cluster: ScratchCluster, in_words: Callable[[float], str]) -> Mapping[str, str]:
    return {"lease": in_words(cluster.lease_s) if cluster.lease_s else "", "racks": ", ".join(cluster.racks)}


KIND = ClusterKind(
    name=ScratchCluster.kind,
    settings=ScratchCluster,
    help="Add a cluster on paper.",
    options=(
        AddOption(field="nodes", form=OptionForm.COUNT, help="Nodes on it.", required=True, least=1),
        AddOption(field="lease_s", flag="--lease", form=OptionForm.DURATION, help="How long it lasts"),
        AddOption(field="racks", flag="--rack", form=OptionForm.NAMES, help="Racks."),
        AddOption(field="delegated", form=OptionForm.FLAG, help="Others use it too."),
    ),
    engine=open_scratch,
    hosting=hosting,
    opening=OpenScratch,
    steps=("paper", "pencil"),
    check=check,
    facts=facts,
)
