"""`ms data`, what is done with versions: choosing, mixing, comparing, keeping and letting go."""

from __future__ import annotations

from typing import Annotated

import typer

from mainspring import data  # Loads its names when they are used, so that other verbs start fast.
from mainspring.app.base.specs import duration_from
from mainspring.app.cli.arguments import Json, LabContext
from mainspring.app.render import data as look
from mainspring.app.render.tables import show
from mainspring.domain.answers import NewDatasetTeam
from mainspring.domain.errors import InvalidInput
from mainspring.domain.ids import TeamName

app = typer.Typer()
BRING_IN, LOOK, MAKE, KEEP = "Recordings in", "Look", "Versions and views", "Keep and let go"  # In help.
Name = Annotated[str, typer.Argument(help="A dataset, or one version of it such as pick@3.", metavar="DATASET[@N]")]
Exact = Annotated[str, typer.Argument(help="One version, such as pick@3.", metavar="DATASET@N")]
Dataset = Annotated[str, typer.Argument(help="A dataset.", metavar="DATASET")]
As = Annotated[str, typer.Option("--as", help="Dataset that the result is a version of.", metavar="DATASET")]
By = Annotated[str, typer.Option("--by", help="Who, when it is not you.", metavar="NAME")]
Reason = Annotated[str, typer.Option(help="Why, for people.", metavar="TEXT")]


@app.command("select", rich_help_panel=MAKE)
def select(
    context: LabContext,
    name: Name,
    where: Annotated[str, typer.Option(help="SQL over what is known of an episode.", metavar="SQL")],
    into: As,
    layer: Annotated[list[str] | None, typer.Option(help="A layer whose facts it asks for.", metavar="ID")] = None,
    as_json: Json = False,
) -> None:
    """Freeze the episodes for which a condition holds into a version. Nothing is copied.

    It may speak of id, source, task, robot, success, rate_hz, frames, seconds, started_ns, arrived_ns and metadata.

    Facts of a layer go by the name of its producer: --layer 4ac159 --where "motion.top > 0.1".

    What was said of it is annotation.success, .labels, .authors, .spans and .made_s:
    --where "list_contains(annotation.labels, 'slipped')".

    Example: ms data select pick --where "success and metadata['site'] = 'lab'" --as pick-good
    """
    version = context.obj.data.select(name, where, into, layers=layer or ())
    show(version, as_json=as_json, look=lambda: _frozen(version))


@app.command("merge", rich_help_panel=MAKE)
def merge(
    context: LabContext,
    names: Annotated[list[str], typer.Argument(help="Two or more.", metavar="DATASET[@N]")],
    into: As,
    as_json: Json = False,
) -> None:
    """Freeze the episodes of several versions into one, each once, past the gates.

    Example: ms data merge pick place@2 --as pick-and-place
    """
    version = context.obj.data.merge(names, into)
    show(version, as_json=as_json, look=lambda: _frozen(version))


@app.command("split", rich_help_panel=MAKE)
def split(
    context: LabContext,
    name: Name,
    holdout: Annotated[float, typer.Option(min=0, max=1, help="Share of episodes to hold out.")] = 0.1,
    by: Annotated[str, typer.Option(help="SQL for what episodes share that must stay on one side.")] = "id",
    into: Annotated[
        str, typer.Option("--as", help="Freeze the sides as DATASET-train and DATASET-holdout.", metavar="DATASET")
    ] = "",
    as_json: Json = False,
) -> None:
    """Show how a version falls into episodes that train and episodes held out, checked for leaks; or freeze both.

    An episode stays on its side in every version. Views are split by themselves: see ms data view.

    Example: ms data split pick --holdout 0.2 --by "metadata['session']" --as pick
    """
    report = context.obj.data.split(name, holdout, by=by, dataset=into)
    show(report, as_json=as_json, look=lambda: look.split_look(report))


