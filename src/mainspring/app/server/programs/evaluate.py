"""Evaluates a job's newest checkpoint: `python -m mainspring evaluate`, alone or under an agent.

A policy for the simulated arm drives it in closed loop; any other is held against episodes it never saw.
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path

from mainspring.app.server.programs.uses import noted
from mainspring.checkpoint import load
from mainspring.data import open_view
from mainspring.domain.ids import JobId
from mainspring.robots.arm import ACTION_NAMES, STATE_NAMES
from mainspring.robots.closed_loop import drive
from mainspring.robots.environments.port import Start
from mainspring.session import Session, open_view_store
from mainspring.session.jax_distributed import run
from mainspring.train.evaluate import SAMPLES, TrainedPolicy, held_out_error, make_actor, policy_from


def main() -> int:
    """Evaluates and prints one JSON line of what came of it; returns the exit code."""
    parser = argparse.ArgumentParser(description="Evaluates the newest checkpoint of a training job.")
    parser.add_argument("--objects", required=True, help="URL of the object store")
    parser.add_argument("--view", required=True, help="id of the view it was trained on")
    parser.add_argument("--version", default="", help="name of the version it is a view of, for its lineage")
    parser.add_argument("--cache", type=Path, required=True, help="folder for the view's bytes and compiled programs")
    parser.add_argument("--job", required=True, help="id of the training job")
    parser.add_argument("--starts", type=int, default=100, help="unseen starts, for the simulated arm")
    parser.add_argument("--seed", type=int, default=0, help="of the starts and of the policy's noise")
    words = parser.parse_args()

    run(partial(_evaluate, words), standby=False, cache=words.cache / "compiled")
    return 0


def _evaluate(words: argparse.Namespace, session: Session) -> None:
    store, views = open_view_store(words.objects, words.view), words.cache / "views"
    if words.version and session.job:
        noted(store, words.version, session.job)
    checkpoint = load(store, JobId(words.job))
    policy = policy_from(checkpoint.state, checkpoint.arrays)
    features = open_view(store, words.view, views, "train").manifest.features
    facts: dict[str, str | int | float | bool]
    if (features.names("state"), features.names("action")) == (STATE_NAMES, ACTION_NAMES):
        facts = _drive_both(session, policy, starts=words.starts, seed=words.seed)
    else:
        error = held_out_error(policy, open_view(store, words.view, views, "holdout"), seed=words.seed)
        facts = {
            "action_error": error.policy,
            "samples_averaged": SAMPLES,
            "held_out_states": error.states,
            "held_out_episodes": error.episodes,
        }
        if error.hold_last_state is not None:
            facts["action_error_hold_last_state"] = error.hold_last_state
    facts["checkpoint_step"] = checkpoint.step
    session.result(facts)
    print(json.dumps(facts))


def _drive_both(
    session: Session, policy: TrainedPolicy, *, starts: int, seed: int
) -> dict[str, str | int | float | bool]:
    """Returns how often the policy reaches the goal, beside its untrained self, reporting every episode as a step."""
    unseen = [Start(seed=seed, index=index) for index in range(starts)]
    trained = drive(
        make_actor(policy, seed=seed), unseen, progress=lambda done: session.report(done, {"steps": 2 * starts})
    )
    untrained = drive(
        make_actor(policy.untrained(), seed=seed),
        unseen,
        progress=lambda done: session.report(starts + done, {"steps": 2 * starts}),
    )
    return {
        "starts": starts,
        "success_rate": trained.success_rate,
        "success_rate_untrained": untrained.success_rate,
    }


if __name__ == "__main__":
    sys.exit(main())
