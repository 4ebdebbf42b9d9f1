"""Batches in an order that is a pure function of (views, seed, step): a loader has no state to save.

The global batch of step s is positions [s * B, (s + 1) * B) of the order; rank r of W has those p with p % W == r. So
any W gives the same global batches. Values are in the data's own units, because a policy must carry its normalisation
to the robot; the view's manifest has the statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from blake3 import blake3

from mainspring.data.loader.batches import columns_of
from mainspring.data.loader.decoding import Layout
from mainspring.data.loader.making import Pictures, RingMaker, Share, Shown
from mainspring.data.loader.order import LANES, Blocks, Integers, Order, Runs, Samples
from mainspring.data.loader.ring import Batch
from mainspring.data.loader.stream import BatchStream
from mainspring.data.views.view import View
from mainspring.domain.errors import InvalidInput
from mainspring.domain.ids import EpisodeId

BATCH_SIZE_MAX = 1 << 20
HORIZON_MAX = 4_096
WORKERS_MAX = 256

Shuffle: TypeAlias = Literal["blocks", "global"]
Fit: TypeAlias = Callable[[int, Integers, Batch], Batch]
"""From a component's number, rows of its view, and what need not be decoded of them, to what a sample has of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """What a sample is, and in which order samples come.

    Args:
        batch_size: Samples of the global batch; a multiple of the number of ranks.
        seed: Chooses the order.
        horizon: Actions a sample.
        history: Steps of state a sample, its own included.
        image_history: Moments of images a sample, its own included. Memory grows with it; and what comes before a
            block's first rows lies in the group before, which is decoded for them once more.
        pixels: Decoded frames as "rgb" or as "yuv" (4:2:0 planes, half the bytes).
        shuffle: "blocks" decodes each frame once; "global" is a permutation of all rows, for comparison: a frame costs
            the decoding of its group of pictures up to it. Views without video always have the latter.
        lanes: Groups of pictures read side by side; see `order`. A multiple of the number of ranks decodes each frame
            on one rank only. A rank's ring holds 2 * lanes * gop / ranks samples.

    Raises:
        InvalidInput: A number is out of its range.
    """

    batch_size: int
    seed: int
    horizon: int
    history: int = 1
    image_history: int = 1
    pixels: Layout = "rgb"
    shuffle: Shuffle = "blocks"
    lanes: int = LANES

    def __post_init__(self) -> None:
        """Checks the ranges."""
        sizes = 1 <= self.batch_size <= BATCH_SIZE_MAX
        lengths = {"horizon": self.horizon, "history": self.history, "image_history": self.image_history}
        if not sizes or not all(1 <= length <= HORIZON_MAX for length in lengths.values()):
            raise InvalidInput(
                "load batches",
                got=f"batch_size {self.batch_size}, "
                + ", ".join(f"{name} {length}" for name, length in lengths.items()),
                wanted="each over 0, and in bounds",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """One view of a mixture.

    Args:
        view: It.
        weight: How often a sample is of it; any scale, the same for all of the mixture.
        keep: Ids of the episodes to read; None for all. The order is over what is kept: a filter costs nothing later.
        cameras: The camera whose images stand at each place of a sample's, "" for none, which is black; None for all of
            the view in its order, () for no images: then nothing is decoded.

    Raises:
        InvalidInput: The view has none of these episodes.
    """

    view: View
    weight: float = 1.0
    keep: tuple[EpisodeId, ...] | None = None
    cameras: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Checks that the view has these cameras.

        Raises:
            InvalidInput: It lacks one.
        """
        have = self.view.cameras if self.view.has_packets or self.view.has_images else ()
        lacking = [name for name in self.cameras or () if name and name not in have]
        if lacking:
            raise InvalidInput(
                "find a camera",
                on=self.view.manifest.id,
                got=", ".join(lacking)[:200],
                wanted=f"one of {', '.join(have)}"[:400] if have else "a view with images",
            )

    @property
    def slots(self) -> tuple[str, ...]:
        """Returns the camera at each place of a sample's images, "" for none."""
        if self.cameras is not None:
            return self.cameras
        return self.view.cameras if self.view.has_packets or self.view.has_images else ()

    @property
    def name(self) -> str:
        """Returns what chooses its order, beside the seed: the view, its split, and what is kept of it."""
        kept = "" if self.keep is None else blake3("\n".join(sorted(self.keep)).encode()).hexdigest()
        return f"{self.view.manifest.id}/{self.view.split}/{kept}"

    def runs(self) -> Runs:
        """Returns the rows that are read: one run an episode."""
        view = self.view
        kept = np.ones(len(view.episode_ends), np.bool_)
        if self.keep is not None:
            kept = pc.is_in(view.episodes["id"], value_set=pa.array(self.keep, pa.string())).to_numpy()
        starts = view.episode_starts[kept]
        if len(starts) == 0:
            raise InvalidInput("filter a view", on=self.name, got="no episode", wanted="at least one")
        return Runs(starts=starts, lengths=view.episode_ends[kept] - starts, phases=np.zeros_like(starts))


