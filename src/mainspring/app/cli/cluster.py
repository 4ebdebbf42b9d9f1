"""`ms cluster`: the clusters jobs may go to; adding one begins with a look at its set-up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from mainspring.app.base.specs import DURATION_FORM, duration_from
from mainspring.app.render.clusters import cluster_panel, clusters_table, finding_lines
from mainspring.app.render.tables import CONSOLE, ERRORS, show
from mainspring.app.sdk.clusters import ClusterShown, refused
from mainspring.app.sdk.lab import Lab
from mainspring.domain.answers import JobView
from mainspring.domain.errors import InvalidSpec, NotFound
from mainspring.domain.ids import ChipName, ClusterName
from mainspring.engines.local.engine import LocalCluster
from mainspring.engines.slurm import SlurmCluster
from mainspring.engines.slurm.setup.findings import STEPS, Finding

app = typer.Typer(help="Add clusters, look at them, check and remove them.", no_args_is_help=True)
add = typer.Typer(help="Add a cluster; its set-up is checked first.", no_args_is_help=True)
app.add_typer(add, name="add")
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Name = Annotated[str, typer.Argument(help="Name of a cluster.", metavar="NAME")]
Pairs = list[str] | None


@add.command("slurm")
def add_slurm(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Name to give it.", metavar="NAME")],
    partition: Annotated[list[str], typer.Option(help="Partition of Slurm's to use; repeat for more.")],
    shared: Annotated[
        str, typer.Option(help="Folder that this machine and every node see alike; ours alone.", metavar="DIR")
    ],
    delegated: Annotated[
        bool, typer.Option("--delegated", help="Others use it too: Slurm's queue decides where and when.")
    ] = False,
    ssh: Annotated[
        str, typer.Option(help="Where Slurm's commands are, as ssh names it.", metavar="USER@HOST", show_default="here")
    ] = "",
    python: Annotated[
        str, typer.Option(help="Interpreter on the nodes that has Mainspring.", metavar="PATH", show_default="this one")
    ] = "",
    scratch: Annotated[str, typer.Option(help="Local folder on the nodes.", metavar="DIR")] = "/tmp",
    price: Annotated[Pairs, typer.Option(help="Price of a chip for an hour; repeat.", metavar="CHIP=DOLLARS")] = None,
    chip: Annotated[Pairs, typer.Option(help="Our name for a type of GRES; repeat.", metavar="GRES=CHIP")] = None,
    qos: Annotated[Pairs, typer.Option(help="Slurm's QOS for a tier; repeat.", metavar="TIER=QOS")] = None,
    tier_partition: Annotated[
        Pairs, typer.Option(help="Partition for a tier; repeat.", metavar="TIER=PARTITION")
    ] = None,
    account: Annotated[
        Pairs, typer.Option(help="Slurm's account for a team and those below it; repeat.", metavar="TEAM=ACCOUNT")
    ] = None,
    time_limit: Annotated[
        str, typer.Option(help=f"Time to ask for each job: {DURATION_FORM}.", show_default="the most there is")
    ] = "",
    no_check: Annotated[bool, typer.Option("--no-check", help="Add it without looking at its set-up.")] = False,
    as_json: Json = False,
) -> None:
    """Add a Slurm cluster, after a look at its set-up: commands, partitions, folders, a job on one node."""
    cluster = SlurmCluster(
        name=ClusterName(name),
        partitions=tuple(partition),
        shared=shared,
        delegated=delegated,
        ssh=ssh,
        python=python,
        scratch=scratch,
        dollars_per_chip_hour={ChipName(key): _dollars(value) for key, value in _pairs("--price", price).items()},
        chips={key: ChipName(value) for key, value in _pairs("--chip", chip).items()},
        qos=_pairs("--qos", qos),
        tier_partitions=_pairs("--tier-partition", tier_partition),
        accounts=_pairs("--account", account),
        time_limit_s=duration_from(time_limit) if time_limit else 0.0,
    )
    lab: Lab = context.obj
    with _telling(as_json=as_json) as tell:
        shown = lab.clusters.add(cluster, check=not no_check, on_finding=tell)
    _show_added(shown, as_json=as_json)


@add.command("local")
def add_local(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Name to give it.", metavar="NAME")],
    chip: Annotated[str, typer.Option(help="Type of its chips.")],
    nodes: Annotated[int, typer.Option(min=1, help="Nodes; each agent is a process of this machine.")] = 1,
    chips_per_node: Annotated[int, typer.Option(min=1, help="Chips on each.")] = 1,
    price: Annotated[float, typer.Option(min=0, help="Price of a chip for an hour.", metavar="DOLLARS")] = 0.0,
    racks: Annotated[int, typer.Option(min=0, help="Racks to spread the nodes over; 0 for none.")] = 0,
    as_json: Json = False,
) -> None:
    """Add a cluster that this machine pretends, of any chips."""
    cluster = LocalCluster(
        name=ClusterName(name),
        chip=ChipName(chip),
        nodes=nodes,
        chips_per_node=chips_per_node,
        dollars_per_chip_hour=price,
        racks=racks,
    )
    lab: Lab = context.obj
    _show_added(lab.clusters.add(cluster), as_json=as_json)


@app.command("ls")
def list_command(context: typer.Context, as_json: Json = False) -> None:
    """List clusters with their nodes, chips and prices."""
    clusters = context.obj.clusters.ls()
    none = "No clusters. Add one: ms cluster add slurm --help; ms cluster add local --help"
    show(clusters, as_json=as_json, look=lambda: clusters_table(clusters, now_s=time.time()) if clusters else none)


@app.command("show")
def show_command(context: typer.Context, name: Name, as_json: Json = False) -> None:
    """Show one cluster: how it is set up, and its nodes or slots with chips, what is free, state and reason."""
    shown = context.obj.clusters.show(name)
    show(shown, as_json=as_json, look=lambda: cluster_panel(shown, now_s=time.time()))


@app.command()
def check(context: typer.Context, name: Name, as_json: Json = False) -> None:
    """Look at a cluster's set-up step by step, and say what to fix. Exit 6 when something needed is missing."""
    lab: Lab = context.obj
    shown = lab.clusters.show(name)
    if shown.settings is None:
        raise NotFound("check a cluster", on=name, got="a server elsewhere", next_step="run it on the server's machine")
    found = []
    with _telling(as_json=as_json) as tell:
        for finding in lab.clusters.findings(shown.settings):
            found.append(finding)
            tell(finding)
    if as_json:
        show(tuple(found), as_json=True)
    elif not found:
        show(f"{name} is pretended by this machine: there is nothing to set up.")
    refused(found, attempted="use a cluster", on=name, next_step="put it right, and check again")


