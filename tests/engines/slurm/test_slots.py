"""The slots of a delegated Slurm cluster: what may still be asked for, and what Slurm's limits leave of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.domain.errors import NotFound, Unavailable
from mainspring.domain.fleet import Inventory, Node, NodeCondition
from mainspring.domain.ids import NodeName
from mainspring.domain.job import MILLI
from mainspring.engines.slurm.cluster.inventory import Ours, SlotHolding

from .telling import CLUSTER, Telling, config, look, node, partition, slurm, stock

READY, CORDONED, DOWN = NodeCondition.READY, NodeCondition.CORDONED, NodeCondition.DOWN
ANOTHER = 4_711  # Added to our user's number, it is somebody else's.
NONE_USED = "cpu=N(0),mem=N(0),node=N(0),billing=N(0),gres/gpu=N(0)"


def busy(name: str, chips: int = 8) -> str:
    """Returns a node whose chips others use."""
    return node(name, gres_used=f"gpu:h100:{chips}(IDX:0)", used_cpus=4 * chips, state="MIXED")


def held(slot: str, host: str = "", chips: int = 8) -> SlotHolding:
    """Returns what one of our allocations holds of a slot."""
    return SlotHolding(node=NodeName(f"main-h100x8-{slot}"), host=host, chips=chips, cpus=0.0, memory_mib=0)


def free(inventory: Inventory) -> dict[str, int]:
    """Returns chips that may be asked for, by slot."""
    return {
        each.name.removeprefix("main-h100x8-"): each.chips - each.foreign_chip_milli // MILLI
        for each in inventory.nodes
        if each.condition is READY
    }


def test_slot_has_the_least_memory_of_a_chip_that_its_machines_tell_of() -> None:
    lines = [node(name, gres="gpu:a100:4", gres_used="") for name in ("a1", "b1", "c1")]
    lines[0] = lines[0].replace("ActiveFeatures=ib,h100", "ActiveFeatures=a100-80gb")
    lines[1] = lines[1].replace("ActiveFeatures=ib,h100", "ActiveFeatures=a100-40gb")
    seen = stock(slurm(*lines), replace(CLUSTER, delegated=True)).look(Ours())
    assert {each.chip_memory_gib for each in seen.nodes} == {40.0}


def test_slots_are_one_a_machine_of_each_kind() -> None:
    commands = slurm(
        node("b1", gres="gpu:h100:8"),
        node("a1", gres="gpu:h100:8", memory_mib=256_000),
        node("c1", gres="gpu:a100:4"),
        node("d1", gres="(null)", cpus=32),
        partitions=(partition("Main", "a1,b1,c1,d1"),),
    )
    commands.answers["node"] = commands.answers["node"].replace("Partitions=main", "Partitions=Main")
    shelf = stock(commands, replace(CLUSTER, delegated=True, partitions=("Main",)))
    seen = shelf.look(Ours())
    assert seen.delegated
    assert [each.name for each in seen.nodes] == [
        "main-a100x4-0001",
        "main-cpux32-0001",
        "main-h100x8-0001",
        "main-h100x8-0002",
    ]
    machine = shelf.machine(NodeName("main-h100x8-0002"))
    assert (machine.name, machine.partition, machine.gres_type, machine.chips) == ("", "Main", "h100", 8)
    assert machine.memory_mib == 256_000, "what each machine of the kind has"
    with pytest.raises(NotFound):
        shelf.machine(NodeName("main-h100x8-0003"))


def test_slots_beyond_the_idle_machines_are_free_as_far_as_jobs_may_wait() -> None:
    commands = slurm(node("n1"), busy("n2"), busy("n3"), busy("n4"))
    assert free(look(commands, delegated=True, queued=0)) == {"0001": 8, "0002": 0, "0003": 0, "0004": 0}
    assert free(look(commands, delegated=True, queued=2)) == {"0001": 8, "0002": 8, "0003": 8, "0004": 0}
    assert free(look(commands, delegated=True, queued=99)) == {"0001": 8, "0002": 8, "0003": 8, "0004": 8}


def test_slots_that_wait_use_up_what_may_wait() -> None:
    commands = slurm(node("n1"), busy("n2"), busy("n3"), busy("n4"))
    ours = Ours(holdings=(held("0004"), held("0003")))
    assert free(look(commands, ours, delegated=True, queued=2)) == {"0001": 8, "0002": 0, "0003": 8, "0004": 8}


def test_slots_of_machines_that_others_share_show_what_is_left() -> None:
    commands = slurm(busy("n1", chips=6), busy("n2", chips=3), busy("n3"))
    assert free(look(commands, delegated=True)) == {"0001": 5, "0002": 2, "0003": 0}


def test_slot_that_is_ours_is_never_used_by_others() -> None:
    commands = slurm(busy("n1"), busy("n2"), busy("n3", chips=5))
    ours = Ours(holdings=(held("0002", "n1"), held("0003", "n3", chips=4)))
    seen = {each.name[-4:]: each.foreign_chip_milli for each in look(commands, ours, delegated=True).nodes}
    assert seen == {"0001": 8_000, "0002": 0, "0003": 1_000}


def test_slots_of_ours_on_one_machine_offer_its_rest_once() -> None:
    commands = slurm(busy("n1", chips=6), node("n2"), busy("n3"))
    ours = Ours(holdings=(held("0001", "n1", chips=2), held("0002", "n1", chips=3)))
    assert free(look(commands, ours, delegated=True)) == {"0001": 8 - 6 + 2, "0002": 3, "0003": 8}


def test_slot_of_ours_stays_when_its_bucket_shrinks() -> None:
    seen = look(slurm(node("n1")), Ours(holdings=(held("0007", "n9"),)), delegated=True)
    assert [each.name[-4:] for each in seen.nodes] == ["0001", "0007"]


def test_slot_of_ours_on_a_machine_that_is_drained_leaves() -> None:
    commands = slurm(node("n1"), node("n2", state="ALLOCATED+DRAIN", after=" Reason=dust [ops@2023-11-14T20:00:00]"))
    seen = look(commands, Ours(holdings=(held("0001", "n2"),)), delegated=True).nodes
    assert (seen[0].condition, seen[0].condition_owner, seen[0].leaves_s) == (CORDONED, "slurm", 1_699_992_000.0)
    assert seen[1].condition is READY


def test_slots_of_machines_that_are_away_are_the_last_and_say_which() -> None:
    lines = (node("n1", state="DOWN", after=" Reason=fire"), node("n2"), node("n3", state="IDLE+DRAIN"), node("n4"))
    seen = look(slurm(*lines), delegated=True, queued=9).nodes
    assert [each.condition for each in seen] == [READY, READY, DOWN, CORDONED]
    assert seen[2].condition_reason == "n1: down in Slurm: fire"
    assert seen[3].condition_reason == "n3: drained in Slurm"


def test_machine_planned_for_others_is_not_free() -> None:
    assert free(look(slurm(node("n1"), node("n2", state="IDLE+PLANNED")), delegated=True)) == {"0001": 8, "0002": 0}


def test_partition_that_refuses_closes_its_slots_with_slurms_words() -> None:
    seen = look(slurm(node("n1"), busy("n2")), Ours(refusals={"main": "no such account"}), delegated=True).nodes
    assert {(each.condition, each.condition_owner, each.condition_reason) for each in seen} == {
        (CORDONED, "slurm", "no such account")
    }


def test_partition_that_limits_the_nodes_of_a_job_offers_no_more() -> None:
    lines = (node("n1"), node("n2"), node("n3"))
    commands = slurm(*lines, partitions=(partition("main", "n[1-3]", nodes_max="2"),))
    assert free(look(commands, delegated=True)) == {"0001": 8, "0002": 8, "0003": 0}
    assert free(look(commands, Ours(holdings=(held("0001", "n1"),)), delegated=True)) == {
        "0001": 8,
        "0002": 8,
        "0003": 8,
    }


@pytest.mark.slow
@given(
    states=st.lists(st.sampled_from(["idle", "part", "full", "down", "drain"]), min_size=1, max_size=12),
    ours=st.dictionaries(st.integers(1, 14), st.integers(0, 12), max_size=6),
    queued=st.integers(0, 5),
)
def test_slots_never_offer_more_than_is_idle_and_may_wait(
    states: list[str], ours: Mapping[int, int], queued: int
) -> None:
    def line(number: int, state: str) -> str:
        name = f"n{number:02}"
        if state in ("down", "drain"):
            return node(name, state="DOWN" if state == "down" else "IDLE+DRAIN")
        return busy(name, chips={"idle": 0, "part": 5, "full": 8}[state])

    commands = slurm(*(line(number, state) for number, state in enumerate(states, 1)))
    taken = {number: f"n{host:02}" if host else "" for number, host in ours.items()}
    holdings = tuple(held(f"{number:04}", host) for number, host in taken.items())
    seen = look(commands, Ours(holdings=holdings), delegated=True, queued=queued)
    held_names = {holding.node for holding in holdings}
    offered = [each for each in seen.nodes if each.name not in held_names and each.condition is READY]
    assert sum(not each.foreign_chip_milli for each in offered) <= states.count("idle") + queued
    assert held_names <= {each.name for each in seen.nodes}
    assert all(not each.foreign_chip_milli for each in seen.nodes if each.name in held_names and _waits(each, taken))


def _waits(slot: Node, taken: Mapping[int, str]) -> bool:
    return not taken[int(slot.name[-4:])]


def _association(account: str, *, user: str = "", parent: str = "", **limits: str) -> str:
    values = {"GrpJobs": "N(0)", "GrpSubmitJobs": "N(0)", "GrpTRES": NONE_USED, "GrpTRESMins": NONE_USED} | limits
    shown = " ".join(f"{name}={value}" for name, value in values.items())
    given = f"{user}({os.geteuid()})" if user else ""
    return (
        f"ClusterName=ada Account={account} UserName={given} Partition= Priority=0 ID=1 "
        f"SharesRaw/Norm/Level/Factor=1/0.50/1/0.00 UsageRaw/Norm/Efctv=0.00/1.00/0.00 "
        f"ParentAccount={f'{parent}(1)' if parent else ''} Lft=1 DefAssoc={'Yes' if user else 'No'} {shown} MaxJobs= "
        "MaxJobsAccrue= MaxSubmitJobs= MaxWallPJ= MaxTRESPJ= MaxTRESPN= MaxTRESMinsPJ= MinPrioThresh=\n"
    )


def _qos(name: str, *, users: str = "No Users", per_job: str = "", wall: str = "", **limits: str) -> str:
    values = {"GrpJobs": "N(0)", "GrpSubmitJobs": "N(0)", "GrpTRES": NONE_USED, "GrpTRESMins": NONE_USED} | limits
    shown = " ".join(f"{key}={value}" for key, value in values.items())
    return (
        f"QOS={name}(1) UsageRaw=0.000000 {shown} MaxWallPJ={wall} MaxTRESPJ={per_job} MaxTRESPN= MaxTRESMinsPJ= "
        f"MinPrioThresh=  MinTRESPJ= PreemptMode=OFF Priority=0 Account Limits=No Accounts User Limits={users}\n"
    )


def _limited(*records: str, qos: str = "", association: str = "", nodes: int = 4, more: str = "") -> Telling:
    names = [f"n{number}" for number in range(1, nodes + 1)]
    commands = slurm(*map(node, names), partitions=(partition("main", ",".join(names), more=more),))
    commands.answers["config"] = config(
        AccountingStorageType="accounting_storage/slurmdbd", AccountingStorageEnforce="associations,limits,qos"
    )
    head = "Current Association Manager state\nAssociation Records\n"
    commands.answers |= {"assoc_mgr": head + "".join(records), "qos": qos, "association": association}
    return commands


def _counts(commands: Telling, **fields: object) -> list[int]:
    cluster = replace(CLUSTER, delegated=True, **fields)  # type: ignore[arg-type]
    return list(free(stock(commands, cluster).look(Ours())).values())


def test_limit_of_an_account_above_ours_leaves_what_is_not_used() -> None:
    commands = _limited(
        _association("root"),
        _association("lab", parent="root", GrpTRES="cpu=N(0),gres/gpu=20(8)"),
        _association("vision", parent="lab"),
        _association("vision", user="ada"),
    )
    assert _counts(commands) == [8, 4, 0, 0]


def test_limit_on_jobs_offers_no_more_slots_than_jobs() -> None:
    commands = _limited(_association("lab", user="ada", GrpSubmitJobs="5(3)"))
    assert _counts(commands) == [8, 8, 0, 0]


def test_limit_on_minutes_that_are_spent_offers_nothing() -> None:
    commands = _limited(_association("lab", user="ada", GrpTRESMins="cpu=100(100),mem=N(0)"))
    assert _counts(commands) == [0, 0, 0, 0]


def test_limit_of_the_most_generous_account_of_ours_counts() -> None:
    commands = _limited(
        _association("poor", user="ada", GrpTRES="gres/gpu=8(8)"),
        _association("rich", user="ada", GrpTRES="gres/gpu=16(0)"),
    )
    assert _counts(commands, accounts={"vision": "rich"}) == [8, 8, 0, 0]


def test_limit_on_each_user_of_a_qos_is_known_before_the_first_job() -> None:
    commands = _limited(_association("lab", user="ada"), _qos("high"), qos="high|00:00:09|||gres/gpu=16\n")
    tiers = dict.fromkeys(("critical", "standard", "opportunistic"), "high")
    assert _counts(commands, qos=tiers) == [8, 8, 0, 0]


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("form", ["{number}", "ada({number})"])
def test_limit_on_each_user_of_a_qos_is_less_what_we_use(form: str, first: int) -> None:
    used = (
        f"{form.format(number=os.geteuid())}={{MaxJobsPU=N(1) MaxSubmitJobsPU=9(1) MaxTRESPU=cpu=N(8),gres/gpu=16(8)}}"
    )
    others = f"{ANOTHER + os.geteuid()}={{MaxJobsPU=N(1) MaxSubmitJobsPU=N(1) MaxTRESPU=cpu=N(8),gres/gpu=16(16)}}"
    rows = "normal|00:00:00||2|gres/gpu=16\n"
    commands = _limited(
        _association("lab", user="ada"),
        _qos("normal", users=" ".join([others, used, others][first : first + 2])),
        qos=rows,
    )
    assert _counts(commands) == [8, 0, 0, 0]


def test_limit_of_a_jobs_qos_by_default_is_that_of_the_association() -> None:
    commands = _limited(
        _association("lab", user="ada"), _qos("normal"), _qos("small", GrpTRES="node=1(0)"), association="lab|small\n"
    )
    assert _counts(commands) == [8, 0, 0, 0]


def test_limit_of_the_partitions_own_qos_holds_for_all() -> None:
    commands = _limited(_association("lab", user="ada"), _qos("part", per_job="node=3"), more="QoS=part")
    assert _counts(commands) == [8, 8, 8, 0]


def test_limit_that_is_not_enforced_is_none() -> None:
    commands = _limited(_association("lab", user="ada", GrpTRES="gres/gpu=0(0)"))
    commands.answers["config"] = config(
        AccountingStorageType="accounting_storage/slurmdbd", AccountingStorageEnforce="associations"
    )
    assert _counts(commands) == [8, 8, 8, 8]


def test_grace_and_longest_time_of_a_qos_are_told_where_qos_preempt() -> None:
    commands = _limited(_association("lab", user="ada"), _qos("high", wall="60"), qos="high|00:01:30|||\n")
    commands.answers["config"] = commands.answers["config"] + "PreemptType = preempt/qos\n"
    shelf = stock(commands)
    assert (shelf.grace_s("main", "high"), shelf.grace_s("main", "")) == (90.0, 30.0)
    assert (shelf.time_max_s("main", "high"), shelf.time_max_s("main", "")) == (3_600.0, None)


def test_database_that_is_away_leaves_the_cluster_in_sight() -> None:
    commands = _limited(_association("lab", user="ada"))
    commands.error = Unavailable("read the QOS of Slurm")
    assert _counts(commands) == [8, 8, 8, 8]


def test_limits_that_cannot_be_read_are_unavailable() -> None:
    commands = _limited()
    commands.answers["assoc_mgr"] = "oops\n"
    with pytest.raises(Unavailable, match="oops"):
        _counts(commands)
