"""The verbs of jobs and of the server they are submitted to."""

from __future__ import annotations

import json
import re
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from mainspring.app import render, sdk
from mainspring.app.base.specs import DURATION_FORM, OPTION_FORM, duration_from, read_spec
from mainspring.app.cli.arguments import Json, LabContext
from mainspring.app.render.terminal import json_text
from mainspring.domain import answers
from mainspring.domain.errors import InvalidSpec, MainspringError
from mainspring.domain.ids import TeamName
from mainspring.domain.job import ARRAY_MAX, JobKind, JobSpec, Occasion, Tier
from mainspring.domain.life import JobState
from mainspring.domain.release import RELEASE, SILENT_RELEASE
from mainspring.domain.routes import LIST_MAX
from mainspring.domain.wire.telemetry import LogForm

# Flags that say something of each option of a job, and the option's own names for it.
_EACH = {
    "--cpus": "cpus",
    "--memory": "memory_gib",
    "--chip-memory": "chip_memory_gib",
    "--within": "within",
    "--prefer": "prefer",
}
# What variables with secrets in them are called.
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|CREDENTIAL", re.IGNORECASE)
Chips = Annotated[
    list[str] | None,
    typer.Option(help="Acceptable chips; repeat for alternatives.", metavar=OPTION_FORM, show_default="cpu"),
]
After = Annotated[
    list[str] | None, typer.Option(help="Start only once this job has succeeded; repeat for more.", metavar="JOB")
]
Variables = Annotated[list[str] | None, typer.Option(help="For the program; repeat for more.", metavar="NAME=VALUE")]
Secrets = Annotated[
    list[str] | None, typer.Option(help="Secret it finds as a variable; repeat for more.", metavar="NAME")
]
SecretFiles = Annotated[
    list[str] | None, typer.Option(help="Secret it finds as a file: NAME_FILE tells where.", metavar="NAME")
]
Notified = Annotated[
    list[Occasion] | None, typer.Option(help="When its team is told; repeat for more.", show_default="failed")
]
BeginsFrom = Annotated[
    str, typer.Option("--from", help="Begin from this checkpoint: of a job, or an import.", metavar="JOB[@STEP]")
]
Views = Annotated[list[str] | None, typer.Option("--view", help="Training view it reads.", metavar="ID")]
JobName = Annotated[str, typer.Argument(help="Id or name of a job.", metavar="JOB")]


