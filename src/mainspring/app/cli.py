"""The command line, `ms`: thin verbs over the SDK.

Exit codes: 0 done, 1 the job or command failed, 2 wrong input, 3 not found, 4 conflict, 5 not allowed, 6 not available.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.panel import Panel
from rich.table import Table

from mainspring.app import cli_data, cli_demo, output
from mainspring.app.output import CONSOLE, ERRORS, show
from mainspring.app.sdk import Lab, job
from mainspring.app.specs import read_spec
from mainspring.domain.errors import InvalidSpec, MainspringError
from mainspring.domain.job import JobSpec
from mainspring.domain.life import JobState
from mainspring.domain.wire import JobView

app = typer.Typer(
    name="ms",
    help="Mainspring: jobs, data and robots of a lab.\n\n" + (__doc__ or "").partition("\n\n")[2],
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.add_typer(cli_data.app, name="data")
app.command("demo")(cli_demo.demo)

Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
JobName = Annotated[str, typer.Argument(help="Id or name of a job.", metavar="JOB")]


@app.callback()
def _home(
    context: typer.Context,
    home: Annotated[
        Path | None,
        typer.Option(
            help="Home folder with configuration and state.", envvar="MAINSPRING_HOME", show_default="~/.mainspring"
        ),
    ] = None,
) -> None:
    context.obj = Lab(home)


@app.command()
def up(
    context: typer.Context,
    port: Annotated[int | None, typer.Option(min=0, max=65_535, help="Port; 0 takes any free one.")] = None,
    as_json: Json = False,
) -> None:
    """Start the server of this home, if it is not running."""
    lab: Lab = context.obj
    record = lab.up(port=port)
    show(record, as_json=as_json, look=lambda: f"Mainspring is up at {record.url} (home {lab.home.path})")


@app.command()
def down(context: typer.Context, as_json: Json = False) -> None:
    """Stop the server. Running jobs go on; the next `ms up` picks them up again."""
    stopped = context.obj.down()
    show({"stopped": stopped}, as_json=as_json, look=lambda: "Stopped." if stopped else "It was not running.")


@app.command(context_settings={"allow_interspersed_args": False})
def run(
    context: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(help="A YAML spec, or a program and its arguments after --.", metavar="SPEC | -- COMMAND"),
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the job; the program's name when left out.")] = "",
    on: Annotated[
        list[str] | None, typer.Option(help="Acceptable chips, CHIP[:CHIPS][@SPEED]; repeat for alternatives.")
    ] = None,
    replicas: Annotated[int, typer.Option(min=1, help="Replicas that start together.")] = 1,
    team: Annotated[str, typer.Option(help="Team that is charged.")] = "lab",
    tier: Annotated[str, typer.Option(help="critical, standard or opportunistic.")] = "standard",
    kind: Annotated[str, typer.Option(help="train, batch, service or interactive.")] = "train",
    env: Annotated[list[str] | None, typer.Option(help="NAME=VALUE for the program; repeat for more.")] = None,
    again: Annotated[str, typer.Option(help="Repeat this job: same spec, same code.", metavar="JOB")] = "",
    key: Annotated[str, typer.Option(help="Idempotency key: the same key never makes a second job.")] = "",
    no_code: Annotated[bool, typer.Option("--no-code", help="Do not take the working tree along.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it has ended; exit 1 unless it succeeded.")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Show rank 0's output until it has ended.")] = False,
    as_json: Json = False,
) -> None:
    """Submit a job: it names chips and replicas, never a cluster."""
    lab: Lab = context.obj
    if again:
        if words or on:
            raise InvalidSpec("repeat a job", got="a spec or command beside --again", wanted="one or the other")
        view = lab.again(again, key=key)
    else:
        words = words or []
        if len(words) == 1 and words[0].endswith((".yaml", ".yml")):
            spec = read_spec(Path(words[0]))
        else:
            spec = _spec_of(words, name, on or ["cpu"], replicas, env or [], team=team, tier=tier, kind=kind)
        view = lab.run(spec, key=key, code=None if no_code else Path.cwd())
    if not as_json:
        CONSOLE.print(
            f"Submitted [bold]{view.id}[/bold] ({view.spec.name}). Look: ms status {view.id}; ms why {view.id}"
        )
    if follow:
        for chunk in lab.logs(view.id, follow=True):
            (sys.stderr if as_json else sys.stdout).buffer.write(chunk)
            sys.stdout.flush()
    if wait or follow:
        view = lab.wait(view.id)
        if not as_json:
            CONSOLE.print(view.state.value, view.reason)
    if as_json:
        show(view, as_json=True, look=str)
    if (wait or follow) and view.state is not JobState.SUCCEEDED:
        raise typer.Exit(1)


def _spec_of(words: list[str], name: str, on: list[str], replicas: int, env: list[str], **fields: str) -> JobSpec:
    if not words:
        raise InvalidSpec("submit a job", got="nothing to run", wanted="a YAML spec, or -- and a command")
    if any("=" not in pair for pair in env):
        raise InvalidSpec("submit a job", on="--env", got=repr(env), wanted="NAME=VALUE")
    chosen = name or _name_from(words[0])
    environment = dict(pair.split("=", 1) for pair in env)
    return job(chosen, words, on=on, replicas=replicas, environment=environment, **fields)


def _name_from(program: str) -> str:
    kept = "".join(letter if letter.isalnum() else "-" for letter in Path(program).stem.lower()).strip("-")
    return kept[:40] or "job"


@app.command()
def ps(
    context: typer.Context,
    state: Annotated[str, typer.Option(help="Only jobs in this state.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="At most so many, newest first.")] = 50,
    as_json: Json = False,
) -> None:
    """List jobs, newest first."""
    jobs = context.obj.jobs(state=state, limit=limit)
    show(jobs, as_json=as_json, look=lambda: output.jobs_table(jobs, now_s=time.time()))


@app.command()
def status(
    context: typer.Context,
    name: Annotated[
        str, typer.Argument(help="Id or name of a job; the whole server when left out.", metavar="JOB")
    ] = "",
    as_json: Json = False,
) -> None:
    """Show one job in full: attempts, result, goodput, events. Without a job: the server."""
    lab: Lab = context.obj
    if name:
        view = lab.status(name)
        events = lab.events(view.id)
        show(view, as_json=as_json, look=lambda: output.job_panel(view, events, now_s=time.time()))
        return
    jobs, clusters = lab.jobs(limit=1_000), lab.fleet()
    counts: dict[str, int] = {}
    for each in jobs:
        counts[each.state.value] = counts.get(each.state.value, 0) + 1
    record = lab.home.server()
    facts = {"url": record.url if record else "", "home": str(lab.home.path), "jobs": counts, "clusters": len(clusters)}

    def look() -> Panel:
        grid = Table.grid(padding=(0, 2))
        for label, value in facts.items():
            grid.add_row(
                label, ", ".join(f"{count} {word}" for word, count in counts.items()) if label == "jobs" else str(value)
            )
        return Panel(grid, title="Mainspring", title_align="left")

    show(facts, as_json=as_json, look=look)


@app.command()
def why(context: typer.Context, name: JobName, as_json: Json = False) -> None:
    """Say why a job runs where it runs, or why it waits."""
    answer = context.obj.why(name)
    show(answer, as_json=as_json, look=lambda: output.why_panel(answer))


@app.command()
def logs(
    context: typer.Context,
    name: JobName,
    rank: Annotated[int, typer.Option(min=0, help="Which rank.")] = 0,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")] = False,
    as_json: Json = False,
) -> None:
    """Print one rank's output, from the job's newest attempt."""
    for chunk in context.obj.logs(name, rank=rank, follow=follow):
        if as_json:
            sys.stdout.write(json.dumps({"rank": rank, "text": chunk.decode(errors="replace")}) + "\n")
        else:
            sys.stdout.buffer.write(chunk)
        sys.stdout.flush()


@app.command()
def stop(context: typer.Context, name: JobName, as_json: Json = False) -> None:
    """Ask a job to end: it is told, gets time to save, then ends."""
    view: JobView = context.obj.stop(name)
    show(view, as_json=as_json, look=lambda: f"{view.id} is {view.state.value}.")


@app.command()
def fleet(context: typer.Context, as_json: Json = False) -> None:
    """List clusters, chips and prices, and what is in use."""
    clusters = context.obj.fleet()
    show(clusters, as_json=as_json, look=lambda: output.fleet_table(clusters))


def main() -> None:
    """Runs the command line; every known error becomes one clear line and an exit code."""
    try:
        app()
    except MainspringError as error:
        if "--json" in sys.argv:
            parts = {name: getattr(error, name) for name in ("attempted", "on", "got", "wanted", "next_step")}
            sys.stderr.write(json.dumps({"error": type(error).__name__, **parts}) + "\n")
        else:
            _tell(error)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)


def _tell(error: MainspringError) -> None:
    grid = Table.grid(padding=(0, 2))
    for label, text in (("on", error.on), ("got", error.got), ("wanted", error.wanted), ("next", error.next_step)):
        if text:
            grid.add_row(label, text)
    ERRORS.print(f"[red]Could not {error.attempted}.[/red]")
    if grid.row_count:
        ERRORS.print(grid)
