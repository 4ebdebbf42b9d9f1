"""Recipes as people name them: ours, or a function of a file of theirs; with fields set by dotted paths."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mainspring.domain.codec import to_plain
from mainspring.domain.errors import InvalidInput, NotFound, nearest
from mainspring.train.recipe import Recipe, changed, recipe_named


def find_recipe(name: str, settings: Iterable[str] = ()) -> Recipe:
    """Returns a recipe.

    Args:
        name: One of ours, or "path/to/file.py:function" of a function that returns one; its file is run.
        settings: "field=value", dotted and as JSON: "policy.compute.remat=dots", "batch_size=64".

    Raises:
        NotFound: There is no such recipe, file, function or field.
        InvalidInput: The function returns something else, or a value is not what a field takes.
    """
    path, colon, function = name.rpartition(":")
    recipe = _recipe_of(Path(path), function) if colon and path.endswith(".py") else recipe_named(name)
    for text in settings:
        recipe = with_setting(recipe, text)
    return recipe


def _recipe_of(path: Path, function: str) -> Recipe:
    if not path.is_file():
        raise NotFound("find a recipe", on=str(path), got="no such file", wanted="path/to/file.py:function")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise InvalidInput("run a recipe's file", on=str(path), got=f"{type(error).__name__}: {error}") from error
    made = getattr(module, function, None)
    if not callable(made):
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise NotFound("find a recipe", on=str(path), got=f"no function {function!r}", wanted=nearest(function, known))
    recipe = made()
    if not isinstance(recipe, Recipe):
        raise InvalidInput("make a recipe", on=f"{path}:{function}", got=type(recipe).__name__, wanted="a Recipe")
    return recipe


def with_setting(recipe: Recipe, text: str) -> Recipe:
    """Returns a recipe with one field replaced.

    Args:
        recipe: The recipe to start from.
        text: "field=value", dotted, the value as JSON or a word.

    Raises:
        NotFound: There is no such field.
        InvalidInput: The value is not what the field takes.
    """
    path, equals, given = text.partition("=")
    if not equals or not path:
        raise InvalidInput("set a field of a recipe", got=repr(text), wanted="field=value, such as batch_size=64")
    try:
        value: Any = json.loads(given)
    except ValueError:
        value = given
    plain = to_plain(recipe)
    _require_field(plain, path.split("."), recipe.name)
    for key in reversed(path.split(".")):
        value = {key: value}
    return changed(recipe, value)


def _require_field(plain: Any, keys: list[str], name: str) -> None:
    for number, key in enumerate(keys):
        known = list(plain) if isinstance(plain, Mapping) else []
        if key not in known:
            where = ".".join([name, *keys[:number]])
            raise NotFound("set a field of a recipe", on=where, got=f"no field {key!r}", wanted=nearest(key, known))
        plain = plain[key]
