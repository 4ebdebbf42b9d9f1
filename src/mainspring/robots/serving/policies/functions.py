"""Policies that are plain Python functions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, final

import numpy as np

from mainspring.domain.errors import InvalidInput
from mainspring.robots.serving.policy import Asked, FloatArray, PolicyFacts


@final
class FunctionPolicy:
    """A function as a policy.

    Args:
        function: From one observation, a map of what the robot sent, to a chunk: an array [T,A], or a map with it under
            `actions`, as policies of openpi give. With `batched` from a list of observations of one shape to as many
            chunks. An attribute `example`, an observation, makes it warm up before it is served.
        name: What it is called.
        batch_max: Observations that it takes at once where it takes several, None where it takes one.
    """

    def __init__(self, function: Callable[[Any], Any], *, name: str, batch_max: int | None = None) -> None:
        self._function = function
        self._batched = batch_max is not None
        example = getattr(function, "example", None)
        self._facts = PolicyFacts(
            name=name,
            batch_max=1 if batch_max is None else batch_max,
            examples=(example,) if isinstance(example, Mapping) else (),
        )

    @property
    def facts(self) -> PolicyFacts:
        """Returns its name, and how many observations it takes."""
        return self._facts

    def infer(self, asked: Sequence[Asked]) -> FloatArray:
        """Returns the chunks that the function gives."""
        seen = [dict(each.observation) for each in asked]
        given: Any = self._function(seen) if self._batched else [self._function(each) for each in seen]
        chunks = [each.get("actions") if isinstance(each, Mapping) else each for each in given]
        return np.asarray(chunks)  # Which is looked at before it is sent, whatever it is.


def function_named(source: str) -> Callable[[Any], Any]:
    """Returns the function that a source names.

    Args:
        source: `module:function`; the module lies in the folder where the program runs, or is installed.

    Raises:
        InvalidInput: There is none.
    """
    module_name, _, name = source.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found: Any = import_module(module_name)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidInput("find a policy", on=source, got=str(error), wanted="module:function") from error
    if not callable(found):
        raise InvalidInput("find a policy", on=source, got=type(found).__name__, wanted="a function")
    function: Callable[[Any], Any] = found
    return function
