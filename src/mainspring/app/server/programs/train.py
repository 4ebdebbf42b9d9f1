"""One rank of a training job: `python -m mainspring train`, alone or under an agent.

A failure leaves as a traceback: the agent quotes its last words. What may be done before the rank is known (imports,
the views) is done first, so that a spare process waits with all of it behind it.
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from mainspring.app.server.programs.uses import noted
from mainspring.checkpoint import durable_steps, open_checkpoint
from mainspring.checkpoint.exchange import StoredSource
from mainspring.checkpoint.interop import weights_of
from mainspring.checkpoint.safetensors import write_safetensors
from mainspring.data import View, guard, open_view
from mainspring.data.views.manifest import Split
from mainspring.domain.errors import Conflict, InvalidInput, NotFound
from mainspring.domain.ids import JobId
from mainspring.domain.job import checkpoint_named
from mainspring.objects import ObjectStore
from mainspring.session import Session, open_view_store
from mainspring.session.jax_distributed import run
from mainspring.train.inputs.sources import GivenView
from mainspring.train.naming import find_recipe
from mainspring.train.plan.running import share_of_peak
from mainspring.train.recipe import RECIPES, InitRecipe, LayoutName, Recipe, changed
from mainspring.train.state.merged import merged_source
from mainspring.train.trainer import train


def main() -> int:
    """Trains and prints one JSON line of what came of it; returns the exit code."""
    parser = argparse.ArgumentParser(description="Trains a policy on views.")
    parser.add_argument("--objects", required=True, help="URL of the object store")
    parser.add_argument(
        "--view", required=True, action="append", help="[SOURCE=]ID of a training view; one for each of data.sources"
    )
    parser.add_argument("--version", default="", help="name of the version it is a view of, for its lineage")
    parser.add_argument("--cache", type=Path, required=True, help="folder for the view's bytes and compiled programs")
    parser.add_argument("--recipe", required=True, help=f"one of {', '.join(RECIPES)}; or FILE.py:FUNCTION")
    parser.add_argument("--steps", type=int, help="in place of the recipe's own number")
    parser.add_argument("--changes", type=json.loads, default={}, help="JSON of recipe fields to replace")
    parser.add_argument("--from", dest="begin", default="", help="weights to begin with: PATH, or JOB[@STEP]")
    words = parser.parse_args()

    recipe = _recipe(words)
    stores = [open_view_store(words.objects, _view_id(given)) for given in words.view]
    sources = [
        _opened(store, given, words.cache, held_out=recipe.held_out is not None)
        for store, given in zip(stores, words.view, strict=True)
    ]
    rank = partial(_rank, recipe=recipe, sources=sources, stores=stores, words=words)
    run(rank, cache=words.cache / "compiled")
    return 0


def _view_id(given: str) -> str:
    return str(given.rpartition("=")[2])


def _opened(store: ObjectStore, given: str, cache: Path, *, held_out: bool) -> GivenView:
    def side(split: Split) -> View:
        return open_view(store, _view_id(given), cache / "views", split)

    other: View | None = None
    if held_out:
        with suppress(NotFound):  # A view may have nothing on that side.
            other = side("holdout")
    return GivenView(name=given.rpartition("=")[0], view=side("train"), held_out=other)


def _rank(
    session: Session,
    *,
    recipe: Recipe,
    sources: list[GivenView],
    stores: list[ObjectStore],
    words: argparse.Namespace,
) -> None:
    if words.version and session.job and session.rank == 0:
        noted(stores[0], words.version, session.job)
    if session.rank == 0 and session.generation <= 1:  # Once: a rank that comes back must not pay for it.
        for store, source in zip(stores, sources, strict=True):
            guard(store, source.view)
    facts = {"view": " ".join(source.view.manifest.id for source in sources)}
    bring = partial(_brought, stores[0], words.cache / "begun")
    outcome = train(session, recipe, sources, facts=facts, bring=bring, work=share_of_peak)
    if session.rank == 0 and outcome.step == recipe.steps:
        result: dict[str, float] = {"steps": outcome.step}
        if outcome.loss is not None:  # A rank killed after the last snapshot finds nothing left to do.
            result["loss"] = outcome.loss
        session.result(result)
        print(json.dumps(result))


def _brought(store: ObjectStore, folder: Path, init: InitRecipe) -> InitRecipe:
    """Returns weights to begin with as they can be read: of a checkpoint of ours, put into a folder here, merged."""
    if Path(init.path).exists() or init.layout not in (None, LayoutName.MAINSPRING):
        return init
    name, step = checkpoint_named(init.path)
    steps = durable_steps(store, JobId(name)) if step is None else (step,)
    if not steps:
        raise NotFound("begin with given weights", on=init.path, got="no such file, and no checkpoint of that name")
    here = folder / f"{name}@{steps[0]}"
    if not here.exists():
        source = merged_source(StoredSource(open_checkpoint(store, JobId(name), steps[0])))
        with suppress(Conflict):  # Another rank of this node was faster.
            write_safetensors(weights_of(source), here)
    return replace(init, path=str(here), layout=LayoutName.MAINSPRING)


def _recipe(words: argparse.Namespace) -> Recipe:
    if not isinstance(words.changes, dict):
        raise InvalidInput("read the recipe of a command", got="--changes of no fields", wanted="fields, as JSON")
    changes = {**words.changes, **({"steps": words.steps} if words.steps else {})}
    if words.begin:
        changes["init"] = {**(changes.get("init") or {}), "path": words.begin}
    return changed(find_recipe(words.recipe), changes)


if __name__ == "__main__":
    sys.exit(main())
