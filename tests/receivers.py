"""Receivers of notices: servers of this machine that take posts and e-mail, and keep what came."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Posts:
    """What was posted to one address; it answers with `status`."""

    port: int = 0
    status: int = 200
    tried: int = 0
    taken: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)


@contextmanager
def posts(status: int = 200, port: int = 0) -> Iterator[Posts]:
    """A server that takes posts; one that redirects leads to its own `/elsewhere`."""
    kept = Posts(status=status)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            kept.tried += 1
            kept.paths.append(self.path)
            if kept.status == 200:
                kept.taken.append((dict(self.headers.items()), body))
            self.send_response(kept.status)
            self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_POST

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        kept.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        yield kept
        server.shutdown()


@dataclass
class Mails:
    """What e-mail came: envelopes and texts."""

    port: int = 0
    taken: list[tuple[list[str], str]] = field(default_factory=list)


@contextmanager
def mails() -> Iterator[Mails]:
    """A server that takes e-mail (RFC 5321: as much as a client without extensions needs)."""
    kept = Mails()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            envelope: list[str] = []
            self.wfile.write(b"220 here\r\n")
            while line := self.rfile.readline().decode().rstrip("\r\n"):
                verb = line.split(" ")[0].upper()
                if verb == "DATA":
                    self.wfile.write(b"354 go on\r\n")
                    lines: list[str] = []
                    while (text := self.rfile.readline().decode().rstrip("\r\n")) != ".":
                        lines.append(text)
                    kept.taken.append((envelope, "\n".join(lines)))
                    envelope = []
                elif verb in ("MAIL", "RCPT"):
                    envelope.append(line.split(":", 1)[1].split(" ")[0])
                self.wfile.write(b"221 bye\r\n" if verb == "QUIT" else b"250 fine\r\n")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        kept.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        yield kept
        server.shutdown()
