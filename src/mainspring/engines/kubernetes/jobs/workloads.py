"""What Kueue says of an allocation's Job: a Workload, which waits, is let in, and may be put out again.

Who was put out once is let in again by Kueue, with new pods; none of those begins here, as they wait behind our gate.
Source: kueue.sigs.k8s.io/docs, "Workload", "Run A Kubernetes Job".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

WORDS_MAX = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSeen:
    """A Workload.

    Args:
        job: Name of the Job it stands for.
        admitted: Whether its pods may run.
        words: What it waits for, in Kueue's words.
        put_out: Why it was put out since, in Kueue's words; "" where it never was.
    """

    job: str
    admitted: bool
    words: str = ""
    put_out: str = ""


def read_workload(found: Mapping[str, Any]) -> WorkloadSeen | None:
    """Returns a Workload; None for one that stands for no Job.

    Raises:
        KeyError, TypeError: It cannot be read.
    """
    owners = found["metadata"].get("ownerReferences") or ()
    job = next((one["name"] for one in owners if one["kind"] == "Job"), "")
    if not job:
        return None
    said = {one["type"]: one for one in (found.get("status") or {}).get("conditions") or ()}
    # A condition that no longer holds tells that it did: let in again, it was put out before.
    return WorkloadSeen(
        job=job,
        admitted=said.get("Admitted", {}).get("status") == "True",
        words=_words(said.get("QuotaReserved")),
        put_out=_words(said.get("Evicted")),
    )


def _words(condition: Mapping[str, Any] | None) -> str:
    if condition is None:
        return ""
    reason, message = condition.get("reason") or "", condition.get("message") or ""
    return f"{reason}: {message}".strip(": ")[:WORDS_MAX]
