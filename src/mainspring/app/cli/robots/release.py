"""`ms release`: what robots may run, who has signed it, and what it came from."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from mainspring.app.base.specs import read_yaml
from mainspring.app.cli.arguments import Json, LabContext
from mainspring.app.render.progress import bytes_bar
from mainspring.app.render.robots import releases as look
from mainspring.app.render.tables import show
from mainspring.app.sdk.policies.releases import ReleaseVerbs
from mainspring.domain.answers.policies.releases import Embodiment
from mainspring.domain.codec import from_plain
from mainspring.domain.errors import InvalidInput
from mainspring.domain.ids import TeamName
from mainspring.domain.job import LAB
from mainspring.domain.release import RELEASE

app = typer.Typer()
trust_app = typer.Typer()
app.add_typer(trust_app, name="trust", help="Say whose keys releases are trusted by: new, renew, show.")

Release = Annotated[str, typer.Argument(help="The newest of a name without a version.", metavar="NAME[@VERSION]")]
Keys = Annotated[
    list[Path] | None,
    typer.Option("--key", metavar="FILE", help="A person's key to sign with; repeat.", show_default=False),
]


def _embodiment(path: Path) -> Embodiment:
    return read_yaml(path, "read an embodiment", lambda plain: from_plain(Embodiment, plain, strict=True))


def _waived(given: list[str]) -> dict[str, str]:
    waived = {}
    for each in given:
        name, _, reason = each.partition("=")
        if not name.strip() or not reason.strip():
            raise InvalidInput("waive a gate", got=repr(each[:80]), wanted="GATE=REASON")
        waived[name.strip()] = reason.strip()
    return waived


@app.command("create")
def create_command(
    context: LabContext,
    checkpoint: Annotated[str, typer.Argument(help="The newest step without one.", metavar="JOB[@STEP]")],
    name: Annotated[str, typer.Option(help="What its releases are called.")],
    dtype: Annotated[
        str, typer.Option(help="Type of weights: bfloat16, float16, float32.", show_default="as trained")
    ] = "",
    gate: Annotated[
        list[str] | None,
        typer.Option(metavar="GATE", help="A gate it must have passed; repeat.", show_default="all kept"),
    ] = None,
    waive: Annotated[
        list[str] | None, typer.Option(metavar="GATE=REASON", help="Let a gate not count; repeat.", show_default=False)
    ] = None,
    key: Keys = None,
    embodiment: Annotated[
        Path | None, typer.Option(metavar="FILE", help="YAML of what it fits.", show_default="as its view says")
    ] = None,
    runtime: Annotated[str, typer.Option(help="The least Mainspring that runs it.")] = RELEASE,
    team: Annotated[str, typer.Option(help="Whose it is.")] = LAB,
    automatic: Annotated[
        bool, typer.Option("--automatic", help="Signed by the server alone, in its own folder.")
    ] = False,
    note: Annotated[str, typer.Option(help="Why there is a release.")] = "",
    as_json: Json = False,
) -> None:
    """Release a checkpoint: weights, recipe, evaluations, lineage, and what robots it fits.

    Refused while a gate is closed or undecided (ms eval gate), unless waived by name. It is published once two of the
    three people whose keys count have signed it.

    Try it: ms release create JOB@STEP --name arm --key person-1.pem --key person-2.pem
    """
    with bytes_bar() as bar:
        task = bar.add_task("write weights", total=None)
        made = ReleaseVerbs(context.obj).create(
            checkpoint,
            name=name,
            dtype=dtype,
            gates=gate or (),
            waive=_waived(waive or []),
            keys=key or (),
            fits=None if embodiment is None else _embodiment(embodiment),
            runtime=runtime,
            team=TeamName(team),
            automatic=automatic,
            note=note,
            progress=lambda done: bar.update(task, advance=done),
        )
    show(made, as_json=as_json, look=lambda: look.made_text(made))


@app.command("image")
def image_command(
    context: LabContext,
    image: Annotated[Path, typer.Argument(help="Made and signed by SWUpdate's own tools.", metavar="FILE.swu")],
    name: Annotated[str, typer.Option(help="What its releases are called.")],
    key: Keys = None,
    team: Annotated[str, typer.Option(help="Whose it is.")] = LAB,
    note: Annotated[str, typer.Option(help="Why there is a release.")] = "",
    as_json: Json = False,
) -> None:
    """Release an image of SWUpdate, for robots that are plain clients of DDI (ms robot enrol NAME --plain).

    Try it: ms release image panel.swu --name panel --key person-1.pem --key person-2.pem
    """
    made = ReleaseVerbs(context.obj).image(image, name=name, keys=key or (), team=TeamName(team), note=note)
    show(made, as_json=as_json, look=lambda: look.made_text(made))


@app.command("ls")
def list_command(
    context: LabContext,
    name: Annotated[str, typer.Argument(help="Only those of this name.", metavar="NAME")] = "",
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="At most so many.")] = 50,
    as_json: Json = False,
) -> None:
    """List releases, newest first."""
    found = ReleaseVerbs(context.obj).ls(name, limit=limit)
    none = "No releases yet. Try: ms release create JOB@STEP --name arm"
    show(found, as_json=as_json, look=lambda: look.releases_table(found, now_s=time.time()) if found else none)


@app.command("show")
def show_command(context: LabContext, release: Release, as_json: Json = False) -> None:
    """Show one release: what it holds, came from and fits, and which gates it stands on."""
    found = ReleaseVerbs(context.obj).show(release)
    show(found, as_json=as_json, look=lambda: look.release_panel(found, now_s=time.time()))


@app.command("verify")
def verify_command(
    context: LabContext,
    release: Release,
    root: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Root of trust to begin with.", show_default="the server's first"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check a release as a robot does: who signed it, that nothing is missing, and every byte."""
    found = ReleaseVerbs(context.obj).verify(release, root=None if root is None else root.read_bytes())
    told = f"{found.release.reference} is signed, whole and right: {len(found.release.content.files)} files."
    show(found, as_json=as_json, look=lambda: told)


