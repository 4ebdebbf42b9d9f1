"""A training step of ACT on CPU cores: ours, and LeRobot's (0.4.4, torch), on a batch in memory.

Run as `python -m benchmarks.train_step_cpu [--quick]`, where `lerobot==0.4.4` and torch are installed too; without them
ours alone is timed. Both have the defaults of LeRobot's `ACTConfig` and no pretrained backbone; ours reads images
by its own small encoder, LeRobot's by a ResNet-18. A step is forward, backward and update of 8 samples with one camera
of 224 x 224, 14 dimensions, chunks of 100, in float32, on all cores. Runs take turns; `ratio` is the median of our
step's time by theirs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import jax
import numpy as np

from mainspring.train.models.shapes import Signature
from mainspring.train.policy import unit_statistics
from mainspring.train.recipe import changed, recipe_named
from mainspring.train.state.sharding import make_mesh, place_batch
from mainspring.train.steps.state import initial_state
from mainspring.train.steps.update import make_update

BATCH, SIZE, DIMS, HORIZON = 8, 224, 14, 100
TURNS, STEPS = 5, 5
CAMERA = "observation.images.top"

Step = Callable[[], None]


def rows() -> dict[str, Any]:
    """Returns what both learn from."""
    numbers = np.random.default_rng(0)
    return {
        "state": np.float32(numbers.normal(size=(BATCH, DIMS))),
        "actions": np.float32(numbers.normal(size=(BATCH, HORIZON, DIMS))),
        "valid": np.ones((BATCH, HORIZON), bool),
        "images": numbers.integers(0, 256, (BATCH, 1, SIZE, SIZE, 3)).astype(np.uint8),
    }


def ours() -> Step:
    recipe = changed(recipe_named("act"), {"batch_size": BATCH})
    signature = Signature(state_dim=DIMS, action_dim=DIMS, image_views=1, image_height=SIZE, image_width=SIZE)
    mesh = make_mesh()
    held = {"state": initial_state(recipe, signature, unit_statistics(recipe.policy, signature), mesh)}
    update, batch = make_update(recipe, mesh), place_batch(mesh, rows())

    def step() -> None:
        held["state"], measures = update(held["state"], batch, np.int32(1))
        jax.block_until_ready(measures)  # type: ignore[no-untyped-call]

    return step


def theirs() -> Step:
    torch, types = import_module("torch"), import_module("lerobot.configs.types")
    config = import_module("lerobot.policies.act.configuration_act")
    model = import_module("lerobot.policies.act.modeling_act")
    feature, kind = types.PolicyFeature, types.FeatureType
    policy = model.ACTPolicy(
        config.ACTConfig(
            input_features={
                "observation.state": feature(type=kind.STATE, shape=(DIMS,)),
                CAMERA: feature(type=kind.VISUAL, shape=(3, SIZE, SIZE)),
            },
            output_features={"action": feature(type=kind.ACTION, shape=(DIMS,))},
            pretrained_backbone_weights=None,
            device="cpu",
        )
    )
    policy.train()
    optimizer = torch.optim.AdamW(policy.get_optim_params(), lr=1e-5, weight_decay=1e-4)
    arrays = rows()
    images = arrays["images"][:, 0].transpose(0, 3, 1, 2).astype(np.float32) / 255
    batch = {
        "observation.state": torch.from_numpy(arrays["state"]),
        CAMERA: torch.from_numpy(images),
        "action": torch.from_numpy(arrays["actions"]),
        "action_is_pad": torch.from_numpy(~arrays["valid"]),
    }

    def step() -> None:
        loss, _ = policy.forward(batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 10.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def seconds(step: Step) -> float:
    """Returns what a step takes, over some."""
    begun_s = time.perf_counter()
    for _ in range(STEPS):
        step()
    return (time.perf_counter() - begun_s) / STEPS


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    turns = 3 if parser.parse_args().quick else TURNS
    steps = {"ours": ours()}
    if find_spec("lerobot") is not None:
        steps["lerobot"] = theirs()
    for step in steps.values():
        step()  # Compiles, and touches memory.
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(turns):
        for name, step in steps.items():
            taken[name].append(seconds(step))
        newest = ", ".join(f"{name} {each[-1] * 1e3:.0f} ms" for name, each in taken.items())
        print(f"turn {turn}: {newest}", flush=True)
    figures = {f"{name}_ms": round(statistics.median(each) * 1e3, 1) for name, each in taken.items()}
    if "lerobot" in taken:
        pairs = zip(taken["ours"], taken["lerobot"], strict=True)
        figures["ratio"] = round(statistics.median(one / other for one, other in pairs), 3)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
