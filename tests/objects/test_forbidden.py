"""A store that says "forbidden" of what is not there, as S3 does to who may list only a folder of the bucket."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from mainspring.domain.errors import NotAllowed, NotFound
from mainspring.objects import ObjectStore, open_store

OPEN = "root/mine/"
LOCKED = "root/mine/locked"  # There, and not to be read all the same.
ENTRY = "<Contents><Key>{}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><Size>1</Size></Contents>"


class Forbidding(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(403, b"")

    def do_GET(self) -> None:
        words = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
        if "list-type" not in words or not words.get("prefix", "").startswith(OPEN):
            self._answer(403, b"<Error><Code>AccessDenied</Code></Error>")
            return
        keys = [key for key in (LOCKED, f"{LOCKED}-2", "root/mine/z") if key > words.get("start-after", "")]
        body = (
            f"<ListBucketResult><IsTruncated>false</IsTruncated>{''.join(map(ENTRY.format, keys))}</ListBucketResult>"
        )
        self._answer(200, body.encode())

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Forbidding)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    keys = {"access_key_id": "key", "secret_access_key": "secret", "region": "us-east-1"}
    yield open_store("s3://lab/root", {"endpoint": f"http://127.0.0.1:{server.server_port}", **keys})
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("key", ["mine/a", "mine/locke", "mine/locked-1", "mine/locked-3", "mine/zz"])
def test_forbidden_object_that_its_folders_list_does_not_name_is_not_found(
    store: ObjectStore, key: str, tmp_path: Path
) -> None:
    assert store.size(key) is None
    for read in (
        lambda: store.get(key),
        lambda: store.get_range(key, offset=0, size_bytes=1),
        lambda: store.get_into(key, offset=0, into=memoryview(bytearray(1))),
        lambda: store.fetch_file(key, tmp_path / "out"),
    ):
        with pytest.raises(NotFound):
            read()


@pytest.mark.parametrize("key", ["mine/locked", "mine/locked-2", "mine/z", "theirs/a", "a"])
def test_forbidden_object_that_is_there_or_cannot_be_listed_is_not_allowed(store: ObjectStore, key: str) -> None:
    for read in (lambda: store.get(key), lambda: store.size(key)):
        with pytest.raises(NotAllowed):
            read()
    with pytest.raises(NotAllowed):
        store.list("theirs")
