from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from tests.session.agent import Agent, welcome  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import DTensor, Replicate, Shard  # noqa: E402
from torch.distributed.tensor.debug import _clear_sharding_prop_cache  # noqa: E402

from mainspring.domain import wire  # noqa: E402
from mainspring.domain.errors import DamagedData, InvalidInput, NotFound  # noqa: E402
from mainspring.session import Block, Part, Restored, Session  # noqa: E402
from mainspring.session.torch_state import SETTINGS, blocks_of, load  # noqa: E402


def make(seed: int, *, dtype: Any = torch.float32, groups: int = 2) -> tuple[Any, Any]:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3)).to(dtype)
    parameters = list(model.parameters())
    halves = [parameters[:2], parameters[2:]] if groups == 2 else [parameters]
    return model, torch.optim.AdamW([{"params": half, "lr": 0.01 * (i + 1)} for i, half in enumerate(halves)])


def do(model: Any, optimizer: Any, steps: int, *, seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        batch = torch.randn(16, 4, generator=generator).to(next(model.parameters()).dtype)
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()


def save(agent: Agent, session: Session, blocks: tuple[Block, ...], step: int = 1) -> Restored:
    assert session.snapshot(step, blocks)
    agent.resume_from(agent.wait(wire.SnapshotCommit, lambda commit: commit.step == step))
    restored = session.restore()
    assert restored is not None
    return restored


def assert_same(one: Any, other: Any) -> None:
    torch.testing.assert_close(one.state_dict(), other.state_dict(), rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_torch_training_that_goes_on_from_a_snapshot_ends_with_the_same_bits(agent: Agent, dtype: Any) -> None:
    model, optimizer = make(0, dtype=dtype)
    do(model, optimizer, 3)
    optimizer.param_groups[1]["lr"] = 0.125
    session = agent.session(welcome(rank=0, world_size=1))
    restored = save(agent, session, blocks_of(model, optimizer, session))
    do(model, optimizer, 2, seed=1)
    other, other_optimizer = make(1, dtype=dtype)
    do(other, other_optimizer, 1, seed=2)
    load(restored, other, other_optimizer)
    assert other_optimizer.param_groups[1]["lr"] == 0.125
    do(other, other_optimizer, 2, seed=1)
    assert_same(model, other)
    assert_same(optimizer, other_optimizer)
    session.close()


def test_torch_weights_alone_can_be_loaded_and_saved(agent: Agent) -> None:
    model, optimizer = make(0)
    session = agent.session(welcome(rank=0, world_size=1))
    restored = save(agent, session, blocks_of(model, None, session))
    other, other_optimizer = make(1)
    load(restored, other)
    assert_same(model, other)
    assert set(restored.part(Part.WEIGHTS)) == set(restored.paths)
    with pytest.raises(NotFound, match="settings"):
        load(restored, other, other_optimizer)
    do(model, optimizer, 1)
    assert "optimizer/0.weight/exp_avg" in {block.path for block in blocks_of(model, optimizer, session)}
    session.close()


def test_torch_module_whose_state_is_given_as_copies_is_filled_too(agent: Agent) -> None:
    def copied(module: Any, state: Any, prefix: str, metadata: Any) -> None:
        state.update({name: tensor.clone() for name, tensor in state.items()})

    model, other = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    other.register_state_dict_post_hook(copied)
    session = agent.session(welcome(rank=0, world_size=1))
    load(save(agent, session, blocks_of(model, None, session)), other)
    assert_same(model, other)
    session.close()


@pytest.mark.parametrize(("local", "elsewhere"), [((0, 1, 2), False), ((0, 1), True)])
def test_torch_replicas_are_stored_once_and_evenly(agent: Agent, local: tuple[int, ...], *, elsewhere: bool) -> None:
    model, optimizer = make(0)
    do(model, optimizer, 1)
    stored: list[set[str]] = []
    blocks: tuple[Block, ...] = ()
    for rank in range(3):
        session = agent.session(replace(welcome(rank=rank, world_size=3), local_ranks=local))
        blocks = blocks_of(model, optimizer, session)
        stored.append({block.path for block in blocks if block.once})
        assert all(block.elsewhere is elsewhere for block in blocks)
        session.close()
    assert set.union(*stored) == {block.path for block in blocks}
    assert sum(len(paths) for paths in stored) == len(blocks)
    assert min(len(paths) for paths in stored) > 2


def test_torch_moments_keep_their_own_precision(agent: Agent) -> None:
    model, optimizer = make(0, dtype=torch.bfloat16)
    do(model, optimizer, 1)
    for values in optimizer.state.values():
        values["exp_avg"] = values["exp_avg"].float() + 1e-6
    session = agent.session(welcome(rank=0, world_size=1))
    restored = save(agent, session, blocks_of(model, optimizer, session))
    other, other_optimizer = make(1, dtype=torch.bfloat16)
    load(restored, other, other_optimizer)
    for one, two in zip(optimizer.state.values(), other_optimizer.state.values(), strict=True):
        torch.testing.assert_close(one["exp_avg"], two["exp_avg"], rtol=0, atol=0)
    session.close()


def test_torch_state_that_does_not_fit_is_refused(agent: Agent) -> None:
    model, optimizer = make(0)
    do(model, optimizer, 1)
    session = agent.session(welcome(rank=0, world_size=1))
    restored = save(agent, session, blocks_of(model, optimizer, session))
    with pytest.raises(InvalidInput, match="float64"):
        load(restored, make(0)[0].double())
    with pytest.raises(InvalidInput, match="2, as saved"):
        load(restored, *make(0, groups=1))
    wider = make(0)[0]
    wider.register_buffer("extra", torch.zeros(1))
    with pytest.raises(NotFound, match="model/extra"):
        load(restored, wider)
    session.close()


@pytest.mark.parametrize("text", [b"{}", b"\xff", b"[]", b'{"groups": [1], "tensors": {}, "state": {}}'])
def test_torch_settings_that_are_damaged_say_so(agent: Agent, text: bytes) -> None:
    model, optimizer = make(0)
    session = agent.session(welcome(rank=0, world_size=1))
    blocks = [block for block in blocks_of(model, optimizer, session) if block.path != SETTINGS]
    damaged = Block.whole(SETTINGS, np.frombuffer(text, np.uint8), part=Part.OPTIMIZER)
    restored = save(agent, session, (*blocks, damaged))
    with pytest.raises(DamagedData, match="settings"):
        load(restored, model, optimizer)
    session.close()


def test_torch_tensors_that_are_not_plain_numbers_are_refused(agent: Agent) -> None:
    session = agent.session(welcome(rank=0, world_size=1))
    model = torch.nn.Linear(2, 2)
    model.register_buffer("odd", torch.eye(3).to_sparse())
    with pytest.raises(InvalidInput, match="odd"):
        blocks_of(model, None, session)
    session.close()


class Ranks:
    """Makes this process one rank of several, whose messages go nowhere."""

    def __init__(self) -> None:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        self._store = FakeStore

    def become(self, rank: int, world_size: int) -> None:
        self.close()
        torch.distributed.init_process_group("fake", store=self._store(), rank=rank, world_size=world_size)

    def close(self) -> None:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        forget: Any = _clear_sharding_prop_cache  # It remembers the rank that this process was before.
        forget()


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    ranks = Ranks()
    yield ranks
    ranks.close()


def spread(whole: Any, mesh: Any, placements: list[Any]) -> Any:
    """Returns this rank's part of a model's parameters, as `fully_shard` would leave it."""
    for module in whole.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            local, extent = parameter.detach(), parameter.shape
            for at, size, placement in zip(mesh.get_coordinate(), mesh.shape, placements, strict=True):
                if isinstance(placement, Shard):
                    parts = list(torch.chunk(local, size, dim=placement.dim))
                    local = parts[at] if at < len(parts) else local[:0]
            made = DTensor.from_local(
                local.clone(), mesh, placements, run_check=False, shape=extent, stride=parameter.stride()
            )
            setattr(module, name, torch.nn.Parameter(made))
    return whole


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "placements"), [((3,), [Shard(0)]), ((2, 2), [Replicate(), Shard(0)]), ((2, 2), [Shard(0), Shard(1)])]
)
def test_torch_tensors_spread_over_ranks_come_back_whole_and_spread_otherwise(
    agent: Agent, ranks: Ranks, shape: tuple[int, ...], placements: list[Any]
) -> None:
    def linear() -> Any:
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(5, 7, bias=False), torch.nn.Linear(7, 2, bias=False))

    world_size = int(np.prod(shape))
    blocks: list[Block] = []
    stored: list[int] = []
    for rank in range(world_size):
        ranks.become(rank, world_size)
        model = spread(linear(), init_device_mesh("cpu", shape), placements)
        optimizer = torch.optim.Adam(model.parameters())
        for parameter in model.parameters():
            moment = DTensor.from_local(
                parameter.to_local().detach() * 2,
                parameter.device_mesh,
                parameter.placements,
                run_check=False,
                shape=parameter.shape,
                stride=parameter.stride(),
            )
            optimizer.state[parameter] = {"step": torch.tensor(3.0), "exp_avg": moment}
        session = agent.session(welcome(rank=rank, world_size=world_size))
        mine = blocks_of(model, optimizer, session)
        blocks += [block for block in mine if block.once]
        stored.append(sum(block.once for block in mine if block.path != SETTINGS and block.global_shape))
        session.close()
    ranks.close()
    assert len({(block.path, block.start) for block in blocks}) == len(blocks), "every piece is stored once"
    assert all(stored), "no rank stores nothing"
    session = agent.session(welcome(rank=0, world_size=1))
    restored = save(agent, session, tuple(blocks))
    whole = linear()
    wanted = linear()
    with torch.no_grad():
        for parameter in whole.parameters():
            parameter.zero_()
    optimizer = torch.optim.Adam(whole.parameters())
    load(restored, whole, optimizer)
    assert_same(whole, wanted)
    for parameter in whole.parameters():
        torch.testing.assert_close(optimizer.state[parameter]["exp_avg"], parameter.detach() * 2, rtol=0, atol=0)
        assert optimizer.state[parameter]["step"] == 3
    ranks.become(1, 2)
    other = spread(linear(), init_device_mesh("cpu", (2,)), [Shard(0)])
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.to_local().zero_()
    optimizer = torch.optim.Adam(other.parameters())
    load(restored, other, optimizer)
    for parameter, reference in zip(other.parameters(), wanted.parameters(), strict=True):
        rows = torch.chunk(reference.detach(), 2)[1]
        torch.testing.assert_close(parameter.to_local().detach(), rows, rtol=0, atol=0)
        torch.testing.assert_close(optimizer.state[parameter]["exp_avg"].to_local(), rows * 2, rtol=0, atol=0)
    session.close()
