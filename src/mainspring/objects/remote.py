"""S3, GCS, Azure and plain memory behind the port, through obstore."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import from_url

from mainspring.domain.errors import InvalidInput, NotAllowed, NotFound, Unavailable
from mainspring.objects.files import os_error, whole_file
from mainspring.objects.port import (
    IN_MEMORY_BYTES_MAX,
    LISTED_MAX,
    Data,
    ObjectSeen,
    checked_key,
    checked_range,
    ends_early,
    too_large,
)

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Backend
    from obstore.store import S3Credential

    from mainspring.domain.wire import StoreCredentials

REQUEST_TIMEOUT_S = 60
RETRIES_MAX = 8
RETRY_FOR_S = 120
_PART_BYTES_MIN = 16 << 20
_PARTS_MAX = 9_000  # S3 allows 10,000 parts, so a fixed part size would cap the size of an object.
_PARTS_AT_ONCE = 8  # Bounds memory to eight parts.
_ASK_AGAIN = datetime.fromtimestamp(0, UTC)  # Gone by: so obstore keeps no credentials, and new ones count at once.
_REFUSED = re.compile("status code: 40[13]")
_LAST = "~"  # Comes after every letter that a key may have.


class RemoteStore:
    """An `ObjectStore` over an obstore backend.

    Args:
        backend: Any obstore store.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def put(self, key: str, data: Data) -> None:
        """See `ObjectStore.put`."""
        view = memoryview(data).cast("B")
        with told_by_store("store an object", checked_key(key)):
            obstore.put(self._backend, key, view, chunk_size=_part_bytes(view.nbytes), max_concurrency=_PARTS_AT_ONCE)

    def put_if_absent(self, key: str, data: Data) -> bool:
        """See `ObjectStore.put_if_absent`."""
        with told_by_store("store an object", checked_key(key)):
            try:
                obstore.put(self._backend, key, memoryview(data).cast("B"), mode="create")
            except (AlreadyExistsError, PreconditionError):
                return False
        return True

    def put_file(self, key: str, path: Path) -> None:
        """See `ObjectStore.put_file`."""
        with told_by_store("store a file", checked_key(key)):
            obstore.put(
                self._backend, key, path, chunk_size=_part_bytes(path.stat().st_size), max_concurrency=_PARTS_AT_ONCE
            )

    def get(self, key: str) -> bytes:
        """See `ObjectStore.get`."""
        with self._reading("read an object", key):
            answer = obstore.get(self._backend, key)
            size_bytes = answer.meta["size"]
            if size_bytes > IN_MEMORY_BYTES_MAX:
                raise too_large(key, size_bytes)
            return bytes(answer.bytes())

    def get_range(self, key: str, *, offset: int, size_bytes: int) -> bytes:
        """See `ObjectStore.get_range`."""
        checked_range(key, offset=offset, size_bytes=size_bytes)
        with self._reading("read a range", key):
            failed: BaseError | None = None
            data = b""
            if size_bytes:
                try:
                    data = bytes(obstore.get_range(self._backend, key, start=offset, length=size_bytes))
                except BaseError as error:
                    failed = error  # A range that starts past the end is an error in each store's own words.
            if data and len(data) == size_bytes:
                return data
            length = obstore.head(self._backend, key)["size"]
            if offset + size_bytes > length:
                raise ends_early(key, length=length, offset=offset, size_bytes=size_bytes)
            if size_bytes:
                raise failed or Unavailable("read a range", on=key, got=f"{len(data)} of {size_bytes} bytes")
            return b""

    def get_into(self, key: str, *, offset: int, into: memoryview) -> None:
        """See `ObjectStore.get_into`."""
        view = into.cast("B")

        def fill(start: int) -> None:
            part = view[start : start + _PART_BYTES_MIN]
            part[:] = self.get_range(key, offset=offset + start, size_bytes=len(part))

        if len(view) <= _PART_BYTES_MIN:
            return fill(0)
        with ThreadPoolExecutor(_PARTS_AT_ONCE) as threads:
            for _ in threads.map(fill, range(0, len(view), _PART_BYTES_MIN)):
                pass

    def fetch_file(self, key: str, path: Path) -> None:
        """See `ObjectStore.fetch_file`."""
        with self._reading("fetch an object", key), whole_file(path) as file:
            for part in obstore.get(self._backend, key).stream(min_chunk_size=_PART_BYTES_MIN):
                file.write(part)

    def size(self, key: str) -> int | None:
        """See `ObjectStore.size`."""
        try:
            with self._reading("look at an object", key):
                return obstore.head(self._backend, key)["size"]
        except NotFound:
            return None

    def list(self, prefix: str) -> tuple[ObjectSeen, ...]:
        """See `ObjectStore.list`."""
        seen: list[ObjectSeen] = []
        with told_by_store("list objects", checked_key(prefix) if prefix else ""):
            for part in obstore.list(self._backend, prefix or None):
                seen.extend(
                    ObjectSeen(
                        key=entry["path"], size_bytes=entry["size"], modified_s=entry["last_modified"].timestamp()
                    )
                    for entry in part
                )
                if len(seen) > LISTED_MAX:
                    raise InvalidInput("list objects", on=prefix, got=f"over {LISTED_MAX}", wanted="a narrower folder")
        return tuple(sorted(seen, key=lambda entry: entry.key))

    def delete(self, key: str) -> None:
        """See `ObjectStore.delete`."""
        with contextlib.suppress(NotFound), told_by_store("delete an object", checked_key(key)):
            obstore.delete(self._backend, key)

    @contextlib.contextmanager
    def _reading(self, attempted: str, key: str) -> Iterator[None]:
        """Turns what obstore raises while a key is read into the port's errors.

        S3 says "forbidden" of what is not there to who may list only a folder of the bucket: the folder's list knows.
        """
        try:
            with told_by_store(attempted, checked_key(key)):
                yield
        except NotAllowed as error:
            if self._is_absent(key):
                raise NotFound(attempted, on=key, got="nothing there") from error
            raise

    def _is_absent(self, key: str) -> bool:
        """Returns whether the list of a key's folder is open to us and does not name it."""
        before = f"{key[:-1]}{chr(ord(key[-1]) - 1)}{_LAST}"
        try:
            first = next(iter(obstore.list(self._backend, key.rpartition("/")[0] or None, offset=before)), [])
        except BaseError:
            return False
        return not first or first[0]["path"] != key


