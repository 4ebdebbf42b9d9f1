"""Elastic jax.distributed: one process serves as a rank of one generation after another, where JAX allows it.

The coordination service lives with the agent, so that no rank hosts it and any rank may die. When one does, the
collectives of the others fail; each drops its JAX backends and connects to the next generation's service, with its
imports, its memory and its caches warm. What was compiled is kept in a folder, and on CPU it is found there by whatever
ranks make up a world of its size. JAX has no public way to do any of that: this is the only file of the room that uses
private names of JAX, and it checks the version first.
"""

from __future__ import annotations

import gc
import importlib.util
import re
import sys
import threading
import traceback
import weakref
from collections import deque
from collections.abc import Callable
from functools import cache as once
from pathlib import Path
from typing import Any, TypeVar, final

import jax
from jax._src import cache_key, dispatch, distributed, xla_bridge
from jaxlib import _jax, xla_client

from mainspring.domain.errors import InvalidInput, Unavailable
from mainspring.domain.goodput import TimeUse
from mainspring.domain.wire import EXIT_PREEMPTED, Then
from mainspring.session.jax_ahead import compiles_ahead, end_ahead
from mainspring.session.join import join
from mainspring.session.session import Session

VERSIONS = ("0.10.",)  # Releases whose private names were read and tried.
CONNECT_LIMIT_S = 120  # The service is up before ranks start; the rest is ranks importing on a busy machine.
FAREWELL_LIMIT_S = 30  # Ranks in lockstep end within a step of each other; one that is late must not hold the rest.
HEARTBEAT_LIMIT_S = 1_000_000  # Never: the agent and the lead watch over ranks, and a stopped rank is not a dead one.
COLLECTIONS_MAX = 50  # JAX's own tests need up to four; the rest is for those that another thread prevents,
COLLECT_AGAIN_S = 0.03  # with 1.5 s of waits between them: less than starting anew takes.
SPANS_MAX = 10_000  # Inner functions in one traced program; past it, some tracing time counts twice.
COMPILE_EVENTS = "/jax/core/compile/"  # Tracing, lowering, compiling: `jax._src.dispatch`, 0.10.
# What the text of an error has when the other end of a collective, or the service, went away: gloo names itself, the
# rest are names of `absl::StatusCode`. Running out of memory or a bad program have other names. The type says less:
# waiting for one array raises JaxRuntimeError, for several at once ValueError.
BROKEN = re.compile(r"\b[Gg]loo\b|\b(UNAVAILABLE|DEADLINE_EXCEEDED|ABORTED|CANCELLED): ")

Result = TypeVar("Result")


def run(main: Callable[[Session], Result], *, standby: bool = True, cache: Path | None = None) -> Result:
    """Joins the agent, connects JAX to the other ranks, and returns what `main` returns.

    `main` is called once for each generation of ranks this process is part of: it makes its mesh, restores, and steps.
    Everything JAX gave it (arrays, devices, meshes) must be gone once it has returned or raised, so it keeps none in
    globals. It is called again when a collective broke because another rank died, or when it returned because the
    session asked it to leave for another generation. Any other error is raised as it is. Asked to stop, the process
    exits with `EXIT_PREEMPTED`, and so it does where it cannot reconnect: with other backends than CPU, for which that
    is not yet shown, or when something still holds an old backend. It is then started anew.

    Args:
        main: The program, from making the mesh to the last step.
        standby: Whether a spare process may be started ahead and wait in here.
        cache: Folder of compiled programs; None for the one set up already, or one in the user's own cache folder.

    Raises:
        InvalidInput: This JAX is of a release whose private names are not known.
        Unavailable: The agent does not answer, or hosts no coordination service.
    """
    reconnects = _can_reconnect()
    if reconnects:
        _name_alike()
        gc.freeze()  # What imports made: it stays, and to look through it takes most of a collection's time.
    session = join(standby=standby, reconnects=reconnects)
    keep_compiled(cache)
    compiling = _Compiling(session)
    jax.monitoring.register_event_time_span_listener(compiling)
    try:
        while True:
            try:
                _connect(session)
                result = main(session)
            except (RuntimeError, ValueError) as error:
                if not (reconnects and session.world_size > 1 and BROKEN.search(str(error))):
                    raise
                _say(f"generation {session.generation} broke: {type(error).__name__}: {str(error)[:500]}")
                _let_go(error)
            else:
                if not session.stop_requested:
                    _say_farewell()
                    return result
                if session.left() is Then.EXIT or not reconnects:
                    sys.exit(EXIT_PREEMPTED)
                del result
            end_ahead()  # Before the backend it compiles with goes.
            if not _disconnect():
                _say("something outside `main` holds JAX arrays, devices or meshes: starting anew")
                sys.exit(EXIT_PREEMPTED)
            session.next_generation()
    finally:
        end_ahead()
        distributed.global_state.client = None  # JAX's own farewell waits for ranks that may be gone.
        jax.monitoring.unregister_event_time_span_listener(compiling)


