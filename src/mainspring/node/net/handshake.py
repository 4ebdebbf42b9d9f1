"""Agents of one attempt prove to each other that they are, before anything else is said on a connection.

Called and caller each draw a nonce and show a keyed hash over both, over which of the two they are, what the connection
is for, and what address was called. So the peers' secret crosses no wire; what was recorded proves nothing later; what
one end said is no proof of the other's, nor what was said to one agent a proof to another. The caller proves itself
first: a stranger learns nothing but a nonce.

What is said afterwards travels inside TLS 1.3, unless it stays on this machine. Both ends make one key and certificate
for this connection alone, of the secret and of all that the proof was about, and trust no other: one in the middle has
no key to end either side with, and can lead no connection into another. No authority, no name and no date plays a part,
and no stranger gets so far that TLS costs anything.

Source: ISO/IEC 9798-4, mutual authentication in three passes; HMAC, RFC 2104, with SHA-256; HKDF, RFC 5869; TLS 1.3,
RFC 8446.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import final

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from mainspring.domain.errors import InvalidMessage, MainspringError, NotAllowed, OtherRelease, Unavailable
from mainspring.domain.ports import Dice
from mainspring.domain.wire import AgentChallenge, AgentProof, AgentWelcome, Done, LineUse
from mainspring.node.net.certificates import SEED_BYTES, load_key, self_signed
from mainspring.node.net.connection import address_of, host_port
from mainspring.node.net.pipes import Pipe

FRAME_BYTES_MAX = 512  # Of each of the three messages: the longest takes 236.
HANDSHAKE_LIMIT_S = 4.0  # For all of it: two lost packets (1 s, then 2 s more, by RFC 6298), and a busy node.
UNPROVED_MAX = 256  # A quarter of the files that a process may open where nobody has raised it.
ACCEPTED_AT_ONCE = 16  # Between two looks at who has answered: those who called before are heard before many more come.
CALLS_WAITING_MAX = 4096  # In the kernel, which holds no more: a whole attempt's agents call a new lead at once.
NONCE_BITS = 256
_NONCE_DIGITS = NONCE_BITS // 4
_LABEL = b"mainspring agents 1"
_log = logging.getLogger(__name__)
_CALLER, _CALLED, _CHANNEL = b"caller", b"called", b"channel"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """What a proof is about.

    Args:
        use: What the connection is for.
        address: The called agent's, as the caller knows it and as that agent told the controller.
        called: The called agent's nonce.
        caller: The caller's.
    """

    use: LineUse
    address: str
    called: str
    caller: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What an agent proves itself with.

    Args:
        secret: The peers' secret of its attempt.
        dice: Draws nonces: nobody may foresee them.
        open_here: Whether what stays on this machine goes in the clear: only its root could listen.
    """

    secret: str = field(repr=False)
    dice: Dice
    open_here: bool = True

    def __post_init__(self) -> None:
        """Refuses a secret that everybody knows."""
        assert self.secret

    def nonce(self) -> str:
        """Returns a fresh nonce."""
        return f"{self.dice.bits(NONCE_BITS):0{_NONCE_DIGITS}x}"

    def proof(self, role: bytes, about: Exchange) -> str:
        """Returns what only an agent of the attempt can say.

        Args:
            role: Whose proof it is.
            about: Both ends know it by now.

        Raises:
            InvalidMessage: A nonce is none.
        """
        return hmac.new(self.secret.encode(), _told(role, about), "sha256").hexdigest()

    def check(self, proof: str, role: bytes, about: Exchange) -> None:
        """Returns if a proof is right; how wrong it is does not show in the time that takes.

        Raises:
            InvalidMessage: A nonce is none.
            NotAllowed: The proof is wrong.
        """
        wanted = self.proof(role, about)
        if not hmac.compare_digest(proof.encode(), wanted.encode()):
            raise NotAllowed("talk to an agent", got="a wrong proof", wanted="an agent of the same attempt")

    def context(self, about: Exchange, *, called: bool) -> ssl.SSLContext | None:
        """Returns how to speak TLS on a connection whose ends have proved themselves; None where it goes in the clear.

        Args:
            about: What they proved.
            called: Whether the other end has opened the connection.
        """
        if self.open_here and _is_here(about.address):
            return None
        derived = HKDF(algorithm=hashes.SHA256(), length=SEED_BYTES, salt=None, info=_told(_CHANNEL, about))
        key = Ed25519PrivateKey.from_private_bytes(derived.derive(self.secret.encode()))
        certificate = self_signed(key, _LABEL.decode())  # The same at both ends.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if called else ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False  # The key alone tells who it is.
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=certificate)
        if called:
            context.num_tickets = 0  # A connection is never gone on with.
        load_key(context, key, certificate)
        return context


def _told(role: bytes, about: Exchange) -> bytes:
    # Told apart whatever they hold: none before the nonces has a zero in it, and nonces have one length.
    parts = (_LABEL, role, about.use.value.encode(), _nonce(about.called), _nonce(about.caller))
    return b"\0".join((*parts, about.address.encode()))


def _is_here(address: str) -> bool:
    host, _ = host_port(address)
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # A name may lead anywhere.


def _nonce(digits: str) -> bytes:
    try:
        drawn = bytes.fromhex(digits) if len(digits) == _NONCE_DIGITS else b""
    except ValueError:
        drawn = b""
    if len(drawn) * 8 != NONCE_BITS:
        raise InvalidMessage(
            "talk to an agent", got=f"a nonce of {len(digits)} letters", wanted="64 hexadecimal digits"
        )
    return drawn


