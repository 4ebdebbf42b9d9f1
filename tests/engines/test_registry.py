"""An engine is its package and one line of the registry: a third kind, unknown to `app`, does all that others do."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from mainspring.app.base.home import Config, Home
from mainspring.app.base.system import SystemClock
from mainspring.app.cli import cluster as cluster_commands
from mainspring.app.sdk.lab import Lab
from mainspring.app.server.checking import findings
from mainspring.app.server.engines import Engines
from mainspring.domain.errors import InvalidSpec, Unavailable
from mainspring.domain.fleet import Node
from mainspring.domain.ids import ChipName, ClusterName
from mainspring.engines.local.config import LocalCluster
from mainspring.engines.registry import ENGINES, kinds
from mainspring.engines.slurm.cluster.config import SlurmCluster
from tests.app.conftest import until

from .scratch.kind import ScratchCluster

ROOT = Path(__file__).parents[2]
PAPER = ScratchCluster(name=ClusterName("paper"), nodes=2, lease_s=5_400.0, racks=("a", "b"))
# What `ms` of Mainspring 0.1 wrote, after `ms cluster add slurm hall ...`.
WRITTEN_BEFORE = """
host: 127.0.0.1
port: 7077
certificate: ''
key: ''
public_url: ''
database: ''
objects: ''
clusters:
- name: local
  chip: cpu
  chips_per_node: 2
  nodes: 1
  dollars_per_chip_hour: 0.0
  racks: 0
  cpus_per_node: null
  memory_gib_per_node: null
  simulated: false
slurm:
- name: hall
  partitions:
  - main
  - b
  shared: /shared
  delegated: true
  python: ''
  scratch: /tmp
  ssh: ''
  chips: {}
  dollars_per_chip_hour:
    h100: 2.4
  accounts:
    vision: v
  qos:
    critical: hi
  tier_partitions: {}
  time_limit_s: 5400.0
  notice_s: 60.0
  queued_nodes_max: 8
  queue_wait_s_max: 21600.0
  command_s_max: 10.0
  refresh_s: 8.0
  simulated: false
  losses_per_node_hour: 0.0
"""
LOCAL = LocalCluster(
    name=ClusterName("local"),
    chip=ChipName("cpu"),
    chips_per_node=2,
    nodes=1,
    dollars_per_chip_hour=0.0,
    simulated=False,
)
HALL = SlurmCluster(
    name=ClusterName("hall"),
    partitions=("main", "b"),
    shared="/shared",
    delegated=True,
    dollars_per_chip_hour={ChipName("h100"): 2.4},
    accounts={"vision": "v"},
    qos={"critical": "hi"},
    time_limit_s=5_400.0,
)


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A lab without a server, whose registry has one line more."""
    monkeypatch.setitem(ENGINES, "scratch", "tests.engines.scratch.kind")
    made = Lab(tmp_path / "home")
    made.home.write_config(Config(clusters=()))
    return made


def _ms(lab: Lab, *words: str) -> str:
    done = CliRunner().invoke(cluster_commands.app, words, obj=lab, env={"COLUMNS": "100", "TERM": "dumb"})
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.output


# ---------------------------------------------------------------- a third kind


def test_a_kind_in_the_registry_is_added_by_the_command_line_with_its_own_options(lab: Lab) -> None:
    assert "Add a cluster on paper." in _ms(lab, "add", "--help")
    told = _ms(lab, "add", "scratch", "--help")
    for words in ("--nodes", "[required]", "--lease", "90m", "--rack", "--delegated", "--no-check", "--json"):
        assert words in told
    told = _ms(lab, "add", "scratch", "paper", "--nodes", "2", "--lease", "90m", "--rack", "a", "--rack", "b")
    assert "ok" in told
    assert "Added paper." in told
    assert lab.home.config() == Config(clusters=(PAPER,))
    told = _ms(lab, "show", "paper")
    assert "1.5 h" in told
    assert "a, b" in told
    assert json.loads(_ms(lab, "ls", "--json"))[0]["engine"] == "scratch"


def test_a_kind_in_the_registry_is_checked_before_it_is_added(lab: Lab) -> None:
    with pytest.raises(Unavailable, match="pencil: 1 nodes"):
        _ms(lab, "add", "scratch", "paper", "--nodes", "1")
    assert lab.home.config().clusters == ()
    _ms(lab, "add", "scratch", "paper", "--nodes", "1", "--no-check")
    assert [finding.name for finding in findings(PAPER, controller="", certificate="", run_as={})] == [
        "paper",
        "pencil",
    ]


def test_users_to_run_jobs_as_are_refused_beside_a_kind_that_runs_all_under_one_account(lab: Lab) -> None:
    with pytest.raises(InvalidSpec, match=r"run_as.*'paper'"):
        Config(clusters=(PAPER,), run_as={"*": "nobody"})


