"""Restored state: arrays, or regions of them, put together from the bytes that this node, others and the store hold.

Nothing but the list of shards is read before an array is asked for, and then only the bytes it needs.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from mainspring.domain import codec, wire
from mainspring.domain.errors import DamagedData, InvalidInput, InvalidMessage, NotFound, Unavailable
from mainspring.domain.shards import Numbered, Source, by_path, sources
from mainspring.session.arena import Opened, map_bytes
from mainspring.session.blocks import aligned_empty, dtype_named
from mainspring.session.copying import Pair, copy_all

FETCH_BYTES = 256 << 20  # A message's worth: a quarter of a second of disk, while the one before is copied.
FETCH_PIECES_MAX = 10_000  # About 0.5 MB of message.
FETCH_LIMIT_S = 600.0  # The agent gives up on a store or a peer earlier.
PLAN_LIMIT_S = 600.0  # For every page of the list: the agent may have to ask every other one for its part.
SHARDS_MAX = 4_000_000  # 2,000 ranks with 2,000 arrays each; about 2 GB of list.

Answer = TypeVar("Answer")


class Ask(Protocol):
    """Asks the agent; see `AgentConnection.ask`."""

    def __call__(self, message: wire.RankRequest, kind: codec.TypeForm[Answer], *, limit_s: float | None) -> Answer:
        """Returns the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A rectangle of one array.

    Args:
        path: The array's place in the program's tree.
        start: Its first element; () with no shape means the whole array.
        shape: Its shape.
    """

    path: str
    start: tuple[int, ...] = ()
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArraySpec:
    """What an array is, before any of it is read.

    Args:
        global_shape: Its shape.
        dtype: Its type of numbers.
        part: What it is for.
    """

    global_shape: tuple[int, ...]
    dtype: np.dtype[Any]
    part: wire.Part


@dataclass(slots=True, kw_only=True, eq=False)
class _Filling:
    """A region that is being put together; `array` is None until its place is known."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    sources: tuple[Source, ...]
    view: bool
    array: NDArray[Any] | None = None

    def put(self, source: Source, data: NDArray[np.uint8], offset: int) -> Pair | None:
        """Returns what to copy for a source whose run begins at `offset` of `data`; None when the region is a view."""
        run = source.run
        if not 0 <= offset <= len(data) - run.size_bytes:
            raise DamagedData("read saved state", got=f"{run.size_bytes} bytes at {offset} of {len(data)}")
        if self.view:
            self.array = data[offset : offset + run.size_bytes].view(self.dtype).reshape(self.shape)
            return None
        if self.array is None:
            self.array = aligned_empty(self.shape, self.dtype)
        taken: NDArray[Any] = np.ndarray(run.shape, self.dtype, data, offset, run.strides)
        place: tuple[Any, ...] = (*run.place, ...)  # With the ellipsis even an array without axes gives a view.
        return self.array[place], taken


