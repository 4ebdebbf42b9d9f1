"""Adapter selection: which object store answers for a URL."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from mainspring.domain.errors import InvalidInput
from mainspring.objects.folder import FolderStore
from mainspring.objects.port import ObjectStore

if TYPE_CHECKING:
    from mainspring.domain.wire import StoreCredentials

_REMOTE = ("s3", "gs", "az", "memory")


def open_store(
    url: str, options: Mapping[str, str] | None = None, credentials: Callable[[], StoreCredentials] | None = None
) -> ObjectStore:
    """Returns the object store at `url`.

    Args:
        url: An absolute path, `file:///absolute/path`, `s3://bucket/prefix`, `gs://bucket/prefix`,
            `az://container/prefix`, or `memory://` (empty, and private to the value returned).
        options: The remote store's own settings, such as endpoint, region, or Azure's account_name.
        credentials: Returns those to use with S3 now, asked before each request, from many threads; None for what the
            process has.

    Raises:
        InvalidInput: The URL has another scheme, or the store refuses it.
        Unavailable: The folder cannot be made.
    """
    if url.startswith("/"):
        return FolderStore(Path(url))
    parts = urlsplit(url)
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return FolderStore(Path(unquote(parts.path)))
    if parts.scheme in _REMOTE:
        from mainspring.objects.remote import open_remote  # A folder needs none of what speaks to clouds.

        return open_remote(url, options or {}, credentials)
    raise InvalidInput(
        "open an object store", on=url, wanted=f"an absolute path, file:///path, or one of {', '.join(_REMOTE)}://"
    )
