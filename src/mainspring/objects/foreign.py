"""Reading a prefix of an object store that others fill: any key, what it looked like, and streams from an offset on.

The port, `ObjectStore`, is for stores whose keys are ours to choose.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, PreconditionError, UnauthenticatedError
from obstore.store import from_url

from mainspring.domain.errors import Conflict, InvalidInput, MainspringError, NotAllowed, NotFound, Unavailable
from mainspring.objects.port import LISTED_MAX
from mainspring.objects.remote import REQUEST_TIMEOUT_S, first_line

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ObjectStore as Backend

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
        config: Any = {**options, **({"skip_signature": "true"} if anonymous else {})}
        try:
            self._backend: Backend = from_url(
                url,
                config=config,
                client_options={"timeout": timedelta(seconds=REQUEST_TIMEOUT_S), "allow_http": True},
                retry_config={"max_retries": _RETRIES_MAX, "retry_timeout": timedelta(seconds=_RETRY_FOR_S)},
            )
        except (BaseError, ValueError, TypeError) as error:
            raise InvalidInput("open an object store", on=url, got=first_line(error)) from error

    def list(self) -> tuple[ForeignObject, ...]:
        """Returns every object below the prefix.

        Raises:
            InvalidInput: There are more than `LISTED_MAX`.
            NotAllowed: The credentials, or their absence, do not suffice.
            Unavailable: The store does not answer.
        """
        found: list[ForeignObject] = []
        try:
            for part in obstore.list(self._backend):
                found.extend(map(_seen, part))
                if len(found) > LISTED_MAX:
                    raise InvalidInput(
                        "list objects", on=self._url, got=f"over {LISTED_MAX:,}", wanted="a narrower prefix"
                    )
        except (BaseError, OSError) as error:
            raise self._told("list objects", "", error) from error
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
        try:
            return _seen(obstore.head(self._backend, key))
        except (BaseError, OSError) as error:
            raise self._told("look at an object", key, error) from error

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
        try:
            for part in obstore.get(self._backend, thing.key, options=options).stream(min_chunk_size=_PART_BYTES_MIN):
                yield bytes(part)
        except PreconditionError as error:
            raise Conflict(
                "read an object", on=f"{self._url} {thing.key}", got="another object than was listed"
            ) from error
        except (BaseError, OSError) as error:
            raise self._told("read an object", thing.key, error) from error

    def _told(self, attempted: str, key: str, error: Exception) -> MainspringError:
        on = f"{self._url} {key}".rstrip()
        if isinstance(error, (PermissionDeniedError, UnauthenticatedError)):
            return NotAllowed(attempted, on=on, got=first_line(error))
        if isinstance(error, FileNotFoundError):
            return NotFound(attempted, on=on, got="nothing there")
        return Unavailable(attempted, on=on, got=first_line(error))


def _seen(entry: ObjectMeta) -> ForeignObject:
    return ForeignObject(
        key=entry["path"],
        size_bytes=entry["size"],
        version=f"{entry['e_tag'] or ''} {entry['last_modified'].timestamp():.3f}",
    )