@final
class Restored:
    """The state a generation resumes from. For one thread.

    Args:
        plan: The agent's first answer.
        ask: Asks the agent for more.
        measure: Notes the time that passes inside it.
        opened: Opens a file of the agent's, as `os.open` does.
        turn_bytes: How much to ask for at a time.

    Raises:
        DamagedData: The list of shards does not hold together.
    """

    def __init__(
        self,
        plan: wire.RestorePlan,
        ask: Ask,
        measure: Callable[[], AbstractContextManager[None]],
        *,
        opened: Opened = os.open,
        turn_bytes: int = FETCH_BYTES,
    ) -> None:
        self._opened = opened
        self._turn_bytes = turn_bytes
        self._ask = ask
        self._measure = measure
        self._step, self._state, self._source = plan.step, plan.state, plan.source
        self._files: dict[str, NDArray[np.uint8]] = {}
        self._everywhere = False
        self._keep(plan)

    @property
    def step(self) -> int:
        """Returns the step it was taken at.

        In a job that begins from a checkpoint of another name, that one's step: a program that goes on counts from it,
        one that only wants the weights counts from 0.
        """
        return self._step

    @property
    def state(self) -> wire.Detail:
        """Returns the program's own small facts."""
        return self._state

    @property
    def source(self) -> str:
        """Returns where it came from ("arena" or "store"), for people."""
        return self._source

    @property
    def paths(self) -> tuple[str, ...]:
        """Returns the paths of all arrays of the state, in order; asks for the list of what other nodes hold."""
        self._look_everywhere()
        return tuple(self._shards)

    def part(self, part: wire.Part) -> tuple[str, ...]:
        """Returns the paths of the arrays that are for one thing, in order.

        Args:
            part: What they are for.
        """
        self._look_everywhere()
        return tuple(path for path, shards in self._shards.items() if shards[0][1].part is part)

    def spec(self, path: str) -> ArraySpec:
        """Returns what an array is.

        Args:
            path: The array's place in the program's tree.

        Raises:
            NotFound: There is no such array.
            DamagedData: Its shards disagree.
        """
        if path not in self._shards:
            self._look_everywhere()
        if path not in self._shards:
            raise NotFound("restore an array", on=path, wanted=f"one of {', '.join(list(self._shards)[:20])}")
        first = self._shards[path][0][1]
        return ArraySpec(global_shape=first.global_shape, dtype=dtype_named(first.dtype), part=first.part)

    def array(self, path: str, start: Sequence[int] = (), shape: Sequence[int] | None = None) -> NDArray[Any]:
        """Returns an array, or one region of it, in memory of its own. Many at once: see `arrays`.

        Args:
            path: The array's place in the program's tree.
            start: The region's first element; () with no shape means the whole array.
            shape: The region's shape.

        Raises:
            InvalidInput: The region does not lie inside the array.
            NotFound: There is no such array.
            DamagedData: The shards do not cover the region, or their bytes are not what they were.
            Unavailable: The bytes cannot be had.
        """
        return self.arrays([Region(path=path, start=tuple(start), shape=None if shape is None else tuple(shape))])[0]

    def arrays(self, regions: Sequence[Region], *, copy: bool = True) -> list[NDArray[Any]]:
        """Returns regions of arrays, in the order asked for.

        Asking for all at once is fastest: what comes from elsewhere is then read in few large turns, while what came
        before is copied.

        Args:
            regions: What is wanted.
            copy: Whether each shall have memory of its own. Else those that lie in one piece are read-only views,
                without a copy; such a view of an arena is good until the next snapshot.

        Raises:
            InvalidInput: See `array`.
            NotFound: See `array`.
            DamagedData: See `array`.
            Unavailable: See `array`.
        """
        with self._measure():
            fillings = self._filled(regions, copy=copy)
            found = [filling.array for filling in fillings if filling.array is not None]
        assert len(found) == len(fillings)
        return found

    def _filled(self, regions: Sequence[Region], *, copy: bool) -> list[_Filling]:
        planned = [self._plan(region, copy=copy) for region in regions]
        if None in planned and not self._everywhere:
            self._look_everywhere()  # Its numbers are others, so all is planned anew.
            planned = [self._plan(region, copy=copy) for region in regions]
        fillings = []
        for region, filling in zip(regions, planned, strict=True):
            if filling is None:
                raise DamagedData("restore an array", on=region.path, got="shards that do not cover it", wanted="all")
            fillings.append(filling)
        here: list[Pair] = []
        wanted: list[tuple[_Filling, Source]] = []
        for filling in fillings:
            for source in filling.sources:
                shard = self._list[source.shard]
                if shard.file:
                    pair = filling.put(source, self._mapped(shard.file), shard.offset + source.run.offset)
                    here += [pair] if pair else []
                else:
                    wanted.append((filling, source))
        self._fetch(wanted, here)
        return fillings

    def _plan(self, region: Region, *, copy: bool) -> _Filling | None:
        spec = self.spec(region.path)
        start, shape = region.start, region.shape
        if shape is None:
            start, shape = (0,) * len(spec.global_shape), spec.global_shape
        ends = zip(start, shape, spec.global_shape, strict=False)
        inside = len(start) == len(shape) == len(spec.global_shape)
        if not inside or not all(low >= 0 and size >= 0 and low + size <= whole for low, size, whole in ends):
            raise InvalidInput(
                "restore an array",
                on=region.path,
                got=f"shape {shape} at {start}",
                wanted=f"inside shape {spec.global_shape}",
            )
        size_bytes = math.prod(shape) * spec.dtype.itemsize
        if size_bytes == 0:
            return _Filling(
                shape=shape, dtype=spec.dtype, sources=(), view=False, array=np.empty(shape, dtype=spec.dtype)
            )
        found = sources(self._shards[region.path], start, shape)
        if found is None:
            return None
        return _Filling(
            shape=shape,
            dtype=spec.dtype,
            sources=found,
            view=not copy and len(found) == 1 and found[0].run.size_bytes == size_bytes,
        )

    def _fetch(self, wanted: Sequence[tuple[_Filling, Source]], here: list[Pair]) -> None:
        """Copies what is here, while what is elsewhere is fetched: a message's worth ahead of the copying."""
        with ThreadPoolExecutor(1, "mainspring-fetch") as pool:
            turns = list(_turns(wanted, self._turn_bytes))
            ahead = pool.submit(self._fetched, turns[0]) if turns else None
            copy_all(here)
            for number, turn in enumerate(turns):
                assert ahead is not None
                answer = ahead.result()
                data = map_bytes(answer.file, self._opened)  # The agent keeps a file of this name for two turns only.
                if number + 1 < len(turns):
                    ahead = pool.submit(self._fetched, turns[number + 1])
                placed = zip(turn, answer.offsets, strict=True)
                pairs = (filling.put(source, data, offset) for (filling, source), offset in placed)
                copy_all(pair for pair in pairs if pair is not None)

    def _fetched(self, turn: Sequence[tuple[_Filling, Source]]) -> wire.PiecesFetched:
        question = wire.FetchPieces(
            pieces=tuple(
                wire.Piece(shard=source.shard, offset=source.run.offset, size_bytes=source.run.size_bytes)
                for _, source in turn
            )
        )
        answer = _had(self._ask(question, wire.PiecesFetched | wire.FetchFailed, limit_s=FETCH_LIMIT_S))
        if len(answer.offsets) != len(turn):
            raise InvalidMessage("fetch saved state", got=f"{len(answer.offsets)} offsets", wanted=f"{len(turn)}")
        return answer

    def _look_everywhere(self) -> None:
        if self._everywhere:
            return
        plan = plan_from(self._ask, everywhere=True)
        if plan.step != self._step:
            raise Unavailable("restore the state", got=f"step {plan.step}", wanted=f"step {self._step}")
        self._everywhere = True
        self._keep(plan)

    def _keep(self, plan: wire.RestorePlan) -> None:
        self._list = plan.shards
        self._shards: Mapping[str, tuple[Numbered, ...]] = {
            path: tuple(sorted(shards, key=lambda numbered: not numbered[1].file))  # What lies here comes first.
            for path, shards in by_path(plan.shards).items()
        }
        for path, shards in self._shards.items():
            first = shards[0][1]
            item_bytes = dtype_named(first.dtype).itemsize
            for _, shard in shards:
                if (
                    (shard.dtype, shard.global_shape) != (first.dtype, first.global_shape)
                    or not len(shard.start) == len(shard.shape) == len(shard.global_shape)
                    or min((0, shard.offset, *shard.start, *shard.shape)) < 0
                    or shard.size_bytes != math.prod(shard.shape) * item_bytes
                ):
                    raise DamagedData(
                        "read a shard",
                        on=path,
                        got=f"{shard.dtype} {shard.shape} of {shard.global_shape} in {shard.size_bytes} bytes",
                        wanted=f"a block of {first.dtype} {first.global_shape}",
                    )

    def _mapped(self, file: str) -> NDArray[np.uint8]:
        if file not in self._files:
            self._files[file] = map_bytes(file, self._opened)
        return self._files[file]


