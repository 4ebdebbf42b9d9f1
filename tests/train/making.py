"""A small view of real recordings, and an agent for the lives of one rank."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from mainspring.data import EpisodeWriter, View, ViewRecipe, build_view, ingest, open_view
from mainspring.data.views.manifest import Split
from mainspring.domain import wire
from mainspring.objects import open_store
from mainspring.session import Session
from mainspring.testing.time_and_chance import FakeClock
from mainspring.train.models.arrays import Arrays
from mainspring.train.models.shapes import Policy, PolicyRecipe, Signature
from mainspring.train.policy import measure_statistics, model_of, policy_loss, row_keys, sample_actions, signature_of
from mainspring.train.recipe import OptimizerRecipe, Recipe
from mainspring.train.state.optimizers import make_optimizer
from tests.session.agent import WAIT_LIMIT_S, Agent, welcome

DIMS = 3
RATE_HZ = 20
PERIOD_NS = 50_000_000
Kind = TypeVar("Kind")
BY_HEART = OptimizerRecipe(learning_rate=1e-2, warmup_steps=10, weight_decay=0.0)


def small_recipe(*, steps: int) -> Recipe:
    return Recipe(
        name="small",
        policy=PolicyRecipe(width=16, blocks=1, horizon=4, relative_actions=True, motion=True, flow_steps=4),
        optimizer=OptimizerRecipe(learning_rate=3e-3, warmup_steps=5, weight_decay=1e-4),
        batch_size=16,
        steps=steps,
        seed=7,
    )


def fresh_weights(policy: Policy, signature: Signature) -> Any:
    """Returns a model's weights before training, of one program: XLA would compile dozens of single operations."""
    return jax.jit(lambda: model_of(policy).initial_weights(jax.random.key(0), signature))()


def error_left_by_heart(policy: Policy, batch: Arrays, *, steps: int, optimizer: OptimizerRecipe = BY_HEART) -> float:
    """Returns the share of a fresh policy's error over a few rows that is left once it has seen only them."""
    statistics = measure_statistics([batch], policy)
    moving = make_optimizer(optimizer, steps)
    weights = fresh_weights(policy, signature_of(batch, policy))

    @jax.jit
    def update(weights: Any, state: Any, step: Any) -> Any:
        key = jax.random.fold_in(jax.random.key(3), step)
        gradient = jax.grad(policy_loss)(weights, statistics, policy, batch, key)
        changes, state = moving.update(gradient, state, weights)
        return jax.tree.map(jnp.add, weights, changes), state

    @jax.jit
    def error(weights: Any) -> jax.Array:
        rows = jnp.arange(len(batch["state"]))
        draws = [row_keys(jax.random.key(draw), rows) for draw in range(8)]  # Of one draw it is half, or twice as much.
        chunks = [sample_actions(weights, statistics, policy, batch, keys) for keys in draws]
        return jnp.sqrt(jnp.mean((jnp.stack(chunks) - batch["actions"]) ** 2))

    before, state = float(error(weights)), jax.jit(moving.init)(weights)
    for step in range(steps):
        weights, state = update(weights, state, step)
    return float(error(weights)) / before


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
    version = ingest(folder / "in", store, "swing", clock=FakeClock()).version
    assert version is not None
    manifest = build_view(store, version, ViewRecipe(holdout_fraction=0.25), scratch_dir=folder / "scratch")
    return {
        "train": open_view(store, manifest.id, folder / "cache", "train"),
        "holdout": open_view(store, manifest.id, folder / "cache", "holdout"),
    }


class _Keeper(Agent):
    """Gives a program its own facts back, too."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._facts: wire.Detail = {}

    def resume_from(self, commit: wire.SnapshotCommit) -> None:
        super().resume_from(commit)
        self._facts = commit.state

    def _answer(self, message: object) -> object:
        answer = super()._answer(message)
        return replace(answer, state=self._facts) if isinstance(answer, wire.RestorePlan) else answer


class Desk:
    """An agent for the lives of one rank. The first life is asked to leave after step `stop_at`."""

    def __init__(self, folder: Path, *, every: int, stop_at: int = -1) -> None:
        self._agent = _Keeper(folder)
        self._every = every
        self._stop_at = stop_at
        self._sessions: list[Session] = []

    @property
    def snapshots(self) -> list[int]:
        """Returns the steps of all snapshots so far."""
        for session in self._sessions:
            session.left()  # Waits until the agent has them.
        return [commit.step for commit in self._agent.all(wire.SnapshotCommit)]

    def said(self, kind: type[Kind]) -> list[Kind]:
        """Returns all messages of one kind, oldest first."""
        for session in self._sessions:
            session.left()
        return self._agent.all(kind)

    def join(self, *, resume_from: int = -1) -> Session:
        """Returns the session of a new life of the rank; one that resumes is not asked to leave again."""
        leaves = self._stop_at >= 0 and resume_from < 0
        self._agent.reply = wire.StepReply(stop=leaves, stop_at=self._stop_at, grace_s=5.0, snapshot_every=self._every)
        if resume_from >= 0:
            assert resume_from in self.snapshots
            commits = self._agent.all(wire.SnapshotCommit)
            self._agent.resume_from(next(commit for commit in commits if commit.step == resume_from))
        session = self._agent.session(welcome(rank=0, world_size=1, every=self._every), stopwatch=time.monotonic)
        self._sessions.append(session)
        if leaves:  # A run this short may be over before the session's own thread learns of it.
            session.report(0)
            over_s = time.monotonic() + WAIT_LIMIT_S
            while session.grace_s == 0.0:
                assert time.monotonic() < over_s, "the session never learnt that it shall leave"
                threading.Event().wait(0.002)
        return session

    def close(self) -> None:
        for session in self._sessions:
            session.close()
        self._agent.hang_up()
