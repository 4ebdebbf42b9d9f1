"""The inventory of a pinned Slurm cluster, from the text of each release."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.domain.errors import NotFound, Unavailable
from mainspring.domain.fleet import NodeCondition
from mainspring.domain.ids import ChipName, NodeName, checked_name
from mainspring.engines.common.names import our_name
from mainspring.engines.common.records import Cordon
from mainspring.engines.slurm.cluster.commands import Refused
from mainspring.engines.slurm.cluster.hosts import stands
from mainspring.engines.slurm.cluster.inventory import SLOW_S, Ours, SlotHolding
from mainspring.testing import FakeClock

from .telling import CLUSTER, NOW_S, Telling, config, look, node, only, partition, slurm, stock

READY, CORDONED, DOWN = NodeCondition.READY, NodeCondition.CORDONED, NodeCondition.DOWN
RELEASES = ("22.05.9", "23.11.11", "24.05.8", "24.11.7", "25.11.7")


def holding(node: str, host: str, chips: int, cpus: float = 0.0, memory_mib: int = 0) -> SlotHolding:
    """Returns what is ours."""
    return SlotHolding(node=NodeName(node), host=host, chips=chips, cpus=cpus, memory_mib=memory_mib)


@pytest.mark.parametrize("release", RELEASES)
def test_node_of_each_release_is_read_whole(release: str) -> None:
    after = " Reason=bad ECC [ops@2023-11-14T20:00:00]"
    line = node(
        "r1n01",
        release=release,
        state="MIXED+DRAIN",
        gres_used="gpu:h100:2(IDX:0-1)",
        used_cpus=8,
        memory_mib=512_000,
        used_memory_mib=2_048,
        spec_mib=8_192,
        after=after,
    )
    seen = only(look(slurm(line)))
    assert (seen.name, seen.chip, seen.chips, seen.divides) == ("r1n01", "h100", 8, False)
    assert seen.features == ("h100", "ib")
    assert (seen.cpus, seen.foreign_cpus, seen.foreign_chip_milli) == (64.0, 8.0, 2_000)
    assert (seen.memory_gib, seen.foreign_memory_gib) == ((512_000 - 8_192) / 1_024, 2.0)
    assert (seen.condition, seen.condition_owner, seen.condition_reason) == (CORDONED, "slurm", "bad ECC (ops)")
    assert seen.leaves_s == NOW_S - 8_000.0


@pytest.mark.parametrize(
    ("gres", "features", "memory_gib"),
    [
        ("gpu:a100_80gb:8", "ib", 80.0),
        ("gpu:nvidia_h100_80gb_hbm3:8", "ib", 80.0),
        ("gpu:a100_3g.20gb:4", "ib", 20.0),
        ("gpu:a100:8", "512gb,a100-80gb,ib", 80.0),
        ("gpu:a100:8", "512gb,ib", 39.5),
        ("gpu:h200:8", "ib", None),
        ("(null)", "512gb", None),
    ],
)
def test_memory_of_a_chip_is_what_gres_or_a_feature_of_it_tells_else_what_settings_say(
    gres: str, features: str, memory_gib: float | None
) -> None:
    line = node("n1", gres=gres, gres_used="").replace("ActiveFeatures=ib,h100", f"ActiveFeatures={features}")
    told = replace(CLUSTER, chip_memory_gib={ChipName("a100"): 39.5})
    assert only(stock(slurm(line), told).look(Ours())).chip_memory_gib == memory_gib


def test_fields_of_the_newest_release_change_nothing() -> None:
    after = (
        " Comment=State=DOWN Extra=x InstanceId=i-1 InstanceType=p5 ReservationName=r"
        " Topology=topo:rack1 Parameters=AllowedPartitions=main NewThing=1"
    )
    assert only(look(slurm(node("n1", release="25.11.7", after=after)))) == only(look(slurm(node("n1"))))


@pytest.mark.parametrize(
    ("state", "condition"),
    [
        ("IDLE", READY),
        ("MIXED", READY),
        ("ALLOCATED", READY),
        ("ALLOCATED+COMPLETING", READY),
        ("IDLE+PLANNED", READY),
        ("IDLE+CLOUD+POWERED_DOWN", READY),
        ("MIXED+CLOUD+POWERING_UP", READY),
        ("IDLE+DYNAMIC_NORM", READY),
        ("IDLE+REBOOT_REQUESTED", READY),
        ("IDLE+A_FLAG_OF_2031", READY),
        ("IDLE+DRAIN", CORDONED),
        ("ALLOCATED+DRAIN", CORDONED),
        ("DRAINING", CORDONED),
        ("IDLE+FAIL", CORDONED),
        ("MIXED+FAIL", CORDONED),
        ("IDLE+MAINTENANCE", CORDONED),
        ("IDLE+MAINTENANCE+RESERVED", CORDONED),
        ("IDLE+RESERVED", CORDONED),
        ("IDLE+BLOCKED", CORDONED),
        ("ALLOCATED+POWER_DOWN", CORDONED),
        ("IDLE+PERFCTRS", CORDONED),
        ("DOWN", DOWN),
        ("DOWN+DRAIN", DOWN),
        ("DOWN+NOT_RESPONDING", DOWN),
        ("IDLE*", DOWN),
        ("ALLOCATED+NOT_RESPONDING", DOWN),
        ("IDLE+DRAIN+INVALID_REG", DOWN),
        ("IDLE+REBOOT_ISSUED", DOWN),
        ("IDLE+CLOUD+POWERING_DOWN", DOWN),
        ("UNKNOWN", DOWN),
        ("ERROR", DOWN),
        ("INVALID", DOWN),
        ("IDLE+EXTERNAL", DOWN),
        ("SOMETHING_OF_2031", DOWN),
        ("", DOWN),
    ],
)
def test_each_state_of_a_node_has_its_condition_and_words(state: str, condition: NodeCondition) -> None:
    standing = stands(state)
    assert standing.condition is condition
    assert bool(standing.words) == (condition is not READY)


def test_down_node_tells_what_slurm_says_of_it() -> None:
    after = " Reason=Not responding [slurm@2023-11-14T20:00:00]"
    seen = only(look(slurm(node("n1", state="DOWN+NOT_RESPONDING", after=after))))
    assert (seen.condition, seen.condition_owner) == (DOWN, "")
    assert seen.condition_reason == "does not answer Slurm: Not responding (slurm)"


def test_drained_node_without_a_time_leaves_since_it_was_first_seen_so() -> None:
    commands, clock = slurm(node("n1", state="IDLE+DRAIN", after=" Reason=x")), FakeClock(NOW_S)
    shelf = stock(commands, clock=clock)
    assert only(shelf.look(Ours())).leaves_s == NOW_S
    clock.advance(100.0)
    assert only(shelf.look(Ours())).leaves_s == NOW_S
    commands.answers["node"] = node("n1") + "\n"
    assert only(shelf.look(Ours())).leaves_s is None
    commands.answers["node"] = node("n1", state="IDLE+DRAIN") + "\n"
    assert only(shelf.look(Ours())).leaves_s == NOW_S + 100.0


@pytest.mark.parametrize(
    ("gres", "used", "chip", "chips", "busy"),
    [
        ("gpu:8", "gpu:3(IDX:0-2)", "gpu", 8, 3),
        ("gpu:NVIDIA_H100_80GB_HBM3:8", "gpu:NVIDIA_H100_80GB_HBM3:8(IDX:0-7)", "h100", 8, 8),
        ("gpu:A100:4,gpu:V100:2", "gpu:A100:1(IDX:0),gpu:V100:2(IDX:0-1)", "a100", 4, 1),
        ("gpu:h100:8,shard:h100:80", "gpu:h100:1(IDX:0),shard:h100:20(0/10)", "h100", 8, 1),
        ("gpu:1g.5gb:14,gpu:3g.20gb:4", "gpu:1g.5gb:2(IDX:0-1),gpu:3g.20gb:0(IDX:N/A)", "1g.5gb", 14, 2),
        ("nvme:2", "nvme:1", "cpu", 64, 16),
        ("(null)", "gpu:0", "cpu", 64, 16),
    ],
)
def test_chips_of_each_gres_form_are_typed_and_counted(gres: str, used: str, chip: str, chips: int, busy: int) -> None:
    cluster = replace(CLUSTER, chips={"nvidia_h100_80gb_hbm3": ChipName("h100")})
    seen = only(stock(slurm(node("n1", gres=gres, gres_used=used, used_cpus=16)), cluster).look(Ours()))
    assert (seen.chip, seen.chips, seen.foreign_chip_milli) == (chip, chips, busy * 1_000)


def test_chips_in_use_without_details_are_those_of_tres() -> None:
    line = node("n1", gres_used="", used_cpus=4, allocated="cpu=4,mem=4G,gres/gpu=3,gres/gpu:h100=3")
    assert only(look(slurm(line))).foreign_chip_milli == 3_000


def test_chips_of_a_node_without_a_free_core_are_in_use() -> None:
    assert only(look(slurm(node("n1", gres_used="gpu:h100:1(IDX:0)", used_cpus=64)))).foreign_chip_milli == 8_000


def test_memory_that_nobody_configured_is_not_counted() -> None:
    assert only(look(slurm(node("n1", memory_mib=1)))).memory_gib is None


def test_what_is_ours_is_not_used_by_others() -> None:
    line = node("N1", gres_used="gpu:h100:6(IDX:0-5)", used_cpus=48, used_memory_mib=6_144)
    waits = holding("n1", "", 2, 16.0, 2_048)
    ours = Ours(holdings=(holding("n1", "N1", 2, 16.0, 2_048), holding("n1", "N1", 2, 16.0, 2_048), waits))
    seen = only(look(slurm(line), ours))
    assert (seen.foreign_chip_milli, seen.foreign_cpus, seen.foreign_memory_gib) == (2_000, 16.0, 2.0)


def test_what_is_ours_and_over_already_counts_for_nobody() -> None:
    seen = only(look(slurm(node("n1")), Ours(holdings=(holding("n1", "n1", 8, 64.0, 512_000),))))
    assert (seen.foreign_chip_milli, seen.foreign_cpus, seen.foreign_memory_gib) == (0, 0.0, 0.0)


def test_names_in_upper_case_are_ours_in_lower_case_and_slurms_again_when_asked_for() -> None:
    shelf = stock(slurm(node("GPU-A1"), node("gpu-a1"), node("gpu_b2", partitions="other,main")))
    names = [each.name for each in shelf.look(Ours()).nodes]
    assert names[0] == "gpu-a1"
    assert names[1].startswith("gpu-a1-")
    assert [shelf.machine(name).name for name in names] == ["GPU-A1", "gpu-a1", "gpu_b2"]


@pytest.mark.slow
@given(st.lists(st.text(min_size=1, max_size=90), unique=True, max_size=8))
def test_names_of_any_machines_are_names_here_and_differ(names: list[str]) -> None:
    taken: set[str] = set()
    for name in names:
        taken.add(checked_name(our_name(name, taken), "node"))
    assert len(taken) == len(names)


def test_machine_looks_by_itself_and_names_the_nearest_when_there_is_none() -> None:
    shelf = stock(slurm(node("n1")))
    assert shelf.machine(NodeName("n1")).gres_type == "h100"
    with pytest.raises(NotFound, match="'n1'"):
        shelf.machine(NodeName("n2"))


def test_nodes_of_other_partitions_and_nodes_yet_to_come_are_not_shown() -> None:
    lines = (node("n1"), node("n2", partitions="theirs"), node("n3", state="FUTURE"))
    commands = slurm(*lines, partitions=(partition("main", "n[1,3]"), partition("theirs", "n2")))
    assert [each.name for each in look(commands).nodes] == ["n1"]


def test_topology_of_switches_is_racks_blocks_and_spines() -> None:
    commands = slurm(node("n1"), node("n2"), node("n3"))
    commands.answers["topology"] = (
        "SwitchName=leaf0 Level=0 LinkSpeed=1 Nodes=n[1-2]\n"
        "SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n3\n"
        "SwitchName=mid Level=1 LinkSpeed=1 Nodes=n[1-3] Switches=leaf[0-1]\n"
        "SwitchName=core Level=2 LinkSpeed=1 Nodes=n[1-3] Switches=mid\n"
        "SwitchName=top Level=3 LinkSpeed=1 Nodes=n[1-3] Switches=core\n"
    )
    domains = [each.domains for each in look(commands).nodes]
    assert domains[0] == domains[1] == (("spine", "core"), ("block", "mid"), ("rack", "leaf0"))
    assert domains[2][-1] == ("rack", "leaf1")


def test_topology_of_blocks_is_blocks() -> None:
    commands = slurm(node("n1"), node("n2"))
    commands.answers["topology"] = (
        "BlockName=b1 BlockIndex=0 Nodes=n1 BlockSize=1\nBlockName=b2 BlockIndex=1 Nodes=n2\n"
        "AggregatedBlock=b[1-2] BlockIndex=2 Nodes=n[1-2] BlockSize=2\n"
    )
    assert [each.domains for each in look(commands).nodes] == [(("block", "b1"),), (("block", "b2"),)]


def test_topology_that_slurm_refuses_to_tell_is_none() -> None:
    commands = slurm(node("n1"))

    class Refusing(Telling):
        def run(self, *words: str, attempted: str) -> str:
            if "topology" in words:
                raise Refused(attempted, got="No topology information available")
            return commands.run(*words, attempted=attempted)

    assert only(look(Refusing())).domains == ()


def _reservation(name: str, start: str, end: str, nodes: str, state: str = "INACTIVE") -> str:
    return (
        f"ReservationName={name} StartTime={start} EndTime={end} Duration=01:00:00 Nodes={nodes} NodeCnt=1 CoreCnt=64 "
        f"Features=(null) PartitionName=(null) Flags=MAINT,SPEC_NODES TRES=cpu=64 Users=root Groups=(null) "
        f"Accounts=(null) Licenses=(null) State={state} BurstBuffer=(null) Watts=n/a MaxStartDelay=(null)\n"
    )


def test_reservations_close_nodes_now_and_tell_until_when_the_others_are_there() -> None:
    commands = slurm(node("n1"), node("n2"), node("n3"))
    commands.answers["reservation"] = (
        _reservation("now", "2023-11-14T22:00:00", "2023-11-14T23:00:00", "n1", "ACTIVE")
        + _reservation("later", "2023-11-15T22:13:20", "2023-11-15T23:00:00", "n[1-2]")
        + _reservation("over", "2023-11-13T22:00:00", "2023-11-13T23:00:00", "n3")
        + _reservation("licences", "2023-11-14T22:00:00", "2023-11-14T23:00:00", "(null)", "ACTIVE")
    )
    first, second, third = look(commands).nodes
    assert (first.condition, first.condition_owner, first.condition_reason) == (
        CORDONED,
        "slurm",
        "reserved in Slurm: now",
    )
    assert (second.condition, second.leaves_s) == (READY, NOW_S + 86_400.0)
    assert (third.condition, third.leaves_s) == (READY, None)


def test_cordon_of_our_own_is_shown_unless_slurm_drains_the_node() -> None:
    ours = Ours(cordons={name: Cordon(owner="health", reason="slow") for name in ("n1", "n2", "n3")})
    commands = slurm(node("n1"), node("n2", state="IDLE+DRAIN"), node("n3", state="DOWN"))
    assert [each.condition_owner for each in look(commands, ours).nodes] == ["health", "slurm", ""]


@pytest.mark.parametrize("state", ["DOWN", "DRAIN", "INACTIVE"])
def test_partition_that_is_closed_closes_its_nodes(state: str) -> None:
    seen = only(look(slurm(node("n1"), partitions=(partition("main", "n1", state=state),))))
    assert (seen.condition, seen.condition_owner) == (CORDONED, "slurm")
    assert seen.condition_reason == f"Slurm's partition main is {state}"


def test_refusal_of_a_partition_is_shown_on_its_nodes() -> None:
    ours = Ours(refusals={"main": "Invalid account"}, cordons={"n1": Cordon(owner="health", reason="slow")})
    seen = only(look(slurm(node("n1")), ours))
    assert (seen.condition, seen.condition_owner, seen.condition_reason) == (CORDONED, "slurm", "Invalid account")


def test_look_takes_few_commands_and_fewer_soon_after() -> None:
    commands, clock = slurm(*(node(f"n{number}") for number in range(100))), FakeClock(NOW_S)
    shelf = stock(commands, clock=clock)
    shelf.look(Ours())
    first = len(commands.asked)
    shelf.look(Ours())
    second = len(commands.asked) - first
    clock.advance(SLOW_S)
    shelf.look(Ours())
    assert (first, second, len(commands.asked)) == (5, 3, 13)


def test_grace_is_the_partitions_or_else_how_long_slurm_waits_to_kill() -> None:
    lines = (partition("main", "n1", more="GraceTime=20 MaxTime=2-00:00:00"), partition("bare", "n1"))
    cluster = replace(CLUSTER, partitions=("main", "bare"))
    shelf = stock(slurm(node("n1"), partitions=lines), cluster)
    assert (shelf.grace_s("main", ""), shelf.grace_s("bare", "")) == (20.0, 30.0)
    assert (shelf.time_max_s("main", ""), shelf.time_max_s("bare", "")) == (172_800.0, None)


def test_node_missing_from_what_slurm_tells_is_noticed() -> None:
    commands = slurm(node("n1"), node("n2"), partitions=(partition("main", "n[1-3]"),))
    with pytest.raises(Unavailable, match="without n3"):
        look(commands)


def test_partition_that_is_not_there_is_named_with_the_nearest() -> None:
    with pytest.raises(Unavailable, match=r"no 'mian'.*'main'"):
        stock(slurm(node("n1")), replace(CLUSTER, partitions=("mian",))).look(Ours())


@pytest.mark.parametrize("what", ["config", "partition", "node", "reservation", "topology"])
@pytest.mark.parametrize(
    "said", ["Welcome to Ada!\n", "<html>\n", "\x00\x01\n", "NodeName=n1\n", "PartitionName=main Nodes=n[1-\n"]
)
def test_garbage_is_unavailable_and_quoted(what: str, said: str) -> None:
    commands = slurm(node("n1"))
    commands.answers[what] = said
    with pytest.raises(Unavailable) as caught:
        look(commands)
    assert repr(said.strip("\n"))[1:-1] in str(caught.value)


def _told() -> Telling:
    commands = slurm(*(node(f"n{number}", gres_used="gpu:h100:1(IDX:0)", used_cpus=9) for number in range(3)))
    commands.answers["topology"] = "SwitchName=leaf Level=0 LinkSpeed=1 Nodes=n[0-2]\n"
    commands.answers["reservation"] = _reservation("r", "2023-11-15T22:13:20", "2023-11-15T23:00:00", "n1")
    return commands


@pytest.mark.slow
@given(what=st.sampled_from(["config", "partition", "node"]), share=st.floats(0, 1, exclude_max=True))
def test_look_at_text_cut_anywhere_shows_everything_or_is_unavailable(what: str, share: float) -> None:
    commands = _told()
    whole = look(commands)
    text = commands.answers[what]
    commands.answers[what] = text[: int(len(text) * share)]
    with suppress(Unavailable):
        assert look(commands) == whole


def test_settings_without_accounting_ask_no_database() -> None:
    commands = slurm(node("n1"))
    commands.answers["config"] = config(AccountingStorageType="accounting_storage/none")
    look(commands)
    assert {words[0] for words in commands.asked} == {"scontrol"}
