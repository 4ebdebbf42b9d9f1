"""A prefix of an object store as a source: S3, GCS or Azure, with credentials or without."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import httpx

from mainspring.data.intake.staging.port import Entry, Listing, Names, sifted
from mainspring.domain.errors import NotAllowed, NotFound, Unavailable
from mainspring.objects.foreign import ForeignObject, ForeignPrefix

Result = TypeVar("Result")
_REGION_S = 20.0  # For an answer without a body.


class PrefixRemote:
    """See `Remote`.

    Args:
        url: `s3://bucket/prefix` and the like; or the object itself.
        options: The store's own settings, such as endpoint and region.
        signed: Whether there are credentials, to be tried before it is asked without any.
        single: Whether the URL is of one object.
    """

    ranged = True

    def __init__(self, url: str, options: Mapping[str, str], *, signed: bool, single: bool) -> None:
        self.address = url.rstrip("/")
        self._single = self.address.rpartition("/")[2] if single else ""
        base = self.address.rpartition("/")[0] if single else self.address
        self._base, self._options = base, options
        self._signed = signed
        self._ways = self._opened(options)
        self._objects: dict[str, ForeignObject] = {}

    @property
    def folder(self) -> str:
        """See `Remote.folder`."""
        return "" if self._single else self.address.rpartition("/")[2]

    def first(self) -> Listing:
        """See `Remote.first`."""
        single = self._single
        try:
            found = self._either(lambda way: (way.one(single),) if single else way.list())
        except Unavailable as error:
            if "region" not in error.got.lower() or not (region := self._region()):
                raise
            self._ways = self._opened({**self._options, "region": region})
            found = self._either(lambda way: (way.one(single),) if single else way.list())
        self._objects |= {one.key: one for one in found}
        listed = [Entry(name=one.key, size_bytes=one.size_bytes, look=one.version) for one in found]
        listing = sifted(entry for entry in listed if not entry.name.endswith("/"))
        if not listing.entries:
            raise NotFound("read a source", on=self.address, got="no object", wanted="objects below that prefix")
        return listing

    def rest(self, root: Path, named: Names) -> Listing:
        """See `Remote.rest`: a prefix lists all at once."""
        return Listing(entries=())

    def stream(self, entry: Entry, offset: int) -> Iterator[bytes]:
        """See `Remote.stream`."""
        yield from self._ways[0].stream(self._objects[entry.name], offset)

    def close(self) -> None:
        """See `Remote.close`."""

    def _opened(self, options: Mapping[str, str]) -> list[ForeignPrefix]:
        ways = (False, True) if self._signed else (True, False)
        return [ForeignPrefix(self._base, options, anonymous=anonymous) for anonymous in ways]

    def _region(self) -> str:
        """Returns the region of a bucket of Amazon's, which it tells everybody; "" where it is none of theirs."""
        bucket = urlsplit(self.address).hostname or ""
        if not self.address.startswith("s3://") or self._options.get("endpoint"):
            return ""
        try:
            answer = httpx.head(f"https://s3.amazonaws.com/{bucket}", timeout=_REGION_S, follow_redirects=False)
        except httpx.HTTPError:
            return ""
        return str(answer.headers.get("x-amz-bucket-region", ""))

    def _either(self, ask: Callable[[ForeignPrefix], Result]) -> Result:
        """Asks the first way, and the other when that is not let in; keeps to the one that is."""
        try:
            return ask(self._ways[0])
        except (NotAllowed, Unavailable) as refused:
            try:
                found = ask(self._ways[1])
            except (NotAllowed, Unavailable):
                raise refused from None
            self._ways.reverse()
            return found
