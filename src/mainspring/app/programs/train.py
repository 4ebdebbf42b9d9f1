"""One rank of a training job: `python -m mainspring.app.programs.train`, alone or under an agent.

A failure leaves as a traceback: the agent quotes its last words, and JAX then does not wait for the other ranks.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from mainspring.data import open_view
from mainspring.domain.wire import EXIT_PREEMPTED
from mainspring.objects import open_store
from mainspring.session import join
from mainspring.train.recipe import RECIPES, Recipe, changed, recipe_named
from mainspring.train.trainer import connect, train


def main() -> int:
    """Trains and prints one JSON line of what came of it; returns the exit code."""
    parser = argparse.ArgumentParser(description="Trains a policy on a view.")
    parser.add_argument("--objects", required=True, help="URL of the object store")
    parser.add_argument("--view", required=True, help="id of the training view")
    parser.add_argument("--cache", type=Path, required=True, help="folder for the view's bytes and compiled programs")
    parser.add_argument("--recipe", required=True, help=f"one of {', '.join(RECIPES)}")
    parser.add_argument("--steps", type=int, help="in place of the recipe's own number")
    parser.add_argument("--changes", type=json.loads, default={}, help="JSON of recipe fields to replace")
    snapshots = parser.add_mutually_exclusive_group()
    snapshots.add_argument("--snapshots", type=int, default=20, help="snapshots in the whole run")
    snapshots.add_argument("--snapshot-every", type=int, help="steps between snapshots")
    words = parser.parse_args()

    session = join()
    connect(session, words.cache / "compiled")
    recipe = _recipe(words)
    outcome = train(
        session,
        recipe,
        open_view(open_store(words.objects), words.view, words.cache / "views", "train"),
        snapshot_every=words.snapshot_every or -(-recipe.steps // words.snapshots),
        facts={"view": words.view},
    )
    if outcome.preempted:
        return EXIT_PREEMPTED
    if session.rank == 0:
        facts: dict[str, float] = {"steps": outcome.step}
        if outcome.loss is not None:  # A rank killed after the last snapshot finds nothing left to do.
            facts["loss"] = outcome.loss
        session.result(facts)
        print(json.dumps(facts))
    return 0


def _recipe(words: argparse.Namespace) -> Recipe:
    steps = {"steps": words.steps} if words.steps else {}
    return changed(recipe_named(words.recipe), {**words.changes, **steps})


if __name__ == "__main__":
    sys.exit(main())
