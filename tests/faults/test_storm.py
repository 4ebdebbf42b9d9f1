"""Minutes of random faults, one after the other, on real processes: in the end every bit is as if nothing had been."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from mainspring.domain.life import AttemptState
from mainspring.domain.wire.events.leads import GenerationResumedEvent, ResultEvent
from tests.faults.test_jax import TRAINEE
from tests.node.rig import Rig

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1_500)]
STORM_S = float(os.environ.get("STORM_S", "300"))
CALM_LIMIT_S = 600.0
CALM_S = 4.0  # Between two faults: about what a recovery takes here, so that some fall into it.
ATTEMPTS_MAX = 60
PROGRESS_STEPS = 50  # More than are taken between two heartbeats.
AGENTS = 4


def test_storm_over_ranks_agents_leads_and_the_controller_loses_nothing(make_rig: Callable[..., Rig]) -> None:
    """Any world size from one to four; a lost attempt is followed by another, as the controller would see to."""
    seed = int(os.environ.get("STORM_SEED", "1"))
    dice = random.Random(seed)
    steps = int(30 * STORM_S)  # What the program does in that time when nothing harms it.
    struck: list[int] = []
    began_s = time.monotonic()
    rig = attempt(make_rig, 1, steps)
    number = 1
    while rig.heartbeats[-1:] == [] or rig.heartbeats[-1].outcome is not AttemptState.SUCCEEDED:
        spent_s = time.monotonic() - began_s
        assert spent_s < STORM_S + CALM_LIMIT_S, f"seed {seed}: attempt {number} is not over; {rig.story()}"
        if (rig.heartbeats[-1:] and rig.heartbeats[-1].outcome is not None) or not alive(rig):
            assert not rig.heartbeats or rig.heartbeats[-1].outcome is not AttemptState.FAILED, rig.story()
            rig.close()
            number += 1
            assert number <= ATTEMPTS_MAX, f"seed {seed}"
            rig = attempt(make_rig, number, steps)
        elif spent_s < STORM_S and rig.formed:  # Before all have come, one that goes is the end of the attempt.
            strike(rig, dice, struck)
        wait(rig, dice.uniform(0.2, CALM_S) if spent_s < STORM_S else 0.5)
    rig.check_results(steps, ranks=int(rig.of_kind(GenerationResumedEvent.kind)[-1]["ranks"]))


def attempt(make_rig: Callable[..., Rig], number: int, steps: int) -> Rig:
    return make_rig(
        steps=steps,
        pause_s=0.02,
        how=("reconnects", "standby"),
        agents=AGENTS,
        spares=1,
        ranks_min=1,
        lease_s=1.5,
        hang_s=3.0,
        restarts_max=1_000,
        attempt=f"attempt-{number}",
        number=number,
    )


def alive(rig: Rig) -> bool:
    return any(process.poll() is None for process in rig.processes)


def wait(rig: Rig, seconds: float) -> None:
    until_s = time.monotonic() + seconds
    with rig.changed:
        while time.monotonic() < until_s:
            rig.changed.wait(until_s - time.monotonic())


def strike(rig: Rig, dice: random.Random, struck: list[int]) -> None:
    """Does one harm to somebody who lives, if anybody does."""
    agents = [number for number, process in enumerate(rig.processes) if process.poll() is None]
    harm = dice.choice(("rank", "rank", "two", "stop", "agent", "lead", "preempt", "away", "add", "add"))
    if harm in ("rank", "two", "stop"):
        strike_ranks(rig, dice, struck, 2 if harm == "two" else 1, stop=harm == "stop")
    elif harm in ("agent", "lead") and len(agents) > 1:
        rig.signal_agent(rig.lead if harm == "lead" and rig.lead in agents else dice.choice(agents), signal.SIGKILL)
    elif harm == "preempt" and len(agents) > 1:
        rig.preempt(dice.choice(agents), 5.0)
    elif harm == "away":
        rig.away = True
        wait(rig, dice.uniform(0.5, 3.0))
        rig.away = False
    elif harm == "add" and len(agents) < AGENTS:
        rig.add_agent()


def strike_ranks(rig: Rig, dice: random.Random, struck: list[int], count: int, *, stop: bool) -> None:
    """Harms ranks, but never three times without progress between: a job whose ranks fail so is ended, and rightly.

    `struck` are the steps that were reached when this was done before.
    """
    pids = [status.pid for status in rig.heartbeats[-1].ranks if status.alive] if rig.heartbeats else []
    if not pids or (len(struck) > 1 and rig.heartbeats[-1].step <= struck[-2] + PROGRESS_STEPS):
        return
    struck.append(rig.heartbeats[-1].step)
    for pid in dice.sample(pids, min(len(pids), count)):
        with suppress(ProcessLookupError):  # It was replaced since the lead last told of it.
            os.kill(pid, signal.SIGSTOP if stop else signal.SIGKILL)


def test_storm_over_jax_ranks_ends_bitwise_as_the_calm_run(make_rig: Callable[..., Rig], tmp_path: Path) -> None:
    pytest.importorskip("jax", reason="the train extra is not installed")
    seed = int(os.environ.get("STORM_SEED", "1"))
    dice = random.Random(seed)
    environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "compiled")}
    command = (sys.executable, str(TRAINEE), "4000", "0.02")
    options = {"command": command, "environment": environment, "hang_s": 6.0, "restarts_max": 1_000}
    stormy = make_rig(attempt="stormy", job="job-stormy", **options)
    struck: list[int] = []
    began_s = time.monotonic()
    while not stormy.heartbeats or stormy.heartbeats[-1].outcome is None:
        spent_s = time.monotonic() - began_s
        assert spent_s < STORM_S + CALM_LIMIT_S, f"seed {seed}: not over; {stormy.story()}"
        if spent_s < STORM_S:
            strike_ranks(stormy, dice, struck, dice.choice((1, 1, 2)), stop=dice.choice((False, False, True)))
        wait(stormy, dice.uniform(2.0, 12.0))
    assert stormy.heartbeats[-1].outcome is AttemptState.SUCCEEDED, stormy.story()
    calm = make_rig(attempt="calm", job="job-calm", **options)
    until_s = time.monotonic() + CALM_LIMIT_S
    while not calm.heartbeats or calm.heartbeats[-1].outcome is None:
        assert time.monotonic() < until_s, calm.story()
        wait(calm, 0.5)
    digests = [
        {name: value for one in rig.of_kind(ResultEvent.kind) for name, value in one.items() if "digest" in name}
        for rig in (stormy, calm)
    ]
    assert digests[0] == digests[1] != {}
