"""The acts of the show in their order; every step is an ordinary call of the SDK that anybody could make.

    table    a release that brings things to low goals, on every arm
    shelf    high goals are asked for: it fails, failures come home, and somebody shows how it is done
    learn    what was shown becomes data, training goes on from the release, gates look at what comes of it
    rings    the better release goes to every arm, ring after ring, while they work
    bad      a release that is planted to fail comes back by itself
    measure  both releases on the same starts

Each wait has an end: what does not come about in its time is told with what there was in place of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from threading import Event
from typing import final

from rich.text import Text

from mainspring.app.base.home import Config
from mainspring.app.cli.data.data import ingest_with_progress, view_with_progress
from mainspring.app.cli.demos.job import ARM_VIEW, end_all, make_fresh, succeeded
from mainspring.app.cli.demos.loop.arms import EMBODIMENT, Fleet
from mainspring.app.cli.demos.loop.outcome import (
    FAILURES_WANTED,
    SHOWN_WANTED,
    LoopReport,
    PlaceResult,
    committed_s,
    each_of,
    failures_at,
    ran_s,
    span_s,
)
from mainspring.app.cli.demos.loop.site import SHOWN, Place, Work
from mainspring.app.render.progress import progress_bar
from mainspring.app.render.tables import ERRORS
from mainspring.app.sdk.data import DataVerbs
from mainspring.app.sdk.lab import Lab, job
from mainspring.data import Version, VersionCandidate, Waiver
from mainspring.domain.answers import JobView, NewRollout, RolloutRules, RolloutState, RolloutView
from mainspring.domain.answers.clips import CLIPS_LISTED_MAX, ClipWay
from mainspring.domain.errors import Conflict, NotFound, Unavailable
from mainspring.robots.environments.metaworld import SHELF, TABLE, TABLE_HEIGHTS_M
from mainspring.robots.evaluation.statistics import GateVerdict
from mainspring.robots.recorder import record_episodes

FOLDER, KEYS, RELEASE_NAME = "arms", "keys", "arm"
RECORDED, HOME_DATA, SHOWN_DATA, LEARNT = "table", "shelf", "corrections", "arm"  # Datasets, in order of the story.
HELPER = "ada"  # Who shows the arms how it is done: the scripted expert, under a person's name.
EPISODES = 150
STEPS, STEPS_MORE, STEPS_BAD = 3_000, 2_000, 20  # The first reach 100 of 100 starts; of 20 steps nothing is learned.
GATE_MIN, GATE_MARGIN = 0.8, 0.1  # Of 100 starts that all go well an interval of 95 % ends at 0.96, and 4 points apart.
SEED, SEED_GATES, SEED_MEASURED = 0, 0, 1  # No start of the last measurement was looked at before.
POLL_S = 2.0  # Robots of a lab call once a minute; here minutes are all there is.
JOB_S_MAX = 1_200.0
SETTLE_S, EACH_S = 600.0, 60.0  # What a wait for the arms may take: for any number of them, and for each one more.
LOOK_S = 0.5
SOUND_MIN = 0.9  # Of what was shown: a recording that a check leaves out holds nothing up.
NEW_PLACE = "the shelf is new: it is higher than all before"
PLANTED = "planted: to see it come back"


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How far something is that is waited for.

    Args:
        over: Whether it has come about.
    """

    done: int
    total: int
    over: bool
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """A release, and the checkpoint that it is of."""

    name: str
    checkpoint: str


