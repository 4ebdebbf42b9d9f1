"""What people hand to a replay: traces of five kinds, fleets of six, and clear words about what is wrong with one."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Protocol

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mainspring.domain.codec import to_plain
from mainspring.domain.errors import InvalidInput, NotFound
from mainspring.domain.ids import ChipName
from mainspring.domain.job import Tier
from mainspring.planner import plan
from mainspring.simulator import ReplayOptions, fleet_of, load, load_fleet, load_outages, replay

from .replaying import Heard, evicting, fleet, job, workload
from .standin import first_fit


class Write(Protocol):
    def __call__(self, text: str, name: str = "file") -> Path: ...


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a file with some text."""

    def made(text: str, name: str = "file") -> Path:
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return made


def test_plain_csv_with_alternatives_gives_options_and_order(write: Write) -> None:
    path = write(
        "job,submit_s,duration_s,team,tier,chip,chips,replicas,replicas_min,cpus,within,requested_s,inputs,after\n"
        "late,60,100,red,critical,H100|a100@0.4,8,4,2,64,rack,200,d1 d2,first\n"
        "first,0,50,,,,,,,,,,,\n"
    )

    first, late = load(path).jobs

    assert (first.job, first.spec.team, first.chips, first.spec.duration_s) == ("first", "lab", 1.0, 0.0)
    h100, a100 = late.spec.roles[0].options
    assert (h100.chip, h100.chips, h100.replicas, h100.replicas_min, h100.within) == ("h100", 8.0, 4, 2, "rack")
    assert (a100.chip, a100.speed) == ("a100", 0.4)
    assert (late.spec.tier, late.spec.after, late.spec.inputs) == (Tier.CRITICAL, ("first",), ("d1", "d2"))
    assert (late.submit_s, late.duration_s, late.spec.duration_s) == (60.0, 100.0, 200.0)


def test_philly_jobs_larger_than_a_node_become_replicas_that_fit_one(write: Write) -> None:
    path = write(
        "timestamp,duration,num_gpus,gpu_time,cluster\n"
        "2017-10-03 00:00:10,66.0,12,66.0,11cb48\n"
        "2017-10-03 00:00:00,30.0,1,30.0,6214E9\n"
    )

    small, large = load(path).jobs

    assert (small.submit_s, small.spec.team, small.spec.duration_s) == (0.0, "6214e9", 0.0)
    option = large.spec.roles[0].options[0]
    assert (large.submit_s, option.chips, option.replicas) == (10.0, 6.0, 2)


def test_openb_pods_keep_parts_of_chips_and_leave_out_those_never_scheduled(write: Write) -> None:
    path = write(
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
        "p0,6000,12288,1,460,,LS,Running,100,900,200\n"
        "p1,8000,1024,2,1000,V100M16|V100M32,BE,Running,100,900,100\n"
        "p2,8000,1024,0,0,,Guaranteed,Succeeded,300,900,300\n"
        "p3,8000,1024,1,1000,,LS,Pending,300,900,\n"
    )

    found = load(path)
    part, two, none = (each.spec.roles[0].options for each in found.jobs)

    assert (part[0].chips, part[0].cpus, part[0].memory_gib, part[0].chip) == (0.46, 6.0, 12.0, "any")
    assert [(option.chip, option.chips) for option in two] == [("v100m16", 2.0), ("v100m32", 2.0)]
    assert (none[0].chips, none[0].cpus) == (0.0, 8.0)
    assert [each.spec.tier for each in found.jobs] == [Tier.STANDARD, Tier.OPPORTUNISTIC, Tier.CRITICAL]
    assert found.jobs[0].duration_s == 700.0
    assert found.left_out == {"never scheduled": 1}


