"""The main job, end to end on one machine: recordings to a policy that works, through a killed rank.

Decides what is recorded, trained and killed when; every step is an ordinary call of the SDK that anybody could make.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import RenderableType
from rich.text import Text

from mainspring.app.base.home import Config
from mainspring.app.base.system import looked
from mainspring.app.cli.data.data import ingest_with_progress, view_with_progress
from mainspring.app.render.data import report_panel
from mainspring.app.render.goodput import goodput_text
from mainspring.app.render.plans import why_panel
from mainspring.app.render.progress import progress_bar
from mainspring.app.render.tables import ERRORS, facts_grid, framed, where
from mainspring.app.sdk.lab import Lab, job
from mainspring.control.state.accounting import spent
from mainspring.data import IngestReport, ViewManifest, ViewRecipe
from mainspring.domain.answers import JobView
from mainspring.domain.errors import InvalidInput, MainspringError, Unavailable
from mainspring.domain.ids import ChipName, ClusterName
from mainspring.domain.job import JobSpec
from mainspring.domain.life import JobState, ended
from mainspring.domain.wire import RankStatus
from mainspring.domain.wire.events.leads import GenerationResumedEvent
from mainspring.engines.local.config import LocalCluster
from mainspring.robots.environments.metaworld import PLACES, TOLD_STATE_NAMES
from mainspring.robots.evaluation.cells import cell_name
from mainspring.robots.recorder import record_episodes
from mainspring.train.recipe import changed, recipe_named
from mainspring.train.robots import WORDS

MARKER = "demo"  # A home folder with this file in it was made by the demo, and may be made anew.
REPLICAS = 2
ON = ("h100@1.0", "v5e@0.45")  # Relative speed of one chip at this job: what makes the dearer chip the cheaper choice.
ARM_VIEW = ViewRecipe(holdout_fraction=0.0)  # It is evaluated by driving the arm from starts it never saw.
JOB_S_MAX = 1_200.0
EPISODES, STARTS = 200, 100
TOLD = "vla_tiny"  # The recipe of the show in which words alone tell the goal.
TOLD_EPISODES, TOLD_STARTS = 60, 50  # Of each place.
TOLD_CHANGES = {  # It sees no pictures, and hears its task.
    "policy": {
        "image": None,
        "relative_actions": False,
        "action_dim": len(TOLD_STATE_NAMES),
        "prompt_length": 16,
        "prompt_noise": 0.2,  # Of a dozen sentences it would learn the sentences.
    },
    "data": {"tokenizer": WORDS},
    "ema_decay": 0.998,
    "steps": 6_000,
}
LOOK_S = 0.1
PLACED_S_MAX = 10.0
END_S_MAX = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """What a user may change.

    Args:
        data: A LeRobot dataset on disk in place of the simulated arm.
        recipe: `TOLD` for the show in which words alone tell the goal; "" for the main one.
        episodes: Episodes to record; 0 for the show's own number.
        steps: Training steps; 0 for the recipe's own number.
        starts: Unseen starts to evaluate on, of each place where words tell it; 0 for the show's own number.
        seed: Of recording and evaluation.
    """

    data: Path | None = None
    recipe: str = ""
    episodes: int = 0
    steps: int = 0
    starts: int = 0
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoReport:
    """What came of the demo; seconds by step, and what a person would ask first."""

    home: str
    version: str
    episodes: int
    left_out: int
    train_job: str
    evaluate_job: str
    cluster: str
    steps: int
    generations: int
    kill_to_next_step_s: float
    repeated_steps: int
    goodput: str
    result: Mapping[str, str | int | float | bool]
    wall_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Blow:
    """What befalls the training job.

    Args:
        at: When: the share of its steps.
        strike: Does it to the job as it is then; returns what was done, for people.
    """

    at: float
    strike: Callable[[JobView], str]


def kill_last_rank(view: JobView) -> str:
    """Kills the last rank of a job; returns what was done."""
    victim: RankStatus = view.attempts[-1].ranks[-1]
    os.kill(victim.pid, signal.SIGKILL)
    return f"kill -9 rank {victim.rank} at step {view.step}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Where the demo runs, and what befalls it there; in order of time."""

    config: Config
    blows: tuple[Blow, ...] = (Blow(at=0.5, strike=kill_last_rank),)


