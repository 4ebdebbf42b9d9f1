"""A PyTorch training loop with DistributedDataParallel: `torchrun --nproc-per-node 2 torch_before.py`."""

import itertools

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

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
    batches = draw(0, dist.get_rank(), dist.get_world_size())
    for step in range(1, STEPS + 1):
        x, y = next(batches)
        loss = ((model(x)[:, 0] - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0 and dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.9f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
