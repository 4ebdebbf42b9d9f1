"""A rank that trains the smallest VLA on a layout under an agent, or reads checkpoints under every layout."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import time
from typing import Any

import jax
import numpy as np

from mainspring.session import Session
from mainspring.session.jax_state import blocks_of, tree_from
from mainspring.train.models.arrays import flattened
from mainspring.train.policy import unit_statistics
from mainspring.train.state.sharding import make_mesh, place_batch
from mainspring.train.steps.state import PARTS, abstract_state, initial_state
from mainspring.train.steps.update import make_update

from .layouts_of_mesh import LAYOUTS, SIGNATURE, batch_of, recipe_with

STEPS = 8


def prints_of(state: Any) -> dict[str, str]:
    """Returns a fingerprint of each array, by path."""
    arrays = {path: np.asarray(array) for path, array in flattened(state).items()}
    return {path: hashlib.sha256(array.tobytes()).hexdigest()[:16] for path, array in arrays.items()}


def joined(socket: str) -> Session:
    return Session(socket, pid=os.getpid(), stopwatch=time.monotonic)


def trained(layout: str, socket: str, held_at: int) -> dict[str, Any]:
    recipe, session = recipe_with(LAYOUTS[layout]), joined(socket)
    mesh = make_mesh(recipe.mesh)
    restored = session.restore()
    if restored is None:
        start, state = 0, initial_state(recipe, SIGNATURE, unit_statistics(recipe.policy, SIGNATURE), mesh)
    else:
        start, state = restored.step, tree_from(restored, abstract_state(recipe, SIGNATURE, mesh))
    update, losses = make_update(recipe, mesh), {}
    for step in session.steps(start, STEPS):
        state, loss = update(state, place_batch(mesh, batch_of(step)), np.int32(step))
        losses[step] = float(loss[0])
        if session.snapshot_due(step):
            session.snapshot(step, blocks_of(state, session, PARTS))
        session.report(step, {"loss": losses[step]})
        if step == held_at:
            threading.Event().wait()
    session.left()
    return {"losses": losses, "prints": prints_of(state)}


def read(sockets: dict[str, str]) -> dict[str, dict[str, dict[str, str]]]:
    """Returns the fingerprints of what each agent gave, by who wrote it and under which layout it was read."""
    found: dict[str, dict[str, dict[str, str]]] = {}
    for writer, socket in sockets.items():
        restored = joined(socket).restore()
        assert restored is not None
        for reader in sockets:
            recipe = recipe_with(LAYOUTS[reader])
            mesh = make_mesh(recipe.mesh, jax.devices()[: 1 if reader == "one device" else None])
            state = tree_from(restored, abstract_state(recipe, SIGNATURE, mesh))
            found.setdefault(writer, {})[reader] = prints_of(state)
    return found


if __name__ == "__main__":
    what, *words = sys.argv[1:]
    answer: Any = read(json.loads(words[0])) if what == "read" else trained(words[0], words[1], int(words[2]))
    sys.stdout.write(json.dumps(answer))
