"""Makes a rank's batches in a ring: columns as they are asked for, frames by rounds of the order's lanes.

A round is one block of every lane. Its frames belong to the batches of the whole round, so a batch is ready when the
rounds it lies in are decoded; the ring has room for two, so that the next is decoded while one is consumed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from mainspring.data.loader.batches import history_rows, images_shape
from mainspring.data.loader.decoding import IMAGES, Bundle, Decoders, Here, Layout, Processes, frame_shape
from mainspring.data.loader.order import Integers, Order, Samples
from mainspring.data.loader.ring import Batch, Field, Ring
from mainspring.data.loader.stream import HOLD
from mainspring.data.views.view import View

AHEAD = 4  # Batches ready before they are asked for: hides a page fault, and is small beside a step's own memory.
BUNDLE_BLOCKS = 4  # Blocks a decoder is given at once: a few milliseconds of work, a hundred times what giving costs.
SAMPLES_AT_ONCE = 1_024  # Where they lie is found together: arrays so long cost a tenth as much for each sample.
WAIT_S = 0.02  # How soon a stream that waits for its decoders notices that nobody wants its batches any more.

Columns: TypeAlias = Callable[[int, Integers], Batch]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A rank's part of each global batch: the positions p with p % world_size == rank."""

    rank: int
    world_size: int
    samples: int

    def positions(self, step: int) -> Integers:
        """Returns the positions of a step's samples, in order.

        Args:
            step: From 0.
        """
        first = step * self.samples
        return np.arange(first, first + self.samples, dtype=np.int64) * self.world_size + self.rank


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shown:
    """A component, and the camera at each place of its samples' images, "" for none."""

    view: View
    cameras: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pictures:
    """What of a sample is decoded, and by whom.

    Args:
        pixels: As what.
        moments: Images a sample.
        workers: Processes that decode; 0 for this one.
    """

    pixels: Layout
    moments: int
    workers: int