def check_nothing() -> None:
    """Sees that pretended clusters can be started here, which is anywhere."""


@contextmanager
def pretended(home: Path) -> Iterator[Stage]:
    """Gives two pretended clusters with different chips and prices.

    Args:
        home: The demo's home folder.
    """
    h100 = LocalCluster(
        name=ClusterName("alpha"), chip=ChipName("h100"), chips_per_node=1, nodes=4, dollars_per_chip_hour=2.4
    )
    yield Stage(config=Config(clusters=(h100, v5e_beside())))


def v5e_beside() -> LocalCluster:
    """Returns the cluster with the chips that are cheaper by the hour and dearer by the work they do."""
    return LocalCluster(
        name=ClusterName("beta"), chip=ChipName("v5e"), chips_per_node=1, nodes=4, dollars_per_chip_hour=1.2
    )


class Demo:
    """One run of the demo in one lab.

    Args:
        lab: Whose home folder is made anew.
        options: What a user may change.
        stage: Gives the configuration to run with, and keeps what its clusters need running meanwhile.
    """

    def __init__(
        self,
        lab: Lab,
        options: DemoOptions,
        stage: Callable[[Path], AbstractContextManager[Stage]] = pretended,
    ) -> None:
        self.lab = lab
        self.options = options
        self.stage = stage
        self.told = options.recipe == TOLD
        self.recipe = options.recipe or ("video" if options.data else "arm")
        self.dataset = "demo-recordings" if options.data else "pick-place-told" if self.told else "pick-place"
        self.changes: Mapping[str, object] = TOLD_CHANGES if self.told else {}
        self.wall_s: dict[str, float] = {}

    def run(self) -> DemoReport:
        """Runs every step and returns the report.

        Raises:
            InvalidInput: The home folder holds something that is not the demo's.
            Unavailable: A job did not end as it should.
        """
        make_fresh(self.lab)
        with self.stage(self.lab.home.path) as stage:
            self.lab.home.write_config(stage.config)
            try:
                return self._run(stage.blows)
            finally:
                end_all(self.lab)

    def _run(self, blows: Sequence[Blow]) -> DemoReport:
        source = self.options.data or self._record()
        with self._step("ingest"):
            report = ingest_with_progress(self.lab, [source], self.dataset)
            if report.left_out:
                ERRORS.print(report_panel(report))
            if report.version is None:
                raise InvalidInput(
                    "train on these recordings", on=str(source), got="none that is sound", wanted="at least one"
                )
            recipe = ViewRecipe(codec="h264", holdout_fraction=0.125) if self.options.data else ARM_VIEW
            view = view_with_progress(self.lab, report.version.name, recipe)
        with self._step("submit"):
            self.lab.up(port=0)
            self.lab.clusters.wait()  # The plan is to weigh them all.
            words = ["--recipe", self.recipe, *(["--steps", str(self.options.steps)] if self.options.steps else [])]
            words += ["--changes", json.dumps(self.changes)] if self.changes else []
            submitted = self.lab.run(self._spec("train", view, report.version.name, *words))
            self._show_why(submitted)
        with self._step("train"):
            total = self.options.steps or changed(recipe_named(self.recipe), self.changes).steps
            trained = self._train_through(blows, submitted, total)
        with self._step("evaluate"):
            evaluated = self._evaluate(trained, view, report)
        return self._report(report, trained, evaluated)

    @contextmanager
    def _step(self, name: str) -> Iterator[None]:
        ERRORS.rule(Text(name, style="bold"), align="left", style="dim")
        begun = time.monotonic()
        yield
        self.wall_s[name] = time.monotonic() - begun

    def _record(self) -> Path:
        folder = self.lab.home.path / "recordings"
        count = self.options.episodes or (TOLD_EPISODES * len(PLACES) if self.told else EPISODES)
        with self._step("record"), progress_bar() as bar:
            task = bar.add_task("record", total=count, note="a scripted expert drives a simulated arm")
            record_episodes(
                folder,
                count=count,
                seed=self.options.seed,
                told=self.told,
                progress=lambda done: bar.update(task, completed=done),
            )
        return folder

    def _spec(self, program: str, view: ViewManifest, version: str, *words: str, replicas: int = REPLICAS) -> JobSpec:
        lab = self.lab
        command = [
            *("python", "-m", "mainspring", program),
            *("--objects", lab.home.objects_url(lab.home.config())),
            *("--view", view.id, "--version", version, "--cache", str(lab.home.cache), *words),
        ]
        kind = "train" if program == "train" else "batch"
        return job(
            f"{self.dataset}-{program}", command, on=ON, replicas=replicas, kind=kind, inputs=[version], views=[view.id]
        )

    def _train_through(self, blows: Sequence[Blow], submitted: JobView, total: int) -> JobView:
        """Waits for the training job, and lets happen to it what is to happen."""
        coming = deque(blows)
        with progress_bar() as bar:
            task = bar.add_task("train", total=total, note="starting")

            def look(view: JobView) -> None:
                if view.step >= 0:
                    bar.update(
                        task,
                        completed=view.step,
                        note=f"loss {view.metrics['loss']:.4f}" if "loss" in view.metrics else "",
                    )
                if coming and view.step >= total * coming[0].at and view.attempts[-1].ranks:
                    bar.console.print(coming.popleft().strike(view), style="red")

            view = succeeded(self.lab.wait(submitted.id, timeout_s=JOB_S_MAX, on_look=look))
            bar.update(task, completed=view.step)
        return view

    def _show_why(self, submitted: JobView) -> None:
        """Waits for the plan that places the job, and shows it."""
        why = looked(
            lambda: self.lab.why(submitted.id), lambda why: why.candidates, every_s=LOOK_S, timeout_s=PLACED_S_MAX
        )
        ERRORS.print(why_panel(why, submitted, now_s=time.time()))

    def _evaluate(self, trained: JobView, view: ViewManifest, report: IngestReport) -> JobView:
        assert report.version is not None
        starts = self.options.starts or (TOLD_STARTS if self.told else STARTS)
        words = ["--job", trained.id, "--starts", str(starts), "--seed", str(self.options.seed)]
        submitted = self.lab.run(self._spec("evaluate", view, report.version.name, *words, replicas=1))
        with progress_bar() as bar:
            task = bar.add_task("evaluate", total=None, note="")

            def look(view: JobView) -> None:
                if view.step > 0:
                    bar.update(task, completed=view.step, total=int(view.metrics.get("steps", 0)) or None)

            done = succeeded(self.lab.wait(submitted.id, timeout_s=JOB_S_MAX, on_look=look))
            bar.update(task, total=max(1, done.step), completed=max(1, done.step))
        return done

    def _report(self, report: IngestReport, trained: JobView, evaluated: JobView) -> DemoReport:
        assert report.version is not None
        assert trained.goodput is not None
        attempt = trained.attempts[-1]
        events = self.lab.events(trained.id)
        resumed = [event for event in events if event.kind == GenerationResumedEvent.kind]
        told = spent(events, time.time())
        assert told is not None
        return DemoReport(
            home=str(self.lab.home.path),
            version=report.version.name,
            episodes=report.episodes,
            left_out=report.refused,
            train_job=trained.id,
            evaluate_job=evaluated.id,
            cluster=where(attempt),
            steps=trained.step,
            generations=len(resumed),
            kill_to_next_step_s=sum(told.recoveries_s),
            repeated_steps=told.repeated_steps,
            goodput=goodput_text(trained.goodput),
            result=evaluated.result,
            wall_s={name: round(seconds, 1) for name, seconds in self.wall_s.items()},
        )