@final
class _Compiling:
    """Tells the session how long JAX compiles. A span inside another one, as tracing has them, counts once."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._counted = threading.local()

    def __call__(self, event: str, start_time: float, end_time: float, **kwargs: str | int) -> None:
        if not event.startswith(COMPILE_EVENTS) or compiles_ahead():  # Training goes on meanwhile.
            return
        spans: deque[tuple[float, float]] = self._counted.__dict__.setdefault("spans", deque(maxlen=SPANS_MAX))
        inside_s = 0.0
        while spans and spans[-1][0] >= start_time:
            inner_start_s, inner_end_s = spans.pop()
            inside_s += inner_end_s - inner_start_s
        spans.append((start_time, end_time))
        if end_time - start_time > inside_s:
            self._session.measured(TimeUse.COMPILE, end_time - start_time - inside_s)


def _can_reconnect() -> bool:
    """Returns whether JAX will run on CPU alone, as far as can be known before its backends start."""
    if not jax.__version__.startswith(VERSIONS):
        return False
    platforms = jax.config.values["jax_platforms"]
    if platforms:
        return bool(platforms == "cpu")
    xla_bridge._discover_and_register_pjrt_plugins()  # type: ignore[no-untyped-call]
    others = set(xla_bridge._backend_factories) - {"cpu", "tpu"}  # "tpu" is always listed, and needs libtpu.
    return not others and importlib.util.find_spec("libtpu") is None


def keep_compiled(cache: Path | None) -> None:
    """Makes JAX keep what it compiles, however small: a restarted rank finds all of it."""
    folder = cache or jax.config.values["jax_compilation_cache_dir"] or Path.home() / ".cache" / "mainspring" / "jax"
    for option, value in (
        ("jax_compilation_cache_dir", str(Path(folder).resolve())),  # Its path is part of what programs are found by.
        ("jax_persistent_cache_min_compile_time_secs", 0.0),
        ("jax_persistent_cache_min_entry_size_bytes", -1),
    ):
        jax.config.update(option, value)  # type: ignore[no-untyped-call]


@once
def _name_alike() -> None:
    """Makes all ranks of a world find what any of them compiled, and worlds of one size what others have.

    JAX's own name for a compiled program has the numbers of its devices, and of the process, though what is compiled is
    the same, byte for byte; of GPUs it leaves the devices out. Here it has which of the devices are of one process,
    and what the processor can do.
    Source: `jax._src.cache_key.get`, 0.10.
    """
    names: Any = cache_key  # Untyped in JAX.
    hash_options = names._hash_serialized_compile_options

    def hash_places(digest: Any, devices: Any) -> None:
        ranks: dict[int, int] = {}
        places = [ranks.setdefault(device.process_index, len(ranks)) for device in devices.flat]
        digest.update(f"{_processor()} {places}".encode())

    names._hash_serialized_compile_options = lambda digest, options, **_: hash_options(
        digest, options, strip_device_assignment=True
    )
    names._hash_accelerator_config = hash_places


@once
def _processor() -> int:
    """Returns a number for all that makes code for one processor fail on another."""
    alone: Any = xla_client.make_cpu_client(asynchronous=True)  # Of no world: others' topologies have their numbers.
    fingerprint: int = xla_client.get_topology_for_devices(alone.devices()).fingerprint()
    return fingerprint


def _connect(session: Session) -> None:
    """Makes this process one of `session.world_size` JAX processes. CPU collectives run over gloo.

    Raises:
        InvalidInput: This JAX is of a release whose private names are not known.
        Unavailable: The agent hosts no coordination service.
    """
    client = None
    if session.world_size > 1:
        if not jax.__version__.startswith(VERSIONS):
            raise InvalidInput(
                "connect JAX to its coordination service",
                got=f"JAX {jax.__version__}",
                wanted=f"a release that starts with one of {', '.join(VERSIONS)}",
            )
        if not session.coordinator:
            raise Unavailable(
                "connect JAX to its coordination service",
                got="an agent that hosts none",
                next_step="install jaxlib where the agent runs",
            )
        jax.config.update("jax_cpu_collectives_implementation", "gloo")  # type: ignore[no-untyped-call]
        client = _jax.get_distributed_runtime_client(
            session.coordinator,
            session.rank,
            init_timeout=CONNECT_LIMIT_S,
            shutdown_timeout=FAREWELL_LIMIT_S,
            heartbeat_timeout=HEARTBEAT_LIMIT_S,
            shutdown_on_destruction=False,
            use_compression=True,
        )
        client.connect()
    state = distributed.global_state
    state.client = client
    state.process_id = session.rank
    state.num_processes = session.world_size
    state.coordinator_address = session.coordinator or None
    if client is not None and jax.default_backend() == "cpu":
        # The backend has its number now; from here on JAX reads this one only to let process 0 alone write to the cache
        # of compiled programs. That may be its node's own, and then others would never find theirs.
        state.process_id = 0


def _say_farewell() -> None:
    """Waits until all ranks are done: one that leaves early takes its end of the last collective with it."""
    client = distributed.global_state.client
    if client is not None:
        try:
            client.shutdown()
        except jax.errors.JaxRuntimeError as error:  # The program is done; how the others end is the lead's to judge.
            _say(f"not all ranks said farewell: {str(error)[:200]}")


def _disconnect() -> bool:
    """Drops JAX's backends and its client; returns whether they are truly gone.

    One that lives on would keep this rank's end of broken collectives open, so that others wait on it, and would end
    the process once the old coordination service goes.
    """
    gone = threading.Event()
    backends = [weakref.ref(backend, lambda _: gone.set()) for backend in xla_bridge._backends.values()]
    distributed.global_state.client = None
    xla_bridge._clear_backends()
    jax.clear_caches()  # type: ignore[no-untyped-call]
    dispatch.runtime_tokens.clear()  # type: ignore[no-untyped-call]
    for _ in range(COLLECTIONS_MAX):
        if all(backend() is None for backend in backends):
            return True
        gc.collect()  # What a finalizer lets go is found by the next one; while another thread collects, none is made.
        gone.wait(COLLECT_AGAIN_S)
    return False


def _let_go(error: BaseException) -> None:
    """Empties the frames that an error keeps alive: they hold arrays of the broken generation."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            traceback.clear_frames(one.__traceback__)
            waiting += [one.__cause__, one.__context__]


def _say(words: str) -> None:
    """Puts one line where the agent keeps the rank's last words."""
    sys.stderr.write(f"mainspring: {words}\n")
    sys.stderr.flush()
