"""The part of what its chips can do that a run uses, as it runs: formulas for what learning needs, published peaks."""

from __future__ import annotations

import re
from collections.abc import Callable

import jax

from mainspring.train.models.shapes import Signature
from mainspring.train.plan.chips import CHIPS
from mainspring.train.plan.formulas.sharing import DeviceShare
from mainspring.train.plan.formulas.work import model_flops
from mainspring.train.recipe import Recipe

KINDS = (  # As JAX calls devices, the most telling first; others have no figures here.
    (r"TPU v4", "v4"),
    (r"TPU v5( ?lite|e)", "v5e"),
    (r"TPU v5", "v5p"),
    (r"TPU v6", "v6e"),
    (r"TPU ?v?7", "tpu7x"),
    (r".*A100.*80GB", "a100-80gb"),
    (r".*A100", "a100"),
    (r".*H100", "h100"),
    (r".*H200", "h200"),
    (r".*\bB200", "b200"),
    (r".*\bL4\b", "l4"),
    (r".*RTX 4090", "rtx4090"),
)


def chip_of(device_kind: str) -> str | None:
    """Returns the name under which a device's figures are published here, None for one without.

    Args:
        device_kind: As JAX calls it.
    """
    return next((chip for pattern, chip in KINDS if re.match(pattern, device_kind)), None)


def share_of_peak(recipe: Recipe, signature: Signature) -> Callable[[float], float] | None:
    """Returns what gives a step's MFU, 0 to 1, by its seconds, on the devices there are; None where they are unknown.

    Source: Chowdhery et al., "PaLM", 2022, appendix B.

    Args:
        recipe: What is learned.
        signature: The data's dimensions.
    """
    devices = jax.devices()
    chip = chip_of(devices[0].device_kind)
    if chip is None:
        return None
    share = DeviceShare(recipe=recipe, signature=signature, chip=CHIPS[chip], devices=len(devices))
    least_s = model_flops(share) / (CHIPS[chip].flops * len(devices))
    return lambda step_s: least_s / step_s