def end_all(lab: Lab) -> None:
    """Ends what still runs in a lab, as after an interrupt: jobs, then the server. Nothing is left behind."""
    try:
        with suppress(MainspringError):  # No server, or one that does not answer.
            with lab.client() as client:
                live = [view.id for view in client.every_job() if not ended(view.state)]
            for job_id in live:
                lab.stop(job_id)
            for job_id in live:
                lab.wait(job_id, timeout_s=END_S_MAX)
    finally:
        lab.down()


def make_fresh(lab: Lab) -> None:
    """Makes the home folder of a demo anew.

    Raises:
        InvalidInput: It holds something that is not a demo's.
    """
    path = lab.home.path
    if path.exists() and any(path.iterdir()):
        if not (path / MARKER).exists():
            raise InvalidInput(
                "run the demo",
                on=str(path),
                got="a home folder that holds other work",
                wanted="an empty one, or one that an earlier demo made",
                next_step="ms --home SOME-NEW-FOLDER demo",
            )
        end_all(lab)
        shutil.rmtree(path)
    path.mkdir(parents=True, exist_ok=True)
    (path / MARKER).touch()


def succeeded(view: JobView) -> JobView:
    """Returns a job that succeeded; raises `Unavailable` for one that did not."""
    if view.state is not JobState.SUCCEEDED:
        raise Unavailable(
            "finish the demo",
            on=view.spec.name,
            got=f"{view.state.value}: {view.reason}",
            next_step=f"ms logs {view.id}",
        )
    return view


