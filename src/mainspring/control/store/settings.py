"""The controller's own bounds; every one has a name here and a reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mainspring.domain.answers.policies.robots import POLL_S
from mainspring.domain.hardware.care import CareRules
from mainspring.domain.life import Retention
from mainspring.domain.team import NoticeRules, WaitingLimits
from mainspring.domain.wire.telemetry import LogForm, TraceRules
from mainspring.objects import Grants


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How long things may take and how much one tick may do.

    Args:
        interval_s: The longest pause between ticks; submits and heartbeats wake the loop earlier.
        leader_lease_s: How long a controller that fell silent keeps others from leading: long enough for two renewals
            to fail, and short enough for the next plan to come within 5 s.
        heartbeat_s: How often leads report.
        lease_s: How long an agent lives without its lead; several heartbeats, so that one lost message kills nothing.
        leaderless_s: How long an attempt that has lost an agent may be without word of a lead: a lease until its agents
            miss theirs, another until one of them is named, and time for that one to begin.
        leads_max: Most leads one attempt may have; each is a node lost, and one with so many does nothing else.
        grace_s: How long agents have to end by themselves once asked to.
        lost_grace_s: The same where an agent is gone: no step can be saved whole any more, only last words told.
        start_s_max: From grant to all agents registered; image pulls and node boots fit, a lost launch does not.
        absent_s: How long a launched allocation may be missing from what its engine sees before it counts as lost;
            some engines list what they accepted only after a while.
        stop_again_s: When a stop that has not ended its allocation is sent once more.
        acts_max: Most engine calls in one tick, so that a mass start never starves heartbeats of their answers; shared
            evenly among clusters, and stops go first.
        starts_max: Most jobs granted in one tick, so that the transaction stays short; the next plan has the others.
        whys_max: Most changed reasons for waiting written in one tick, first in the queue first.
        plan_s: The longest pause between plans while nothing changes.
        robot_poll_s: How often robots call.
        one_line: Whether people whose jobs run under one account may submit for one line of the tenant tree only.
        run_as: The users that jobs run as, by team; see `domain.team.user_of`. empty where all run as the server.
        limits: What people, and teams without limits of their own, may have waiting.
        keep: What is kept at hand of what is over.
        notices: Where notices may be sent.
        traces: Where traces are.
        care: What is done to nodes that failed, and how they come back.
        log_form: How agents say what they have to say.
    """

    interval_s: float = 0.5
    leader_lease_s: float = 3.0
    heartbeat_s: float = 1.0
    lease_s: float = 15.0
    leaderless_s: float = 45.0
    leads_max: int = 100
    grace_s: float = 30.0
    lost_grace_s: float = 3.0
    start_s_max: float = 900.0
    absent_s: float = 60.0
    stop_again_s: float = 60.0
    acts_max: int = 256
    starts_max: int = 2_000
    whys_max: int = 2_000
    plan_s: float = 10.0
    robot_poll_s: float = POLL_S
    one_line: bool = False
    run_as: Mapping[str, str] = field(default_factory=dict)
    limits: WaitingLimits = field(default_factory=WaitingLimits)
    keep: Retention = field(default_factory=Retention)
    notices: NoticeRules = field(default_factory=NoticeRules)
    traces: TraceRules = field(default_factory=TraceRules)
    care: CareRules = field(default_factory=CareRules)
    log_form: LogForm = LogForm.TEXT


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentAccess:
    """How agents reach a controller, and by which keys.

    Args:
        controller_urls: Where it listens, as agents see it, and after that where other servers of its store do.
        objects_url: Where code snapshots and checkpoints are, as agents see it.
        key: What the secrets of attempts are made from, and nothing else: the same for every controller of one store.
        environment_passed: Variables of agents that their ranks get beside the usual.
        secret_keys: The file of keys that teams' secrets are kept under, the same for every controller of one store;
            made when it is first needed. None for a controller that keeps none.
        grants: Gives agents credentials for their attempt's part of the object store, and keeps no caller waiting; None
            where they use those that their environment has.
        proxy_url: Where robots reach the proxy of services beside this controller, "" where there is none.
    """

    controller_urls: tuple[str, ...]
    objects_url: str
    key: str = field(repr=False)
    environment_passed: tuple[str, ...] = ()
    secret_keys: Path | None = None
    grants: Grants | None = None
    proxy_url: str = ""
