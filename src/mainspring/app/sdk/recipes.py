"""What is asked about recipes: their meshes, what data would decide about them, their fields, prices of chips."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mainspring.app.base.home import Home
from mainspring.domain.codec import to_plain
from mainspring.domain.errors import InvalidInput, NotFound, nearest
from mainspring.train.models.shapes import LanguageRecipe, Signature, VlaRecipe
from mainspring.train.recipe import RECIPES, MeshRecipe, Recipe, changed

SIGNATURE_FORM = "state=14,action=14,views=3,image=224x224"
VIEWS, PIXELS, DIMENSIONS = 3, 224, 14  # As two arms and their cameras in ALOHA. Source: Zhao et al., "ALOHA", 2023.
_SIGNATURE = {"state": "state_dim", "action": "action_dim", "views": "image_views", "image": ""}


def with_layout(recipe: Recipe, text: str) -> Recipe:
    """Returns a recipe on another mesh.

    Args:
        recipe: The recipe to start from.
        text: "data=8,tensor=2"; the axes that are left out are 1, but `replica` takes the devices that are left, unless
            another is 0 and takes them.

    Raises:
        NotFound: There is no such axis.
        InvalidInput: A size is no whole number.
    """
    sizes: dict[str, int] = {}
    axes = [axis for axis in to_plain(MeshRecipe()) if axis != "whole_bytes_max"]
    for part in text.split(","):
        axis, _, size = part.strip().partition("=")
        if axis not in axes:
            raise NotFound("lay out a mesh", on=text, got=f"no axis {axis!r}", wanted=nearest(axis, axes))
        if not size.isdecimal():
            raise InvalidInput("lay out a mesh", on=text, got=repr(size), wanted="a whole number")
        sizes[axis] = int(size)
    if sizes.get("data") == 0:
        sizes.setdefault("replica", 1)
    whole = recipe.mesh.whole_bytes_max
    return changed(recipe, {"mesh": {**to_plain(MeshRecipe(whole_bytes_max=whole)), **sizes}})


def signature_for(recipe: Recipe, text: str = "") -> Signature:
    """Returns what the data of a run that does not exist yet would decide.

    Args:
        recipe: Has as many dimensions as its policy where that has its own, and images where it reads them; a language
            model has none.
        text: What is otherwise: some of `SIGNATURE_FORM`.

    Raises:
        NotFound: It names something else.
        InvalidInput: It is not written so.
    """
    if isinstance(recipe.policy, LanguageRecipe) and not text:
        return Signature(state_dim=0, action_dim=0)
    own = recipe.policy.action_dim if isinstance(recipe.policy, VlaRecipe) else DIMENSIONS
    fields = {"state_dim": own, "action_dim": own}
    if recipe.policy.image is not None:
        fields |= {"image_views": VIEWS, "image_height": PIXELS, "image_width": PIXELS}
    for part in filter(None, text.split(",")):
        name, _, value = part.strip().partition("=")
        if name not in _SIGNATURE:
            raise NotFound("describe data", on=text, got=f"no {name!r}", wanted=nearest(name, _SIGNATURE))
        numbers = value.split("x") if name == "image" else [value]
        if len(numbers) != (2 if name == "image" else 1) or not all(each.isdecimal() for each in numbers):
            raise InvalidInput("describe data", on=part, got=repr(value), wanted=SIGNATURE_FORM)
        names = ("image_height", "image_width") if name == "image" else (_SIGNATURE[name],)
        fields |= dict(zip(names, map(int, numbers), strict=True))
    return Signature(**fields)


def fields_of(recipe: Recipe) -> dict[str, object]:
    """Returns every field of a recipe by its dotted path."""
    return _flat(to_plain(recipe), "")


def _flat(plain: Any, where: str) -> dict[str, object]:
    if not isinstance(plain, Mapping) or not plain:
        return {where: plain}
    found: dict[str, object] = {}
    for key, value in plain.items():
        found |= _flat(value, f"{where}.{key}" if where else key)
    return found


def own_recipes() -> dict[str, Recipe]:
    """Returns the recipes that we bring, by name."""
    return {name: make() for name, make in RECIPES.items()}


def price_of(home: Home, chip: str) -> float | None:
    """Returns the least price of a chip for an hour by the configured clusters, None where none names one.

    Args:
        home: Has the configuration.
        chip: As clusters name it.
    """
    if not home.config_file.exists():
        return None
    found = []
    for cluster in home.config().clusters:
        prices = getattr(cluster, "dollars_per_chip_hour", 0.0)
        one = prices.get(chip, 0.0) if isinstance(prices, Mapping) else prices * (getattr(cluster, "chip", "") == chip)
        found.append(one)
    return min((price for price in found if price), default=None)
