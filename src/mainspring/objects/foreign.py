"""Reading a prefix of an object store that others fill: any key, what it looked like, and streams from an offset on.

The port, `ObjectStore`, is for stores whose keys are ours to choose.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import obstore
from obstore.exceptions import PreconditionError

from mainspring.domain.errors import Conflict, InvalidInput
from mainspring.objects.port import LISTED_MAX
from mainspring.objects.remote import backend_of, told_by_store

if TYPE_CHECKING:
    from obstore import ObjectMeta

FOREIGN_SCHEMES = ("s3", "gs", "az")
_RETRIES_MAX, _RETRY_FOR_S = 2, 20  # Who reads a stream tries again itself, from where it broke.
_PART_BYTES_MIN = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignObject:
    """An object somebody else stored.

    Args:
        key: Inside the prefix.
        size_bytes: Its length.
        version: Another text when its content is another.
    """

    key: str
    size_bytes: int
    version: str


class ForeignPrefix:
    """What lies below a URL of an object store. Calls block and may be made from many threads.

    Args:
        url: `s3://bucket/prefix`, `gs://bucket/prefix` or `az://container/prefix`.
        options: The store's own settings, as of `open_store`.
        anonymous: Whether nothing is signed, as public buckets want it.

    Raises:
        InvalidInput: The URL or an option is refused.
    """

    def __init__(self, url: str, options: Mapping[str, str], *, anonymous: bool) -> None:
        self._url = url
        said = {**options, **({"skip_signature": "true"} if anonymous else {})}
        self._backend = backend_of(url, said, retries_max=_RETRIES_MAX, retry_for_s=_RETRY_FOR_S)

    def list(self) -> tuple[ForeignObject, ...]:
        """Returns every object below the prefix.

        Raises:
            InvalidInput: There are more than `LISTED_MAX`.
            NotAllowed: The credentials, or their absence, do not suffice.
            Unavailable: The store does not answer.
        """
        found: list[ForeignObject] = []
        with told_by_store("list objects", self._url):
            for part in obstore.list(self._backend):
                found.extend(map(_seen, part))
                if len(found) > LISTED_MAX:
                    raise InvalidInput(
                        "list objects", on=self._url, got=f"over {LISTED_MAX:,}", wanted="a narrower prefix"
                    )
        return tuple(found)

    def one(self, key: str) -> ForeignObject:
        """Returns one object below the prefix.

        Args:
            key: Inside the prefix.

        Raises:
            NotFound: There is none of this name.
            NotAllowed: See `list`.
            Unavailable: See `list`.
        """
        with told_by_store("look at an object", f"{self._url} {key}"):
            return _seen(obstore.head(self._backend, key))

    def stream(self, thing: ForeignObject, offset: int) -> Iterator[bytes]:
        """Yields an object's bytes from `offset` on.

        Args:
            thing: As it was listed.
            offset: Of the first byte.

        Raises:
            NotFound: It is gone.
            Conflict: It is another than when it was listed.
            NotAllowed: It may not be read.
            Unavailable: The stream broke.
        """
        if offset >= thing.size_bytes:
            return
        e_tag = thing.version.rpartition(" ")[0]
        options: Any = {"range": (offset, thing.size_bytes), **({"if_match": e_tag} if e_tag else {})}
        on = f"{self._url} {thing.key}"
        with told_by_store("read an object", on):
            try:
                part_bytes = _PART_BYTES_MIN
                for part in obstore.get(self._backend, thing.key, options=options).stream(min_chunk_size=part_bytes):
                    yield bytes(part)
            except PreconditionError as error:
                raise Conflict("read an object", on=on, got="another object than was listed") from error


def _seen(entry: ObjectMeta) -> ForeignObject:
    return ForeignObject(
        key=entry["path"],
        size_bytes=entry["size"],
        version=f"{entry['e_tag'] or ''} {entry['last_modified'].timestamp():.3f}",
    )
