"""`ms demo`: the main job, end to end, with progress and a summary."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from mainspring.app import render, sdk
from mainspring.app.cli.arguments import Json, LabContext
from mainspring.domain.errors import InvalidInput, Unavailable


class DemoEngine(str, Enum):
    """What runs the dearer of the demo's two clusters."""

    LOCAL = "local"
    SLURM = "slurm"
    KUBERNETES = "kubernetes"


DEMO_HOME = Path(".mainspring") / "demo"
ARMS, ARMS_MIN, ARMS_MAX = 20, 3, 40  # One in each of the first rings; each takes 0.4 GB.
LOOP_STARTS, LOOP_STARTS_MIN = 100, 40  # Of fewer no gate of the loop can be passed, however all go.
TOLD = "vla_tiny"  # As the demo calls it, which takes long to import.


def demo(
    context: LabContext,
    data: Annotated[
        Path | None, typer.Option(help="A LeRobot v2.1 or v3 dataset in place of the simulated arm.", exists=True)
    ] = None,
    recipe: Annotated[
        str, typer.Option(help=f"{TOLD}: words alone tell the goal; the main show when left out.", show_default=False)
    ] = "",
    episodes: Annotated[
        int, typer.Option(min=0, help="Episodes to record.", show_default=f"200, or 3 x 60 of {TOLD}")
    ] = 0,
    steps: Annotated[int, typer.Option(min=0, help="Training steps; 0 for the recipe's own number.")] = 0,
    engine: Annotated[
        DemoEngine,
        typer.Option(help="What runs the better cluster; slurm and kubernetes start one of their own here."),
    ] = DemoEngine.LOCAL,
    starts: Annotated[
        int, typer.Option(min=0, help="Unseen starts to evaluate on.", show_default=f"100, or 50 a place of {TOLD}")
    ] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Of recording and evaluation.")] = 0,
    loop: Annotated[
        bool, typer.Option("--loop", help="Robots: what fails comes home, is learned from, and rolled out.")
    ] = False,
    arms: Annotated[
        int, typer.Option(min=0, max=ARMS_MAX, help=f"Arms of --loop, {ARMS_MIN} or more.", show_default=str(ARMS))
    ] = 0,
    as_json: Json = False,
) -> None:
    """Take robot data to a policy that works, through a killed rank, on this machine.

    With --loop, robots are part of it: simulated arms with real agents fail at something new, are shown how it is done,
    and get a better release, ring by ring; a bad one comes back by itself.

    Makes its own home folder, .mainspring/demo below this one, unless --home names another.
    """
    from mainspring.app.cli.demos.job import (  # The simulated arm takes long to import.
        Demo,
        DemoOptions,
        check_nothing,
        pretended,
        summary,
    )
    from mainspring.app.cli.demos.kubernetes import check_kubernetes, on_kubernetes
    from mainspring.app.cli.demos.slurm import check_slurm, on_slurm

    if recipe not in ("", TOLD) or (recipe and data is not None):
        got = f"recipe {recipe!r}{' and --data' if data is not None else ''}"
        raise InvalidInput("run the demo", got=got, wanted=f"{TOLD}, of the simulated arm; or none")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)  # Whoever ends the demo, it leaves nothing behind.
    lab = context.obj
    chosen = context.parent is not None and context.parent.params.get("home") is not None
    if not chosen:
        lab = sdk.Lab(DEMO_HOME)
    if loop or arms:
        others = {"--data": data, "--recipe": recipe, "--episodes": episodes, "--steps": steps, "--seed": seed}
        others |= {"--engine": engine is not DemoEngine.LOCAL, "--arms without --loop": not loop}
        _loop(lab, others, arms=arms or ARMS, starts=starts or LOOP_STARTS, as_json=as_json)
        return
    stages = {
        DemoEngine.LOCAL: (check_nothing, pretended),
        DemoEngine.SLURM: (check_slurm, on_slurm),
        DemoEngine.KUBERNETES: (check_kubernetes, on_kubernetes),
    }
    can_start, stage = stages[engine]
    can_start()
    options = DemoOptions(data=data, recipe=recipe, episodes=episodes, steps=steps, starts=starts, seed=seed)
    report = Demo(lab, options, stage).run()
    render.show(report, as_json=as_json, look=lambda: summary(report))


def _loop(lab: sdk.Lab, others: Mapping[str, object], *, arms: int, starts: int, as_json: bool) -> None:
    """Shows the loop; exits with 1 where it did not show what it is to show."""
    from mainspring.app.cli.demos.loop.story import Loop  # The simulated arm takes long to import.
    from mainspring.app.cli.demos.loop.summary import summary

    if given := [name for name, value in others.items() if value]:
        raise InvalidInput("show the loop", got=", ".join(given), wanted="--loop, with --arms and --starts alone")
    if arms < ARMS_MIN:
        raise InvalidInput("show the loop", on="--arms", got=str(arms), wanted=f"{ARMS_MIN} to {ARMS_MAX}")
    if starts < LOOP_STARTS_MIN:
        raise InvalidInput("show the loop", on="--starts", got=str(starts), wanted=f"{LOOP_STARTS_MIN} or more")
    report = Loop(lab, arms=arms, starts=starts).run()
    render.show(report, as_json=as_json, look=lambda: summary(report))
    if report.missed:
        raise Unavailable("show the loop", got="; ".join(report.missed), next_step="look into the logs below its home")
