"""An agent of a local cluster that is started before there is an order for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import mainspring
from mainspring.domain.codec import decode, encode
from mainspring.domain.fleet import AllocationPhase
from mainspring.engines.common.records import Launched
from tests.engines.test_local import CONTROLLER, NAME, Machine, order, runs
from tests.engines.test_local import machine as machine

# Waits for an order as agents do, and says that it does.
READY = 'echo $$ >> "$STARTS"; read -r order; read -r gate; read -r _; [ -e "$gate" ] || exit 1; exec sleep 60'


def test_agent_that_was_ready_is_the_first_of_the_next_launch_and_another_follows_once_it_is_quiet(
    machine: Machine,
) -> None:
    engine = machine.engine(ready=READY)
    engine.observe()
    machine.until(lambda: len(machine.started()) == 1)
    engine.observe()
    (ready,) = machine.started()
    engine.launch(order(2))
    launched = decode(Launched, (machine.root / NAME / "launched.json").read_bytes())
    assert launched.agents[0].pid == ready
    machine.until(lambda: len(machine.started()) == 2)
    assert engine.observe()[0].phase is AllocationPhase.RUNNING
    assert len(machine.started()) == 2
    machine.clock.advance(1.0)
    engine.observe()
    machine.until(lambda: len(machine.started()) == 3)


def test_agent_that_was_ready_and_died_is_not_waited_for_and_not_begun_again_and_again(machine: Machine) -> None:
    engine = machine.engine(ready='echo $$ >> "$STARTS"; exit 1')
    engine.observe()
    machine.until(lambda: len(machine.started()) == 1 and not runs(machine.started()[0]))
    engine.launch(order(1))
    machine.until(lambda: len(machine.started()) == 2)
    assert engine.observe()[0].phase is AllocationPhase.RUNNING
    machine.clock.advance(1.0)
    engine.observe()
    assert len(machine.started()) == 2
    machine.clock.advance(60.0)
    engine.observe()
    machine.until(lambda: len(machine.started()) == 3)


@pytest.mark.slow
def test_agent_that_was_ready_outlives_the_controller_once_launched_and_ends_with_it_before(machine: Machine) -> None:
    root = machine.root.parent
    (root / "launch.json").write_bytes(encode(order()))
    source = str(Path(mainspring.__file__).parent.parent)
    words = (sys.executable, "-c", CONTROLLER, source, str(root), READY)
    with subprocess.Popen(words, stdin=subprocess.PIPE) as controller:
        machine.until(lambda: len(machine.started()) == 2)
        launched, waits = machine.started()
        controller.kill()
    machine.until(lambda: not runs(waits))
    assert runs(launched)
    assert machine.engine().observe()[0].phase is AllocationPhase.RUNNING
