"""Producers: pure functions from an episode to new columns and facts of it, named by their own code.

    @producer(columns={"speed": ("x", "y", "z")}, facts=("smoothness",))
    def motion(episode: Recorded, *, window: int = 5) -> Made: ...

What a producer makes is named by its code, so that changed code makes another layer and equal code finds what is there.
The code that counts is the function's own and that of whatever it `uses`; it must not read anything else that changes.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import json
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType, MappingProxyType
from typing import Any, TypeAlias

from blake3 import blake3

from mainspring.data.layers.episode import Recorded
from mainspring.data.video.packet import DECODING
from mainspring.domain.errors import InvalidInput, NotFound
from mainspring.domain.ids import checked_name

PARAMETERS_MAX = 64
_LETTERS = 32
_FORMAT = 1  # Raised when the same code would be given, or stored, something else.

Parameter: TypeAlias = bool | int | float | str
Made: TypeAlias = Mapping[str, Any]
"""What a producer returns: [T, D] or [T] numbers for each column it declares, a number, text or truth for each fact."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Producer:
    """A function that makes a layer.

    Args:
        name: Its own.
        function: Called with a `Recorded` and the parameters by name.
        columns: The columns it makes: names of their dimensions.
        facts: The facts it makes, one value an episode.
        code: Hash of its code.
        where: How another process finds it: "package.module:name", or "/path/file.py:name".
    """

    name: str
    function: Callable[..., Made]
    columns: Mapping[str, tuple[str, ...]]
    facts: tuple[str, ...]
    code: str
    where: str

    def __call__(self, episode: Recorded, **parameters: Parameter) -> Made:
        """Calls the function, as if it had not been decorated."""
        return self.function(episode, **parameters)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """What a layer is made of; its hash is the layer's id.

    Args:
        producer: The producer's name.
        code: Hash of its code.
        columns: What it makes at each step.
        facts: What it makes of each episode.
        parameters: Everything it was told.
        inputs: Ids of layers whose columns it reads, in order.
        decoding: Number of the code that makes packets pictures (`DECODING`): other pictures make another layer. Layers
            made before it was written here say 1.
    """

    producer: str
    code: str
    columns: Mapping[str, tuple[str, ...]]
    facts: tuple[str, ...]
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    decoding: int = 1

    @property
    def id(self) -> str:
        """Returns the layer's id."""
        facts = [_FORMAT, self.producer, self.code, {name: list(dims) for name, dims in self.columns.items()}]
        facts += [list(self.facts), dict(self.parameters), list(self.inputs)]
        facts += [self.decoding] if self.decoding > 1 else []
        return blake3(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:_LETTERS]


def producer(
    *, columns: Mapping[str, Sequence[str]] = MappingProxyType({}), facts: Sequence[str] = (), uses: Sequence[Any] = ()
) -> Callable[[Callable[..., Made]], Producer]:
    """Returns a decorator that makes a producer of a function.

    Args:
        columns: What it makes at each step: names of the dimensions of each column.
        facts: What it makes of each episode.
        uses: Functions and classes whose code counts as its own.

    Raises:
        InvalidInput: It makes nothing, a name cannot be one, or its code cannot be read.
    """
    for name in (*columns, *facts):
        checked_name(name, "column")
    if not columns and not facts:
        raise InvalidInput("make a producer", got="neither columns nor facts", wanted="at least one")

    def decorated(function: Callable[..., Made]) -> Producer:
        code = blake3("\0".join(_source(part) for part in (function, *uses)).encode()).hexdigest()[:_LETTERS]
        module = function.__module__
        home = str(Path(inspect.getfile(function)).resolve()) if module in ("__main__", _LOADED) else module
        return Producer(
            name=function.__name__,
            function=function,
            columns={name: tuple(columns[name]) for name in sorted(columns)},
            facts=tuple(sorted(facts)),
            code=code,
            where=f"{home}:{function.__name__}",
        )

    return decorated


def spec_of(made_by: Producer, parameters: Mapping[str, Parameter], inputs: Sequence[str] = ()) -> LayerSpec:
    """Returns what a producer's layer is, with the defaults of the parameters that were not given.

    Args:
        made_by: The producer.
        parameters: By name.
        inputs: Ids of layers whose columns it reads.

    Raises:
        InvalidInput: It has no such parameter, or one of another type.
    """
    known = {
        name: parameter.default
        for name, parameter in inspect.signature(made_by.function).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
    wanted = ", ".join(known) or "no parameters"
    unknown = [name for name in parameters if name not in known]
    missing = [name for name, value in known.items() if value is inspect.Parameter.empty and name not in parameters]
    if unknown or missing or len(known) > PARAMETERS_MAX:
        raise InvalidInput(
            "call a producer",
            on=made_by.name,
            got=f"{', '.join([*unknown, *(f'no {name}' for name in missing)])}"[:200],
            wanted=wanted[:300],
        )
    told = {**known, **parameters}
    for name, value in told.items():
        if not isinstance(value, (bool, int, float, str)):
            raise InvalidInput(
                "call a producer", on=f"{made_by.name}, {name}", got=type(value).__name__, wanted="a scalar"
            )
    return LayerSpec(
        producer=made_by.name,
        code=made_by.code,
        columns=made_by.columns,
        facts=made_by.facts,
        parameters=dict(sorted(told.items())),
        inputs=tuple(inputs),
        decoding=DECODING,
    )


def load_producer(where: str) -> Producer:
    """Returns the producer that a name means; this runs the code of its module.

    Args:
        where: "package.module:name", or "path/file.py:name".

    Raises:
        InvalidInput: The name has another form, or means something else.
        NotFound: There is no such module or file, or nothing of that name in it.
    """
    home, colon, name = where.rpartition(":")
    if not colon or not home or not name.isidentifier():
        raise InvalidInput("find a producer", got=repr(where[:120]), wanted="package.module:name or path/file.py:name")
    try:
        module = _loaded(Path(home)) if home.endswith(".py") else importlib.import_module(home)
        found = getattr(module, name)
    except (ImportError, AttributeError, OSError, SyntaxError) as error:
        raise NotFound("find a producer", on=where[:200], got=str(error)[:200]) from error
    if not isinstance(found, Producer):
        raise InvalidInput(
            "find a producer", on=where[:200], got=type(found).__name__, wanted="a function with @producer"
        )
    return found


_LOADED = "mainspring_producers"  # What a file's module is called, whatever the file's name.


def _loaded(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(_LOADED, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[_LOADED] = module
    spec.loader.exec_module(module)
    return module


def _source(part: Any) -> str:
    """Returns code without comments, layout, docstrings and decorators: what can change what it does."""
    if not isinstance(part, (FunctionType, type)):
        raise InvalidInput("make a producer", got=repr(part)[:120], wanted="functions and classes")
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(part)))
    except (OSError, TypeError, SyntaxError) as error:
        raise InvalidInput(
            "make a producer",
            on=part.__name__,
            got=str(error)[:200],
            wanted="code in a file or module, not typed at a prompt",
        ) from error
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            node.decorator_list = []
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and len(node.body) > 1:
                node.body = node.body[1:]
    return ast.dump(tree)