class Loader:
    """Batches of a split of a view, or of a mixture, for one rank.

    Args:
        source: A view, or the components of a mixture: views of the same features and groups of pictures; with `fit`,
            of any features.
        sampling: What a sample is, and the order.
        rank: Which share this is.
        world_size: How many shares there are.
        workers: Processes that decode; 0 decodes in a thread. Of no influence on the batches.
        fit: Makes of a component's columns what samples have in their place, alike for all components; called in the
            stream's thread.

    Raises:
        InvalidInput: A number is out of its range, or the components differ.
    """

    def __init__(
        self,
        source: View | Sequence[Component],
        sampling: Sampling,
        *,
        rank: int = 0,
        world_size: int = 1,
        workers: int = 0,
        fit: Fit | None = None,
    ) -> None:
        if not 0 <= rank < world_size or sampling.batch_size % world_size or not 0 <= workers <= WORKERS_MAX:
            raise InvalidInput(
                "load batches",
                got=f"batch_size {sampling.batch_size}, rank {rank} of {world_size}, {workers} workers",
                wanted=f"rank below the world size, which divides the batch size; 0 to {WORKERS_MAX} workers",
            )
        components = (Component(view=source),) if isinstance(source, View) else tuple(source)
        self._views = tuple(component.view for component in components)
        self._cameras = tuple(component.slots for component in components)
        _check_alike(components, fitted=fit is not None)
        size = self._views[0].gop if sampling.shuffle == "blocks" else 1
        self._order = Order(
            [Blocks(component.runs(), size) for component in components],
            [component.name for component in components],
            [component.weight for component in components],
            seed=sampling.seed,
            lanes=sampling.lanes,
        )
        self._sampling = sampling
        self._share = Share(rank=rank, world_size=world_size, samples=sampling.batch_size // world_size)
        self._workers = workers
        self._fit = fit

    def rows(self, step: int) -> Integers:
        """Returns the row numbers of this rank's share of a step, each in its component's view.

        Args:
            step: From 0; any step, in any order.
        """
        return self.samples(step).row

    def samples(self, step: int) -> Samples:
        """Returns which samples this rank's share of a step has: the component and the row of each.

        Args:
            step: From 0; any step, in any order.
        """
        return self._order.samples(self._share.positions(step))

    def batch(self, step: int) -> Batch:
        """Returns this rank's share of a step, made for it alone: for a look, not for training.

        Args:
            step: From 0; any step, in any order.
        """
        with self.stream(step) as stream:
            return {name: array.copy() for name, array in next(stream).items()}

    def stream(self, start_step: int) -> BatchStream:
        """Returns batches from a step on, without end, prepared ahead of their use.

        Args:
            start_step: The first step.
        """
        assert start_step >= 0
        return BatchStream(self._maker(start_step))

    def _maker(self, start_step: int) -> Callable[[], RingMaker]:
        # Not a method of the stream's: what is bound here must not keep a stream alive.
        views, cameras, fit = self._views, self._cameras, self._fit
        order, share, sampling, workers = self._order, self._share, self._sampling, self._workers

        def columns(component: int, rows: Integers) -> Batch:
            batch = columns_of(
                views[component],
                rows,
                horizon=sampling.horizon,
                history=sampling.history,
                image_history=sampling.image_history,
                cameras=cameras[component],
            )
            return batch if fit is None else fit(component, rows, batch)

        return lambda: RingMaker(
            [Shown(view=view, cameras=slots) for view, slots in zip(views, cameras, strict=True)],
            order,
            share,
            columns,
            start_step=start_step,
            pictures=Pictures(pixels=sampling.pixels, moments=sampling.image_history, workers=workers),
        )


def _check_alike(components: Sequence[Component], *, fitted: bool) -> None:
    if not components:
        raise InvalidInput("mix views", got="none", wanted="at least one")
    for component in components:
        if (got := _shapes(component, fitted=fitted)) != (wanted := _shapes(components[0], fitted=fitted)):
            raise InvalidInput(
                "mix views",
                on=component.view.manifest.id,
                got=got,
                wanted=wanted,
                next_step="make their views by one recipe",
            )


def _shapes(component: Component, *, fitted: bool) -> str:
    view = component.view
    columns = "" if fitted else ", ".join(f"{one.name} {len(one.names)}" for one in view.manifest.features.columns)
    recipe = view.manifest.recipe
    images = f"{len(component.slots)} cameras of {recipe.image_size} ({recipe.codec})" if component.slots else "none"
    return f"{columns or 'columns'}, {images}, groups of {view.gop}"
