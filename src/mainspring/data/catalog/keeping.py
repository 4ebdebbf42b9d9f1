"""Retention: pins that keep a version, and deletion with a time to think again.

A deleted version is out of sight at once; its bytes stay until its grace is over and a collection runs. Its number
never means another version. Versions that a pin or a mixture names are not deleted.
"""

from __future__ import annotations

from dataclasses import dataclass

from mainspring.data.catalog.log import Deleted, Version, deleted_key, folder_of, numbers_of, place_of, resolve
from mainspring.data.catalog.mixtures import mixtures_with
from mainspring.domain.codec import decode, encode
from mainspring.domain.errors import Conflict, InvalidInput, NotFound
from mainspring.domain.ids import checked_name
from mainspring.domain.ports import Clock
from mainspring.objects import ObjectStore

_PINS = "pins"
GRACE_S = 14 * 86_400.0  # Two weeks: a holiday, and then time to notice.
GRACE_S_MIN = 3_600.0  # Above the longest commit, the longest step of an ingest, and the skew of any clock in use.


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """Keeps a version: who wants it kept, and why."""

    version: str
    owner: str
    reason: str


def pin(store: ObjectStore, name: str, *, owner: str, reason: str) -> Pin:
    """Returns the pin that keeps a version from now on. May be repeated.

    Args:
        store: Where the catalog lies.
        name: The version's name.
        owner: Who wants it kept; each owner has one pin on a version.
        reason: Why, for people.

    Raises:
        InvalidInput: The owner's name cannot be one.
        NotFound: There is no such version.
    """
    made = Pin(version=resolve(store, name).name, owner=checked_name(owner, "owner"), reason=reason)
    store.put(f"{folder_of(place_of(made.version), _PINS)}/{owner}.json", encode(made))
    try:
        resolve(store, made.version)  # Who deletes looks for pins again, so that one of the two gives way.
    except NotFound:
        unpin(store, made.version, owner=owner)
        raise
    return made


def unpin(store: ObjectStore, name: str, *, owner: str) -> None:
    """Takes an owner's pin off a version; does nothing when there is none.

    Args:
        store: Where the catalog lies.
        name: The version's whole name.
        owner: Whose pin.
    """
    store.delete(f"{folder_of(place_of(name), _PINS)}/{checked_name(owner, 'owner')}.json")


def pins(store: ObjectStore, name: str) -> tuple[Pin, ...]:
    """Returns a version's pins, in order of their owners.

    Args:
        store: Where the catalog lies.
        name: The version's whole name.
    """
    return tuple(decode(Pin, store.get(entry.key)) for entry in store.list(folder_of(place_of(name), _PINS)))


def delete(store: ObjectStore, name: str, *, clock: Clock, by: str, reason: str, grace_s: float = GRACE_S) -> Version:
    """Deletes a version and returns what it was. May be repeated.

    Args:
        store: Where the catalog lies.
        name: Its whole name, such as "pick@3".
        clock: The time.
        by: Who deletes it.
        reason: Why, for people.
        grace_s: How long its bytes stay, and `undelete` works.

    Raises:
        InvalidInput: The name has no number, or the grace is under `GRACE_S_MIN`.
        NotFound: There is no such version, or it is deleted already.
        Conflict: A pin or a mixture keeps it.
    """
    if grace_s < GRACE_S_MIN:
        raise InvalidInput("delete a version", on=name, got=f"{grace_s} s", wanted=f"at least {GRACE_S_MIN:.0f} s")
    place = place_of(name)
    folder_of(place, _PINS)
    version = resolve(store, name)
    _check_unkept(store, name)
    now_s = clock.now_s()
    store.put_if_absent(
        deleted_key(place.dataset, place.number),
        encode(Deleted(deleted_s=now_s, free_after_s=now_s + grace_s, by=by, reason=reason)),
    )
    try:
        _check_unkept(store, name)  # Who pins looks for the grave again, so that one of the two gives way.
    except Conflict:
        store.delete(deleted_key(place.dataset, place.number))
        raise
    return version


def undelete(store: ObjectStore, name: str, *, clock: Clock) -> Version:
    """Returns a deleted version to the living.

    Args:
        store: Where the catalog lies.
        name: Its whole name.
        clock: The time.

    Raises:
        NotFound: It is not deleted.
        Conflict: Its grace is over, or so nearly that a collection may have begun.
    """
    place = place_of(name)
    if place.number not in numbers_of(store, place.dataset).deleted:
        raise NotFound("undelete a version", on=name, got="no version that was deleted")
    grave = decode(Deleted, store.get(deleted_key(place.dataset, place.number)))
    if clock.now_s() > grave.free_after_s - GRACE_S_MIN / 2:
        raise Conflict("undelete a version", on=name, got="its grace is over", wanted="an earlier call")
    store.delete(deleted_key(place.dataset, place.number))
    return resolve(store, name)


def _check_unkept(store: ObjectStore, name: str) -> None:
    pinned, mixed = pins(store, name), mixtures_with(store, name)
    keepers = [f"{one.owner} ({one.reason})"[:100] for one in pinned] + [f"mixture {one}" for one in mixed]
    steps = [f"ms data unpin {name} --by {pinned[0].owner}"] if pinned else []
    steps += [f"ms data rm {mixed[0]}, or ms data mix it anew without this version"] if mixed else []
    if keepers:
        raise Conflict(
            "delete a version",
            on=name,
            got=f"kept by {', '.join(keepers)[:300]}",
            next_step="first " + "; ".join(steps),
        )