def plan_from(ask: Ask, *, everywhere: bool) -> wire.RestorePlan:
    """Returns the agent's plan with its whole list, asked for page by page.

    Args:
        ask: Asks the agent.
        everywhere: Whether what other nodes and the store hold is wanted too.

    Raises:
        InvalidMessage: The list does not end, or is too long.
        DamagedData: What was saved is not what it was.
        Unavailable: The agent does not answer, or cannot have the state.
    """
    page = partial(_page, ask, everywhere=everywhere)
    plan = page(0)
    shards = list(plan.shards)
    while len(shards) < plan.total:
        more = page(len(shards))
        if not more.shards or plan.total > SHARDS_MAX or more.step != plan.step:
            raise InvalidMessage(
                "list the saved state",
                got=f"{len(shards)} shards",
                wanted=f"all {plan.total} of step {plan.step}, at most {SHARDS_MAX}",
            )
        shards += more.shards
    return wire.RestorePlan(
        step=plan.step, shards=tuple(shards), state=plan.state, source=plan.source, total=len(shards)
    )


def _page(ask: Ask, since: int, *, everywhere: bool) -> wire.RestorePlan:
    question = wire.RestoreRequest(everywhere=everywhere, since=since)
    return _had(ask(question, wire.RestorePlan | wire.FetchFailed, limit_s=PLAN_LIMIT_S))


def _had(answer: Answer | wire.FetchFailed) -> Answer:
    if isinstance(answer, wire.FetchFailed):
        raise (DamagedData if answer.corrupt else Unavailable)("restore the state", got=answer.reason)
    return answer


def _turns(wanted: Sequence[tuple[_Filling, Source]], bytes_max: int) -> Iterator[list[tuple[_Filling, Source]]]:
    turn: list[tuple[_Filling, Source]] = []
    turn_bytes = 0
    for filling, source in wanted:
        size_bytes = source.run.size_bytes
        if turn and (turn_bytes + size_bytes > bytes_max or len(turn) == FETCH_PIECES_MAX):
            yield turn
            turn, turn_bytes = [], 0
        turn.append((filling, source))
        turn_bytes += size_bytes
    if turn:
        yield turn
