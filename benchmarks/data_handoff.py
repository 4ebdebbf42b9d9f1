"""Batches from a worker to the process that trains, beside PyTorch's `DataLoader` with its default collate.

Run as `python -m benchmarks.data_handoff [--quick]`. Both give batches of 64 samples with the same arrays: two frames
of 224x224, a state and a chunk of 50 actions. The samples cost nothing to make (they are views of arrays in memory), so
what is measured is the way from one worker to the trainer: for PyTorch, collating tensors, moving them to shared memory
and opening it on the other side; for ours, writing each sample to its place in a ring that both sides have mapped, and
saying so over the connection that decoders use. The trainer reads a byte of every page of a batch, for both.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from mainspring.data.loader.ring import Batch, Field, Ring

BATCH = 64
SAMPLES = 512  # Different ones; more than a cache holds.
RING_BATCHES = 8  # As many as PyTorch has under way and ready: two a worker, and those held by either side.
RUNS = 5
FIELDS = {
    "images": Field(shape=(2, 224, 224, 3), dtype="|u1"),
    "state": Field(shape=(14,), dtype="<f4"),
    "actions": Field(shape=(50, 14), dtype="<f4"),
    "valid": Field(shape=(50,), dtype="|b1"),
}


class Samples:
    """Samples by number: a dataset as PyTorch wants it."""

    def __init__(self) -> None:
        dice = np.random.default_rng(0)
        self.arrays: Batch = {
            name: dice.integers(0, 2, (SAMPLES, *field.shape)).astype(field.dtype) for name, field in FIELDS.items()
        }

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, number: int) -> Batch:
        return {name: array[number % SAMPLES] for name, array in self.arrays.items()}


def write(connection: Connection[Any, Any], place: str) -> None:
    """The worker: writes batch after batch into the ring, as far as it is told that there is room."""
    samples, ring = Samples(), Ring(FIELDS, RING_BATCHES * BATCH, place)
    number = 0
    while True:
        connection.recv_bytes()
        out = ring.batch(number * BATCH, BATCH)
        for at in range(BATCH):
            for name, value in samples[number * BATCH + at].items():
                out[name][at] = value
        connection.send_bytes(b"")
        number += 1


def ours() -> Iterator[Batch]:
    ring = Ring(FIELDS, RING_BATCHES * BATCH)
    here, there = get_context("spawn").Pipe()
    worker = get_context("spawn").Process(target=write, args=(there, ring.place), daemon=True)
    worker.start()
    try:
        for _ in range(RING_BATCHES - 1):
            here.send_bytes(b"")
        number = 0
        while True:
            here.recv_bytes()
            yield ring.batch(number * BATCH, BATCH)
            here.send_bytes(b"")
            number += 1
    finally:
        worker.kill()
        worker.join()


def peer() -> Iterator[Batch]:
    torch = import_module("torch")
    rows = torch.utils.data.DataLoader(Samples(), batch_size=BATCH, num_workers=1)
    for batch in rows:
        yield {name: tensor.numpy() for name, tensor in batch.items()}


def rate(batches: Iterator[Batch], count: int) -> float:
    """Returns samples a second."""
    for _ in range(2 * RING_BATCHES):  # What was made while nobody asked is not counted.
        next(batches)
    start = time.perf_counter()
    for _ in range(count):
        for array in next(batches).values():
            array.reshape(-1)[::4_096].max()
    return count * BATCH / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    chosen = parser.parse_args()
    batches = {"ours": ours(), "torch": peer()}
    counts = {"ours": 40, "torch": 10} if chosen.quick else {"ours": 200, "torch": 40}
    rates: dict[str, list[float]] = {"ours": [], "torch": []}
    for name, each in batches.items():
        print(f"{name}: {', '.join(f'{key} {value.shape}' for key, value in next(each).items())}")
    for number in range(3 if chosen.quick else RUNS):
        for name, each in batches.items():
            rates[name].append(rate(each, counts[name]))
        print(f"turn {number}: " + ", ".join(f"{name} {values[-1]:,.0f}/s" for name, values in rates.items()))
    medians = {name: statistics.median(values) for name, values in rates.items()}
    result = {"ratio": round(medians["ours"] / medians["torch"], 3)}
    print(json.dumps({**result, **{f"{name}_samples_per_s": round(value) for name, value in medians.items()}}))


if __name__ == "__main__":
    main()
