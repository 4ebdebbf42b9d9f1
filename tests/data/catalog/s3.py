"""S3 servers on loopback for the tests: moto, which is quick, and Ceph's RADOS gateway, which is a real one.

The gateway runs with one monitor and one storage daemon that keeps everything in memory, without a manager.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import boto3  # type: ignore[import-untyped]
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

UP_LIMIT_S = 60.0
TICK_S = 0.05
TRIES = 3  # Somebody else may take a port between its being found free and its being listened on.
TAIL_CHARS = 2_000
KEY, SECRET = "catalogkey", "catalogsecret"
CEPH = ("ceph-mon", "ceph-osd", "radosgw", "monmaptool", "ceph-authtool", "radosgw-admin", "ceph")
CEPH_MISSING = "a real S3 server is needed: apt-get install radosgw ceph-mon ceph-osd ceph-common"
CONF = """
[global]
fsid = {fsid}
mon host = v2:127.0.0.1:{mon}
mon initial members = a
auth cluster required = cephx
auth service required = cephx
auth client required = cephx
keyring = {folder}/keyring
run dir = {folder}
log file = {folder}/$name.log
admin socket = {folder}/$name.$pid.asok
pid file = {folder}/$name.pid
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 1
osd crush chooseleaf type = 0
mon allow pool size one = true
mon data avail warn = 0
mon data avail crit = 0
paxos propose interval = 0.02
ms bind ipv6 = false
public addr = 127.0.0.1
cluster addr = 127.0.0.1
[mon.a]
host = localhost
mon data = {folder}/mon
mon addr = v2:127.0.0.1:{mon}
[osd.0]
osd objectstore = memstore
osd data = {folder}/osd
memstore device bytes = 268435456
[client.rgw]
rgw frontends = beast endpoint=127.0.0.1:{port}
rgw data = {folder}/rgw
rgw s3 auth use sts = true
rgw sts key = sixteen-letters-
"""
ROLE = "arn:aws:iam:::role/agents"  # Made by `Role`.
TRUST = {"Effect": "Allow", "Principal": {"AWS": ["arn:aws:iam:::user/lab"]}, "Action": ["sts:AssumeRole"]}
EVERYTHING = {"Effect": "Allow", "Action": ["s3:*"], "Resource": ["arn:aws:s3:::*"]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """An S3 server: where it listens, the keys it takes, and what it lies in."""

    port: int
    folder: Path = Path()

    @property
    def options(self) -> Mapping[str, str]:
        """Returns what `open_store` needs."""
        return {
            "endpoint": f"http://127.0.0.1:{self.port}",
            "region": "us-east-1",
            "access_key_id": KEY,
            "secret_access_key": SECRET,
        }

    @property
    def environment(self) -> Mapping[str, str]:
        """Returns the same, as whoever starts a lab's server has it in the shell."""
        return {
            "AWS_ENDPOINT_URL": self.options["endpoint"],
            "AWS_REGION": self.options["region"],
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_EC2_METADATA_DISABLED": "true",
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """A role of a gateway that may do everything with its buckets, and that the owner of "lab" may take on.

    Args:
        folder: The gateway's.
    """

    folder: Path

    def make(self) -> None:
        self._admin("role", "create", "--role-name", "agents", "--assume-role-policy-doc", _policy(TRUST))
        said = ("--policy-name", "all", "--policy-doc", _policy(EVERYTHING))
        self._admin("role-policy", "put", "--role-name", "agents", *said)

    def remove(self) -> None:
        """Ends all its sessions too; one that is made anew is another role."""
        self._admin("role-policy", "delete", "--role-name", "agents", "--policy-name", "all")
        self._admin("role", "delete", "--role-name", "agents")

    def _admin(self, *words: str) -> None:
        command = ["radosgw-admin", "-c", str(self.folder / "ceph.conf"), "-n", "client.rgw", *words]
        subprocess.run(command, check=True, capture_output=True, timeout=UP_LIMIT_S, cwd=self.folder)


def _policy(statement: Mapping[str, object]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})


@contextmanager
def moto(folder: Path) -> Iterator[Server]:
    """Runs moto's server; it has one bucket, "lab"."""
    with _process([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port := _free_port())], folder):
        yield _ready(Server(port=port, folder=folder))


