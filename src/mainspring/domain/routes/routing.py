"""What a route is: one call over HTTP, made of a method without a body."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

from mainspring.domain.team import Right

KEY_HEADER = "Idempotency-Key"  # Of a call that does something each time: draft-ietf-httpapi-idempotency-key-header.
P = ParamSpec("P")
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Bounds of a parameter in the query, and its name there where that is another."""

    alias: str | None = None
    ge: float | None = None
    le: float | None = None
    max_length: int | None = None
    pattern: str | None = None
    allow_inf_nan: bool | None = None


class Calling(Protocol):
    """Makes calls: a client, or a lab that has one."""

    def call(self, route: Route[P, Answer], /, *args: P.args, **kwargs: P.kwargs) -> Answer:
        """Returns the server's answer."""


class AsyncCalling(Protocol):
    """Makes calls that are awaited."""

    async def call(self, route: Route[P, Answer], /, *args: P.args, **kwargs: P.kwargs) -> Answer:
        """Returns the server's answer."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Route(Generic[P, Answer]):
    """One call. As an attribute of what makes calls it is a method that makes this one.

    Args:
        method: HTTP's.
        path: Below the server's address, with its parameters in braces.
        stub: Its parameters, answer and words.
        may: The right it takes, to the things it is about; None where the handler looks for itself.
        people: Whether it wants a token.
        handler: The method of `Control` that serves it: path and body first, then the caller, the query by name.
        operation: Its name in the published document.
        patient: Whether its answer may take minutes, on a large fleet.
        repeats: Whether it may be made again when its answer was lost: then it does nothing more.
    """

    method: str
    path: str
    stub: Callable[..., Answer]
    may: Right | None
    people: bool
    handler: str
    operation: str
    patient: bool
    repeats: bool

    @overload
    def __get__(self, owner: None, kind: type) -> Route[P, Answer]: ...
    @overload
    def __get__(self, owner: AsyncCalling, kind: type) -> Callable[P, Awaitable[Answer]]: ...
    @overload
    def __get__(self, owner: Calling, kind: type) -> Callable[P, Answer]: ...
    def __get__(self, owner: AsyncCalling | Calling | None, kind: type) -> object:
        """Returns itself, or the call bound to what makes it."""
        return self if owner is None else partial(owner.call, self)

    @property
    def signature(self) -> inspect.Signature:
        """Returns its parameters and answer, annotations evaluated."""
        return _signature(self.stub)

    @property
    def query(self) -> dict[str, inspect.Parameter]:
        """Returns the parameters in the query, which are given by name alone, by their names there."""
        every = self.signature.parameters.values()
        query = [parameter for parameter in every if parameter.kind is inspect.Parameter.KEYWORD_ONLY]
        return {bounds_of(parameter).alias or parameter.name: parameter for parameter in query}

    @property
    def keyed(self) -> bool:
        """Returns whether it does something each time it is made: under one key of the caller's, it does it once."""
        return self.may is not None and not self.repeats

    @property
    def bare(self) -> bool:
        """Returns whether it takes a token and a body, and nothing else."""
        return self.people and not self.keyed and set(self.signature.parameters) == {"body"}

    @property
    def words(self) -> str:
        """Returns what it does, in a sentence."""
        return " ".join((inspect.getdoc(self.stub) or "").partition("\n\n")[0].split())


def bounds_of(parameter: inspect.Parameter) -> Query:
    """Returns the bounds of a parameter in the query.

    Args:
        parameter: Of a route.
    """
    said = getattr(parameter.annotation, "__metadata__", ())
    return said[0] if said else Query()


@cache
def _signature(stub: Callable[..., Any]) -> inspect.Signature:
    whole = inspect.signature(stub, eval_str=True)
    return whole.replace(parameters=tuple(whole.parameters.values())[1:])


def route(
    method: str,
    path: str,
    *,
    may: Right | None = Right.READ_LAB,
    anybody: bool = False,
    handler: str = "",
    operation: str = "",
    patient: bool = False,
    repeats: bool | None = None,
    below: str = "/v1",
) -> Callable[[Callable[Concatenate[Any, P], Answer]], Route[P, Answer]]:
    """Returns a decorator that makes a route of a method without a body; see `Route`.

    Args:
        method: HTTP's.
        path: With its parameters in braces.
        may: The right it takes, None for none that people have.
        anybody: Whether it wants no token.
        handler: The method of `Control`; that of the same name, when left out.
        operation: Its published name; the method's name, when left out.
        patient: Whether its answer may take minutes.
        repeats: Whether it may be made again when its answer was lost; where not said, what only reads or puts may.
        below: What the path is below.
    """

    def made(stub: Callable[Concatenate[Any, P], Answer]) -> Route[P, Answer]:
        name = stub.__name__
        return Route(
            method=method,
            path=f"{below}{path}",
            stub=stub,
            may=None if anybody else may,
            people=not anybody,
            handler=handler or name,
            operation=operation or name,
            patient=patient,
            repeats=method in ("GET", "PUT") if repeats is None else repeats,
        )

    return made
