"""The home folder: where one person's Mainspring keeps its configuration, state and secrets.

config.yaml    host, port, database, objects, clusters; written by the first `ms up`, edited by people
policy.yaml    what the lab decides about planning, from `ms up --policy`; the defaults when there is none
token          the administrator's secret, readable by its owner alone
login.json     the lab elsewhere that `ms login` named, the token there, and what renews it; readable by its owner alone
secrets.key    the keys that teams' secrets are kept under, newest first; readable by its owner alone; made with the
               first secret, and worth a copy elsewhere: without it they are lost
server.json    where the running server listens, and its process
server.log     what it said; server.log.1 to .4 before that
proxy.json, proxy.log  the same of the proxy of services beside it
lock, login.lock      held while it is being started; while a login is renewed
state.db       the embedded store      backups/  back-ups of the store from before its tables changed
objects/       the embedded object store      engines/  allocations
backed-up      when `ms backup` last copied the store
arrivals/      recordings that were sent and not yet read
"""

from __future__ import annotations

import fcntl
import os
import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import blake2s
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from mainspring import planner
from mainspring.app.base.specs import read_policy, read_yaml
from mainspring.domain.answers import LoginOffer
from mainspring.domain.answers.policies.robots import POLL_S, POLL_S_MAX, POLL_S_MIN, POLL_S_WANTED
from mainspring.domain.codec import decode, encode, from_plain, to_plain
from mainspring.domain.errors import InvalidInput, InvalidMessage, InvalidSpec, NotFound
from mainspring.domain.hardware.care import CareRules
from mainspring.domain.life import Retention
from mainspring.domain.ports import Dice
from mainspring.domain.team import EVERY_TEAM, NoticeRules, Oidc, WaitingLimits
from mainspring.domain.wire.addresses import addresses_of
from mainspring.domain.wire.telemetry import LogForm, TraceRules
from mainspring.domain.wire.trust import is_private
from mainspring.engines.common.kind import ClusterSettings
from mainspring.engines.registry import KEYS_BEFORE, cluster_from, found_clusters, kind_named, plain_from

