"""A small view of real recordings, and a rank's real server without the rest of its agent."""

from __future__ import annotations

import asyncio
import itertools
import threading
from pathlib import Path

import numpy as np

from mainspring.data import EpisodeWriter, View, ViewRecipe, build_view, ingest, open_view
from mainspring.data.view import Split
from mainspring.domain import wire
from mainspring.domain.ids import AttemptId, JobId, RoleName
from mainspring.node.arena import Arena
from mainspring.node.rank_server import Duty, RankDesk, RankServer
from mainspring.objects import open_store
from mainspring.session import Session
from mainspring.train.recipe import OptimizerRecipe, PolicyRecipe, Recipe

DIMS = 3
RATE_HZ = 20
PERIOD_NS = 50_000_000


def small_recipe(*, steps: int) -> Recipe:
    return Recipe(
        name="small",
        policy=PolicyRecipe(width=16, blocks=1, horizon=4, relative_actions=True, motion=True, flow_steps=4),
        optimizer=OptimizerRecipe(learning_rate=3e-3, warmup_steps=5, weight_decay=1e-4),
        batch_size=16,
        steps=steps,
        seed=7,
    )


def make_views(folder: Path, *, episodes: int = 8) -> dict[Split, View]:
    """Returns both sides of a view of a robot that swings; an action is where its joints are one step later."""
    for index in range(episodes):
        times = np.arange(42)[:, None] * 0.15 + index
        joints = np.sin(times + np.arange(DIMS))
        with EpisodeWriter(folder / "in" / f"{index}.mcap", task="swing", robot="toy", rate_hz=RATE_HZ) as writer:
            for step in range(40):
                writer.write(step * PERIOD_NS, joints[step], joints[step + 1])
            writer.finish(success=True)
    store = open_store(str(folder / "objects"))
    version = ingest(folder / "in", store, "swing").version
    assert version is not None
    manifest = build_view(store, version, ViewRecipe(holdout_fraction=0.25), scratch_dir=folder / "scratch")
    return {
        "train": open_view(store, manifest.id, folder / "cache", "train"),
        "holdout": open_view(store, manifest.id, folder / "cache", "holdout"),
    }


class Desk:
    """A rank's real server, on a loop of its own; `stop_at` makes it ask for a stop once that step is reported."""

    def __init__(self, folder: Path, *, stop_at: int = 1 << 60) -> None:
        place = wire.RankPlace(rank=0, role=RoleName("main"), role_rank=0, role_size=1, agent=0)
        self.desk = RankDesk(place=place, local_rank=0, arena=Arena(folder))
        self.snapshots: list[int] = []
        self._sessions: list[Session] = []
        self._stop_at = stop_at
        self._step = 0
        self._path = str(folder / "s")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        duty = Duty(welcome=self._welcome, stop=self._stop, stepped=self._stepped, tell_lead=self._told)
        self._server = RankServer(self.desk, duty)
        asyncio.run_coroutine_threadsafe(self._server.listen(self._path), self._loop).result(5)

    def join(self, *, resume_from: int = -1) -> Session:
        """Returns the session of a new life of the rank; one that resumes is not asked to stop again."""
        if resume_from >= 0:
            held = self.desk.arena.hold(resume_from)
            assert held is not None
            shards = self.desk.arena.shards_in_file(resume_from)
            self.desk.restore = wire.RestorePlan(step=resume_from, shards=shards, state=held.state, source="arena")
            held.release()
            self._stop_at = 1 << 60
        self._sessions.append(Session(self._path, pid=1, stopwatch=itertools.count().__next__))  # Sends every report.
        return self._sessions[-1]

    def close(self) -> None:
        for session in self._sessions:
            session.close()

        async def end() -> None:
            self._server.close()
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _welcome(self, desk: RankDesk) -> wire.Welcome:
        return wire.Welcome(
            job=JobId("job-1"),
            attempt=AttemptId("attempt-1"),
            role=desk.place.role,
            rank=0,
            world_size=1,
            local_rank=0,
            generation=1,
            coordinator="",
            arena_path=desk.arena.path,
        )

    def _stop(self) -> wire.StepReply:
        return wire.StepReply(stop=self._step >= self._stop_at, grace_s=5.0)

    def _stepped(self, desk: RankDesk, report: wire.StepReport) -> None:
        self._step = report.step

    def _told(self, message: object) -> None:
        if isinstance(message, wire.SnapshotTaken):
            self.snapshots.append(message.step)