def test_slurm_events_give_cores_memory_limits_and_true_runtimes(write: Write) -> None:
    path = write(
        "-dt 11.00 -e submit_batch_job | -sim-walltime 2009.00 --uid=user003 -J j3 -N 2 -n 18 -t 3-00:30:00 -q q"
        " -p general --mem=250G pseudo.job\n"
        "-dt 12.00 -e cancel_job | -J j3\n"
        "-dt 10.00 -e submit_batch_job | -sim-walltime 5 --uid=user001 -n 4 -t 90 --mem=512M --gres=gpu:2 pseudo.job\n"
    )

    found = load(path)
    gpu, cores = found.jobs

    assert (gpu.submit_s, gpu.spec.duration_s, gpu.spec.roles[0].options[0].chips) == (10.0, 5_400.0, 2.0)
    option = cores.spec.roles[0].options[0]
    assert (option.replicas, option.cpus, option.memory_gib, option.chips) == (2, 9.0, 250.0, 0.0)
    assert (cores.duration_s, cores.spec.duration_s, cores.spec.team) == (2_009.0, 3 * 86_400.0 + 1_800.0, "user003")
    assert found.left_out == {"cancel_job": 1}


def test_log_of_a_replay_gives_its_workload_again(tmp_path: Path) -> None:
    heard = Heard()
    jobs = workload(
        job("a", duration_s=5_000.0, chips=2.0, requested_s=9_000.0),
        job("b", submit_s=30.0, duration_s=100.0, after=["a"], team="red"),
    )
    replay(
        jobs,
        fleet(),
        planner=evicting(1_500.0),
        options=ReplayOptions(plan_every_s=1.0),
        tell=heard,
        planned=None,
    )
    path = tmp_path / "events.jsonl"
    path.write_text("".join(json.dumps(to_plain(event)) + "\n" for event in heard.events))

    again = load(path)

    told = [(each.job, each.submit_s, each.spec) for each in again.jobs]
    assert told == [(each.job, each.submit_s, each.spec) for each in jobs.jobs]
    assert [each.duration_s for each in again.jobs] == pytest.approx([5_000.0, 100.0], abs=1e-3)


def test_log_of_a_replay_tells_the_work_of_jobs_that_ran_on_slower_chips(tmp_path: Path) -> None:
    """A log tells what a job had to do, not how long a slower chip took for it."""
    heard = Heard()
    trace = "submit_s,duration_s,chip,chips,replicas,replicas_min\n0,1000,h100|gpu@0.4,8,1,1\n0,500.25,gpu,1,8,2\n"
    (tmp_path / "trace.csv").write_text(trace)
    jobs = load(tmp_path / "trace.csv")
    replay(jobs, fleet(nodes=2), planner=plan, options=ReplayOptions(plan_every_s=1.0), tell=heard)
    path = tmp_path / "events.jsonl"
    path.write_text("".join(json.dumps(to_plain(event)) + "\n" for event in heard.events))

    assert [each.duration_s for each in load(path).jobs] == pytest.approx([1_000.0, 500.25], abs=1e-3)


def test_jobs_as_the_api_shows_them_are_a_workload(tmp_path: Path) -> None:
    view = {
        "id": "job-1", "spec": to_plain(job("x", chips=4.0).spec), "state": "succeeded", "submitted_s": 1e9,
        "ended_s": 1e9 + 500.0, "reason": "", "step": 1, "metrics": {}, "result": {},
        "attempts": [
            {
                "id": "a", "number": 1, "state": "succeeded", "cluster": "east", "simulated": True, "nodes": ["n"],
                "generation": 1, "granted_s": 1e9 + 100.0, "ended_s": 1e9 + 500.0, "reason": "", "ranks": [],
                "dollars": 1.0,
            }
        ],
        "goodput": {
            "allocated_s": 800.0, "seconds": {"startup": 20.0, "productive": 740.0, "snapshot": 10.0, "winddown": 30.0},
        },
    }  # fmt: skip
    path = tmp_path / "jobs.json"
    path.write_text(json.dumps([view, {**view, "id": "job-2", "ended_s": None}], indent=2))

    found = load(path)

    only = found.jobs[0]
    assert (only.job, only.submit_s, only.duration_s, only.chips) == ("job-1", 0.0, 375.0, 4.0)
    assert found.left_out == {"had not ended": 1}


