"""Which environments there are, by name; one of your own is a class: `FILE.py:CLASS` or `package.module:CLASS`."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

from mainspring.domain.errors import InvalidInput, NotFound, Unavailable, nearest
from mainspring.robots.environments.port import Environment, EnvironmentFacts

_HERE = "mainspring.robots.environments"
ENVIRONMENTS: Mapping[str, str] = {
    "metaworld": f"{_HERE}.metaworld:MetaWorld",
    "metaworld-places": f"{_HERE}.metaworld:MetaWorldPlaces",
    "metaworld-shelf": f"{_HERE}.metaworld:metaworld_shelf",
    "metaworld-table": f"{_HERE}.metaworld:metaworld_table",
    "pusht": f"{_HERE}.pusht:PushT",
    "pusht-state": f"{_HERE}.pusht:pusht_by_state",
}
_METHODS = ("facts", "reset", "step", "draw")


def environment_named(name: str) -> Callable[[], Environment]:
    """Returns what makes an environment of a name, once it has made one that is sound.

    Args:
        name: One of `ENVIRONMENTS`, or `FILE.py:CLASS`, or `package.module:CLASS`: whatever is called without arguments
            and returns an `Environment`.

    Raises:
        NotFound: There is none of that name.
        InvalidInput: What is there is no environment.
        Unavailable: A package is missing.
    """
    place, _, called = ENVIRONMENTS.get(name, name).rpartition(":")
    if not place or not called:
        wanted = f"{nearest(name, ENVIRONMENTS)}, or FILE.py:CLASS"
        raise NotFound("find an environment", got=repr(name), wanted=wanted)
    try:
        made = getattr(_loaded(place), called, None)
    except ModuleNotFoundError as error:
        if name in ENVIRONMENTS:
            raise Unavailable(
                "use an environment",
                on=name,
                got=f"no package {error.name!r}",
                next_step="pip install 'mainspring[sim]'",
            ) from error
        raise NotFound("find an environment", on=name, got=str(error), wanted="FILE.py:CLASS") from error
    if not callable(made):
        raise NotFound("find an environment", on=place, got=f"nothing callable named {called!r}")
    _check(made(), name)
    maker: Callable[[], Environment] = made
    return maker


def _loaded(place: str) -> ModuleType:
    if not place.endswith(".py"):
        return importlib.import_module(place)
    path = Path(place)
    if not path.is_file():
        raise NotFound("find an environment", on=place, got="no such file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _check(made: object, name: str) -> None:
    lacking = [method for method in _METHODS if not callable(getattr(made, method, None))]
    if lacking:
        raise InvalidInput("use an environment", on=name, got=f"no {', '.join(lacking)}", wanted=", ".join(_METHODS))
    facts = made.facts()  # type: ignore[attr-defined]
    if not isinstance(facts, EnvironmentFacts):
        raise InvalidInput(
            "use an environment", on=name, got=f"facts() of {type(facts).__name__}", wanted="EnvironmentFacts"
        )
