"""Conditions that others set of nodes: the table, and what is told of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from mainspring.domain.fleet import NodeCondition
from mainspring.domain.hardware.health import CODE_LENGTH_MAX, Repair
from mainspring.domain.ids import ClusterName, checked_name
from mainspring.engines.kubernetes.cluster.config import KubernetesCluster
from mainspring.engines.kubernetes.cluster.machines import read_machine
from mainspring.engines.kubernetes.conditions import (
    AKS,
    CONDITIONS,
    EKS,
    NPD,
    NVSENTINEL,
    KnownCondition,
    read_conditions,
)

READY = {"type": "Ready", "status": "True"}
OWN = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable")


def one(kind: str, status: str = "True", message: str = "", reason: str = "") -> Mapping[str, str]:
    """A condition as it stands in a node's object."""
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": "2026-11-06T10:00:00Z",
    }


def test_each_condition_has_a_check_of_its_own_and_a_source() -> None:
    assert len({known.type for known in CONDITIONS}) == len({known.check for known in CONDITIONS}) == len(CONDITIONS)
    assert {known.source for known in CONDITIONS} == {NPD, AKS, EKS, NVSENTINEL}
    for known in CONDITIONS:
        assert known.bad in ("True", "False")
        assert len(known.type) <= CODE_LENGTH_MAX
        checked_name(known.check, "check")
    assert not {known.type for known in CONDITIONS} & set(OWN), "those close a node by themselves"


@pytest.mark.parametrize("known", CONDITIONS, ids=lambda known: known.type)
def test_condition_is_told_where_it_is_bad_and_where_it_is_not_it_is_not(known: KnownCondition) -> None:
    (seen,) = read_conditions([READY, one(known.type, known.bad, "words")])
    assert seen.known is known
    assert "words" in seen.message
    well = "False" if known.bad == "True" else "True"
    for status in (well, ""):
        assert read_conditions([one(known.type, status)]) == ()
    (unknown,) = read_conditions([one(known.type, "Unknown")])
    assert (seen.stands, unknown.stands) == (True, False)


def test_condition_that_is_not_listed_or_cannot_be_read_says_nothing() -> None:
    assert read_conditions([one(kind) for kind in (*OWN, "TeaIsReady")]) == ()
    assert read_conditions([{}, {"type": None}, {"type": "KernelDeadlock"}]) == ()
    (seen,) = read_conditions([{"type": "KernelDeadlock", "status": "True", "message": None}])
    assert seen.message == "KernelDeadlock"


@pytest.mark.parametrize(
    ("message", "repair"),
    [
        ("[DCGM_FR_FAULTY_MEMORY] GPU memory failure on GPU 0 - RecommendedAction: RESTART_VM", Repair.RESTART_NODE),
        ("[79] a - RecommendedAction: COMPONENT_RESET;[48] b - RecommendedAction: CONTACT_SUPPORT", Repair.CALL_PEOPLE),
        ("[92] many - RecommendedAction: NONE", Repair.NONE),
        ("[1] RecommendedAction: DANCE", Repair.RESET_DEVICE),
        ("no word of it", Repair.RESET_DEVICE),
    ],
)
def test_nvsentinel_says_itself_what_would_help(message: str, repair: Repair) -> None:
    (seen,) = read_conditions([one("GpuMemWatch", message=message)])
    assert seen.repair is repair
    (other,) = read_conditions([one("KernelDeadlock", message=message)])
    assert other.repair is Repair.RESTART_NODE, "what anybody else writes into a message asks for nothing"


def test_node_with_such_a_condition_is_used_on() -> None:
    status = {
        "allocatable": {"cpu": "4", "memory": "8Gi"},
        "conditions": [
            READY,
            one("ReadonlyFilesystem", reason="FilesystemIsReadOnly", message="Remounting  read-only"),
        ],
    }
    machine = read_machine({"metadata": {"name": "n1"}, "status": status}, KubernetesCluster(name=ClusterName("ada")))
    assert machine.condition is NodeCondition.READY
    (seen,) = machine.conditions
    assert (seen.known.check, seen.message) == (
        "filesystem-read-only", "ReadonlyFilesystem: FilesystemIsReadOnly: Remounting read-only",
    )  # fmt: skip


def test_page_names_who_sets_conditions_and_what_is_bad() -> None:
    page = (Path(__file__).parents[3] / "docs" / "engines" / "kubernetes.md").read_text()
    rows = [row for row in page.split("## Conditions")[1].split("\n## ")[0].splitlines() if row.startswith("| [")]
    for row in rows:
        _, _, named, bad, _ = row.split("|")
        patterns = [re.escape(name).replace(r"\.\.\.", ".+") for name in re.findall(r"`([A-Z][\w.]+)`", named)]
        for pattern in patterns:
            found = [known for known in CONDITIONS if re.fullmatch(pattern, known.type)]
            assert found, pattern
            assert {known.bad for known in found} == {bad.strip(" `")}, pattern
    assert len(rows) == len({known.source for known in CONDITIONS})
