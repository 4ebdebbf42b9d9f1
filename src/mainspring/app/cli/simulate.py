"""`ms simulate`: a trace on a described fleet in virtual time, through the planner that runs the live lab."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from mainspring import planner, simulator  # Loads its names when they are used, so that other verbs start fast.
from mainspring.app import render
from mainspring.app.base.specs import DURATION_FORM, duration_from, read_policy
from mainspring.app.cli.arguments import Json
from mainspring.domain.codec import to_plain
from mainspring.domain.errors import InvalidInput
from mainspring.domain.team import Team

if TYPE_CHECKING:
    from mainspring.domain.answers import Event

EVENTS = "events.jsonl"
FIGURES = "measures.json"
NODES_FORM = "NODESxCHIPS:CHIP"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """One replay to make."""

    name: str
    fleet: simulator.Fleet
    policy: planner.Policy
    events: str


def simulate(
    trace: Annotated[
        Path | None,
        typer.Argument(help="openb pods, Philly jobs, Slurm-simulator events, a plain CSV, or our own event log."),
    ] = None,
    fleet: Annotated[Path | None, typer.Option(help="YAML of clusters, a trace's nodes, or `ms fleet --json`.")] = None,
    nodes: Annotated[
        list[str] | None, typer.Option(help="In place of --fleet; repeat for more kinds.", metavar=NODES_FORM)
    ] = None,
    teams: Annotated[Path | None, typer.Option(help="YAML list of teams: the tenant tree.")] = None,
    policy: Annotated[Path | None, typer.Option(help="YAML of planning policy.", show_default="the defaults")] = None,
    against_fleet: Annotated[Path | None, typer.Option(help="Replay on this fleet too, and compare.")] = None,
    against_nodes: Annotated[
        list[str] | None, typer.Option(help="Replay on these nodes too, and compare.", metavar=NODES_FORM)
    ] = None,
    against_policy: Annotated[Path | None, typer.Option(help="Replay with this policy too, and compare.")] = None,
    outages: Annotated[Path | None, typer.Option(help="CSV of cluster, node, from_s, until_s.")] = None,
    faults: Annotated[
        float, typer.Option(min=0, help="Failures in 1,000 node-days; Meta's RSC-1 saw 6.5, Llama 3's cluster 3.79.")
    ] = 0.0,
    plan_every: Annotated[str, typer.Option(help="Plan at events, at most once in this time.")] = "60s",
    restart: Annotated[str, typer.Option(help="What a displaced or lost job pays before its next step.")] = "300s",
    checkpoint: Annotated[str, typer.Option(help="How often running jobs become durable.")] = "10m",
    no_learn: Annotated[bool, typer.Option("--no-learn", help="Do not learn durations from jobs that ended.")] = False,
    first: Annotated[int | None, typer.Option(min=1, help="Only so many jobs, the first to be submitted.")] = None,
    until: Annotated[
        str, typer.Option(help=f"Stop so long after the start: {DURATION_FORM}.", show_default="when all ended")
    ] = "",
    seed: Annotated[int, typer.Option(min=0, help="Of the faults. The same seed gives the same bytes.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder for plots, figures, events.", metavar="DIR")] = None,
    example: Annotated[Path | None, typer.Option(help="Only write a small lab to try it on.", metavar="DIR")] = None,
    as_json: Json = False,
) -> None:
    """Replay a trace on a described fleet in virtual time: waits, slowdowns, fairness, dollars. Nothing is started.

    Try it: ms simulate --example lab, then ms simulate lab/trace.csv --fleet lab/fleet.yaml --teams lab/teams.yaml
    """
    if example is not None:
        _write_example(example, seed=seed, as_json=as_json)
        return
    if trace is None:
        raise InvalidInput("replay a trace", got="no trace", next_step="ms simulate --example DIR writes one")
    options = simulator.ReplayOptions(
        plan_every_s=duration_from(plan_every),
        restart_s=duration_from(restart),
        checkpoint_s=duration_from(checkpoint),
        learn=not no_learn,
        faults_per_1000_node_days=faults,
        until_s=duration_from(until) if until else None,
    )
    base = _case(fleet, nodes or [], policy, outages)
    cases = [base]
    if against_fleet or against_nodes or against_policy:
        other = _case(against_fleet, against_nodes or [], against_policy or policy, outages, otherwise=base)
        cases = _named(base, other)
    tree = simulator.read_document(teams, tuple[Team, ...], "teams") if teams else ()
    workload = simulator.load(trace)
    workload = workload.first(first) if first else workload
    if out is not None:
        simulator.check_installed()
        out.mkdir(parents=True, exist_ok=True)
    outcomes = {case.name: _replayed(workload, case, tree, options, seed, out) for case in cases}
    _answer(outcomes, {"seed": seed, "options": to_plain(options)}, out, as_json=as_json)


def _write_example(folder: Path, *, seed: int, as_json: bool) -> None:
    files = [str(path) for path in simulator.write_example(folder, seed=seed)]
    on = f"--fleet {folder}/fleet.yaml --teams {folder}/teams.yaml --out {folder}/out"
    told = (
        f"Wrote {', '.join(files)}.\nReplay it: ms simulate {folder}/trace.csv {on}\n"
        f"What 64 more chips buy: add --against-fleet {folder}/fleet-64-more.yaml"
    )
    render.show({"files": files}, as_json=as_json, look=lambda: told)


def _case(
    fleet: Path | None, nodes: list[str], policy: Path | None, outages: Path | None, *, otherwise: _Case | None = None
) -> _Case:
    """Returns what is to be replayed; what is not given is as in another case."""
    if fleet is not None and nodes:
        raise InvalidInput("read a fleet", on="--nodes", got="a fleet file beside it", wanted="one or the other")
    if fleet is None and not nodes:
        if otherwise is None:
            raise InvalidInput("replay a trace", got="no fleet", wanted=f"--fleet FILE or --nodes {NODES_FORM}")
        found = otherwise.fleet
    else:
        found = simulator.load_fleet(fleet) if fleet is not None else simulator.fleet_of(nodes)
        if outages is not None:
            found = replace(found, outages=(*found.outages, *simulator.load_outages(outages)))
    return _Case(
        name=policy.stem if policy else "default policy",
        fleet=found,
        policy=read_policy(policy) if policy else planner.Policy(),
        events=EVENTS,
    )


def _named(base: _Case, other: _Case) -> list[_Case]:
    """Returns two cases under names that tell them apart."""
    fleets, policies = base.fleet.name != other.fleet.name, base.name != other.name

    def name(case: _Case) -> str:
        return ", ".join([case.fleet.name] * fleets + [case.name] * policies)

    if not fleets and not policies:
        return [replace(base, name="base"), replace(other, name="against", events=f"against-{EVENTS}")]
    return [replace(base, name=name(base)), replace(other, name=name(other), events=f"against-{EVENTS}")]


def _replayed(
    workload: simulator.Workload,
    case: _Case,
    tree: tuple[Team, ...],
    options: simulator.ReplayOptions,
    seed: int,
    out: Path | None,
) -> simulator.Outcome:
    """Returns what a replay came to, with a bar on standard error meanwhile."""
    with render.progress_bar() as bar:
        task = bar.add_task("replay", total=len(workload.jobs), note=case.name)

        def go_on(tell: Callable[[Event], None] | None) -> simulator.Outcome:
            return simulator.replay(
                workload,
                case.fleet,
                planner=planner.plan,
                teams=tree,
                policy=case.policy,
                options=options,
                seed=seed,
                tell=tell,
                progress=lambda ended, now_s: bar.update(
                    task, completed=ended, note=f"{(now_s - workload.jobs[0].submit_s) / 86_400:.1f} d of virtual time"
                ),
            )

        if out is None:
            return go_on(None)
        with (out / case.events).open("w", encoding="utf-8", newline="\n") as file:
            return go_on(lambda event: _write(file, event))


def _write(file: TextIO, event: Event) -> None:
    """Writes an event on a line, as the API lists it."""
    plain = {
        "sequence": event.sequence,
        "time_s": event.time_s,
        "kind": event.kind,
        "job": event.job,
        "attempt": event.attempt,
        "detail": dict(event.detail),
    }
    file.write(json.dumps(plain, separators=(",", ":"), ensure_ascii=False) + "\n")


def _answer(
    outcomes: Mapping[str, simulator.Outcome], settings: Mapping[str, object], out: Path | None, *, as_json: bool
) -> None:
    """Writes plots and figures where they are wanted, and shows what was measured."""
    measured = {name: simulator.measure(outcome) for name, outcome in outcomes.items()}
    first, *others = measured
    answer: dict[str, object] = {**settings, "measures": measured[first]}
    comparison = None
    if others:
        comparison = simulator.compare(measured[first], measured[others[0]], names=(first, others[0]))
        answer |= {"against": measured[others[0]], "comparison": comparison}
    files = []
    if out is not None:
        text = json.dumps(to_plain(answer), indent=2, ensure_ascii=False) + "\n"
        (out / FIGURES).write_text(text, encoding="utf-8", newline="\n")
        drawn = simulator.draw({name: (outcome, measured[name]) for name, outcome in outcomes.items()}, out)
        events = [EVENTS, f"against-{EVENTS}"][: len(outcomes)]
        files = [str(path) for path in (*drawn, out / FIGURES, *(out / name for name in events))]
    render.show(
        answer,
        as_json=as_json,
        look=lambda: (
            render.replay_panel(measured[first], files)
            if comparison is None
            else render.comparison_panel(comparison, measured[first], measured[others[0]], files)
        ),
    )
