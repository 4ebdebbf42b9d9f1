"""Findings of a set-up check, step by step, and what a job on one of the nodes says of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mainspring.engines.common.kind import Finding

# In their order; where Slurm's commands are reached over SSH, one more comes before them.
STEPS = (
    *("commands", "version", "slurmctld", "partitions", "chips", "prices", "accounts", "submitting", "shared folder"),
    *("test job", "folder on a node", "Mainspring on a node", "scratch on a node", "users on a node"),
    *("network on a node", "clocks", "server from a node"),
)
SHOWN_MAX = 8  # Names in one clause; more are counted.


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAsk:
    """What a node is asked: whether agents could run there.

    Args:
        python: The interpreter on the node.
        scratch: The scratch folder on the node.
        controller: Where an agent would call; "" to call nobody.
        certificate: What it would trust there, as PEM text; "" for what the node trusts.
        users: Whom its ranks would run as; none for the account that submits jobs.
    """

    python: str
    scratch: str
    controller: str
    certificate: str
    users: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UserTrouble:
    """Why an agent on the node cannot run ranks as a user, and what to do about it."""

    user: str
    found: str
    fix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAnswer:
    """What the probe said, in its own names; see `probe`."""

    asked: str
    node: str
    python: str
    version: str
    agent_error: str
    scratch_error: str
    scratch_free_bytes: int
    server_status: int
    server_error: str
    server_ahead_s: float | None
    time_s: float
    users: tuple[UserTrouble, ...] = ()
    network: tuple[Finding, ...] = ()


def in_words(names: Iterable[str]) -> str:
    """Returns names as a clause, the first few of many."""
    listed = list(names)
    shown = ", ".join(listed[:SHOWN_MAX])
    return f"{shown} and {len(listed) - SHOWN_MAX} more" if len(listed) > SHOWN_MAX else shown
