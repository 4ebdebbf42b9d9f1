"""The same loop under Mainspring: `ms run --replicas 2 -- python torch_after.py`; torchrun runs it as before."""

import itertools
import sys

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from mainspring.session import EXIT_PREEMPTED, join
from mainspring.session.torch_state import blocks_of, load

STEPS = 300


def draw(first, rank, ranks):
    """Yields this rank's part of each step's batch."""
    for step in itertools.count(first):
        x = np.random.default_rng([7, step]).normal(size=(96, 8)).astype(np.float32)
        yield torch.from_numpy(x[rank::ranks]), torch.from_numpy(np.sin(x.sum(axis=1))[rank::ranks])


def main():
    """Trains."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    session = join()
    restored = session.restore()
    start = restored.step if restored else 0
    if restored:
        load(restored, model, optimizer)
    batches = session.timed(draw(start, dist.get_rank(), dist.get_world_size()))
    for step in session.steps(start, STEPS):
        x, y = next(batches)
        loss = ((model(x)[:, 0] - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0 and dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.9f}")
        if session.snapshot_due(step):
            session.snapshot(step, blocks_of(model, optimizer, session))
    dist.destroy_process_group()
    sys.exit(EXIT_PREEMPTED if session.stop_requested else 0)


if __name__ == "__main__":
    main()
