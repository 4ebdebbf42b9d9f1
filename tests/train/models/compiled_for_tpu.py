"""Compiles one step of a small VLA for TPUs that are not here, as a program: it says what its compiler was given."""

from __future__ import annotations

import json
import sys
from typing import Any

import jax
import numpy as np
from jax.experimental.topologies import get_topology_desc

from mainspring.train.trainer import lowered_update
from tests.train.layouts_of_mesh import SIGNATURE, batch_of, recipe_with

HEADS = {"width": 128, "heads": 2, "kv_heads": 1, "head_dim": 128}

if __name__ == "__main__":
    recipe = recipe_with(
        {
            "mesh": {"replica": 1, "data": 2, "tensor": 2},
            "policy": {"compute": {"attention": sys.argv[1], "numbers": "bfloat16"}, "language": HEADS},
        }
    )
    struct: Any = jax.ShapeDtypeStruct
    batch = {name: struct(array.shape, np.asarray(array).dtype) for name, array in batch_of(0).items()}
    devices = get_topology_desc(platform="tpu", topology_name="v5e:2x2").devices
    lowered = lowered_update(recipe, SIGNATURE, batch, devices)
    calls = lowered.as_text().count("tpu_custom_call")
    memory: Any = lowered.compile().memory_analysis()
    sys.stdout.write(json.dumps({"calls": calls, "temporaries": memory.temp_size_in_bytes}))
