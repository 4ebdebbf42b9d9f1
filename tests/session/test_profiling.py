"""A session that is asked for a profile hands its files to the agent, and the loop goes on as it was."""

from __future__ import annotations

import json
import time

import jax.numpy as jnp
import pytest
from tests.session.agent import Agent

from mainspring.domain import wire
from mainspring.session.profiling.recording import ABOUT, XPLANE


@pytest.mark.slow
def test_steps_give_a_profile_once_it_is_wanted_and_only_once(agent: Agent) -> None:
    session = agent.session(stopwatch=time.monotonic)
    agent.reply = wire.StepReply(profile=wire.ProfileWanted(id="profile-1", steps=2))
    done = []
    for step in session.steps(0, 1_000_000):
        jnp.ones(8).block_until_ready()
        session.report(step)
        done.append(step)
        if agent.all(wire.ProfileCommit) and len(done) > 50:
            break
    session.close()
    assert done == list(range(1, len(done) + 1))
    (begun,), (kept,) = agent.all(wire.ProfileBegin), agent.all(wire.ProfileCommit)
    assert (begun.id, kept.id, kept.failure) == ("profile-1", "profile-1", "")
    about = json.loads((agent.folder / f"profile-1.{ABOUT}").read_bytes())
    steps = [each["step"] for each in about["steps"]]
    assert steps == list(range(steps[0], steps[0] + 3))
    assert (agent.folder / f"profile-1.{XPLANE}").stat().st_size > 0
