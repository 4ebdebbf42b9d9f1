"""Evaluates a checkpoint: `python -m mainspring evaluate`, alone or under an agent.

One that `--checkpoint` names plays episodes in an environment, and its report is kept with it. A job's newest, by
`--job` and `--view`, is looked at as the main job does: a policy for the simulated arm drives it in closed loop; any
other is held against episodes it never saw.
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path

from mainspring.app.base.system import SystemClock
from mainspring.app.server.programs.uses import noted
from mainspring.checkpoint import load
from mainspring.data import open_view
from mainspring.domain.errors import InvalidInput
from mainspring.domain.ids import JobId
from mainspring.domain.job import checkpoint_named
from mainspring.robots.arm import ACTION_NAMES, STATE_NAMES
from mainspring.robots.closed_loop import drive
from mainspring.robots.environments.metaworld import PLACES, TOLD_STATE_NAMES, MetaWorldPlaces
from mainspring.robots.environments.port import EpisodeStart
from mainspring.robots.evaluation.acting import actor_of
from mainspring.robots.evaluation.cells import play_cells
from mainspring.robots.evaluation.keeping import keep_if_allowed
from mainspring.robots.evaluation.run import EvaluationRequest, evaluate
from mainspring.session import Session, open_named_store, open_view_store
from mainspring.session.jax_distributed import run
from mainspring.train.evaluate import SAMPLES, TrainedPolicy, held_out_error, make_actor, policy_from

TASKS_TOLD_MAX = 20  # Of a job's result; all are in the report.


def main() -> int:
    """Evaluates and prints one JSON line of what came of it; returns the exit code."""
    parser = argparse.ArgumentParser(description="Evaluates a checkpoint of a training job.")
    parser.add_argument("--objects", required=True, help="URL of the object store")
    parser.add_argument(
        "--cache", type=Path, default=Path("cache"), help="folder for the view's bytes and compiled programs"
    )
    parser.add_argument("--starts", type=int, default=100, help="unseen starts")
    parser.add_argument("--seed", type=int, default=0, help="of the starts and of the policy's noise")
    parser.add_argument("--checkpoint", default="", help="JOB@STEP: which, with a report that is kept with it")
    parser.add_argument("--env", default="", help="environment to play in; none for held-out episodes alone")
    parser.add_argument("--job", default="", help="id of the training job, whose newest checkpoint is looked at")
    parser.add_argument("--view", default="", help="id of the view it was trained on")
    parser.add_argument("--version", default="", help="name of the version it is a view of, for its lineage")
    words = parser.parse_args()
    if bool(words.checkpoint) == bool(words.job and words.view):
        parser.error("name --checkpoint, or --job and --view")

    evaluation = _evaluate_one if words.checkpoint else _evaluate
    run(partial(evaluation, words), standby=False, cache=words.cache / "compiled")
    return 0


def _evaluate_one(words: argparse.Namespace, session: Session) -> None:
    job, step = checkpoint_named(words.checkpoint)
    if step is None:
        raise InvalidInput("evaluate a checkpoint", got=words.checkpoint, wanted="JOB@STEP")
    store, total = open_named_store(words.objects), {"steps": float(words.starts)}
    asked = EvaluationRequest(
        job=JobId(job), step=step, environment=words.env, starts=words.starts, seed=words.seed, by=session.job
    )
    made = evaluate(
        store,
        asked,
        cache=words.cache / "views",
        now_s=SystemClock().now_s(),
        progress=lambda done: session.report(done, total),
    )
    facts: dict[str, str | int | float | bool] = {"evaluation": made.report.name, "checkpoint_step": step}
    if not keep_if_allowed(store, made.report, made.files):
        facts["kept"] = False
        print(f"The report is kept nowhere: {words.checkpoint} is another team's to add to.", file=sys.stderr)
    if made.report.success is not None:
        success = made.report.success
        facts |= {"starts": success.starts, "success_rate": success.rate}
        facts |= {"success_low": success.interval.low, "success_high": success.interval.high}
    if made.report.score is not None:
        score = made.report.score
        facts |= {"score": score.mean, "score_low": score.interval.low, "score_high": score.interval.high}
    if made.report.robot:
        facts["robot"] = made.report.robot
    if made.report.left_out:
        facts["held_out_left_out"] = made.report.left_out[:200]
    for error in made.report.held_out[:TASKS_TOLD_MAX]:
        facts[f"action_error {error.task}"[:200]] = error.policy
    session.result(facts)
    print(json.dumps(facts))


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
    elif (features.names("state"), features.names("action")) == (TOLD_STATE_NAMES, ACTION_NAMES):
        facts = _drive_told(session, policy, starts=words.starts, seed=words.seed)
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


def _drive_told(
    session: Session, policy: TrainedPolicy, *, starts: int, seed: int
) -> dict[str, str | int | float | bool]:
    """Returns how often the policy does what words say, by what it is told and what is wanted."""
    actor = actor_of(policy, MetaWorldPlaces().facts(), seed=seed)
    total = {"steps": float(len(PLACES) ** 2 * starts)}
    cells = play_cells(actor, starts=starts, seed=seed, progress=lambda done: session.report(done, total))
    return {"starts": starts, **cells}


def _drive_both(
    session: Session, policy: TrainedPolicy, *, starts: int, seed: int
) -> dict[str, str | int | float | bool]:
    """Returns how often the policy reaches the goal, beside its untrained self, reporting every episode as a step."""
    unseen = [EpisodeStart(seed=seed, index=index) for index in range(starts)]
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
