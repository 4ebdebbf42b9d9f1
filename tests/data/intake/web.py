"""A server of files on loopback whose connections can be made to break."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

STALL_S_MAX = 60.0


@dataclass(slots=True, kw_only=True)
class Site:
    """What a server was asked, and how it behaves.

    Args:
        root: What it serves.
        break_at: By name, after how many bytes of the file a connection breaks; each once.
        stalled: By name, after how many bytes a connection sends no more, until `let_go`; each once.
        moved: By name, where it redirects to.
        heads: Whether it answers HEAD.
    """

    root: Path
    break_at: dict[str, int] = field(default_factory=dict)
    stalled: dict[str, int] = field(default_factory=dict)
    stalls: threading.Event = field(default_factory=threading.Event)
    let_go: threading.Event = field(default_factory=threading.Event)
    moved: dict[str, str] = field(default_factory=dict)
    heads: bool = True
    url: str = ""
    sent: dict[str, int] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    site: Site

    def log_message(self, *_: object) -> None:
        """Says nothing."""

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        site, name = self.site, unquote(self.path).partition("?")[0].lstrip("/")
        path = site.root / name
        with site.lock:
            site.asked.append((self.command, name))
        if not body and not site.heads:
            self._say(405)
        elif name in site.moved:
            self._say(302, Location=site.moved[name])
        elif not path.is_file():
            self._say(404)
        else:
            self._send(site, name, path.read_bytes(), body=body)

    def _send(self, site: Site, name: str, data: bytes, *, body: bool) -> None:
        first = 0
        headers = {"ETag": f'"{len(data)}-{hash(data) & 0xFFFF}"', "Accept-Ranges": "bytes"}
        if said := self.headers.get("Range"):
            begin, _, end = said.removeprefix("bytes=").partition("-")
            first, last = int(begin), min(int(end or len(data) - 1), len(data) - 1)
            headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
            data = data[: last + 1]
        rest = data[first:]
        self._say(206 if said else 200, length=len(rest), **headers)
        if not body:
            return
        with site.lock:
            stalls = site.stalled.pop(name, None)
        if stalls is not None:
            self.wfile.write(rest[:stalls])
            self.wfile.flush()
            site.stalls.set()
            site.let_go.wait(STALL_S_MAX)
            self.close_connection = True
            return
        with site.lock:
            at = site.break_at.get(name, -1)
            broken = first <= at < first + len(rest)
            if broken:
                del site.break_at[name]
                rest = rest[: at - first]
            site.sent[name] = site.sent.get(name, 0) + len(rest)
        self.wfile.write(rest)
        if broken:
            self.wfile.flush()
            self.close_connection = True

    def _say(self, status: int, *, length: int = 0, **headers: str) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()


@contextmanager
def serving(root: Path) -> Iterator[Site]:
    """Serves a folder while the block runs."""
    site = Site(root=root)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"site": site}))
    server.daemon_threads = True
    site.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
