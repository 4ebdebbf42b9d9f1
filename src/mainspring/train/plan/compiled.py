"""What one step takes of each chip, said by the chip's own compiler: asked in a process of its own, answered once.

A compile takes minutes and GiB. So it has a deadline and a limit of memory, one is done at a time, and its answer is
kept under a name made of all that it follows from; for the same question it is read, without JAX, in no time.
"""

from __future__ import annotations

import fcntl
import hashlib
import resource
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from mainspring.domain.codec import decode, encode
from mainspring.domain.errors import Busy, InvalidInput, InvalidMessage, NotFound, Unavailable
from mainspring.train.models.shapes import Signature
from mainspring.train.plan.figures import StepFigures
from mainspring.train.plan.targets import CHIPS, Target
from mainspring.train.recipe import Recipe

DEADLINE_S = 3600.0  # A model of 3 B parameters takes some minutes on one core.
MEMORY_GIB_MAX = 24.0
TICK_S = 0.5  # How often progress is told and limits are looked at.
SAID_MAX = 600  # Characters of what a compiler said at its end.

ENVIRONMENT = {  # Of a process with libtpu and no TPU. Source: libtpu's own messages where one is missing.
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-16",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # It takes no TPU: another process may have them.
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "",  # What is answered is kept, and is the same for whoever asks.
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What to compile for what."""

    recipe: Recipe
    signature: Signature
    target: Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why there are no figures: the parts of a `MainspringError`.

    Args:
        full: Whether a device's memory is too small: what the same question will always be answered with.
    """

    attempted: str
    on: str
    got: str
    wanted: str
    next_step: str
    full: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilerAnswer:
    """One of the two."""

    figures: StepFigures | None = None
    refusal: Refusal | None = None


Progress = Callable[[float], None]


def compiled_figures(
    recipe: Recipe,
    signature: Signature,
    target: Target,
    *,
    cache: Path,
    progress: Progress | None = None,
    deadline_s: float = DEADLINE_S,
    memory_gib_max: float = MEMORY_GIB_MAX,
) -> StepFigures:
    """Returns what one step takes of each device, as the compiler of its chip has it.

    Args:
        recipe: What to learn, and how.
        signature: The data's dimensions.
        target: TPUs, which need not be there.
        cache: A folder where answers are kept, and beside each what the compiler said.
        progress: Called with the seconds that have passed, about twice a second.
        deadline_s: How long it may take, waiting for others' compiles included; about, for it is counted in ticks.
        memory_gib_max: How much of this machine's memory it may hold.

    Raises:
        InvalidInput: The target is none of TPUs, the recipe does not fit it, or the step does not fit its memory.
        NotFound: The compiler is not installed.
        Busy: Another compile has gone on for longer than the deadline.
        Unavailable: It took longer or more memory than it may, or failed.
    """
    if not CHIPS[target.chip].tpu:
        raise InvalidInput(
            "compile for chips that are not there",
            on=target.name,
            wanted="TPUs, whose compiler needs none",
            next_step="take the formulas' word for GPUs",
        )
    kept = cache / f"{_name_of(recipe, signature, target)}.json"
    found = _kept(kept)
    if found is not None:
        return _figures_in(found)
    cache.mkdir(parents=True, exist_ok=True)
    ticks = _Ticks(deadline_s, progress)
    with _alone(cache, ticks):
        found = _kept(kept)  # Whoever was before this one may have asked the same.
        if found is None:
            asked = encode(Question(recipe=recipe, signature=signature, target=target))
            found = _compiled(asked, target, kept, ticks, memory_gib_max)
    return _figures_in(found)


def kept_figures(recipe: Recipe, signature: Signature, target: Target, *, cache: Path) -> StepFigures | None:
    """Returns what the compiler said of a step before, None where it was not asked; in milliseconds, without JAX.

    Args:
        recipe: As for `compiled_figures`.
        signature: As there.
        target: Any chips.
        cache: As there.

    Raises:
        InvalidInput: It said that the step does not fit a device's memory.
    """
    if not CHIPS[target.chip].tpu or not cache.is_dir():
        return None
    try:
        found = _kept(cache / f"{_name_of(recipe, signature, target)}.json")
    except NotFound:  # Whoever has no compiler has asked none.
        return None
    return None if found is None else _figures_in(found)


class _Ticks:
    """Waits in ticks until a deadline, and tells that time passes."""

    def __init__(self, deadline_s: float, progress: Progress | None) -> None:
        self._left = max(1, round(deadline_s / TICK_S))
        self._progress = progress or (lambda _: None)
        self.passed = 0
        self.deadline_s = deadline_s

    def __iter__(self) -> Iterator[float]:
        """Returns the length of each tick that is left; whoever takes one waits for as long."""
        while self._left:
            self._left -= 1
            yield TICK_S
            self.passed += 1
            self._progress(self.passed * TICK_S)


@contextmanager
def _alone(cache: Path, ticks: _Ticks) -> Iterator[None]:
    """Holds the cache's lock, which whoever compiles holds."""
    with (cache / "compiling").open("w") as lock:
        for tick in ticks:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                threading.Event().wait(tick)
        else:
            raise Busy(
                "compile a step",
                on=str(cache),
                got=f"another compile for {ticks.deadline_s:g} s",
                next_step="wait until it is over, or allow more time",
            )
        yield


def _compiled(asked: bytes, target: Target, kept: Path, ticks: _Ticks, memory_gib_max: float) -> CompilerAnswer:
    said = kept.with_suffix(".log")
    with tempfile.TemporaryDirectory(prefix="compile-", dir=kept.parent) as scratch, said.open("wb") as log:
        answer, dumps = Path(scratch) / "answer.json", Path(scratch) / "dumps"
        dumps.mkdir()
        variables = [f"{name}={value}" for name, value in ENVIRONMENT.items()]
        command = ["env", *variables, sys.executable, "-m", "mainspring.train.plan.compiler", str(answer), str(dumps)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log)
        try:
            assert process.stdin
            process.stdin.write(asked + b"\n")
            process.stdin.flush()
            _wait(process, target, ticks, memory_gib_max)
        finally:
            process.kill()
            process.communicate()
        if not answer.exists():
            raise Unavailable(
                "compile a step",
                on=target.name,
                got=f"exit status {process.returncode}: {said.read_text(errors='replace')[-SAID_MAX:].strip()}",
                wanted="an answer",
                next_step=f"read {said}; where memory ran out, compile on a larger machine",
            )
        plain = answer.read_bytes()
    return _read(plain, kept)


def _wait(process: subprocess.Popen[bytes], target: Target, ticks: _Ticks, memory_gib_max: float) -> None:
    for tick in ticks:
        try:
            process.wait(tick)
            return
        except subprocess.TimeoutExpired:
            held_gib = _held_gib(process.pid)
        if held_gib > memory_gib_max:
            raise Unavailable(
                "compile a step",
                on=target.name,
                got=f"{held_gib:.1f} GiB of this machine's memory",
                wanted=f"at most {memory_gib_max:g} GiB",
                next_step="allow more, or compile on a larger machine",
            )
    raise Unavailable(
        "compile a step",
        on=target.name,
        got=f"no answer after {ticks.deadline_s:g} s",
        wanted="one by then",
        next_step="allow more time, or take the formulas' word",
    )


def _held_gib(pid: int) -> float:
    """Returns the memory that a process holds; 0 where the system does not tell as Linux does."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0.0
    return pages * resource.getpagesize() / 2**30


def _read(plain: bytes, kept: Path) -> CompilerAnswer:
    """Returns an answer, and keeps it where it will stay the same."""
    answer = decode(CompilerAnswer, plain)
    if answer.refusal is None or answer.refusal.full:
        unfinished = kept.with_suffix(".part")
        unfinished.write_bytes(plain)
        unfinished.rename(kept)
    return answer


def _figures_in(answer: CompilerAnswer) -> StepFigures:
    """Returns the figures of an answer; raises its refusal."""
    if answer.refusal is not None:
        refusal = answer.refusal
        raise InvalidInput(
            refusal.attempted, on=refusal.on, got=refusal.got, wanted=refusal.wanted, next_step=refusal.next_step
        )
    assert answer.figures is not None
    return answer.figures


def _kept(path: Path) -> CompilerAnswer | None:
    try:
        return decode(CompilerAnswer, path.read_bytes())
    except (FileNotFoundError, InvalidMessage):  # Of another release: it is made anew.
        return None


def _name_of(recipe: Recipe, signature: Signature, target: Target) -> str:
    """Returns a name made of the question, of who would answer it, and of our sources."""
    digest = hashlib.blake2b(digest_size=16)
    for part in (encode(recipe), encode(signature), encode(target)):
        digest.update(part + b"\n")
    try:
        digest.update("".join(f"{package}={version(package)}\n" for package in ("jax", "jaxlib", "libtpu")).encode())
    except PackageNotFoundError as error:
        raise NotFound(
            "compile for TPUs",
            got=f"no package {error.name}",
            next_step="python -m pip install 'mainspring[tpu-plan]'",
        ) from error
    for source in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(source.name.encode() + source.read_bytes())
    return digest.hexdigest()