def up(
    context: LabContext,
    port: Annotated[int | None, typer.Option(min=0, max=65_535, help="Port; 0 takes any free one.")] = None,
    policy: Annotated[
        Path | None, typer.Option(help="YAML of planning policy to keep, and use from now on.", metavar="FILE")
    ] = None,
    shared_account: Annotated[
        bool,
        typer.Option(
            "--shared-account", help="Let several teams, and people elsewhere, run jobs under the server's account."
        ),
    ] = False,
    no_backup: Annotated[
        bool, typer.Option("--no-backup", help="Let a new release change the store's tables without a copy of it.")
    ] = False,
    log_format: Annotated[
        LogForm | None, typer.Option(help="How the server logs.", show_default="config.yaml's, text")
    ] = None,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Be the server, for systemd and the like, until told to end.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Start the server of this home, if it is not running."""
    if foreground:
        from mainspring.app.server import daemon

        home = context.obj.home
        how = {"shared_account": shared_account, "backup": not no_backup}
        daemon.become(home, port=port, policy=policy, log_format=log_format, **how)
    record = context.obj.up(
        port=port, policy=policy, shared_account=shared_account, backup=not no_backup, log_format=log_format
    )
    config = context.obj.home.config()
    told = [f"Mainspring is up at {record.url} (home {context.obj.home.path})"]
    told.append(render.told_of_accounts(config.run_as))
    told += filter(None, [render.told_of_objects(config.objects, config.objects_role)])
    if config.run_as:
        from mainspring.app.server.users import without_python

        barred = without_python(config)
        if barred:
            told.append(f"Of these {', '.join(barred)} cannot run the server's Python, {sys.executable}.")
    if not as_json:
        with suppress(MainspringError):
            told.append(f"Look at it: {context.obj.page(own=True)} (once, within ten minutes; ms web makes another)")
    render.show(record, as_json=as_json, look=lambda: "\n".join(told))


def down(context: LabContext, as_json: Json = False) -> None:
    """Stop the server. Running jobs go on; the next `ms up` picks them up again."""
    stopped = context.obj.down()
    render.show({"stopped": stopped}, as_json=as_json, look=lambda: "Stopped." if stopped else "It was not running.")


def run(
    context: LabContext,
    words: Annotated[
        list[str] | None,
        typer.Argument(help="A YAML spec, or a program and its arguments after --.", metavar="SPEC | -- COMMAND"),
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the job; the program's name when left out.")] = "",
    on: Chips = None,
    replicas: Annotated[int | None, typer.Option(min=1, help="Replicas that start together.", show_default="1")] = None,
    spares: Annotated[int, typer.Option(min=0, help="How many of them stand by, to take the place of lost ones.")] = 0,
    cpus: Annotated[float | None, typer.Option(min=0, help="CPU cores per replica.")] = None,
    memory: Annotated[float | None, typer.Option(min=0, help="Host memory per replica.", metavar="GIB")] = None,
    chip_memory: Annotated[float | None, typer.Option(min=0, help="Memory each chip must have.", metavar="GIB")] = None,
    within: Annotated[str, typer.Option(help="Level that must hold all replicas (node, rack, block).")] = "",
    prefer: Annotated[str, typer.Option(help="Level that should hold them, when one can.")] = "",
    duration: Annotated[str, typer.Option(help=f"How long it will run, as you expect: {DURATION_FORM}.")] = "",
    team: Annotated[str, typer.Option(help="Team that is charged.", show_default="lab")] = "",
    tier: Annotated[Tier | None, typer.Option(help="How urgent it is.", show_default="standard")] = None,
    kind: Annotated[JobKind | None, typer.Option(help="What it is for.", show_default="train")] = None,
    env: Variables = None,
    secret: Secrets = None,
    secret_file: SecretFiles = None,
    notify: Notified = None,
    views: Views = None,
    after: After = None,
    begins_from: BeginsFrom = "",
    count: Annotated[int, typer.Option(min=1, max=ARRAY_MAX, help="Make an array of so many equal jobs.")] = 1,
    again: Annotated[str, typer.Option(help="Repeat this job: same spec, same code.", metavar="JOB")] = "",
    key: Annotated[str, typer.Option(help="Idempotency key: the same key never makes a second job.")] = "",
    no_code: Annotated[bool, typer.Option("--no-code", help="Do not take the working tree along.")] = False,
    no_plan: Annotated[bool, typer.Option("--no-plan", help="Do not look whether its recipe fits the chips.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it has ended; exit 1 unless it succeeded.")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Show rank 0's output while waiting.")] = False,
    as_json: Json = False,
) -> None:
    """Submit a job: it names chips and replicas, never a cluster."""
    lab = context.obj
    _refuse([flag for flag, value in {"--wait": wait, "--follow": follow}.items() if value and count > 1], "--count")
    each = {"cpus": cpus, "memory": memory, "chip-memory": chip_memory, "within": within, "prefer": prefer}
    about = {"team": team, "tier": tier and tier.value, "kind": kind and kind.value, "env": env, "duration": duration}
    about |= {"secret": secret, "secret-file": secret_file, "view": views}
    given = {"name": name, "on": on, "replicas": replicas, "spares": spares, "notify": notify, **each, **about}
    given = {f"--{field}": value for field, value in given.items() if value}
    if again:
        flags = {
            "--no-code": no_code,
            "--no-plan": no_plan,
            "--after": after,
            "--from": begins_from,
            "--count": count > 1,
        }
        _refuse([*(words or []), *given, *(flag for flag, value in flags.items() if value)], "--again")
        view = lab.again(again, key=key)
    else:
        view = lab.run(
            _warned(_spec_of(words or [], given)),
            key=key,
            code=None if no_code else Path.cwd(),
            count=count,
            after=after or (),
            begins_from=begins_from,
            on_code=lambda taken: _say(str(taken), quiet=as_json),
            plan=not no_plan,
            on_plan=lambda made: _say(*made.told, doubts=made.doubts, quiet=as_json),
        )
    _told(lab, view, wait=wait, follow=follow, as_json=as_json)


def _warned(spec: JobSpec) -> JobSpec:
    """Returns a spec, having said so when a plain variable looks like a secret: who may read the job may read it."""
    for name in dict.fromkeys(name for role in spec.roles for name in role.environment if _SECRET.search(name)):
        render.ERRORS.print(
            f"{name} is a plain variable: it is stored and shown with the job. If it is a secret: "
            f"ms secret set {name} --team {spec.team}, then ms run --secret {name}",
            style="yellow",
        )
    return spec


def _say(*lines: str, doubts: tuple[str, ...] = (), quiet: bool) -> None:
    """Tells of a submit what is good to know, unless a machine reads, and what is doubtful."""
    for line in () if quiet else lines:
        render.ERRORS.print(line, style="dim", highlight=False)
    for line in doubts:
        render.ERRORS.print(line, style="yellow", highlight=False)


def _told(lab: sdk.Lab, view: answers.JobView, *, wait: bool, follow: bool, as_json: bool) -> None:
    """Tells of a job that was submitted, and sees it to its end when that is wanted."""
    if not as_json and view.array is not None:
        first = view.array.first
        render.show(
            f"Submitted {view.array.count} jobs from {first} ({view.spec.name}) on.\nLook: ms ps --array {first}"
        )
    elif not as_json:
        render.show(f"Submitted {view.id} ({view.spec.name}).\nLook: ms why {view.id}; ms logs -f {view.id}")
    if wait or follow:
        view = _seen_to_its_end(lab, view, follow=follow, out=sys.stderr if as_json else sys.stdout)
    if as_json:
        render.show(view, as_json=True)
    elif wait or follow:
        render.show(f"{view.spec.name} {view.state.value}: {view.reason}")
    if (wait or follow) and view.state is not JobState.SUCCEEDED:
        raise typer.Exit(1)


def _refuse(flags: list[str], beside: str) -> None:
    if flags:
        raise InvalidSpec("submit a job", on=beside, got=f"{flags[0]} beside it", wanted="one or the other")


def _spec_of(words: list[str], given: dict[str, Any]) -> JobSpec:
    if not words:
        raise InvalidSpec("submit a job", got="nothing to run", wanted="a YAML spec, or -- and a command")
    if words[0].endswith((".yaml", ".yml")):
        _refuse([*words[1:], *given], words[0])
        return read_spec(Path(words[0]))
    pairs = [pair.partition("=") for pair in given.pop("--env", [])]
    for variable, equals, _ in pairs:
        if not variable or not equals:
            raise InvalidSpec("submit a job", on="--env", got=repr(variable + equals), wanted="NAME=VALUE")
    environment = {variable: value for variable, _, value in pairs}
    name = given.pop("--name", None) or _name_from(words[0])
    each = {field: given.pop(flag) for flag, field in _EACH.items() if flag in given}
    if "--duration" in given:
        given["--duration_s"] = duration_from(given.pop("--duration"))
    for flag, field in {"--secret": "--secrets", "--secret-file": "--secret_files", "--view": "--views"}.items():
        if flag in given:
            given[field] = given.pop(flag)
    fields = {flag.removeprefix("--"): value for flag, value in given.items()}
    return sdk.job(name, words, each=each, environment=environment, **fields)


def _seen_to_its_end(lab: sdk.Lab, view: answers.JobView, *, follow: bool, out: TextIO) -> answers.JobView:
    """Returns the job once it has ended, with rank 0's output shown meanwhile; an interrupt leaves the job alone."""
    try:
        if follow:
            render.write_output(lab.logs(view.id, follow=True), out)
        return lab.wait(view.id)
    except KeyboardInterrupt:
        render.ERRORS.print(f"\n{view.id} goes on. To end it: ms stop {view.id}")
        raise


def _name_from(program: str) -> str:
    letters = (letter if letter.isascii() and letter.isalnum() else "-" for letter in Path(program).stem.lower())
    return "".join(letters)[:40].strip("-") or "job"


def ps(
    context: LabContext,
    state: Annotated[JobState | None, typer.Option(help="Only jobs in this state.")] = None,
    team: Annotated[str, typer.Option(help="Only jobs of this team.", metavar="TEAM")] = "",
    owner: Annotated[str, typer.Option(help="Only what this person submitted.", metavar="NAME")] = "",
    array: Annotated[str, typer.Option(help="Each job of this job's array, in order.", metavar="JOB")] = "",
    after: Annotated[str, typer.Option(help="Go on after this job of the list.", metavar="JOB")] = "",
    limit: Annotated[int, typer.Option(min=1, max=LIST_MAX, help="At most so many, newest first.")] = 50,
    as_json: Json = False,
) -> None:
    """List jobs, newest first; an array is one line."""
    jobs = context.obj.ps(state=state, team=TeamName(team), owner=owner, array=array, after=after, limit=limit)
    none = "No jobs yet. Try: ms run -- python -c 'print(42)'"
    if state or team or owner or after:
        none = f"No {'more ' if after else ''}job{f' is {state.value}' if state else 's of those'}."
    render.show(
        jobs,
        as_json=as_json,
        look=lambda: render.jobs_table(jobs, now_s=time.time(), members=bool(array)) if jobs else none,
    )
    if len(jobs) == limit and not as_json:
        render.ERRORS.print(f"There may be more: ms ps --after {jobs[-1].id}, beside the same options.", style="dim")


def status(
    context: LabContext,
    name: Annotated[
        str, typer.Argument(help="Id or name of a job; the whole server when left out.", metavar="JOB")
    ] = "",
    as_json: Json = False,
) -> None:
    """Show one job in full: attempts, result, goodput, events. Without a job: the server."""
    lab = context.obj
    if name:
        view = lab.status(name)
        events = lab.events(view.id)
        render.show(view, as_json=as_json, look=lambda: render.job_panel(view, events, now_s=time.time()))
        return
    counts = lab.job_counts().states
    clusters = lab.fleet()
    with lab.client() as client:
        health, url = client.health(), client.servers.url
    avoided = [f"{one.at.node} of {one.at.cluster}" for each in clusters for one in each.avoided]
    where = {"health": str(health), "release": health.release, "url": url, "home": str(lab.home.path)}
    facts: dict[str, Any] = {**where, "jobs": counts, "clusters": len(clusters)}
    if avoided:
        facts["avoided nodes"] = ", ".join(avoided)

    told = {label: str(value) for label, value in facts.items()}
    if health.release != RELEASE:
        told["release"] = f"{health.release or SILENT_RELEASE}; here {RELEASE}"
    told["jobs"] = ", ".join(f"{count} {word}" for word, count in counts.items()) or "none yet"
    render.show(facts, as_json=as_json, look=lambda: render.framed(render.facts_grid(told), "Mainspring"))


def why(
    context: LabContext,
    name: Annotated[
        str, typer.Argument(help="Id or name of a job; what all jobs wait for when left out.", metavar="[JOB]")
    ] = "",
    as_json: Json = False,
) -> None:
    """Say why a job runs where it runs; or why it waits, until when, and what would start it now."""
    lab = context.obj
    if not name:
        verdicts = lab.verdicts()
        look = render.verdicts_table(verdicts, now_s=time.time()) if verdicts else "No job waits."
        render.show(verdicts, as_json=as_json, look=lambda: look)
        return
    answer = lab.why(name, remedies=True)
    view = lab.status(answer.job)
    events = () if as_json else lab.events(answer.job)
    render.show(answer, as_json=as_json, look=lambda: render.why_panel(answer, view, events, now_s=time.time()))


def logs(
    context: LabContext,
    name: JobName,
    rank: Annotated[int, typer.Option(min=0, help="Which rank.")] = 0,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")] = False,
    as_json: Json = False,
) -> None:
    """Print one rank's output: of the job's newest attempt, and with --follow of every one after it."""
    chunks = context.obj.logs(name, rank=rank, follow=follow)
    if as_json:
        texts = ({"rank": rank, "text": chunk.decode(errors="replace")} for chunk in chunks)
        chunks = (json.dumps(text).encode() + b"\n" for text in texts)
    if not render.write_output(chunks, sys.stdout):
        gone = "or nothing of it is kept any more"
        render.ERRORS.print(f"Rank {rank} of {name} has written nothing, {gone}. Look: ms why {name}")


def events(
    context: LabContext,
    name: Annotated[str, typer.Argument(help="Id or name of a job; all jobs when left out.", metavar="JOB")] = "",
    since: Annotated[
        int | None, typer.Option(min=0, help="Every event after this number, oldest first, instead of the newest.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=LIST_MAX, help="How many of the newest to show.")] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as they come; of a job, to its end.")] = False,
    as_json: Json = False,
) -> None:
    """Tell what happened, a line each: to one job, or to all that you may read."""
    last = 0
    with context.obj.client() as client:
        for event in client.past_events(name, since=since, limit=limit):
            _tell(event, as_json=as_json)
            last = event.sequence
        for event in client.watch(name or None, since=last) if follow else ():
            _tell(event, as_json=as_json)


def _tell(event: answers.Event, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json_text(event) + "\n")
        sys.stdout.flush()
    else:
        render.show(render.event_line(event))


def stop(
    context: LabContext,
    name: JobName,
    array: Annotated[bool, typer.Option("--array", help="All jobs of its array.")] = False,
    reason: Annotated[str, typer.Option(help="Why, for whoever looks at it later.")] = "",
    as_json: Json = False,
) -> None:
    """Ask a job to end: it is told, gets time to save, then ends."""
    view: answers.JobView = context.obj.stop(name, array=array, reason=reason)
    told = f"{view.id} is {view.state.value}."
    if array and view.array is not None:
        states = ", ".join(f"{count} {state}" for state, count in view.array.states.items())
        told = f"The array from {view.array.first} on: {states}."
    render.show(view, as_json=as_json, look=lambda: told)