@app.command("diff")
def diff_command(
    context: LabContext,
    first: Annotated[str, typer.Argument(help="What runs.", metavar="NAME[@VERSION]")],
    second: Annotated[str, typer.Argument(help="What is to run.", metavar="NAME[@VERSION]")],
    as_json: Json = False,
) -> None:
    """Tell what a robot that runs one release fetches for another, and what else differs. Exit 1 when anything does."""
    found = ReleaseVerbs(context.obj).diff(first, second)
    show(found, as_json=as_json, look=lambda: look.difference_panel(found))
    if found.added or found.gone or found.words:
        raise typer.Exit(1)


@app.command("revoke")
def revoke_command(
    context: LabContext,
    release: Release,
    reason: Annotated[str, typer.Option(help="Why.")],
    key: Keys = None,
    as_json: Json = False,
) -> None:
    """Let a release be installed no more. Robots believe it once people have signed targets without it."""
    found = ReleaseVerbs(context.obj).revoke(release, reason=reason, keys=key or ())
    told = f"Revoked {found.release.reference}."
    step = "" if key else "\nRobots are told once it is signed: ms release sign --key FILE"
    show(found, as_json=as_json, look=lambda: told + step)


@app.command("sign")
def sign_command(
    context: LabContext,
    release: Annotated[
        str, typer.Argument(help="What is to be published; none after a revoke.", metavar="NAME[@VERSION]")
    ] = "",
    key: Keys = None,
    as_json: Json = False,
) -> None:
    """Sign a release with people's keys. It is published once enough have signed it."""
    if not key:
        raise InvalidInput("sign a release", got="no key", wanted="--key FILE")
    found = ReleaseVerbs(context.obj).sign(release, keys=key)
    show(found, as_json=as_json, look=lambda: look.trust_panel(found))


@trust_app.command("new")
def new_trust_command(
    context: LabContext,
    folder: Annotated[Path, typer.Argument(help="Where keys and root.json are written.", metavar="FOLDER")],
    automatic: Annotated[
        bool, typer.Option("--automatic", help="Let the server sign releases of its own folder by itself.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Make three keys of which any two sign, and the root of trust. Hand each to another person, off this machine."""
    found = ReleaseVerbs(context.obj).new_trust(folder, automatic=automatic)
    show(found, as_json=as_json, look=lambda: look.trust_panel(found))


@trust_app.command("renew")
def renew_trust_command(context: LabContext, key: Keys = None, as_json: Json = False) -> None:
    """Make root and targets good for another year, with as many people's keys as it takes."""
    found = ReleaseVerbs(context.obj).renew_trust(keys=key or ())
    show(found, as_json=as_json, look=lambda: look.trust_panel(found))


@trust_app.command("show")
def show_trust_command(context: LabContext, as_json: Json = False) -> None:
    """Show by whose keys releases are trusted, until when, and what waits for signatures."""
    found = ReleaseVerbs(context.obj).trust()
    show(found, as_json=as_json, look=lambda: look.trust_panel(found))