def open_remote(
    url: str, options: Mapping[str, str], credentials: Callable[[], StoreCredentials] | None = None
) -> RemoteStore:
    """Returns the store at `url`.

    Args:
        url: `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix` or `memory://`.
        options: obstore's own configuration keys for that store (`endpoint`, `region`, `access_key_id`, ...).
        credentials: See `open_store`.

    Raises:
        InvalidInput: obstore refuses the URL or an option.
    """
    if url.startswith("memory:"):
        return RemoteStore(from_url("memory:///"))
    return RemoteStore(
        backend_of(url, options, retries_max=RETRIES_MAX, retry_for_s=RETRY_FOR_S, credentials=credentials)
    )


def backend_of(
    url: str,
    options: Mapping[str, str],
    *,
    retries_max: int,
    retry_for_s: int,
    credentials: Callable[[], StoreCredentials] | None = None,
) -> Backend:
    """Returns obstore's own store at `url`.

    Args:
        url: See `open_remote`.
        options: See `open_remote`.
        retries_max: How often it asks again.
        retry_for_s: For how long it does.
        credentials: See `open_store`.

    Raises:
        InvalidInput: obstore refuses the URL or an option.
    """
    config: Any = dict(options)  # Each backend has its own typed dictionary; obstore checks the keys.
    given: Any = {}
    if credentials is not None:
        # obstore deletes by a list, also of one object; Ceph's gateway takes lists from who may delete anything alone.
        config["aws_disable_bulk_delete"] = "true"
        given["credential_provider"] = partial(_signing, credentials)
    try:
        return from_url(
            url,
            config=config,
            **given,
            # Plain HTTP is spoken only to an endpoint somebody names with http://, as stores inside a lab often are.
            client_options={"timeout": timedelta(seconds=REQUEST_TIMEOUT_S), "allow_http": True},
            retry_config={"max_retries": retries_max, "retry_timeout": timedelta(seconds=retry_for_s)},
        )
    except (BaseError, ValueError, TypeError) as error:
        raise InvalidInput("open an object store", on=url, got=first_line(error)) from error


def _signing(credentials: Callable[[], StoreCredentials]) -> S3Credential:
    held = credentials()
    return {
        "access_key_id": held.access_key_id,
        "secret_access_key": held.secret_access_key,
        "token": held.session_token,
        "expires_at": _ASK_AGAIN,
    }


def _part_bytes(size_bytes: int) -> int:
    return max(_PART_BYTES_MIN, -(-size_bytes // _PARTS_MAX))


def first_line(error: Exception) -> str:
    """Returns what an error says before its details."""
    return str(error).partition("\n")[0][:300]


@contextlib.contextmanager
def told_by_store(attempted: str, on: str) -> Iterator[None]:
    """Turns what obstore raises inside the block into the port's errors."""
    try:
        yield
    except (PermissionDeniedError, UnauthenticatedError) as error:
        raise NotAllowed(attempted, on=on, got=first_line(error)) from error
    except OSError as error:  # A local file, or an object that is not there.
        raise os_error(attempted, on, error) from error
    except BaseError as error:  # A list that is refused has no error of its own.
        kind = NotAllowed if _REFUSED.search(str(error)) else Unavailable
        raise kind(attempted, on=on, got=first_line(error)) from error
