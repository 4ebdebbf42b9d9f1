"""The home folder: where one person's Mainspring keeps its configuration, state and secrets.

config.yaml    host, port, database, objects, clusters; written on first use, edited by people
policy.yaml    what the lab decides about planning, from `ms up --policy`; the defaults when there is none
token          the administrator's secret, readable by its owner alone
server.json    where the running server listens, and its process
server.log     what it said          lock      held while it is being started
state.db       the embedded store      objects/  the embedded object store      engines/  allocations
arrivals/      recordings that were sent and not yet read
"""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from mainspring.app.specs import read_policy
from mainspring.domain.codec import decode, encode, from_plain, to_plain
from mainspring.domain.errors import InvalidInput, InvalidMessage, InvalidSpec, NotFound
from mainspring.domain.ids import ChipName, ClusterName
from mainspring.domain.ports import Dice
from mainspring.engines.local import LocalCluster
from mainspring.planner import Policy

PORT = 7077
PORT_MAX = 65_535
_KEY_BITS = 256
_CONFIG_HEAD = "# Mainspring's configuration; every field may be left out. `ms up` reads it when the server starts.\n"


def default_clusters() -> tuple[LocalCluster, ...]:
    """Returns this machine as a cluster of one node whose chips are its processors."""
    return (
        LocalCluster(
            name=ClusterName("local"),
            chip=ChipName("cpu"),
            chips_per_node=os.cpu_count() or 1,
            nodes=1,
            dollars_per_chip_hour=0.0,
            simulated=False,
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """What an operator may set.

    Args:
        host: Address the server binds to.
        port: Port it listens on.
        database: SQLAlchemy URL; "" for SQLite in the home folder.
        objects: Object store URL; "" for a folder in the home folder.
        clusters: Clusters of the local engine.
    """

    host: str = "127.0.0.1"
    port: int = PORT
    database: str = ""
    objects: str = ""
    clusters: tuple[LocalCluster, ...] = field(default_factory=default_clusters)

    def __post_init__(self) -> None:
        """Checks what no cluster can check alone.

        Raises:
            InvalidSpec: A field is out of its range.
        """
        names = [cluster.name for cluster in self.clusters]
        wrong = {
            "port": (not 0 <= self.port <= PORT_MAX, str(self.port), f"0 to {PORT_MAX}"),
            "clusters": (len(set(names)) < len(names), ", ".join(names), "names that differ"),
        }
        for name, (bad, got, wanted) in wrong.items():
            if bad:
                raise InvalidSpec("accept a configuration", on=f"field {name!r}", got=got, wanted=wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRecord:
    """Where a running server is.

    Args:
        url: Its address.
        pid: Its process.
    """

    url: str
    pid: int


def url_of(listener: socket.socket) -> str:
    """Returns the URL of what listens on a socket.

    Args:
        listener: The socket.
    """
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@dataclass(frozen=True, slots=True)
class Home:
    """Paths inside one home folder.

    Args:
        path: The folder.
    """

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

    @property
    def arrivals(self) -> Path:
        """Returns the folder of recordings that were sent and not yet read."""
        return self.path / "arrivals"

    @property
    def engines(self) -> Path:
        """Returns the folder of the local engines' allocations."""
        return self.path / "engines"

    def config(self) -> Config:
        """Returns the configuration, writing the default one on first use.

        Raises:
            InvalidSpec: The file is not YAML, or a field is unknown or wrong.
        """
        path = self.path / "config.yaml"
        if not path.exists():
            self.write_config(Config())
        try:
            plain = yaml.safe_load(path.read_bytes())
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise InvalidSpec("read the configuration", on=str(path), got=" ".join(str(error).split())) from error
        try:
            return from_plain(Config, plain or {}, strict=True)
        except InvalidInput as error:
            on = f"{error.on} of {path}" if error.on else str(path)
            raise InvalidSpec("read the configuration", on=on, got=error.got, wanted=error.wanted) from error

    @property
    def policy_file(self) -> Path:
        """Returns where the planning policy is kept."""
        return self.path / "policy.yaml"

    def policy(self) -> Policy:
        """Returns what the lab decides about planning.

        Raises:
            InvalidSpec: The file is not YAML, or a field is unknown or wrong.
        """
        return read_policy(self.policy_file) if self.policy_file.exists() else Policy()

    def keep_policy(self, path: Path) -> None:
        """Checks a policy and keeps it for every start from now on.

        Args:
            path: A YAML file of the fields of `Policy`.

        Raises:
            NotFound: There is no such file.
            InvalidSpec: It is not YAML, or a field is unknown or wrong.
        """
        read_policy(path)
        text = path.read_bytes()
        self.path.mkdir(parents=True, exist_ok=True)
        self.policy_file.write_bytes(text)

    def write_config(self, config: Config) -> None:
        """Writes the configuration.

        Args:
            config: What to write.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        text = yaml.safe_dump(to_plain(config), sort_keys=False)
        (self.path / "config.yaml").write_text(_CONFIG_HEAD + text)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Holds the home against other processes that start its server; they wait for their turn."""
        with (self.path / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def database_url(self, config: Config) -> str:
        """Returns the SQLAlchemy URL of the store.

        Args:
            config: May name another.
        """
        return config.database or f"sqlite:///{self.path / 'state.db'}"

    def objects_url(self, config: Config) -> str:
        """Returns the URL of the object store.

        Args:
            config: May name another.
        """
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
        """Keeps the administrator's secret where its owner alone can read it.

        Args:
            token: The secret.
        """
        self._keep_secret("token", token)

    def key(self, dice: Dice) -> str:
        """Returns the secret that the tokens of attempts are made from; drawn the first time, the same ever after.

        Args:
            dice: Draw it.
        """
        try:
            return (self.path / "key").read_text()
        except FileNotFoundError:
            self._keep_secret("key", f"{dice.bits(_KEY_BITS):x}")
            return (self.path / "key").read_text()

    def _keep_secret(self, name: str, secret: str) -> None:
        draft = self.path / f".{name}"
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secret)
        draft.rename(self.path / name)

    def server(self) -> ServerRecord | None:
        """Returns where the last server started from this home listens, or None."""
        try:
            return decode(ServerRecord, (self.path / "server.json").read_bytes())
        except (OSError, InvalidMessage):
            return None

    def write_server(self, record: ServerRecord) -> None:
        """Remembers where the server listens.

        Args:
            record: What to remember.
        """
        (self.path / "server.json").write_bytes(encode(record))
