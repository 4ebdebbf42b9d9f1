"""One rank of a training job: `python -m mainspring train`, alone or under an agent.

A failure leaves as a traceback: the agent quotes its last words. What may be done before the rank is known (imports,
the view) is done first, so that a spare process waits with all of it behind it.
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path

from mainspring.app.server.programs.uses import noted
from mainspring.data import View, guard, open_view
from mainspring.objects import ObjectStore
from mainspring.session import Session, open_view_store
from mainspring.session.jax_distributed import run
from mainspring.train.recipe import RECIPES, Recipe, changed, recipe_named
from mainspring.train.trainer import train


def main() -> int:
    """Trains and prints one JSON line of what came of it; returns the exit code."""
    parser = argparse.ArgumentParser(description="Trains a policy on a view.")
    parser.add_argument("--objects", required=True, help="URL of the object store")
    parser.add_argument("--view", required=True, help="id of the training view")
    parser.add_argument("--version", default="", help="name of the version it is a view of, for its lineage")
    parser.add_argument("--cache", type=Path, required=True, help="folder for the view's bytes and compiled programs")
    parser.add_argument("--recipe", required=True, help=f"one of {', '.join(RECIPES)}")
    parser.add_argument("--steps", type=int, help="in place of the recipe's own number")
    parser.add_argument("--changes", type=json.loads, default={}, help="JSON of recipe fields to replace")
    words = parser.parse_args()

    recipe = _recipe(words)
    store = open_view_store(words.objects, words.view)
    view = open_view(store, words.view, words.cache / "views", "train")
    run(partial(_rank, recipe=recipe, view=view, store=store, version=words.version), cache=words.cache / "compiled")
    return 0


def _rank(session: Session, *, recipe: Recipe, view: View, store: ObjectStore, version: str) -> None:
    if version and session.job and session.rank == 0:
        noted(store, version, session.job)
    if session.rank == 0 and session.generation <= 1:  # Once: a rank that comes back must not pay for it.
        guard(store, view)
    outcome = train(session, recipe, view, facts={"view": view.manifest.id})
    if session.rank == 0 and outcome.step == recipe.steps:
        facts: dict[str, float] = {"steps": outcome.step}
        if outcome.loss is not None:  # A rank killed after the last snapshot finds nothing left to do.
            facts["loss"] = outcome.loss
        session.result(facts)
        print(json.dumps(facts))


def _recipe(words: argparse.Namespace) -> Recipe:
    steps = {"steps": words.steps} if words.steps else {}
    return changed(recipe_named(words.recipe), {**words.changes, **steps})


if __name__ == "__main__":
    sys.exit(main())