async def call(address: str, use: LineUse, credentials: Credentials) -> Pipe:
    """Returns a pipe to another agent of the attempt, each known to the other.

    Args:
        address: Its "host:port".
        use: What for.

    Raises:
        Unavailable: It does not answer, or hung up.
        NotAllowed: Who answers there is none.
        InvalidMessage: It broke the rules.
    """
    pipe = await Pipe.open(address)
    try:
        async with asyncio.timeout(HANDSHAKE_LIMIT_S):
            asked = await pipe.receive(AgentChallenge, HANDSHAKE_LIMIT_S, FRAME_BYTES_MAX)
            about = Exchange(use=use, address=address, called=asked.nonce, caller=credentials.nonce())
            pipe.send(AgentProof(nonce=about.caller, proof=credentials.proof(_CALLER, about), use=use))
            answer = await pipe.receive(AgentWelcome, HANDSHAKE_LIMIT_S, FRAME_BYTES_MAX)
            credentials.check(answer.proof, _CALLED, about)
            if (context := credentials.context(about, called=False)) is not None:
                await pipe.secure(context, called=False)
                await pipe.receive(Done, HANDSHAKE_LIMIT_S, FRAME_BYTES_MAX)
    except TimeoutError as error:
        pipe.close()
        raise Unavailable("talk to an agent", on=address, got="no proof in time") from error
    except BaseException:
        pipe.close()
        raise
    return pipe


async def admit(pipe: Pipe, address: str, credentials: Credentials) -> LineUse:
    """Returns what a caller wants, once each is known to the other.

    Args:
        pipe: A connection on which nothing was said.
        address: Our own, as others know it.

    Raises:
        Unavailable: It hung up, or took too long.
        NotAllowed: It is no agent of the attempt.
        InvalidMessage: It broke the rules.
    """
    called = credentials.nonce()
    pipe.send(AgentChallenge(nonce=called))
    try:
        async with asyncio.timeout(HANDSHAKE_LIMIT_S):
            shown = await pipe.receive(AgentProof, HANDSHAKE_LIMIT_S, FRAME_BYTES_MAX)
            about = Exchange(use=shown.use, address=address, called=called, caller=shown.nonce)
            credentials.check(shown.proof, _CALLER, about)
            pipe.send(AgentWelcome(proof=credentials.proof(_CALLED, about)))
            if (context := credentials.context(about, called=True)) is not None:
                await pipe.secure(context, called=True)
                pipe.send(Done())  # Before it the caller says nothing, so nothing comes that nobody asked for.
    except TimeoutError as error:
        raise Unavailable("hear from a caller", got="no proof in time") from error
    return shown.use


@final
class Listener:
    """Takes connections of other agents, and hands on those that have proved themselves.

    However many strangers call, few of their connections are held, none for long and none with more than a small
    message; when they are too many, the oldest is dropped: an agent proves itself before many more have come.

    Args:
        serve: Serves a connection until it ends.
    """

    def __init__(self, serve: Callable[[Pipe, LineUse], Awaitable[None]]) -> None:
        self.credentials: Credentials | None = None
        """What callers are asked to prove; while it is None they are hung up on, and call again."""
        self.address = ""
        """Where others reach it, as "host:port": who calls it must know it by this name."""
        self._serve = serve
        self._server: asyncio.Server | None = None
        self._unproved: dict[Pipe, None] = {}  # The oldest first.
        self._serving: set[asyncio.Task[None]] = set()

    @property
    def unproved(self) -> int:
        """Returns how many connections are held whose other end has not proved itself."""
        return len(self._unproved)

    async def listen(self, host: str) -> None:
        """Listens from now on, on a port that was free.

        Args:
            host: The one address on which it is reached.
        """
        listener = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        self._server = await asyncio.get_running_loop().create_server(
            lambda: Pipe(self._opened), sock=listener, backlog=ACCEPTED_AT_ONCE
        )
        listener.listen(CALLS_WAITING_MAX)  # asyncio would take as many at once as may wait.
        self.address = address_of(host, listener.getsockname()[1])

    def close(self) -> None:
        """Takes no more connections, and hangs up on those who have not proved themselves."""
        if self._server is not None:
            self._server.close()
        for pipe in list(self._unproved):
            pipe.close()

    def _opened(self, pipe: Pipe) -> None:
        if self.credentials is None:
            pipe.close()
            return
        if len(self._unproved) >= UNPROVED_MAX:
            oldest = next(iter(self._unproved))
            del self._unproved[oldest]
            oldest.close()
        self._unproved[pipe] = None
        serving = asyncio.create_task(self._serve_one(pipe, self.credentials))
        self._serving.add(serving)
        serving.add_done_callback(self._serving.discard)

    async def _serve_one(self, pipe: Pipe, credentials: Credentials) -> None:
        try:
            use = await admit(pipe, self.address, credentials)
            self._unproved.pop(pipe, None)
            await self._serve(pipe, use)
        except OtherRelease as error:
            _log.warning("%s", error)  # The caller knows too: we have spoken first.
            pipe.close()
        except MainspringError:
            pipe.close()  # It may call again.
        finally:
            self._unproved.pop(pipe, None)