@app.command()
def remove(
    context: typer.Context,
    name: Name,
    force: Annotated[bool, typer.Option("--force", help="Stop the jobs that are on it first.")] = False,
    as_json: Json = False,
) -> None:
    """Remove a cluster; refused while jobs are on it. The cluster itself is left as it is."""
    lab: Lab = context.obj
    with ERRORS.status("") as status:

        def look(view: JobView) -> None:
            status.update(f"{view.spec.name} ({view.id}) is {view.state.value}")

        removal = lab.clusters.remove(name, force=force, on_look=look)
    told = [f"Removed {removal.name}."]
    if removal.stopped:
        told.append(f"Stopped for it: {', '.join(removal.stopped)}.")
    if removal.left:
        told.append(
            f"Not ended when it went: {', '.join(removal.left)}. They are given up once nothing has been heard of them"
            " for a while; adding the cluster again takes back what still runs there."
        )
    show(removal, as_json=as_json, look=lambda: "\n".join(told))


def _show_added(shown: ClusterShown, *, as_json: bool) -> None:
    next_step = f"It has not answered yet. Look: ms cluster show {shown.name}" if shown.asked else "ms up takes it in."
    told = f"Added {shown.name}. {next_step}"
    show(shown, as_json=as_json, look=lambda: cluster_panel(shown, now_s=time.time()) if shown.view else told)


@contextmanager
def _telling(*, as_json: bool) -> Iterator[Callable[[Finding], None]]:
    """Gives what prints findings as they come; what is looked at meanwhile is shown below them."""
    if as_json:
        yield lambda finding: None
        return
    with CONSOLE.status(STEPS[0]) as status:

        def tell(finding: Finding) -> None:
            CONSOLE.print(finding_lines(finding), soft_wrap=True)
            after = STEPS.index(finding.name) + 1 if finding.name in STEPS else 0
            status.update(f"{STEPS[after]} ..." if after < len(STEPS) else "")

        yield tell


def _pairs(flag: str, texts: Pairs) -> dict[str, str]:
    """Returns what several LEFT=RIGHT stand for."""
    found: dict[str, str] = {}
    for text in texts or ():
        left, equals, right = text.partition("=")
        if not left or not equals or not right or left in found:
            twice = ", twice" if left in found else ""
            raise InvalidSpec("read a flag", on=flag, got=repr(text) + twice, wanted="NAME=VALUE, each name once")
        found[left] = right
    return found


def _dollars(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise InvalidSpec("read a price", on="--price", got=repr(text), wanted="CHIP=DOLLARS") from error