@final
class Loop:
    """One run of the show in one lab.

    Args:
        lab: Whose home folder is made anew.
        arms: How many there are.
        starts: On which both releases are measured, at each place.
    """

    def __init__(self, lab: Lab, *, arms: int, starts: int) -> None:
        self._lab, self._arms, self._starts = lab, arms, starts
        self._folder = lab.home.path / FOLDER
        self._keys = [lab.home.path / KEYS / f"person-{number}.pem" for number in (1, 2)]
        self._fleet = Fleet(lab, self._folder, dataset=HOME_DATA, helper=HELPER)
        self._pause = Event()
        self._clips = 0
        self._waived: dict[str, str] = {}
        self.wall_s: dict[str, float] = {}

    def run(self) -> LoopReport:
        """Shows every act and returns the report.

        Raises:
            InvalidInput: The home folder holds something that is not a demo's.
            Unavailable: Something did not come about in its time.
        """
        make_fresh(self._lab)
        self._lab.home.write_config(Config(robot_poll_s=POLL_S))
        with ExitStack() as ends:
            ends.callback(end_all, self._lab)
            ends.callback(self._fleet.close)
            with self._act("table", "a release that brings things to low goals goes to every arm"):
                first = self._begin()
            with self._act(
                "shelf", "high goals are asked for: what fails comes home, and somebody shows how it is done"
            ):
                failed_s = self._fail(first)
            with self._act("learn", "what was shown becomes data, and training goes on from the release"):
                second = self._learn(first)
            with self._act("rings", "the better release goes from ring to ring while the arms work"):
                better = self._roll_out(second)
            with self._act("bad", "a release that is planted to fail comes back by itself"):
                bad = self._plant(second)
            failures = len(failures_at(Place.SHELF, self._fleet.played.read(), first.name))
            corrections = self._lab.data.version(SHOWN_DATA).episodes
            with self._act("measure", "both releases on the same starts"):
                self._fleet.close()  # Nothing moves any more, and the machine is free.
                shelf, table = (self._measured(second, first, place) for place in (SHELF, TABLE))
            lost = ran_s(bad.events)
            return LoopReport(
                home=str(self._lab.home.path),
                arms=self._arms,
                starts=self._starts,
                shelf=shelf,
                table=table,
                failures=failures,
                clips=self._clips,
                corrections=corrections,
                fixed_s=round(max(committed_s(better.events).values()) - failed_s, 1),
                bad_robots=len(lost),
                bad_s=round(span_s(bad.events), 1),
                lost_s=round(sum(lost.values()), 1),
                bad_why=bad.why,
                gates_waived=dict(self._waived),
                wall_s={name: round(seconds, 1) for name, seconds in self.wall_s.items()},
            )

    # ---------------------------------------------------------------- acts

    def _begin(self) -> Released:
        """Returns the first release once every arm runs it, and has done well at the table with it."""
        recordings = self._lab.home.path / "recordings"
        with progress_bar() as bar:
            task = bar.add_task("record", total=EPISODES, note="a scripted expert drives a simulated arm")
            record_episodes(
                recordings,
                count=EPISODES,
                seed=SEED,
                heights_m=TABLE_HEIGHTS_M,
                progress=lambda done: bar.update(task, completed=done),
            )
        ingest_with_progress(self._lab, [recordings], RECORDED)
        view = view_with_progress(self._lab, RECORDED, ARM_VIEW)
        self._lab.up(port=0)
        self._lab.clusters.wait()
        checkpoint = self._train("first", view.id, STEPS)
        self._judge(checkpoint, TABLE)
        self._lab.policies.new_trust(self._keys[0].parent)
        first = self._release(checkpoint, note="the table")
        self._fleet.enrol(self._arms, failures_each=each_of(FAILURES_WANTED, self._arms))
        self._wait("arms call", self._calling)
        self._finished(self._start(first, ("all",), "the first release"))
        self._fleet.play()
        self._wait("every arm works", self._working(first))
        return first

    def _fail(self, first: Released) -> float:
        """Returns when the first arm failed at the shelf, once what failed and what was shown is home."""
        fleet, shows = self._fleet, each_of(SHOWN_WANTED, self._arms)
        failures = each_of(FAILURES_WANTED, self._arms) * self._arms
        fleet.work(Work(place=Place.SHELF))

        def failing() -> Look:
            done = len(failures_at(Place.SHELF, fleet.played.read(), first.name))
            return Look(done=done, total=failures, over=done >= failures)

        self._wait("failures at the shelf", failing)
        fleet.work(Work(place=Place.SHELF, shows_each=shows))

        def shown() -> Look:
            done = sum(each.shown for each in fleet.played.read())
            return Look(done=done, total=shows * self._arms, over=done >= shows * self._arms, note=f"by {HELPER}")

        self._wait("episodes shown", shown)
        wanted = shows * self._arms
        self._wait("clips are home and read", lambda: self._home(wanted))
        return min(each.at_s for each in failures_at(Place.SHELF, fleet.played.read(), first.name))

    def _learn(self, first: Released) -> Released:
        """Returns the release of what was trained on from the first one, once its gates let it pass."""
        data = self._lab.data
        data.select(HOME_DATA, "success AND list_contains(annotation.labels, 'intervention')", SHOWN_DATA)
        version = merged(data, [RECORDED, SHOWN_DATA], LEARNT, waivers=self._waivers)
        view = view_with_progress(self._lab, version.name, ARM_VIEW)
        checkpoint = self._train("second", view.id, STEPS_MORE, first.checkpoint)
        self._judge(checkpoint, SHELF)
        found = self._lab.evaluations.compare(
            checkpoint,
            first.checkpoint,
            environment=TABLE,
            starts=self._starts,
            seed=SEED_GATES,
            margin=GATE_MARGIN,
            gate=Place.TABLE.value,
        )
        self._passed("table", found.verdict, f"{found.first_success.solved} of {found.first_success.starts}")
        return self._release(checkpoint, note="the shelf, too")

    def _roll_out(self, second: Released) -> RolloutView:
        return self._finished(self._start(second, rings_of(self._arms), "the shelf, too"))

    def _plant(self, second: Released) -> RolloutView:
        """Returns the rollout of a release that hardly learned anything, once all arms run again what they ran."""
        view = self._lab.data.view(LEARNT, ARM_VIEW)
        bad = self._release(self._train("bad", view.id, STEPS_BAD), note=PLANTED, waive={"evaluation": PLANTED})
        number = self._start(bad, rings_of(self._arms), PLANTED).number

        def gone() -> Look:
            seen = self._lab.rollout(str(number))
            running = [robot.name for robot in self._lab.robots(limit=self._arms) if robot.runs != second.name]
            done = self._arms - len(running)
            over = seen.state is RolloutState.WENT_BACK and not running
            return Look(done=done, total=self._arms, over=over, note=f"{seen.state.value} {seen.why}".strip())

        self._wait(f"{bad.name} comes back", gone)
        return self._lab.rollout(str(number))

    def _measured(self, after: Released, before: Released, environment: str) -> PlaceResult:
        with progress_bar() as bar:
            task = bar.add_task(environment, total=2 * self._starts, note="")
            found = self._lab.evaluations.compare(
                after.checkpoint,
                before.checkpoint,
                environment=environment,
                starts=self._starts,
                seed=SEED_MEASURED,
                progress=lambda done: bar.update(task, completed=done),
            )
        return PlaceResult(
            before=found.second_success.rate,
            after=found.first_success.rate,
            gain=found.difference,
            low=found.interval.low,
            high=found.interval.high,
        )

    # ---------------------------------------------------------------- steps of acts

    def _train(self, name: str, view: str, steps: int, begin: str = "") -> str:
        """Returns the checkpoint that a job leaves."""
        lab = self._lab
        command = ["python", "-m", "mainspring", "train", "--recipe", "arm", "--steps", str(steps), "--view", view]
        command += ["--objects", lab.home.objects_url(lab.home.config()), "--cache", str(lab.home.cache)]
        command += ["--from", begin] if begin else []
        spec = job(f"{RELEASE_NAME}-{name}", command, on="cpu", kind="train", views=[view])
        submitted = lab.run(spec, begins_from=begin)
        with progress_bar() as bar:
            task = bar.add_task(f"train {spec.name}", total=steps, note=f"from {begin}" if begin else "from nothing")

            def look(seen: JobView) -> None:
                self._fleet.check()
                bar.update(task, completed=max(0, seen.step))

            done = succeeded(lab.wait(submitted.id, timeout_s=JOB_S_MAX, on_look=look))
        return f"{done.id}@{done.step}"

    def _judge(self, checkpoint: str, environment: str) -> None:
        """Evaluates a checkpoint, and asks its gate."""
        with progress_bar() as bar:
            task = bar.add_task(f"evaluate at {environment}", total=self._starts, note=checkpoint)
            self._lab.evaluations.run(
                checkpoint,
                environment=environment,
                starts=self._starts,
                seed=SEED_GATES,
                progress=lambda done: bar.update(task, completed=done),
            )
        name = (Place.SHELF if environment == SHELF else Place.TABLE).value
        found = self._lab.evaluations.gate(
            checkpoint,
            name=name,
            at_least=GATE_MIN,
            environment=environment,
            starts=self._starts,
            seed=SEED_GATES,
        )
        self._passed(name, found.verdict, found.seen)

    def _passed(self, gate: str, verdict: GateVerdict, seen: str) -> None:
        if verdict is not GateVerdict.PASSED:
            step = f"ms --home {self._lab.home.path} eval ls"
            raise Unavailable("pass a gate", on=gate, got=f"{verdict.value}: {seen}", wanted="passed", next_step=step)
        ERRORS.print(f"gate {gate} passed: {seen}")

    def _release(self, checkpoint: str, *, note: str, waive: Mapping[str, str] | None = None) -> Released:
        """Returns the release of a checkpoint, which two people have signed."""
        made = self._lab.policies.create(
            checkpoint, name=RELEASE_NAME, keys=self._keys, fits=EMBODIMENT, note=note, waive=waive
        )
        self._waived |= waive or {}
        reference = made.view.release.reference
        ERRORS.print(f"released {reference}: {checkpoint}, signed by {made.signed} of 3 people")
        return Released(name=reference, checkpoint=checkpoint)

    def _start(self, release: Released, rings: tuple[str, ...], note: str) -> RolloutView:
        rules = RolloutRules(watch_s=0.0)  # In a lab an hour.
        return self._lab.start_rollout(NewRollout(release=release.name, rings=rings, rules=rules, note=note))

    def _finished(self, rollout: RolloutView) -> RolloutView:
        """Returns a rollout once every arm runs its release."""

        def look() -> Look:
            seen = self._lab.rollout(str(rollout.number))
            committed = sum(ring.committed for ring in seen.rings)
            if seen.state not in (RolloutState.RUNNING, RolloutState.DONE):
                got = f"{seen.state.value}: {seen.why}"
                raise Conflict("roll a release out", on=seen.release, got=got, wanted="every arm to run it")
            waits = next((f"{ring.name} waits for {ring.waits}" for ring in seen.rings if ring.waits), "")
            return Look(done=committed, total=self._arms, over=seen.state is RolloutState.DONE, note=waits)

        self._wait(f"{rollout.release} on every arm", look)
        return self._lab.rollout(str(rollout.number))

    def _calling(self) -> Look:
        done = sum(robot.report is not None for robot in self._lab.robots(limit=self._arms))
        return Look(done=done, total=self._arms, over=done == self._arms)

    def _working(self, release: Released) -> Callable[[], Look]:
        """Returns what looks whether every arm has played with a release."""

        def look() -> Look:
            played = {each.robot for each in self._fleet.played.read() if each.release == release.name}
            return Look(done=len(played), total=self._arms, over=len(played) == self._arms)

        return look

    def _home(self, wanted: int) -> Look:
        """Returns how many of the shown episodes are data now; a gate that asks about the new place is told."""
        data = self._lab.data
        with self._lab.client() as client:
            clips = client.clips(dataset=HOME_DATA, limit=CLIPS_LISTED_MAX)
        self._clips = sum(clip.way is ClipWay.HERE for clip in clips)
        coming = len(clips) - self._clips
        for candidate in data.candidates(HOME_DATA):
            data.publish(HOME_DATA, candidate.id, waivers=self._waivers(candidate))
        said = data.annotations(HOME_DATA) if self._clips else ()
        done = len({each.episode for each in said if each.label == "intervention"})
        told = sum(SHOWN in clip.clip.triggers for clip in clips)
        over = told >= wanted and not coming and done >= SOUND_MIN * wanted
        return Look(done=done, total=wanted, over=over, note=f"{self._clips} clips here, {coming} coming")

    def _waivers(self, candidate: VersionCandidate) -> list[Waiver]:
        """Returns who lets episodes pass that are unlike those before, and why."""
        closed = sorted({finding.gate for finding in self._lab.data.findings(candidate)})
        self._waived |= dict.fromkeys(closed, NEW_PLACE)
        return [Waiver(gate=gate, by=HELPER, reason=NEW_PLACE) for gate in closed]

    # ---------------------------------------------------------------- waiting

    @contextmanager
    def _act(self, name: str, words: str) -> Iterator[None]:
        ERRORS.rule(Text(f"{name}: {words}", style="bold"), align="left", style="dim")
        begun_s = time.monotonic()
        yield
        self.wall_s[name] = time.monotonic() - begun_s

    def _wait(self, what: str, look: Callable[[], Look]) -> None:
        """Waits until something has come about.

        Raises:
            Unavailable: It has not in its time, or a process of the arms has ended.
        """
        within_s = SETTLE_S + EACH_S * self._arms
        until_s = time.monotonic() + within_s
        with progress_bar() as bar:
            task = bar.add_task(what, total=None, note="")
            told = "nothing"
            while True:
                self._fleet.check()
                try:
                    seen = look()
                except (NotFound, Unavailable) as error:  # It does not answer yet, or there is nothing yet.
                    told = str(error)
                else:
                    told = f"{seen.done} of {seen.total} {seen.note}".strip()
                    bar.update(task, completed=seen.done, total=seen.total, note=seen.note)
                    if seen.over:
                        return
                if time.monotonic() > until_s:
                    logs = f"read {self._folder}/*.log and {self._lab.home.log}"
                    raise Unavailable(f"see {what}", got=told, wanted=f"it within {within_s:g} s", next_step=logs)
                self._pause.wait(LOOK_S)


def merged(
    data: DataVerbs,
    names: Sequence[str],
    dataset: str,
    *,
    waivers: Callable[[VersionCandidate], Sequence[Waiver]],
) -> Version:
    """Returns the version that several become, by waivers where a gate keeps it back.

    Raises:
        Conflict: Something else does, or more than this waits to become a version.
    """
    try:
        return data.merge(names, dataset)
    except Conflict:  # It is right to ask: nothing before was as high as the shelf.
        candidates = data.candidates(dataset)
        if len(candidates) != 1:
            raise
        return data.publish(dataset, candidates[0].id, waivers=waivers(candidates[0]))


def rings_of(arms: int) -> tuple[str, ...]:
    """Returns the rings by which a release goes to so many arms."""
    named = ("sim", "lab", "canary:5%")[: min(arms, 3)]
    return (*named, "10%", "all")
