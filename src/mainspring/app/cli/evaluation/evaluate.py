"""`ms eval`: what a checkpoint is worth, how two compare, and whether one may go on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from mainspring.app.base.specs import OPTION_FORM, duration_from
from mainspring.app.cli.arguments import Json, LabContext
from mainspring.app.render.progress import progress_bar
from mainspring.app.render.tables import show
from mainspring.app.render.training import evaluations as look
from mainspring.app.sdk.policies.evaluations import STARTS, EvaluationVerbs
from mainspring.domain.errors import InvalidInput, NotFound
from mainspring.domain.ids import TeamName
from mainspring.domain.job import LAB
from mainspring.robots.environments.named import ENVIRONMENTS
from mainspring.robots.evaluation.keeping import evaluation_folder
from mainspring.robots.evaluation.report import EvaluationReport
from mainspring.robots.evaluation.statistics import GateVerdict

app = typer.Typer()
rules = typer.Typer()
app.add_typer(rules, name="rule", help="Have checkpoints evaluated by themselves: new, ls, rm.")
DEFAULT = "run"  # `ms eval JOB@STEP` is `ms eval run JOB@STEP`.

Checkpoint = Annotated[str, typer.Argument(help="The newest step without one.", metavar="JOB[@STEP]")]
Environment = Annotated[
    str,
    typer.Option("--env", metavar="ENV", help=f"{', '.join(ENVIRONMENTS)}, or FILE.py:CLASS.", show_default=False),
]
Starts = Annotated[int, typer.Option(min=1, help="Episodes to play.")]
Seed = Annotated[int, typer.Option(min=0, help="Of the starts, and of the policy's noise.")]


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    with progress_bar() as bar:
        task = bar.add_task("evaluate", total=total, note="episodes")
        yield lambda done: bar.update(task, completed=done)


@app.command("run")
def run_command(
    context: LabContext,
    checkpoint: Checkpoint,
    environment: Environment = "",
    starts: Starts = STARTS,
    seed: Seed = 0,
    again: Annotated[bool, typer.Option("--again", help="Anew, though the same was evaluated before.")] = False,
    on: Annotated[
        list[str] | None,
        typer.Option(metavar=OPTION_FORM, help="By a batch job on these; repeat.", show_default="here"),
    ] = None,
    team: Annotated[str, typer.Option(help="Who is charged for that job.")] = LAB,
    code: Annotated[Path | None, typer.Option(help="Folder of the environment's code for that job.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write tables, plots and films to.")] = None,
    as_json: Json = False,
) -> None:
    """Evaluate a checkpoint; the report is kept with it. The word `run` may be left out.

    It plays episodes in an environment, and measures errors of actions on held-out episodes by task.

    Try it: ms eval JOB@STEP --env metaworld --starts 100 --on cpu
    """
    verbs = EvaluationVerbs(context.obj)
    with _progress(starts if environment else 1) as progress:
        evaluated: Callable[..., EvaluationReport] = partial(verbs.run, checkpoint, again=again)
        if on:
            evaluated = partial(verbs.run_on, checkpoint, on, team=TeamName(team), code=code)
        report = evaluated(environment=environment, starts=starts, seed=seed, progress=progress)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        for name in report.files:
            (out / name).write_bytes(verbs.fetch(report, name))
    folder = str(out) if out is not None else evaluation_folder(report.job, report.step, report.name)
    show(report, as_json=as_json, look=lambda: look.report_panel(report, folder=folder))


@app.command("environments")
def environments_command(as_json: Json = False) -> None:
    """List the environments that Mainspring brings."""
    show(tuple(ENVIRONMENTS), as_json=as_json, look=lambda: "\n".join(ENVIRONMENTS))


@app.command("ls")
def list_command(
    context: LabContext,
    job: Annotated[str, typer.Argument(help="Whose; all when left out.", metavar="JOB")] = "",
    as_json: Json = False,
) -> None:
    """List evaluations, of the newest step first."""
    found = EvaluationVerbs(context.obj).ls(job)
    none = "No evaluations yet. Try: ms eval JOB --env metaworld"
    show(found, as_json=as_json, look=lambda: look.reports_table(found, now_s=time.time()) if found else none)


@app.command("show")
def show_command(
    context: LabContext,
    checkpoint: Checkpoint,
    name: Annotated[str, typer.Option(help="Which one, as `ms eval ls` has it.", show_default="the newest")] = "",
    out: Annotated[Path | None, typer.Option(help="Folder to write its tables, plots and films to.")] = None,
    as_json: Json = False,
) -> None:
    """Show an evaluation that was made."""
    verbs = EvaluationVerbs(context.obj)
    called, _, step = checkpoint.partition("@")
    found = [each for each in verbs.ls(called) if (not step or str(each.step) == step) and name in ("", each.name)]
    if not found:
        raise NotFound("show an evaluation", on=checkpoint, got="none", next_step=f"ms eval ls {called}")
    report = max(found, key=lambda each: (each.step, each.created_s))
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        for file in report.files:
            (out / file).write_bytes(verbs.fetch(report, file))
    folder = str(out) if out is not None else evaluation_folder(report.job, report.step, report.name)
    show(report, as_json=as_json, look=lambda: look.report_panel(report, folder=folder))


@app.command("compare")
def compare_command(
    context: LabContext,
    first: Annotated[str, typer.Argument(help="The candidate.", metavar="JOB[@STEP]")],
    second: Annotated[str, typer.Argument(help="What it is held against.", metavar="JOB[@STEP]")],
    environment: Annotated[
        str, typer.Option("--env", metavar="ENV", help=f"{', '.join(ENVIRONMENTS)}, or FILE.py:CLASS.")
    ],
    starts: Starts = STARTS,
    seed: Seed = 0,
    margin: Annotated[
        float, typer.Option(min=0, max=1, help="How much worse the candidate may be; 0.02 is two points.")
    ] = 0.0,
    gate: Annotated[str, typer.Option(help="Keep it as the verdict of a gate.", metavar="NAME")] = "",
    as_json: Json = False,
) -> None:
    """Compare two policies on the same starts. Exit 1 unless the first is not worse than the margin allows.

    What was evaluated before is not played again.
    """
    with _progress(2 * starts) as progress:
        found = EvaluationVerbs(context.obj).compare(
            first,
            second,
            environment=environment,
            starts=starts,
            seed=seed,
            margin=margin,
            gate=gate,
            progress=progress,
        )
    show(found, as_json=as_json, look=lambda: look.comparison_panel(found))
    if found.verdict is not GateVerdict.PASSED:
        raise typer.Exit(1)


@app.command("gate")
def gate_command(
    context: LabContext,
    checkpoint: Checkpoint,
    name: Annotated[str, typer.Argument(help="Judge anew under this name; those kept when left out.")] = "",
    at_least: Annotated[
        float | None, typer.Option(min=0, max=1, help="The success rate wanted, at 95 %.", show_default=False)
    ] = None,
    environment: Environment = "",
    starts: Starts = STARTS,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Tell what gates say of a checkpoint, or judge it by an evaluation that was made. Exit 1 unless all passed.

    A gate is passed, failed or undecided: then more starts are needed. A release asks for it.

    Try it: ms eval gate JOB@STEP pick --at-least 0.9 --env metaworld --starts 100
    """
    verbs = EvaluationVerbs(context.obj)
    if bool(name) != (at_least is not None):
        got = "a name and no --at-least" if name else "--at-least and no name"
        raise InvalidInput("judge a checkpoint", got=got, wanted="both, or neither to see what is kept")
    if at_least is None:
        found = verbs.gates(checkpoint)
    else:
        found = (
            verbs.gate(checkpoint, name=name, at_least=at_least, environment=environment, starts=starts, seed=seed),
        )
    none = "No gates yet. Try: ms eval gate JOB@STEP NAME --at-least 0.9 --env metaworld"
    show(found, as_json=as_json, look=lambda: look.gates_table(found, now_s=time.time()) if found else none)
    if not found or any(each.verdict is not GateVerdict.PASSED for each in found):
        raise typer.Exit(1)