PHILLY = "timestamp,duration,num_gpus,gpu_time,cluster\n"
OPENB = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,creation_time,deletion_time,scheduled_time\n"
SLURM = "-dt 1 -e submit_batch_job | -sim-walltime 5 -n 1 x\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "column"),
        ("a,b\n1,2\n", "no such column"),
        ("submit_s,duration_s,color\n1,2,red\n", "'color'"),
        ("submit_s,duration_s\n1,2\n1\n", "line 3"),
        ("submit_s,duration_s\n1,2\nx,2\n", "line 3, column 'submit_s'"),
        ("submit_s,duration_s\n1,-2\n", "line 2, column 'duration_s'"),
        ("submit_s,duration_s\n1,nan\n", "line 2, column 'duration_s'"),
        ("submit_s,duration_s,chips\n1,2,1.5\n", "line 2"),
        ("submit_s,duration_s,chip\n1,2,h100@fast\n", "column 'chip'"),
        ("submit_s,duration_s,tier\n1,2,urgent\n", "column 'tier'"),
        ("submit_s,duration_s,replicas\n1,2,2.5\n", "a whole number"),
        ("submit_s,duration_s,job\n1,2,a\n1,2,a\n", "a job id twice"),
        ("submit_s,duration_s,job,after\n1,2,a,a\n", "a after a"),
        ("submit_s,duration_s,job,after\n1,2,a,b\n1,2,b,a\n", "no circles"),
        ("submit_s,duration_s\n", "no jobs"),
        (PHILLY + "yesterday,1,1,1,a\n", "line 2, column 'timestamp'"),
        (PHILLY + "2017-10-03 00:00:10,1,0,1,a\n", "line 2, column 'num_gpus'"),
        (OPENB + "p,1,1,1,1000,,LS,100,50,100\n", "line 2, column 'deletion_time'"),
        (OPENB + "p,1,1,1,2000,,LS,100,500,100\n", "line 2, column 'gpu_milli'"),
        (SLURM + "garbage\n", "line 2"),
        ("-dt 1 -e submit_batch_job | -sim-walltime soon -n 1 x\n", "line 1, -sim-walltime"),
        ("-dt 1 -e submit_batch_job | -sim-walltime 5 -t tomorrow x\n", "-t"),
        ("-dt 1 -e submit_batch_job | -sim-walltime 5 --mem=lots x\n", "--mem"),
        ("-dt 1 -e submit_batch_job | -sim-walltime 5 --gres=tpu x\n", "--gres"),
        ("-dt 1 -e hold_job | x\n", "no jobs"),
        ("{nonsense\n", "line 1"),
        ('{"sequence": 1, "time_s": "now", "kind": "job_submitted"}\n', "line 1"),
        ('{"sequence": 1, "time_s": 1, "kind": "job_baked"}\n', "line 1: field 'kind'"),
        ('{"sequence": 1, "time_s": 1, "kind": "job_submitted", "job": 7}\n', "line 1: field 'job'"),
        ('{"sequence": 1, "time_s": 1, "kind": "job_submitted", "job": "a", "detail": {"roles": "[{]"}}\n', "line 1"),
        ('{"id": "job-1", "spec": {}}\n', "line 1"),
        ("[1]", "entry 1"),
        ("[]", "nothing"),
    ],
)
def test_trace_that_cannot_be_read_says_where_and_why(write: Write, text: str, said: str) -> None:
    with pytest.raises(InvalidInput) as told:
        load(write(text))
    assert said in str(told.value)


def test_event_log_that_does_not_tell_what_jobs_ask_for_says_how_to_get_it(write: Write) -> None:
    ended = {"before": "running", "after": "succeeded", "reason": ""}
    events = [
        {"sequence": 1, "time_s": 1.0, "kind": "job_submitted", "job": "a", "detail": {"name": "n", "team": "t"}},
        {"sequence": 2, "time_s": 2.0, "kind": "attempt_granted", "job": "a", "attempt": "x", "detail": {}},
        {"sequence": 3, "time_s": 9.0, "kind": "job_moved", "job": "a", "detail": ended},
    ]

    with pytest.raises(InvalidInput, match="ms ps --json"):
        load(write("".join(json.dumps(event) + "\n" for event in events)))


