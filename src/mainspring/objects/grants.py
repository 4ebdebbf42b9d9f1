"""Grants: credentials for a part of an object store, for a while. What gives them is behind a port."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from mainspring.domain.errors import NotAllowed
from mainspring.domain.wire import StoreCredentials
from mainspring.objects.open import open_store
from mainspring.objects.port import checked_key

_TRIED = "checkpoints/of-a-check"
_OTHER = "checkpoints/of-another-check"


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """What somebody may do with a store. Nothing else of it may even be listed.

    Args:
        writes: Folders whose objects may be listed, read, stored and deleted.
        reads: Folders whose objects may be listed and read.
        objects: Keys of single objects that may be read.
    """

    writes: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    objects: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Checks every key, for some characters stand for others where access is written down.

        Raises:
            InvalidInput: One breaks the rules of keys.
        """
        for key in (*self.writes, *self.reads, *self.objects):
            checked_key(key)


class Grants(Protocol):
    """Gives credentials for parts of one store. May be called from many threads."""

    def grant(self, access: Access, *, holder: str) -> StoreCredentials:
        """Returns new credentials that are good for `access` and for nothing else; blocks for seconds at most.

        They cannot be taken back: they end when their time is over.

        Args:
            access: What they are for.
            holder: Who gets them, for whoever reads the store's own log.

        Raises:
            NotAllowed: They are refused.
            Unavailable: There is no answer.
        """


def check_grants(url: str, grants: Grants) -> None:
    """Checks that credentials for one folder of a store open this one, and no other.

    Args:
        url: The store.
        grants: Gives credentials for it.

    Raises:
        NotAllowed: They are refused, do not open the folder, or open another.
        Unavailable: There is no answer.
    """
    credentials = grants.grant(Access(writes=(_TRIED,)), holder="check")
    store = open_store(url, credentials.options, lambda: credentials)
    store.list(_TRIED)
    try:
        store.list(_OTHER)
    except NotAllowed:
        return
    raise NotAllowed(
        "limit what agents may do with the object store",
        on=url,
        got="a store that lets credentials for one folder list another",
        wanted="one that holds a session to the policy it was asked for with",
        next_step="remove objects_role from config.yaml, or use a store that does",
    )