@app.command("mix", rich_help_panel=MAKE)
def mix(
    context: LabContext,
    name: Annotated[str, typer.Argument(help="The mixture; all when left out.", metavar="NAME")] = "",
    parts: Annotated[
        list[str] | None,
        typer.Argument(help="Versions, weights; none to look.", metavar="DATASET[@N]=WEIGHT"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Freeze versions and weights into a mixture, or show one, or all.

    Example: ms data mix everyday pick@3=3 place@1=1
    """
    lab = context.obj
    weights = {}
    for part in parts or ():
        version, _, weight = part.rpartition("=")
        try:
            weights[version] = float(weight)
        except ValueError:
            weights[""] = 0.0
        if "" in weights:
            raise InvalidInput("freeze a mixture", on=part, wanted="a version and its weight, such as pick@3=2")
    if weights:
        found: tuple[data.Mixture, ...] = (lab.data.mix(name, weights),)
    else:
        found = (lab.data.mixture(name),) if name else lab.data.mixtures()
    none = "No mixtures yet. Try: ms data mix NAME pick@1=3 place@1=1"
    show(found, as_json=as_json, look=lambda: look.mixture_table(found) if found else none)


@app.command("diff", rich_help_panel=LOOK)
def diff(
    context: LabContext,
    before: Annotated[str, typer.Argument(help="One version.", metavar="DATASET[@N]")],
    after: Annotated[str, typer.Argument(help="Another.", metavar="DATASET[@N]")],
    as_json: Json = False,
) -> None:
    """Compare two versions: the episodes that only one of them has. Exit 1 when they differ.

    Example: ms data diff pick@1 pick@2
    """
    found = context.obj.data.diff(before, after)
    facts = {
        "before": found.before,
        "after": found.after,
        "kept": found.kept,
        "added": found.added.to_pylist(),
        "removed": found.removed.to_pylist(),
        "features_before": found.features_before,
        "features_after": found.features_after,
    }
    show(facts, as_json=as_json, look=lambda: look.difference_look(found))
    if found.added.num_rows or found.removed.num_rows:
        raise typer.Exit(1)


@app.command("log", rich_help_panel=LOOK)
def log(context: LabContext, dataset: Dataset, as_json: Json = False) -> None:
    """List a dataset's versions, newest first, and how each came to be."""
    versions = context.obj.data.history(dataset)
    show(tuple(reversed(versions)), as_json=as_json, look=lambda: look.history_table(versions))


@app.command("lineage", rich_help_panel=LOOK)
def lineage(context: LabContext, name: Name, as_json: Json = False) -> None:
    """Show what a version was made of, and what uses it: versions, mixtures, views, runs."""
    lab = context.obj
    version = lab.data.version(name).name
    up, down = lab.data.ancestors(version), lab.data.descendants(version)
    facts = {"version": version, "ancestors": up, "descendants": down}
    show(facts, as_json=as_json, look=lambda: look.lineage_tree(version, up, down))


@app.command("candidates", rich_help_panel=MAKE)
def candidates(context: LabContext, dataset: Dataset, as_json: Json = False) -> None:
    """List what a gate keeps from becoming a version, and why."""
    found = context.obj.data.candidates(dataset)
    findings = {each.id: context.obj.data.findings(each) for each in found}
    facts = tuple({"candidate": each, "findings": findings[each.id]} for each in found)
    none = f"Nothing waits to become a version of {dataset}."
    show(facts, as_json=as_json, look=lambda: look.candidates_look(found, findings) if found else none)


@app.command("publish", rich_help_panel=MAKE)
def publish(
    context: LabContext,
    dataset: Dataset,
    candidate: Annotated[str, typer.Argument(help="Its id, or how it begins.", metavar="CANDIDATE")],
    waive: Annotated[
        list[str] | None, typer.Option(help="Let it pass this gate; repeat for more.", metavar="GATE")
    ] = None,
    by: By = "",
    reason: Reason = "",
    as_json: Json = False,
) -> None:
    """Make a candidate a version. A gate that keeps it back is waived with a name and a reason, which stay with it.

    Example: ms data publish pick 4c01 --waive distribution --by ada --reason "new gripper"
    """
    version = context.obj.data.publish(
        dataset, candidate, waivers=tuple(data.Waiver(gate=gate, by=by, reason=reason) for gate in waive or ())
    )
    show(version, as_json=as_json, look=lambda: _frozen(version))


@app.command("pin", rich_help_panel=KEEP)
def pin(context: LabContext, name: Name, reason: Reason, by: By = "", as_json: Json = False) -> None:
    """Keep a version from being deleted.

    Example: ms data pin pick@3 --reason "baseline of the paper"
    """
    made = context.obj.data.pin(name, reason=reason, owner=by)
    show(made, as_json=as_json, look=lambda: f"{made.owner} keeps {made.version}: {made.reason}")


@app.command("unpin", rich_help_panel=KEEP)
def unpin(context: LabContext, name: Name, by: By = "", as_json: Json = False) -> None:
    """Take a pin off a version."""
    version = context.obj.data.unpin(name, owner=by)
    show({"version": version.name}, as_json=as_json, look=lambda: f"Nothing of yours keeps {version.name} now.")


@app.command("rm", rich_help_panel=KEEP)
def remove(
    context: LabContext,
    name: Annotated[str, typer.Argument(help="A version such as pick@3, or a mixture.", metavar="DATASET@N")],
    reason: Reason,
    by: By = "",
    as_json: Json = False,
) -> None:
    """Delete a version. For two weeks ms data restore brings it back; then ms data gc frees what only it held.

    Example: ms data rm pick@2 --reason "wrong calibration"
    """
    lab = context.obj
    if "@" not in name and name in (mixture.name for mixture in lab.data.mixtures()):
        lab.data.delete_mixture(name)
        show({"mixture": name}, as_json=as_json, look=lambda: f"Deleted mixture {name}.")
        return
    version = lab.data.delete(name, reason=reason, by=by)
    told = f"Deleted {version.name}. To think again: ms data restore {version.name}"
    show(version, as_json=as_json, look=lambda: told)


@app.command("restore", rich_help_panel=KEEP)
def restore(context: LabContext, name: Exact, as_json: Json = False) -> None:
    """Bring a deleted version back."""
    version = context.obj.data.restore(name)
    show(version, as_json=as_json, look=lambda: f"{version.name} is back: {version.episodes} episodes.")


@app.command("gc", rich_help_panel=KEEP)
def gc(
    context: LabContext,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would go.")] = False,
    grace: Annotated[
        str, typer.Option(help="Touch nothing younger, such as 36h.", metavar="DURATION", show_default="14d")
    ] = "",
    as_json: Json = False,
) -> None:
    """Delete bytes that no version, view, mixture, pin or ingest under way names any more.

    Example: ms data gc --dry-run
    """
    report = context.obj.data.gc(grace_s=duration_from(grace) if grace else None, dry_run=dry_run)
    show(report, as_json=as_json, look=lambda: look.gc_look(report))


@app.command("team", rich_help_panel=KEEP)
def team(
    context: LabContext,
    name: Dataset,
    to: Annotated[str, typer.Option(help="Give it to this team.", metavar="TEAM")] = "",
    to_everybody: Annotated[bool, typer.Option("--to-everybody", help="Give it to everybody.")] = False,
    as_json: Json = False,
) -> None:
    """Show whose a dataset is, or give it away: who may not read it then finds neither it nor its views.

    Whoever begins a dataset gives it their team; what the lab's own people begin is everybody's.

    Example: ms data team pick --to arms
    """
    if to and to_everybody:
        raise InvalidInput("give a dataset", on=name, got="--to and --to-everybody", wanted="one of them")
    lab = context.obj
    if to or to_everybody:
        owner = lab.give_dataset(name, NewDatasetTeam(team=TeamName(to) if to else None))
    else:
        owner = lab.dataset_team(name)
    whose = f"of team {owner.team}" if owner.team else "everybody's"
    by = f", by {owner.maker}" if owner.maker else ""
    show(owner, as_json=as_json, look=lambda: f"{owner.name} is {whose}{by}.")


def _frozen(version: data.Version) -> str:
    return f"{version.name}: {version.episodes} episodes, {version.frames} steps\nLook: ms data show {version.name}"