def test_trace_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        load(tmp_path / "nothing.csv")


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.one_of(st.binary(max_size=400), st.text(alphabet='-{}[]",:x1\n e|', max_size=200).map(str.encode)))
@pytest.mark.slow
def test_garbage_is_told_and_never_crashes(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "garbage"
    path.write_bytes(data)
    for read in (load, load_fleet, load_outages):
        with suppress(InvalidInput, NotFound):
            read(path)


def test_described_fleet_has_its_nodes_racks_and_prices(write: Write) -> None:
    path = write(
        "clusters:\n"
        "  - name: east\n"
        "    prices: {h200: 3.5}\n"
        "    price_changes: [{at_s: 60, chip: h200, dollars_per_chip_hour: 4}]\n"
        "    losses_per_node_hour: 0.1\n"
        "    offers: [{name: more, chip: h200, chips: 8, nodes_max: 4, lead_time_s: 60, dollars_per_chip_hour: 5}]\n"
        "    nodes:\n"
        "      - {count: 8, chip: h200, chips: 8, cpus: 64, levels: {rack: 2, block: 4}}\n"
        "      - {count: 1, chip: cpu, chips: 0, cpus: 128, memory_gib: 512, taints: [service]}\n"
        "replicas: [{name: d, cluster: east, size_bytes: 10}]\n"
    )

    found = load_fleet(path)
    nodes = found.inventories[0].nodes

    assert [node.chip for node in nodes] == ["cpu"] + ["h200"] * 8
    assert nodes[4].domains == (("block", "h200-1-block-00000"), ("rack", "h200-1-rack-00001"))
    assert nodes[5].domains == (("block", "h200-1-block-00001"), ("rack", "h200-1-rack-00002"))
    assert found.inventories[0].dollars_per_chip_hour == {"h200": 3.5}
    assert (found.prices[0].at_s, found.replicas[0].name) == (60.0, "d")


def test_spot_trace_lets_nodes_come_and_go(write: Write, tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text('{"metadata": {"gap_seconds": 10}, "data": [0, 0, 1, 1, 0]}')
    (tmp_path / "many.json").write_text('{"metadata": {"gap_seconds": 10}, "data": [2, 4, 3, 0, 4]}')
    group = "chip: gpu, chips: 1, count: 4"
    path = write(
        "clusters:\n"
        f"  - {{name: one, nodes: [{{{group}, available: one.json, notice_s: 5}}]}}\n"
        f"  - {{name: two, nodes: [{{{group}, available: many.json}}]}}\n"
    )

    found = load_fleet(path)

    def times(cluster: str) -> list[tuple[float, float, int]]:
        return [(each.from_s, each.until_s, len(each.nodes)) for each in found.outages if each.cluster == cluster]

    assert times("one") == [(0.0, 20.0, 4), (40.0, inf, 4)]
    assert found.outages[0].notice_s == 5.0
    away = {tick: sum(count for begin, end, count in times("two") if begin <= 10 * tick < end) for tick in range(5)}
    assert away == {0: 2, 1: 0, 2: 1, 3: 4, 4: 0}


@pytest.mark.parametrize(
    ("text", "nodes", "first"),
    [
        ("sn,cpu_milli,memory_mib,gpu,model\na,64000,1024,2,P100\nb,32000,1024,0,\n", 2, ("a", "p100", 2)),
        ("gpu_model,gpu_capacity_num,cpu_num,node_name\nA10,1,128,2\n", 1, ("node-000002", "a10", 1)),
        ("ip,DSW,PSW,ASW\n0c9d,G6,P10,S14\n", 1, ("0c9d", "gpu", 8)),
        ("machineId, number of GPUs, single GPU mem\nm0,2, 12GB\n", 1, ("m0", "gpu", 2)),
    ],
)
def test_list_of_nodes_of_a_trace_is_a_fleet(write: Write, text: str, nodes: int, first: tuple[str, str, int]) -> None:
    found = load_fleet(write(text)).inventories[0].nodes

    assert len(found) == nodes
    assert (found[0].name, found[0].chip, found[0].chips) == first


def test_chips_of_a_list_or_a_group_have_the_memory_that_is_told_of_them(write: Write) -> None:
    listed = load_fleet(write("machineId, number of GPUs, single GPU mem\nm0,2, 12GB\nm1,8, 24GB\n")).inventories[0]
    group = "{count: 1, chip: a100, chips: 8, chip_memory_gib: 79.6}"
    described = load_fleet(write(f"clusters: [{{name: east, nodes: [{group}]}}]")).inventories[0]

    assert [node.chip_memory_gib for node in (*listed.nodes, *described.nodes)] == [12.0, 24.0, 79.6]


def test_network_of_hosts_becomes_levels_from_the_widest_down(write: Write) -> None:
    node = load_fleet(write("ip,DSW,PSW,ASW\n0c9d,G6,P10,S14\n")).inventories[0].nodes[0]

    assert node.domains == (("dsw", "g6"), ("psw", "p10"), ("asw", "s14"))


def test_fleet_as_the_server_shows_it_is_a_fleet(write: Write) -> None:
    shown = [{"inventory": to_plain(fleet(3).inventories[0]), "used_chip_milli": {}, "answering": True, "seen_s": 1.0}]

    assert load_fleet(write(json.dumps(shown))).inventories == fleet(3).inventories


def test_few_words_make_a_fleet() -> None:
    nodes = fleet_of(["2x8:h100", "1x4:a100"]).inventories[0].nodes

    assert sorted((node.chip, node.chips) for node in nodes) == [("a100", 4), ("h100", 8), ("h100", 8)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("clusters: []\n", "clusters"),
        ("clusters: {\n", "YAML"),
        ("hello\n", "DescribedFleet"),
        ("clusters: [{name: East}]\n", "a-z"),
        ("clusters: [{name: a, node: []}]\n", "did you mean 'nodes'"),
        ("clusters: [{name: a}, {name: a}]\n", "names that differ"),
        ("clusters: [{name: a, nodes: [{count: 0, chip: x, chips: 1}]}]\n", "0 nodes"),
        ("clusters: [{name: a, nodes: [{count: 9, chip: x, chips: 1, levels: {r: 3, b: 4}}]}]\n", "whole ones inside"),
        ("clusters: [{name: a, nodes: [{count: 9, chip: x, chips: 1, levels: {r: 0}}]}]\n", "at least 1"),
        ("clusters: [{name: a, nodes: [{count: 9, chip: x, chips: 1, available: ../x}]}]\n", "beside the fleet"),
        ("clusters: [{name: a}]\nreplicas: [{name: d, cluster: b, size_bytes: 1}]\n", "cluster b"),
        ("sn,cpu_milli,memory_mib,gpu,model\na,many,1024,2,P100\n", "line 2, column 'cpu_milli'"),
        ("sn,cpu_milli,memory_mib,gpu,model\na,1,1,1,P100\na,1,1,1,P100\n", "unique nodes"),
        ("[{}]", "ms fleet --json"),
    ],
)
def test_fleet_that_cannot_be_read_says_why(write: Write, text: str, said: str) -> None:
    with pytest.raises(InvalidInput) as told:
        load_fleet(write(text))
    assert said in str(told.value)


@pytest.mark.parametrize("data", ["[]", "{}", '{"metadata": {"gap_seconds": 0}, "data": [1]}', '{"data": [-1]}'])
def test_spot_trace_that_cannot_be_read_is_refused(write: Write, tmp_path: Path, data: str) -> None:
    (tmp_path / "spot.json").write_text(data)
    path = write("clusters: [{name: a, nodes: [{count: 1, chip: x, chips: 1, available: spot.json}]}]\n")

    with pytest.raises(InvalidInput):
        load_fleet(path)


def test_outages_are_read_and_those_of_unknown_nodes_refused(write: Write) -> None:
    found = load_outages(write("cluster,node,from_s,until_s\neast,n-000000,10,20\neast,n-000000,50,\n"))

    assert [(each.from_s, each.until_s) for each in found] == [(10.0, 20.0), (50.0, inf)]
    with pytest.raises(InvalidInput, match="until_s"):
        load_outages(write("cluster,node,from_s,until_s\neast,n-000000,10,5\n"))
    unknown = load_outages(write("cluster,node,from_s\neast,n-9,10\n"))
    with pytest.raises(InvalidInput, match="n-9"):
        replace(fleet(), outages=unknown)


def test_chips_of_words_that_do_not_read_are_refused() -> None:
    with pytest.raises(InvalidInput, match="NODESxCHIPS:CHIP"):
        fleet_of(["8xh100"])


def test_replay_of_loaded_jobs_on_a_loaded_fleet_ends(write: Write) -> None:
    trace = load(write("submit_s,duration_s,chips\n0,60,8\n0,60,8\n", "trace.csv"))
    outcome = replay(trace, fleet_of(["1x8:gpu"]), planner=first_fit)

    assert outcome.jobs.end_s.tolist() == [60.0, 120.0]
    assert outcome.pools[0].chip == ChipName("gpu")
