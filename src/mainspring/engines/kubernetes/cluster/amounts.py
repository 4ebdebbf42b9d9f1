"""Amounts as the API writes them ("64", "1500m", "256Gi"), and those that a pod asks for.

Source: apimachinery's `pkg/api/resource/quantity.go`; "Pod Overhead", "Sidecar Containers" and "Assign Pod-level CPU
and memory resources" of kubernetes.io/docs.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

CPU, MEMORY = "cpu", "memory"
MIB = float(1 << 20)
_UNITS = {
    "": 1.0, "n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50, "Ei": 2.0**60,
}  # fmt: skip
Amounts = dict[str, float]  # By resource.


@lru_cache(maxsize=4_096)  # Clusters ask for the same few amounts.
def number(text: str) -> float:
    """Returns an amount as a plain number.

    Raises:
        ValueError: It is none.
    """
    digits = text.rstrip("numkKMGTPEi")
    # The exponent of "1E3" is no unit, and leaves its digits behind it.
    unit = text[len(digits) :]
    if unit not in _UNITS:
        raise ValueError(f"not an amount of Kubernetes: {text!r}")
    return float(digits) * _UNITS[unit]


def asked_by(spec: Mapping[str, Any]) -> Amounts:
    """Returns what a pod holds of its node, as the scheduler counts it.

    Args:
        spec: The pod's.

    Raises:
        KeyError, ValueError: It cannot be read.
    """
    total: Amounts = {}
    beside: Amounts = {}  # Sidecars: started among the first containers, they stay beside all others.
    most: Amounts = {}  # What the first containers need, one after the other.
    for container in spec.get("initContainers") or ():
        asked = _requests(container)
        if container.get("restartPolicy") == "Always":
            beside = _sum(beside, asked)
        else:
            most = _largest(most, _sum(beside, asked))
    for container in spec["containers"]:
        total = _sum(total, _requests(container))
    total = _largest(_sum(total, beside), most)
    total |= _requests(spec)  # What is said of the pod as a whole counts in place of its containers' sum.
    return _sum(total, _numbers(spec.get("overhead") or {}))


def _requests(holder: Mapping[str, Any]) -> Amounts:
    """Returns what something asks for; the API has put limits there where only those were said."""
    return _numbers((holder.get("resources") or {}).get("requests") or {})


def _numbers(said: Mapping[str, Any]) -> Amounts:
    return {name: number(str(amount)) for name, amount in said.items()}


def _sum(one: Amounts, other: Amounts) -> Amounts:
    return {**one, **{name: one.get(name, 0.0) + amount for name, amount in other.items()}}


def _largest(one: Amounts, other: Amounts) -> Amounts:
    return {**one, **{name: max(one.get(name, 0.0), amount) for name, amount in other.items()}}
