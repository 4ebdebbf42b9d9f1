"""Health events as values, and what NVIDIA's codes ask for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mainspring.domain.codec import from_plain, to_plain
from mainspring.domain.errors import InvalidInput
from mainspring.domain.hardware.health import HealthEvent, HealthSource, Repair, Scope, ScopeKind, Strategy
from mainspring.domain.hardware.xids import XIDS, xid_of
from mainspring.domain.ids import ClusterName, NodeName

HALL = ClusterName("hall")
N1 = NodeName("n1")
DEVICE = Scope(kind=ScopeKind.DEVICE, cluster=HALL, node=N1, part="GPU-5f1c")
SOURCE = HealthSource(name="kernel-log", session="boot-1", sequence=7)
EVENT = HealthEvent(source=SOURCE, at_s=100.0, scope=DEVICE, check="xid", codes=("79",), fatal=True)


@pytest.mark.parametrize(
    ("kind", "node", "part", "named"),
    [
        (ScopeKind.DEVICE, "", "gpu-0", "node"),
        (ScopeKind.DEVICE, "n1", "", "part"),
        (ScopeKind.LINK, "n1", "", "part"),
        (ScopeKind.NODE, "", "", "node"),
        (ScopeKind.NODE, "n1", "gpu-0", "part"),
        (ScopeKind.DOMAIN, "n1", "rack/r1", "node"),
        (ScopeKind.SLICE, "", "", "part"),
        (ScopeKind.JOB, "n1", "job-1", "node"),
        (ScopeKind.DEVICE, "n1", "gpu 0", "part"),
        (ScopeKind.DEVICE, "n1", "g" * 129, "part"),
    ],
)
def test_scope_that_does_not_name_what_its_kind_needs_is_refused(
    kind: ScopeKind, node: str, part: str, named: str
) -> None:
    with pytest.raises(InvalidInput, match=f"field '{named}'"):
        Scope(kind=kind, cluster=HALL, node=NodeName(node), part=part)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"version": 2}, "version"),
        ({"at_s": float("nan")}, "at_s"),
        ({"at_s": -1.0}, "at_s"),
        ({"codes": ("",)}, "codes"),
        ({"codes": ("7 9",)}, "codes"),
        ({"codes": ("79",) * 17}, "codes"),
        ({"message": "x" * 1_001}, "message"),
        ({"healthy": True}, "healthy"),
        ({"source": replace(SOURCE, sequence=0), "check": "GPU!"}, "check"),
    ],
)
def test_event_out_of_its_range_is_refused_naming_the_field(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        replace(EVENT, **fields)


def test_event_of_a_newer_watcher_is_read_without_what_is_not_known() -> None:
    plain = {**to_plain(EVENT), "weather": "fine"}
    assert from_plain(HealthEvent, plain) == EVENT


def test_event_follows_from_nothing_unless_it_says_so() -> None:
    assert EVENT.strategy is Strategy.SHADOW


@pytest.mark.parametrize(
    ("code", "action", "repair", "fatal"),
    [
        (13, "RESTART_APP", Repair.RESTART_RANKS, False),
        (31, "RESTART_APP", Repair.RESTART_RANKS, False),
        (43, "IGNORE", Repair.NONE, False),
        (45, "WORKFLOW_XID_45", Repair.NONE, False),
        (48, "WORKFLOW_XID_48", Repair.RESET_DEVICE, True),
        (63, "IGNORE", Repair.NONE, False),
        (64, "RESET_GPU", Repair.RESET_DEVICE, True),
        (74, "WORKFLOW_NVLINK_ERR", Repair.RESET_DEVICE, True),
        (79, "RESTART_BM", Repair.RESTART_NODE, True),
        (92, "IGNORE", Repair.NONE, False),
        (94, "RESTART_APP", Repair.RESTART_RANKS, False),
        (95, "RESET_GPU", Repair.RESET_DEVICE, True),
        (119, "RESET_GPU", Repair.RESET_DEVICE, True),
        (144, "WORKFLOW_NVLINK5_ERR", Repair.CALL_PEOPLE, False),
        (154, "XID_154", Repair.NONE, False),
        (172, "", Repair.NONE, False),
        (61, "CONTACT_SUPPORT", Repair.CALL_PEOPLE, False),
        (999, "CONTACT_SUPPORT", Repair.CALL_PEOPLE, False),
    ],
)
def test_code_asks_for_what_nvidias_catalogue_says(code: int, action: str, repair: Repair, fatal: bool) -> None:
    found = xid_of(code)
    assert (found.code, found.action, found.repair, found.fatal) == (code, action, repair, fatal)


def test_catalogue_has_each_code_that_is_in_use_once_with_words() -> None:
    assert len(XIDS) == 109
    assert all(one.code == code and one.words for code, one in XIDS.items())


def test_repairs_rank_from_what_takes_least() -> None:
    assert sorted(Repair, key=lambda repair: repair.rank) == list(Repair)
    assert Repair.NONE.rank < Repair.RESTART_RANKS.rank < Repair.RESET_DEVICE.rank < Repair.CALL_PEOPLE.rank