@rules.command("new")
def new_rule(
    context: LabContext,
    name: Annotated[str, typer.Argument(help="The rule's; one of that name is replaced.")],
    job: Annotated[str, typer.Option(help="Whose checkpoints: an id, or a name for its newest job.", metavar="JOB")],
    environment: Environment = "",
    every: Annotated[
        str, typer.Option(help="Each so many durable checkpoints, or at most one in a time: 5, 30m.")
    ] = "1",
    chips: Annotated[int, typer.Option(min=1, help="All evaluations together ask for no more.")] = 1,
    on: Annotated[
        list[str] | None, typer.Option(metavar=OPTION_FORM, help="What one may run on; repeat.", show_default="cpu")
    ] = None,
    starts: Starts = STARTS,
    seed: Seed = 0,
    team: Annotated[str, typer.Option(help="Who is charged.")] = LAB,
    code: Annotated[Path | None, typer.Option(help="Folder of the environment's code, for one of your own.")] = None,
    as_json: Json = False,
) -> None:
    """Have checkpoints of a job evaluated by themselves, by batch jobs of the lowest tier, the newest first.

    What waits for an older checkpoint is dropped. Reports are kept with the checkpoints: ms eval ls JOB.

    Try it: ms eval rule new nightly --job pick --env metaworld --every 5 --chips 2
    """
    number = int(every) if every.isdigit() else 0
    made = EvaluationVerbs(context.obj).rule(
        name,
        job,
        environment=environment,
        every=number,
        every_s=0.0 if number else duration_from(every),
        chips_max=chips,
        on=on or "cpu",
        starts=starts,
        seed=seed,
        team=TeamName(team),
        code=code,
    )
    show(made, as_json=as_json, look=lambda: look.rules_table([made], now_s=time.time()))


@rules.command("ls")
def list_rules(context: LabContext, as_json: Json = False) -> None:
    """List rules, and the newest evaluation of each."""
    found = EvaluationVerbs(context.obj).rules()
    none = "No rules yet. Try: ms eval rule new nightly --job JOB --env metaworld"
    show(found, as_json=as_json, look=lambda: look.rules_table(found, now_s=time.time()) if found else none)


@rules.command("rm")
def remove_rule(
    context: LabContext, name: Annotated[str, typer.Argument(help="The rule's.")], as_json: Json = False
) -> None:
    """Remove a rule; evaluations that it started go on."""
    found = EvaluationVerbs(context.obj).remove_rule(name)
    show(found, as_json=as_json, look=lambda: f"Removed rule {found.name}.")