class RingMaker:
    """Makes batches from a step on. See `stream.Maker`.

    Args:
        shown: The components.
        order: Which samples come when.
        share: Which of them are this rank's.
        columns: Gathers what need not be decoded, of rows of a component.
        start_step: The first step.
        pictures: What is decoded.
    """

    def __init__(
        self,
        shown: Sequence[Shown],
        order: Order,
        share: Share,
        columns: Columns,
        *,
        start_step: int,
        pictures: Pictures,
    ) -> None:
        self._order, self._share, self._columns, self._start = order, share, columns, start_step
        fields = {
            name: Field(shape=array.shape[1:], dtype=array.dtype.str)
            for name, array in columns(0, np.zeros(1, np.int64)).items()
        }
        capacity = AHEAD + HOLD + 1
        view, cameras = shown[0].view, len(shown[0].cameras)
        video = view.has_packets and cameras > 0
        self._moments: tuple[slice, ...] = ()
        self._black: list[list[int]] = [[] for _ in shown]  # Of each component, the places that no camera fills.
        if video:
            self._moments = (slice(None),) * (pictures.moments > 1)
            self._black = [[place for place, name in enumerate(one.cameras) if not name] for one in shown]
            shape = images_shape(view, pictures.pixels, pictures.moments, cameras)
            fields[IMAGES] = Field(shape=shape, dtype="|u1")
            capacity += -(-2 * order.lanes * order.block_size // (share.world_size * share.samples)) + 1
        self._ring = Ring(fields, capacity * share.samples, alone=not pictures.workers)
        self._frames: _Frames | None = None
        if video:
            frame = frame_shape(view.manifest.recipe.image_size, pictures.pixels)
            some = pictures.workers and Processes(self._ring, fields, frame, pictures.workers)
            bundles = _Bundles(
                shown,
                order,
                share,
                first=start_step * share.samples,
                moments=pictures.moments,
                slots=self._ring.capacity,
            )
            self._frames = _Frames(some or Here(self._ring, frame), bundles, share)
        self._known: dict[int, Samples] = {}
        self._ready = 0
        self.stuck = False

    # ------------------------------------------------------------ stream.Maker

    def advance(self, released: int) -> int:
        """See `stream.Maker.advance`."""
        limit = (self._start + released) * self._share.samples + self._ring.capacity
        moved = self._frames is not None and self._frames.feed(limit)
        step = self._start + self._ready
        end = (step + 1) * self._share.samples
        if end <= limit and (self._frames is None or self._frames.reach(end)):
            self._fill(step)
            self._ready += 1
            moved = True
        self.stuck = not moved
        return self._ready

    def take(self, number: int) -> Batch:
        """See `stream.Maker.take`."""
        return self._ring.batch((self._start + number) * self._share.samples, self._share.samples)

    def close(self) -> None:
        """See `stream.Maker.close`."""
        if self._frames is not None:
            self._frames.decoders.close()
        self._ring.close()

    # ------------------------------------------------------------ columns

    def _fill(self, step: int) -> None:
        samples = self._samples(step)
        out = self._ring.batch(step * self._share.samples, self._share.samples)
        for component in np.unique(samples.component):
            here = np.flatnonzero(samples.component == component)
            for name, values in self._columns(int(component), samples.row[here]).items():
                out[name][here] = values
            for place in self._black[int(component)]:
                black: tuple[Any, ...] = (here, *self._moments, place)
                out[IMAGES][black] = 0

    def _samples(self, step: int) -> Samples:
        """Returns a step's samples; those of several are found at once, which costs little more than one's."""
        share = self._share
        if step not in self._known:
            count = -(-SAMPLES_AT_ONCE // share.samples)
            found = self._order.samples(np.concatenate([share.positions(step + ahead) for ahead in range(count)]))
            for ahead in range(count):
                here = slice(ahead * share.samples, (ahead + 1) * share.samples)
                self._known[step + ahead] = Samples(component=found.component[here], row=found.row[here])
        return self._known.pop(step)


class _Frames:
    """Rounds of frames on their way through the decoders."""

    def __init__(self, decoders: Decoders, bundles: _Bundles, share: Share) -> None:
        self.decoders = decoders
        self._bundles, self._world_size = bundles, share.world_size
        self._round = bundles.first * share.world_size // bundles.rows
        self._decoded = self._round  # Rounds before this one are decoded, or were before the start.
        self._waiting: deque[tuple[Bundle, int]] = deque()
        self._left: dict[int, int] = {}  # Bundles not done, by round.
        self._number = 0
        self._rounds_given: dict[int, int] = {}  # Rounds of the bundles under way, by their number.

    def reach(self, samples: int) -> bool:
        """Returns whether the frames of this rank's samples up to that one are decoded."""
        return self._decoded * self._bundles.rows >= samples * self._world_size

    def feed(self, limit: int) -> bool:
        """Begins the next round when there is room for it, gives decoders work, and takes what is done.

        Returns whether anything is under way.
        """
        last = ((self._round + 1) * self._bundles.rows - 1) // self._world_size
        if not self._waiting and last < limit:
            bundles = list(self._bundles.of(self._round))
            self._left[self._round] = len(bundles)
            self._waiting.extend((bundle, self._round) for bundle in bundles)
            self._round += 1
        while self._waiting and self.decoders.free():
            bundle, of = self._waiting.popleft()
            self.decoders.give(self._number, bundle)
            self._rounds_given[self._number] = of
            self._number += 1
        moved = bool(self._rounds_given)
        if moved:
            for number in self.decoders.done(WAIT_S):
                self._left[self._rounds_given.pop(number)] -= 1
        while self._left.get(self._decoded) == 0:
            del self._left[self._decoded]
            self._decoded += 1
            moved = True
        return moved


class _Bundles:
    """What decoders are given of each round: this rank's own groups of pictures, from its `first` sample on."""

    def __init__(
        self, shown: Sequence[Shown], order: Order, share: Share, *, first: int, moments: int, slots: int
    ) -> None:
        self.first, self.rows = first, order.lanes * order.block_size
        self._shown, self._order, self._share, self._moments, self._slots = shown, order, share, moments, slots
        self._seen = np.asarray([any(one.cameras) for one in shown])

    def of(self, number: int) -> Iterator[Bundle]:
        """Yields a round's groups with their packets, but for what other ranks own or came before the start."""
        lanes, size, share = self._order.lanes, self._order.block_size, self._share
        lane, turn = np.divmod(np.arange(self.rows, dtype=np.int64), size)
        position = (number * size + turn) * lanes + lane
        sample = position // share.world_size
        own = (position % share.world_size == share.rank) & (sample >= self.first)
        lane, turn, slot = lane[own], turn[own], sample[own] % self._slots
        samples = self._order.samples_of(number * lanes + lane, turn)
        if not self._seen.all():
            seen = self._seen[samples.component]
            samples = Samples(component=samples.component[seen], row=samples.row[seen])
            lane, slot = lane[seen], slot[seen]
        bundle = np.repeat(lane // BUNDLE_BLOCKS, self._moments)
        component = np.repeat(samples.component, self._moments)
        row = np.empty((len(slot), self._moments), np.int64)
        first = np.empty_like(row)
        for each, one in enumerate(self._shown):
            here = samples.component == each
            row[here] = history_rows(one.view, samples.row[here], self._moments)
            first[here] = row[here] - one.view.phases(row[here])
        place = (slot[:, None] * self._moments + np.arange(self._moments)).ravel()
        sort = np.lexsort((row.ravel(), component, bundle))
        shown = np.stack([bundle, component, first.ravel(), row.ravel(), place])[:, sort]
        for begin, end in _runs(shown[0]):
            yield self._bundle(shown[1:, begin:end])

    def _bundle(self, shown: Integers) -> Bundle:
        """Returns groups of pictures of every camera, with the packets that lead to the frames.

        Args:
            shown: [4, N] component, first row of the group, row, and place of a moment's images; in this order.
        """
        again = np.concatenate([[False], (np.diff(shown[[0, 2]]) == 0).all(axis=0)])
        once = shown[:, ~again]
        source = once[3][np.cumsum(~again) - 1]
        data: list[memoryview] = []
        ends: list[Integers] = []
        places: list[Integers] = []
        parts: list[tuple[View, str, int]] = []
        starts: list[int] = []
        cameras = len(self._shown[0].cameras)
        size_bytes = frames = 0
        for begin, end in _runs(once[:2]):
            component, first = once[:2, begin].tolist()
            view, slots = self._shown[component].view, self._shown[component].cameras
            out = np.full(int(once[2, end - 1]) + 1 - first, -1, np.int64)  # -1: only decoded on the way.
            out[once[2, begin:end] - first] = once[3, begin:end]
            for camera, name in ((camera, name) for camera, name in enumerate(slots) if name):
                coded = view.packets(name, first, len(out))
                data.append(coded.data)
                ends.append(coded.ends + size_bytes)
                size_bytes += len(coded.data)
                places.append(np.where(out < 0, -1, out * cameras + camera))
                parts.append((view, name, first))
                starts.append(frames)
                frames += len(out)

        def name_of(frame: int) -> str:
            part = bisect_right(starts, frame) - 1
            view, camera, first = parts[part]
            return f"{camera}, {view.where(first + frame - starts[part])}"

        both = np.stack([np.concatenate(ends), np.concatenate(places)])
        moments = np.stack([source[again], shown[3, again]])[:, :, None] * cameras + np.arange(cameras)
        return Bundle(data=b"".join(data), frames=both, copies=moments.reshape(2, -1), name=name_of)


def _runs(keys: Integers) -> Iterator[tuple[int, int]]:
    """Yields where each run of equal keys ([N], or columns of [D, N]) begins and ends."""
    if keys.size:
        changes = np.atleast_2d(np.diff(keys) != 0).any(axis=0)
        yield from pairwise([0, *(np.flatnonzero(changes) + 1).tolist(), keys.shape[-1]])
