"""Runs that are killed, go on with another layout of devices, and checkpoints that any layout reads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mainspring.checkpoint import (
    Checkpoint,
    Claim,
    Lineage,
    Manifest,
    commit,
    open_checkpoint,
    seal,
    share_file,
    write_share,
)
from mainspring.domain import wire
from mainspring.domain.ids import AttemptId, JobId
from mainspring.objects import open_store
from tests.session.agent import ALIGNMENT_BYTES, Agent, welcome

ROOT = Path(__file__).parents[2]
EVERY = 4
OTHERS = ("one device", "tensor", "sequence", "replica")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


class StoreAgent(Agent):
    """Gives a rank what a checkpoint's files hold, and nothing from its own memory."""

    def __init__(self, folder: Path, checkpoint: Checkpoint | None = None) -> None:
        folder.mkdir()
        super().__init__(folder)
        self.reply = wire.StepReply(snapshot_every=EVERY)
        self.welcomes.put(welcome(rank=0, world_size=1, every=EVERY))
        if checkpoint is not None:
            self.plan_step = checkpoint.manifest.step
            self.elsewhere = tuple(replace(shard, file="") for shard in checkpoint.shards)
            self.fetched = partial(self._read, checkpoint)

    def _read(self, checkpoint: Checkpoint, request: wire.FetchPieces) -> wire.PiecesFetched:
        sizes = [-(-piece.size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES for piece in request.pieces]
        offsets = [0, *np.cumsum(sizes).tolist()]
        room = np.zeros(offsets[-1], np.uint8)
        placed = list(zip(request.pieces, offsets, strict=False))
        checkpoint.read(request.pieces, [room[at : at + piece.size_bytes].data for piece, at in placed])
        staged = self.folder / f"fetched-{len(self.said)}"
        room.tofile(staged)
        return wire.PiecesFetched(file=str(staged), offsets=tuple(offsets[:-1]))

    def snapshot(self, step: int) -> wire.SnapshotCommit:
        self.wait(wire.SnapshotCommit, lambda taken: taken.step == step)
        return next(taken for taken in self.all(wire.SnapshotCommit) if taken.step == step)


def program(*words: str, folder: Path, devices: int) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "NPROC": "64",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices} --xla_backend_optimization_level=0",
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
    }
    command = [sys.executable, "-m", "tests.train.layouts_resumed", *words]
    return subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def answer_of(child: subprocess.Popen[str]) -> Any:
    said, _ = child.communicate(timeout=400)
    assert child.returncode == 0
    return json.loads(said)


class Lab:
    """A store with checkpoints of runs on several layouts; each is run once, when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._store = open_store(str(folder / "objects"))
        self._agents: list[Agent] = []
        self._runs: dict[str, Any] = {}

    def agent(self, name: str, checkpoint: Checkpoint | None = None) -> StoreAgent:
        self._agents.append(agent := StoreAgent(self.folder / name.replace(" ", "-"), checkpoint))
        return agent

    def train(self, layout: str, agent: Agent, held_at: int = -1) -> subprocess.Popen[str]:
        devices = 1 if layout == "one device" else 8
        return program("train", layout, agent.path, str(held_at), folder=self.folder, devices=devices)

    @cached_property
    def whole(self) -> Any:
        """The run that nothing happens to, under FSDP; its checkpoints of both steps are stored."""
        agent = self.agent("whole")
        found = answer_of(self.train("fsdp", agent))
        for step in (EVERY, 2 * EVERY):
            self.store(agent, "fsdp", step)
        return found

    def gone_on(self, layout: str) -> Any:
        """What came of the second half of that run under another layout."""
        if layout not in self._runs:
            assert self.whole
            agent = self.agent(layout, self.checkpoint("fsdp", EVERY))
            self._runs[layout] = answer_of(self.train(layout, agent))
            self.store(agent, layout, 2 * EVERY)
        return self._runs[layout]

    def store(self, agent: StoreAgent, layout: str, step: int) -> None:
        taken, claim, job = agent.snapshot(step), Claim(number=1, epoch=1), JobId(layout.replace(" ", "-"))
        data = np.fromfile(agent.arena, np.uint8)[taken.offset :]
        share = write_share(
            self._store,
            job=job,
            step=step,
            file=share_file(claim, generation=1, rank=0),
            rank=0,
            data=data,
            shards=taken.shards,
            sealed=lambda: seal(data, taken.shards),
            state={},
        )
        lineage = Lineage(code="", commit="", inputs=(), ranks=1, parent="")
        manifest = Manifest(
            job=job, attempt=AttemptId("1"), step=step, created_s=0.0, shares=(share,), state={}, lineage=lineage
        )
        commit(self._store, manifest, replace=False)

    def checkpoint(self, layout: str, step: int) -> Checkpoint:
        return open_checkpoint(self._store, JobId(layout.replace(" ", "-")), step)

    def close(self) -> None:
        for agent in self._agents:
            agent.hang_up()


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    lab = Lab(tmp_path_factory.mktemp("lab"))
    yield lab
    lab.close()


def test_rank_that_is_killed_and_goes_on_with_its_layout_ends_with_the_same_bits(lab: Lab) -> None:
    agent = lab.agent("killed")
    child = lab.train("fsdp", agent, held_at=6)
    with agent.heard:
        assert agent.heard.wait_for(lambda: any(said.step == 6 for said in agent.all(wire.StepReport)), 400)
    child.kill()
    child.communicate()
    agent.resume_from(agent.snapshot(EVERY))
    agent.welcomes.put(welcome(rank=0, world_size=1, every=EVERY))
    again = answer_of(lab.train("fsdp", agent))
    assert list(again["losses"]) == ["5", "6", "7", "8"]
    assert again["losses"] == {step: lab.whole["losses"][step] for step in again["losses"]}
    assert again["prints"] == lab.whole["prints"]


@pytest.mark.parametrize(
    "layout", [pytest.param(name, marks=() if name == "tensor" else pytest.mark.soak) for name in OTHERS]
)
def test_run_that_goes_on_with_another_layout_has_the_losses_of_the_one_that_stayed(layout: str, lab: Lab) -> None:
    found = lab.gone_on(layout)["losses"]
    assert found == {step: pytest.approx(lab.whole["losses"][step], rel=1e-5) for step in ("5", "6", "7", "8")}


@pytest.mark.soak
def test_checkpoint_that_any_layout_wrote_is_read_exactly_under_every_other(lab: Lab) -> None:
    written = {"fsdp": lab.whole["prints"], **{layout: lab.gone_on(layout)["prints"] for layout in OTHERS}}
    agents = {layout: lab.agent(f"{layout} read", lab.checkpoint(layout, 2 * EVERY)) for layout in written}
    paths = json.dumps({layout: agent.path for layout, agent in agents.items()})
    found = answer_of(program("read", paths, folder=lab.folder, devices=8))
    assert len({prints["weights/language/blocks/gate"] for prints in written.values()}) > 1
    assert found == {writer: dict.fromkeys(written, prints) for writer, prints in written.items()}
