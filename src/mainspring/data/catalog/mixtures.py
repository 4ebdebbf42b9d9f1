"""Weighted mixtures of versions: named, frozen, and kept alive by their name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from mainspring.data.catalog.lineage import record_use
from mainspring.data.catalog.log import place_of, resolve
from mainspring.domain.codec import decode, encode
from mainspring.domain.errors import Conflict, InvalidInput, NotFound, nearest
from mainspring.domain.ids import VersionId, checked_name
from mainspring.objects import ObjectStore

COMPONENTS_MAX = 1_000  # Large published mixtures have dozens.
MIXTURE = "mixture"


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureComponent:
    """One version of a mixture: its name, its id, and its share of what is drawn."""

    version: str
    id: VersionId
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """Versions to draw from at once; the shares sum to one. In order of the versions' names."""

    name: str
    components: tuple[MixtureComponent, ...]


def freeze_mixture(store: ObjectStore, name: str, weights: Mapping[str, float]) -> Mixture:
    """Returns a mixture, which its name means from now on until it is deleted. May be repeated.

    Args:
        store: Where the catalog lies.
        name: Its name.
        weights: A weight above zero for each version, by name ("pick@3", or "pick" for the newest); in any unit.

    Raises:
        InvalidInput: A name cannot be one, a weight is no number above zero, or a version comes twice.
        NotFound: There is no such version.
        Conflict: The name means another mixture.
    """
    checked_name(name, MIXTURE)
    if not 1 <= len(weights) <= COMPONENTS_MAX:
        raise InvalidInput("freeze a mixture", on=name, got=f"{len(weights)} versions", wanted=f"1 to {COMPONENTS_MAX}")
    for version, weight in weights.items():
        if not (math.isfinite(weight) and weight > 0):
            raise InvalidInput("freeze a mixture", on=version, got=f"weight {weight}", wanted="a number above zero")
    total = math.fsum(weights.values())
    resolved = {version: resolve(store, version) for version in weights}
    components = [
        MixtureComponent(version=resolved[version].name, id=resolved[version].id, share=weight / total)
        for version, weight in weights.items()
    ]
    if len({component.version for component in components}) < len(components):
        raise InvalidInput("freeze a mixture", on=name, got=", ".join(weights)[:200], wanted="each version once")
    made = Mixture(name=name, components=tuple(sorted(components, key=lambda component: component.version)))
    for component in made.components:
        record_use(store, component.version, MIXTURE, name)
    store.put_if_absent(_key(name), encode(made))
    for component in made.components:
        resolve(store, component.version)  # Who deletes looks for mixtures again, so that one of the two gives way.
    if (held := mixture(store, name)) != made:
        raise Conflict("freeze a mixture", on=name, got=str(held.components)[:300], wanted="a name that is free")
    return made


def mixture(store: ObjectStore, name: str) -> Mixture:
    """Returns the mixture of a name.

    Args:
        store: Where the catalog lies.
        name: Its name.

    Raises:
        NotFound: There is none.
    """
    try:
        return decode(Mixture, store.get(_key(checked_name(name, MIXTURE))))
    except NotFound as error:
        raise NotFound("find a mixture", on=name, wanted=nearest(name, mixtures(store))) from error


def mixtures(store: ObjectStore) -> tuple[str, ...]:
    """Returns the names of all mixtures, in order.

    Args:
        store: Where the catalog lies.
    """
    return tuple(entry.key.split("/")[1].removesuffix(".json") for entry in store.list("mixtures"))


def delete_mixture(store: ObjectStore, name: str) -> None:
    """Forgets a mixture: its name is free, and its versions may be deleted. Does nothing when there is none.

    Args:
        store: Where the catalog lies.
        name: Its name.
    """
    store.delete(_key(checked_name(name, MIXTURE)))


def mixtures_with(store: ObjectStore, version: str) -> tuple[str, ...]:
    """Returns the names of the mixtures that hold a version.

    Args:
        store: Where the catalog lies.
        version: Its whole name.
    """
    wanted = place_of(version)
    held = (mixture(store, name) for name in mixtures(store))
    return tuple(one.name for one in held if wanted in [place_of(part.version) for part in one.components])


def _key(name: str) -> str:
    return f"mixtures/{name}.json"