@contextmanager
def rados_gateway(folder: Path) -> Iterator[Server]:
    """Runs Ceph's gateway, monitor and storage daemon; it has one bucket, "lab".

    Raises:
        AssertionError: It did not come up, however often it was tried, with what its daemons last wrote.
    """
    failures = []
    for number in range(TRIES):
        (place := folder / str(number)).mkdir()
        with ExitStack() as daemons:
            try:
                server = _gateway(place, daemons)
            except (subprocess.SubprocessError, AssertionError) as error:
                failures.append(f"{error}\n{_last_words(place)}")
                continue
            yield server
            return
    raise AssertionError("Ceph's gateway did not come up:\n" + "\n".join(failures))


def _gateway(folder: Path, daemons: ExitStack) -> Server:
    mon, port, fsid = _free_port(), _free_port(), str(uuid.uuid4())
    for name in ("mon", "osd", "rgw"):
        (folder / name).mkdir()
    conf, keyring = folder / "ceph.conf", folder / "keyring"
    conf.write_text(CONF.format(folder=folder, mon=mon, port=port, fsid=fsid))

    def run(*words: str) -> None:
        subprocess.run(words, check=True, capture_output=True, timeout=UP_LIMIT_S, cwd=folder)

    def start(*words: str) -> None:
        daemons.enter_context(_process([*words, "-c", str(conf), "-f"], folder))

    allowed = {"mon": "allow *", "osd": "allow *", "mgr": "allow *"}
    for name in ("mon.", "client.admin", "osd.0", "client.rgw"):
        caps = [word for daemon, what in allowed.items() for word in ("--cap", daemon, what)]
        create = [] if keyring.exists() else ["--create-keyring"]
        run("ceph-authtool", str(keyring), *create, "--gen-key", "-n", name, *caps)
    run("monmaptool", "--create", "--fsid", fsid, "--addv", "a", f"[v2:127.0.0.1:{mon}]", str(folder / "monmap"))
    run("ceph-mon", "-c", str(conf), "--mkfs", "-i", "a", "--monmap", str(folder / "monmap"), "--keyring", str(keyring))
    start("ceph-mon", "-i", "a")
    osd = str(uuid.uuid4())
    run("ceph", "-c", str(conf), "osd", "new", osd, "0")
    run("ceph-osd", "-c", str(conf), "-i", "0", "--mkfs", "--osd-uuid", osd)
    start("ceph-osd", "-i", "0")
    start("radosgw", "-n", "client.rgw")
    admin = ["radosgw-admin", "-c", str(conf), "-n", "client.rgw", "user", "create", "--uid", "lab"]
    run(*admin, "--display-name", "lab", "--access-key", KEY, "--secret-key", SECRET)
    return _ready(Server(port=port, folder=folder))


def _last_words(folder: Path) -> str:
    """Returns the ends of what the daemons wrote there."""
    wrote = sorted([*folder.glob("*.out"), *folder.glob("*.log")])
    return "\n".join(f"{path.name}: {path.read_text(errors='replace')[-TAIL_CHARS:]}" for path in wrote)


def _ready(server: Server) -> Server:
    client = boto3.client(
        "s3",
        endpoint_url=server.options["endpoint"],
        region_name="us-east-1",
        aws_access_key_id=KEY,
        aws_secret_access_key=SECRET,
        config=Config(retries={"max_attempts": 0}, s3={"addressing_style": "path"}),
    )
    until_s = time.monotonic() + UP_LIMIT_S
    while True:
        try:
            client.create_bucket(Bucket="lab")
            return server
        except (BotoCoreError, ClientError):
            assert time.monotonic() < until_s, "the S3 server did not come up"
            threading.Event().wait(TICK_S)


@contextmanager
def _process(words: list[str], folder: Path) -> Iterator[None]:
    """Runs a server while the block runs."""
    with open(folder / f"{Path(words[0]).name}-{_free_port()}.out", "wb") as out:
        process = subprocess.Popen(words, stdout=out, stderr=subprocess.STDOUT, cwd=folder)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port