@pytest.mark.slow
def test_a_kind_in_the_registry_is_served_by_a_host_of_its_own(lab: Lab, tmp_path: Path) -> None:
    line = "from mainspring.engines.registry import ENGINES; ENGINES['scratch'] = 'tests.engines.scratch.kind'"
    (tmp_path / "sitecustomize.py").write_text(line)
    path = os.pathsep.join([str(tmp_path), str(ROOT / "src"), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path}
    engines = Engines(Config(clusters=(PAPER,)), lab.home, environment=environment, clock=SystemClock())
    try:
        until(lambda: len(_nodes(engines)) == 2, "the host to answer")
    finally:
        engines.close()


def _nodes(engines: Engines) -> tuple[Node, ...]:
    try:
        return engines.by_name[PAPER.name].inventory().nodes
    except Unavailable:
        return ()


def test_every_kind_is_named_alike_everywhere_and_can_be_told_from_others_by_its_opening() -> None:
    assert [(kind.name, kind.settings.kind) for kind in kinds()] == [(name, name) for name in ENGINES]
    openings = [kind.opening for kind in kinds() if kind.opening]
    assert len(set(openings)) == len(openings)
    assert [kind.opening is None for kind in kinds()] == [kind.hosting is None for kind in kinds()]
    for kind in kinds():
        fields = {field.name for field in dataclasses.fields(kind.settings)}
        assert {option.field for option in kind.options} <= fields - {"name"}


@pytest.mark.slow
def test_no_engine_is_loaded_before_one_is_wanted() -> None:
    words = "import sys; from mainspring.app.cli import cluster; from mainspring.engines.registry import ENGINES; "
    words += "print([module for module in ENGINES.values() if module in sys.modules])"
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, timeout=120)
    assert done.stdout == "[]\n", done.stderr


# ---------------------------------------------------------------- the configuration


def _read(home: Home, text: str) -> Config:
    home.path.mkdir(exist_ok=True)
    (home.path / "config.yaml").write_text(text)
    return home.config()


def test_a_configuration_written_by_the_version_before_is_read_and_rewritten_as_one_list(tmp_path: Path) -> None:
    home = Home(tmp_path)
    config = _read(home, WRITTEN_BEFORE)
    assert config.clusters == (LOCAL, HALL)
    home.write_config(config)
    written = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert "slurm" not in written
    assert [(entry["kind"], entry["name"]) for entry in written["clusters"]] == [("local", "local"), ("slurm", "hall")]
    assert home.config() == config


def test_whoever_reads_a_configuration_while_it_is_written_reads_the_one_before_whole(tmp_path: Path) -> None:
    kept, home = tmp_path / "kept.yaml", Home(tmp_path / "home")
    with home.lock():
        assert home.path.stat().st_mode & 0o777 == 0o700
    home.config_file.symlink_to(kept)
    home.write_config(Config(clusters=(LOCAL, HALL)))
    text = kept.read_text()
    with home.config_file.open() as reader:
        home.write_config(Config(clusters=(LOCAL,)))
        assert reader.read() == text
    assert home.config_file.is_symlink()
    assert home.config() == Config(clusters=(LOCAL,))


def test_a_configuration_that_lists_no_clusters_has_this_machine(tmp_path: Path) -> None:
    assert Config().clusters == (replace(LOCAL, chips_per_node=os.cpu_count() or 1),)
    assert _read(Home(tmp_path), "port: 7_000").clusters == Config().clusters
    # The version before wrote both keys; people may have left out the first, and had this machine beside their Slurm.
    before = _read(Home(tmp_path), "slurm: [{name: hall, partitions: [main], shared: /shared}]").clusters
    assert [each.name for each in before] == ["local", "hall"]
    assert _read(Home(tmp_path), "clusters: []").clusters == ()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("clusters: [{kind: slrum, name: a}]", ("clusters[0].kind", "did you mean 'slurm'?")),
        ("clusters: [{kind: [1], name: a}]", ("clusters[0].kind", "one of kubernetes, local, slurm")),
        ("clusters: [{kind: slurm, name: a, share: /x}]", ("clusters[0].share", "a field of SlurmCluster")),
        ("clusters: [{kind: slurm, name: a, partitions: [m]}]", ("clusters[0].shared", "this field of SlurmCluster")),
        ("clusters: [{kind: slurm, name: a, partitions: [m], shared: x}]", ("a, field 'shared'", "an absolute folder")),
        ("slurm: [{name: a, partition: [m]}]", ("slurm[0].partition", "did you mean 'partitions'?")),
        ("clusters: [{name: a, chip: [1]}]", ("clusters[0].chip", "text")),
        ("clusters: {name: a}", ("field 'clusters'", "a list")),
        ("slurm: [hall]", ("slurm[0]", "a mapping")),
        ("clusters: []\nslrum: []", ("field 'slrum'", "a field of Config")),
        ("clusters: []\nport: x", ("field 'port'", "a whole number")),
        ("[1]", ("the fields of Config",)),
    ],
)
def test_a_configuration_with_a_mistake_is_refused_with_its_place_and_what_is_wanted(
    tmp_path: Path, text: str, told: tuple[str, ...]
) -> None:
    with pytest.raises(InvalidSpec) as raised:
        _read(Home(tmp_path), text)
    assert str(tmp_path / "config.yaml") in str(raised.value)
    for words in told:
        assert words in str(raised.value)