PORT = 7077
PROXY_PORT = 7338
PORT_MAX = 65_535
_KEY_BITS = 256
PASSED_MAX = 64  # They travel in every agent's orders; a site that needs more has a prefix for them.
_SECRET, _OWNERS = 0o600, 0o700
RUN_FOLDERS = Path("/var/lib/mainspring")  # Where the hierarchy standard has a service's state; no home's parent is.
RUN_FOLDER_BYTES_MAX = 64  # A Unix socket's path may have 107; an agent's folder and a socket take up to 40.
TEAMS_RUN_AS_MAX = 1_000  # A person writes this list; a site that has more teams names those above them.
_OWN_NAME_BYTES = 6  # Enough to tell the homes of one machine apart.
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}")
_ROLE = re.compile(r"arn:[a-z-]+:iam::[\w-]*:role/[\w+=,.@/-]{1,512}")
_CERTIFICATES = re.compile("-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}\*?")  # Never "*" alone: that would be no list.
_CONFIG_HEAD = "# Mainspring's configuration; every field may be left out. `ms up` reads it when the server starts.\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """What an operator may set.

    Args:
        host: Address the server binds to; any but a loopback one wants a certificate and its key.
        port: Port it listens on.
        proxy_port: Port of the proxy of services, which robots call; any that is free where another program has it.
        certificate: Absolute path of a PEM file: the server's certificate, then the chain above it; "" for no TLS.
        key: Absolute path of the PEM file with the certificate's private key.
        public_url: Where agents on other machines reach the server, when that is not where it listens: a proxy in front
            of it, or the name in its certificate; "" for where it listens. Of several servers on one store "URL,URL":
            its own first, then those of the others, which agents call when it does not answer.
        database: URL of the store, such as "postgresql://host/name", without a password, which the server finds where
            all of PostgreSQL's programs do; "" for SQLite in the home folder.
        objects: Object store URL; "" for a folder in the home folder.
        objects_role: ARN of the role in whose sessions agents use an S3 store, each for its own attempt's part of it;
            "" where they use what their environment has.
        environment_passed: Variables of agents that jobs get beside the usual: names, or prefixes such as "HF_*".
        shared_account: Whether teams that share nothing else may run jobs under one account, and the server may be
            reached from elsewhere though jobs can do whatever it can.
        run_as: The users that jobs run as, by team: the nearest of a team and those above it counts, "*" stands for
            all others. Empty where jobs run under the account of their agents.
        run_folder: Absolute folder in which these users have theirs, on this machine; "" for one of the home's own
            below `RUN_FOLDERS`.
        limits: What people, and teams without limits of their own, may have waiting.
        keep: What is kept at hand of what is over; what is older is archived, or removed.
        notices: Where teams may be told of their jobs: nowhere unless hosts are named.
        traces: Where traces of jobs are sent: nowhere unless an endpoint is named.
        health: What is done to nodes that failed, how they come back, and how many may be closed at once.
        robot_poll_s: How often robots call, in seconds.
        log_format: How the server, engines on hosts and agents say what they have to say.
        oidc: How people log in by a provider of identities; None where they have tokens alone.
        clusters: Every cluster; an entry names its kind.
    """

    host: str = "127.0.0.1"
    port: int = PORT
    proxy_port: int = PROXY_PORT
    certificate: str = ""
    key: str = ""
    public_url: str = ""
    database: str = ""
    objects: str = ""
    objects_role: str = ""
    environment_passed: tuple[str, ...] = ()
    shared_account: bool = False
    run_as: Mapping[str, str] = field(default_factory=dict)
    run_folder: str = ""
    limits: WaitingLimits = field(default_factory=WaitingLimits)
    keep: Retention = field(default_factory=Retention)
    notices: NoticeRules = field(default_factory=NoticeRules)
    traces: TraceRules = field(default_factory=TraceRules)
    health: CareRules = field(default_factory=CareRules)
    robot_poll_s: float = POLL_S
    log_format: LogForm = LogForm.TEXT
    oidc: Oidc | None = None
    clusters: tuple[ClusterSettings, ...] = field(default_factory=found_clusters)

    def __post_init__(self) -> None:
        """Checks what no cluster can check alone.

        Raises:
            InvalidSpec: A field is out of its range.
        """
        names = [cluster.name for cluster in self.clusters]
        files = (self.certificate, self.key)
        passed = self.environment_passed
        everywhere = self.host in ("", "0.0.0.0", "::")
        also = ", it listens everywhere" if everywhere else ""
        wrong = {
            "port": (not 0 <= self.port <= PORT_MAX, str(self.port), f"0 to {PORT_MAX}"),
            "proxy_port": (not 0 <= self.proxy_port <= PORT_MAX, str(self.proxy_port), f"0 to {PORT_MAX}"),
            "robot_poll_s": (not POLL_S_MIN <= self.robot_poll_s <= POLL_S_MAX, str(self.robot_poll_s), POLL_S_WANTED),
            "certificate": (
                any(files) and not all(file.startswith("/") for file in files),
                f"{self.certificate!r} with key {self.key!r}",
                "the absolute paths of a certificate and of its key, or neither",
            ),
            "public_url": (
                not _are_base_urls(self.public_url) if self.public_url else everywhere,
                repr(self.public_url),
                f"https://host[:port], or several with commas, as agents send tokens there{also}",
            ),
            "objects_role": (
                bool(self.objects_role)
                and not (_ROLE.fullmatch(self.objects_role) and self.objects.startswith("s3://")),
                f"{self.objects_role[:200]!r} with objects {self.objects[:200]!r}",
                "the ARN of a role (arn:aws:iam::ACCOUNT:role/NAME) for objects at s3://",
            ),
            "database": (
                _has_password(self.database),
                "a password, which whoever reads this file would have",
                "a URL without it: the server finds it in PGPASSFILE, ~/.pgpass or PGPASSWORD",
            ),
            "environment_passed": (
                len(passed) > PASSED_MAX or not all(_VARIABLE.fullmatch(name) for name in passed),
                ", ".join(map(repr, passed))[:200],
                f"at most {PASSED_MAX} names, such as HF_HOME, or prefixes, such as HF_*",
            ),
            **_wrong_users(self),
            "clusters": (len(set(names)) < len(names), ", ".join(names), "names that differ"),
        }
        for name, (bad, got, wanted) in wrong.items():
            if bad:
                raise InvalidSpec("accept a configuration", on=f"field {name!r}", got=got, wanted=wanted)

    @property
    def public_urls(self) -> tuple[str, ...]:
        """Returns where agents on other machines reach the server and those beside it; none for where it listens."""
        return addresses_of(self.public_url) if self.public_url else ()


def _wrong_users(config: Config) -> dict[str, tuple[bool, str, str]]:
    """Returns what may be wrong with who jobs run as, by field: whether it is, what came, what is wanted."""
    named, folder = config.run_as, config.run_folder
    sharing = [each.name for each in config.clusters if named and not kind_named(each.kind).runs_as]
    words = [*named.values(), *(team for team in named if team != EVERY_TEAM)]
    bad = [word for word in words if not _WORD.fullmatch(word)]
    got = f"cluster {sharing[0]!r}" if sharing else ", ".join(map(repr, bad))[:200]
    wanted = "users by team, on a server of clusters whose agents can run jobs as other users"
    long = len(os.fsencode(folder)) > RUN_FOLDER_BYTES_MAX
    return {
        "run_as": (bool(sharing or bad) or len(named) > TEAMS_RUN_AS_MAX, got or f"{len(named)} teams", wanted),
        "run_folder": (
            bool(folder) and (not folder.startswith("/") or long or os.path.normpath(folder) != folder),
            repr(folder),
            f"an absolute path without '..' of at most {RUN_FOLDER_BYTES_MAX} bytes, as sockets lie below it",
        ),
    }


def _config_from(plain: object) -> Config:
    """Returns a configuration, also one that lists the clusters of each engine under a key of its own."""
    if not isinstance(plain, dict) or not plain.keys() & KEYS_BEFORE.keys():
        return from_plain(Config, plain, strict=True)
    clusters = [] if "clusters" in plain else [*found_clusters()]
    for key, kind_before in KEYS_BEFORE.items():
        entries = from_plain(tuple[Mapping[str, Any], ...], plain.pop(key, ()), strict=True, where=key)
        clusters += [
            cluster_from(entry, where=f"{key}[{number}]", kind_before=kind_before)
            for number, entry in enumerate(entries)
        ]
    return replace(from_plain(Config, {**plain, "clusters": ()}, strict=True), clusters=tuple(clusters))


def _has_password(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False  # To be told as no URL, by whoever opens it.
    return bool(parts.password) or "password" in parse_qs(parts.query)


def _are_base_urls(text: str) -> bool:
    try:
        every = [(url, urlsplit(url)) for url in addresses_of(text)]
    except InvalidInput:
        return False
    return all(f"{parts.scheme}://{parts.netloc}" == url and is_private(url) for url, parts in every)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRecord:
    """Where a running server is.

    Args:
        url: Its address, for whoever shares its home.
    """

    url: str
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginRenewal:
    """What a login is made anew with, when its token is about to end.

    Args:
        offer: The provider that knows the person, as the lab named it when they logged in: no other is shown what it
            gave them.
        refresh_token: What it gave them.
        team: The team they chose, "" for none.
        due_s: From when on; in time before the token ends.
        ends_s: When it does, by this machine's clock.
    """

    offer: LoginOffer
    refresh_token: str = field(repr=False)
    team: str
    due_s: float
    ends_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginRecord:
    """A lab elsewhere, and who one is there.

    Args:
        url: Where its servers are, "URL[,URL...]".
        renewal: None for a token that is good until it ends.
    """

    url: str
    token: str = field(repr=False)
    renewal: LoginRenewal | None = None


def url_of(listener: socket.socket, config: Config) -> str:
    """Returns the URL at which whoever shares the home reaches what listens on a socket.

    Args:
        config: With TLS the name must be one that the certificate holds: that of its public URL, else the host's.
    """
    host, port = listener.getsockname()[:2]
    if config.certificate:
        host = urlsplit("".join(config.public_urls[:1])).hostname or config.host
    scheme = "https" if config.certificate else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


@dataclass(frozen=True, slots=True)
class Home:
    """Paths inside one home folder."""

    path: Path

    @staticmethod
    def find(path: Path | None = None) -> Home:
        """Returns the home named, else that of `MAINSPRING_HOME`, else `~/.mainspring`.

        Args:
            path: The folder, or None to look.
        """
        named = path or Path(os.environ.get("MAINSPRING_HOME") or Path.home() / ".mainspring")
        return Home(Path(os.path.abspath(named.expanduser())))  # As typed, without "..": links stay.

    @property
    def log(self) -> Path:
        """Returns where the server's output goes."""
        return self.path / "server.log"

    @property
    def cache(self) -> Path:
        """Returns the folder of files that can be made again."""
        return self.path / "cache"

    def run_folder(self, config: Config) -> Path:
        """Returns the folder for what jobs are handed that run as other users; to them homes are closed."""
        own = blake2s(os.fsencode(os.path.realpath(self.path)), digest_size=_OWN_NAME_BYTES).hexdigest()
        return Path(config.run_folder or RUN_FOLDERS / own)

    @property
    def secret_keys(self) -> Path:
        """Returns the file of keys that teams' secrets are kept under."""
        return self.path / "secrets.key"

    @property
    def backups(self) -> Path:
        """Returns the folder of copies of the store."""
        return self.path / "backups"

    @property
    def backed_up(self) -> Path:
        """Returns the file that tells when `ms backup` last copied the store."""
        return self.path / "backed-up"

    @property
    def arrivals(self) -> Path:
        """Returns the folder of recordings that were sent and not yet read."""
        return self.path / "arrivals"

    @property
    def engines(self) -> Path:
        """Returns the folder of the local engines' allocations."""
        return self.path / "engines"

    def config(self) -> Config:
        """Returns the configuration, the default one where none was written.

        Raises:
            InvalidSpec: The file is not YAML, or a field is unknown or wrong.
        """
        if not self.config_file.exists():
            return Config()
        return read_yaml(self.config_file, "read the configuration", lambda plain: _config_from(plain or {}))

    @property
    def config_file(self) -> Path:
        """Returns where the configuration is kept."""
        return self.path / "config.yaml"

    @property
    def policy_file(self) -> Path:
        """Returns where the planning policy is kept."""
        return self.path / "policy.yaml"

    def policy(self) -> planner.Policy:
        """Returns what the lab decides about planning.

        Raises:
            InvalidSpec: The file is not YAML, or a field is unknown or wrong.
        """
        return read_policy(self.policy_file) if self.policy_file.exists() else planner.Policy()

    def keep_policy(self, path: Path) -> None:
        """Checks a policy and keeps it for every start from now on.

        Args:
            path: A YAML file of the fields of `Policy`.

        Raises:
            NotFound: There is no such file.
            InvalidSpec: It is not YAML, or a field is unknown or wrong.
        """
        read_policy(path)
        self._put(self.policy_file, path.read_text())

    def write_config(self, config: Config) -> None:
        """Writes the configuration; whoever reads it meanwhile sees the one before."""
        import yaml

        plain = to_plain(replace(config, clusters=())) | {"clusters": list(map(plain_from, config.clusters))}
        self._put(self.config_file, _CONFIG_HEAD + yaml.safe_dump(plain, sort_keys=False))

    @contextmanager
    def lock(self, name: str = "lock") -> Iterator[None]:
        """Holds the home against other processes that start its server or change its files; they wait in turn.

        Args:
            name: Of the lock.
        """
        self._make()
        with (self.path / name).open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def database_url(self, config: Config) -> str:
        """Returns the URL of the store."""
        return config.database or f"sqlite:///{self.path / 'state.db'}"

    def certificate(self, config: Config) -> str:
        """Returns what clients are to trust, as PEM text: the server's certificate and the chain above it, or "".

        Args:
            config: Says where it is.

        Raises:
            InvalidSpec: There is no certificate in that file, or none that can be read.
        """
        if not config.certificate:
            return ""
        attempted, wanted = "read the server's certificate", "a PEM file"
        try:
            text = Path(config.certificate).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidSpec(attempted, on=config.certificate, got=str(error), wanted=wanted) from error
        found = _CERTIFICATES.findall(text)  # A key that is in the same file stays here.
        if not found:
            raise InvalidSpec(attempted, on=config.certificate, got="no certificate", wanted=wanted)
        return "\n".join(found) + "\n"

    def objects_url(self, config: Config) -> str:
        """Returns the URL of the object store."""
        return config.objects or f"file://{self.path / 'objects'}"

    def token(self) -> str:
        """Returns the administrator's secret.

        Raises:
            NotFound: No server has been started from this home.
        """
        try:
            return (self.path / "token").read_text().strip()
        except OSError as error:
            raise NotFound("find your token", on=str(self.path / "token"), next_step="ms up") from error

    def write_token(self, token: str) -> None:
        """Keeps the administrator's secret where its owner alone can read it."""
        self._put(self.path / "token", token, mode=_SECRET)

    def key(self, dice: Dice) -> str:
        """Returns the secret that the tokens of attempts are made from; drawn the first time, the same ever after."""
        try:
            return (self.path / "key").read_text()
        except FileNotFoundError:
            self._put(self.path / "key", f"{dice.bits(_KEY_BITS):x}", mode=_SECRET)
            return (self.path / "key").read_text()

    def known_key(self) -> str:
        """Returns the same, "" where it was not drawn yet."""
        path = self.path / "key"
        return path.read_text() if path.exists() else ""

    def _make(self) -> None:
        """Makes the folder for its owner alone; one that is there stays as open as it is."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.mkdir(mode=_OWNERS, exist_ok=True)

    def _put(self, path: Path, text: str, *, mode: int = 0o666) -> None:
        """Writes a file, whole or not at all, whoever else does."""
        self._make()
        target = path.resolve()  # A link that people made stays one.
        draft = target.with_name(f".{target.name}.{os.getpid()}")
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w") as file:
            file.write(text)
        draft.rename(target)

    def login(self) -> LoginRecord | None:
        """Returns the lab elsewhere that this home works with, or None."""
        try:
            return decode(LoginRecord, (self.path / "login.json").read_bytes())
        except FileNotFoundError:
            return None

    def write_login(self, record: LoginRecord) -> None:
        """Keeps which lab elsewhere this home works with."""
        self._put(self.path / "login.json", encode(record).decode(), mode=_SECRET)

    def forget_login(self) -> LoginRecord | None:
        """Works with this home's own server again; returns what was forgotten."""
        known = self.login()
        (self.path / "login.json").unlink(missing_ok=True)
        return known

    def server(self, program: str = "server") -> ServerRecord | None:
        """Returns where the last server started from this home listens, or another program beside it; or None."""
        try:
            return decode(ServerRecord, (self.path / f"{program}.json").read_bytes())
        except (OSError, InvalidMessage):
            return None

    def write_server(self, record: ServerRecord, program: str = "server") -> None:
        """Remembers where the server listens, or another program beside it."""
        self._put(self.path / f"{program}.json", encode(record).decode())