def _cells_text(result: Mapping[str, str | int | float | bool]) -> str:
    """Returns how often each place was reached, a line for each that was told."""
    lines = []
    for told in PLACES:
        rates = [float(result[cell_name(told.name, wanted.name)]) for wanted in PLACES]
        shown = ", ".join(f"{wanted.name} {rate:.2f}" for wanted, rate in zip(PLACES, rates, strict=True))
        lines.append(f"told {told.name}: {shown}")
    return "\n".join(lines)


def _below_here(path: Path) -> str:
    """Returns a path as a shell reads it, short when it lies below this folder."""
    here = Path.cwd()
    return f"$PWD/{path.relative_to(here)}" if path.is_relative_to(here) else shlex.quote(str(path))


def summary(report: DemoReport) -> RenderableType:
    """Returns the demo's summary on one screen.

    Args:
        report: What came of it.
    """
    trained = f"{report.cluster}, {REPLICAS} ranks, {report.steps} steps, {report.generations} generations"
    recovery = f"{report.kill_to_next_step_s:.1f} s from kill to next step, {report.repeated_steps} steps repeated"
    cells = {cell_name(told.name, wanted.name) for told in PLACES for wanted in PLACES}
    result = {
        name.replace("_", " "): f"{value:.3f}" if isinstance(value, float) else str(value)
        for name, value in sorted(report.result.items())
        if name not in cells
    }
    if cells <= set(report.result):
        result["success"] = _cells_text(report.result)
    walls = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in report.wall_s.items())
    look = (
        *([] if shutil.which("ms") else [f"export PATH={_below_here(Path(sys.executable).parent)}:$PATH"]),
        f"export MAINSPRING_HOME={_below_here(Path(report.home))}; ms up",
        f"ms web {report.train_job}",
        f"ms status {report.train_job}",
        f"ms why {report.train_job}",
        f"ms logs {report.train_job} --rank 1",
        f"ms data show {report.version}; ms data lineage {report.version}; ms down",
    )
    facts = {
        "data": f"{report.version}: {report.episodes} episodes, {report.left_out} left out",
        "trained on": trained,
        "killed rank": recovery,
        "goodput": report.goodput,
        **result,
        "wall time": f"{walls}; together {sum(report.wall_s.values()):.0f} s\n",
        "look next": "\n".join(look),
    }
    return framed(facts_grid(facts), "Mainspring demo")
