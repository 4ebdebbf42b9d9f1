"""A real Slurm on one machine: munged, slurmctld and one slurmd a node, all private to a folder and to free ports.

For tests, demonstrations and benchmarks. The daemons are Slurm's own, so what happens here happens on a cluster, but
for what follows from sharing one machine:

- Every node has this machine's host name, address, memory and cores, whatever it claims; a job on "n1" and a job on
  "n2" are processes side by side. SLURMD_NODENAME in a job's environment tells its node.
- Chips are files that do nothing; CUDA_VISIBLE_DEVICES in a job's environment tells which ones it was given.
- Nothing confines a job: no cgroups, so a job can use more than it asked for.
- slurmdbd listens on every address, as it always does; munge's key keeps strangers out.
- Not as root, every job runs as the one user there is, and `run(user=...)` does not work.

Waits are counted in looks, not in seconds of a clock: a bound of 10 s stretches on a machine that is busy.
Source: slurm.conf(5), gres.conf(5), slurmdbd.conf(5), munged(8) of Slurm 22.05 and MUNGE 0.5.15.
"""

from __future__ import annotations

import os
import pwd
import select
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from mainspring.domain.errors import Unavailable
from mainspring.testing.daemons import Daemons, free_ports, last_words, start_up
from mainspring.testing.slurm_conf import (
    CHIP_FILES,
    SlurmNodes,
    SlurmPartition,
    SlurmPlace,
    gres_conf,
    slurm_conf,
    slurmdbd_conf,
)

__all__ = ["SlurmNodes", "SlurmPartition", "SlurmServer", "slurm_missing"]

LOOK_S = 0.05
START_S = 30.0  # 64 nodes are idle after 3 s on two idle cores; the rest is for busy ones.
DAEMON_S = 20.0
COMMAND_S = 20.0  # A client gives up on a dead controller by itself after MessageTimeout, tried a few times.
PROGRAMS = ("munged", "mungekey", "slurmctld", "slurmd", "sbatch", "srun", "sinfo", "scontrol", "squeue")
PROGRAMS_ACCOUNTING = ("slurmdbd", "sacctmgr", "sacct", "mariadbd", "mariadb-install-db")
DAEMON_FOLDERS = "/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin"  # Daemons are rarely in a user's PATH.


def slurm_missing(*, accounting: bool = False) -> str:
    """Returns why no Slurm can be started here and what to do, or nothing when one can.

    Args:
        accounting: Whether slurmdbd and its database are needed too.
    """
    wanted = PROGRAMS + (PROGRAMS_ACCOUNTING if accounting else ())
    absent = [name for name in wanted if _find(name) is None]
    if absent:
        packages = "slurm-wlm slurm-client munge slurm-wlm-basic-plugins"
        packages += " slurmdbd mariadb-server" if accounting else ""
        return f"Slurm is needed, not found: {', '.join(absent)}; apt-get install {packages}"
    try:
        _address()
    except OSError as error:
        return f"the name of this machine ({socket.gethostname()}) has no address: {error}; add it to /etc/hosts"
    return ""


class SlurmServer:
    """A cluster of slurmds on this machine; nothing of it outlives `stop`, the `with` block, or this process.

    Args:
        folder: Where logs and state are kept; made when absent.
        nodes: The nodes, in one or several groups.
        partitions: The partitions; none given: "main", over every node.
        topology: The text of topology.conf; empty: a flat network, topology/none.
        extra_conf: Lines "Key=Value" for slurm.conf, which win over the ones made here.
        accounting: Whether to run slurmdbd over a MariaDB of its own (four seconds more), with limits enforced.
        account_users: With accounting, who may submit besides the caller: all are in the account "main".
    """

    def __init__(
        self,
        folder: Path,
        *,
        nodes: Sequence[SlurmNodes],
        partitions: Sequence[SlurmPartition] = (),
        topology: str = "",
        extra_conf: Sequence[str] = (),
        accounting: bool = False,
        account_users: Sequence[str] = ("nobody",),
    ) -> None:
        self.folder = folder
        self.nodes = tuple(nodes)
        self.partitions = tuple(partitions) or (SlurmPartition(name="main"),)
        self._topology = topology
        self._extra_conf = tuple(extra_conf)
        self._accounting = accounting
        self._owner = pwd.getpwuid(os.getuid()).pw_name
        self._account_users = sorted({self._owner, *account_users})
        self._daemons: Daemons | None = None
        # What other users must reach, and sockets, whose paths are short: not below a folder of the owner's alone.
        self._public = Path()

    @property
    def node_names(self) -> tuple[str, ...]:
        """Returns the names of all nodes, in order."""
        return tuple(name for group in self.nodes for name in group.names)

    @property
    def environment(self) -> dict[str, str]:
        """Returns what a process's environment needs beside its own for Slurm's commands to find this server."""
        return {"SLURM_CONF": str(self._public / "slurm.conf")}

    def __enter__(self) -> SlurmServer:
        """Starts it."""
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Stops it."""
        self.stop()

    def start(self) -> None:
        """Starts every daemon and returns once every node is idle.

        Raises:
            Unavailable: Something is not installed, or a daemon did not come up; quotes its last words.
        """
        missing = slurm_missing(accounting=self._accounting)
        if missing:
            raise Unavailable("start Slurm", got=missing)
        start_up(self._start, self.stop)

    def stop(self) -> None:
        """Kills every daemon, every step and every program of a job; harmless when nothing runs."""
        if self._daemons is not None:
            self._daemons.stop()
            self._daemons = None
        if self._public != Path():  # Its keeper removed it already, unless it never got that far.
            shutil.rmtree(self._public, ignore_errors=True)
            self._public = Path()

    def run(self, *words: str, user: str = "", timeout_s: float = COMMAND_S) -> subprocess.CompletedProcess[str]:
        """Runs a command against this server and returns what it wrote and how it ended.

        Args:
            words: The command ("sbatch", "--wrap", "hostname").
            user: As whom; empty: as the caller. Another user starts in a folder every user may write to.
            timeout_s: How long it may take.

        Raises:
            Unavailable: It took longer.
        """
        command = ["env", *(f"{name}={value}" for name, value in self.environment.items()), *words]
        try:
            return subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
                cwd=self._public / "home" if user else None,
                user=user or None,
                group=pwd.getpwnam(user).pw_gid if user else None,
                extra_groups=[] if user else None,
            )
        except subprocess.TimeoutExpired as error:
            raise Unavailable("run a Slurm command", on=" ".join(words), got=f"no end after {timeout_s:g} s") from error

    def wait_idle(self, bound_s: float = START_S) -> None:
        """Waits until every node is idle: no job, none completing.

        Args:
            bound_s: How long to wait, counted in looks.

        Raises:
            Unavailable: A node is still something else.
        """
        words = ("sinfo", "-h", "-N", "-o", "%T")
        if not self._await(lambda: set(self.run(*words).stdout.split()) == {"idle"}, bound_s):
            seen = self.run("sinfo", "-N", "-l").stdout
            raise Unavailable("wait for idle Slurm nodes", got=f"{seen}\n{last_words(self._log('slurmctld'))}")

    def save(self) -> None:
        """Waits until slurmctld has written down every job submitted until now; it does so within 5 s.

        One that is killed before forgets them, and gives their numbers again: a node where such a job still runs
        refuses the new one ("Duplicate jobid") and is drained.

        Raises:
            Unavailable: It wrote nothing.
        """
        live = "PENDING,RUNNING,SUSPENDED"  # Of one that is over no node could be confused.
        jobs = self.run("squeue", "-h", "-a", "-t", live, "-o", "%A").stdout.split()
        if not jobs:
            return
        # It writes all jobs at once, so where this mark is, all before it are. Only people read this comment.
        state = self.folder / "state" / "job_state"
        mark = f"saved-{state.stat().st_mtime_ns if state.exists() else 0}"
        marked = self.run("scontrol", "update", f"jobid={max(jobs, key=int)}", f"admincomment={mark}")
        if "already finished" in marked.stderr:
            return
        if not self._await(lambda: state.exists() and mark.encode() in state.read_bytes(), DAEMON_S):
            raise Unavailable("have Slurm's jobs saved", on=str(state), got=last_words(self._log("slurmctld")))

    def kill_controller(self) -> None:
        """Ends slurmctld by SIGKILL; jobs go on. What it has not saved it forgets; see `save`."""
        self._kill("slurmctld")

    def start_controller(self) -> None:
        """Starts slurmctld again and returns once it answers.

        Raises:
            Unavailable: It does not come up.
        """
        self._launch("slurmctld", "-D", "-f", str(self._public / "slurm.conf"))
        self._await_daemon("slurmctld", lambda: self.run("scontrol", "ping").returncode == 0)

    def kill_node(self, name: str) -> None:
        """Ends one slurmd by SIGKILL. As on any cluster, its steps and the users' programs go on.

        Args:
            name: The node's.
        """
        assert name in self.node_names
        self._kill(f"slurmd-{name}")

    def start_node(self, name: str) -> None:
        """Starts one slurmd again and returns once it listens; the controller takes it back in its own time.

        Args:
            name: The node's.

        Raises:
            Unavailable: It does not come up.
        """
        daemon = f"slurmd-{name}"
        said = self._log(daemon).stat().st_size
        self._launch_node(name)
        self._await_daemon(daemon, lambda: b"slurmd started on" in self._log(daemon).read_bytes()[said:])

    def kill_munge(self) -> None:
        """Ends munged by SIGKILL: no command, launch or message between daemons is trusted any more."""
        self._kill("munged")

    def start_munge(self) -> None:
        """Starts munged again and returns once it answers.

        Raises:
            Unavailable: It does not come up.
        """
        path, private = self._public / "munge.socket", self._public / "private"
        files = (f"--{kind}-file={private / f'munge.{kind}'}" for kind in ("key", "pid", "seed"))
        # Forced: it would refuse folders below one that others may write to, such as /tmp.
        self._launch("munged", "--foreground", "--force", f"--socket={path}", *files)
        self._await_daemon("munged", lambda: self._listens(path))

    def _start(self) -> None:
        self._prepare()
        self._daemons = Daemons(self._public, work=self.folder)
        self.start_munge()
        if self._accounting:
            self._start_accounting()
        self._launch("slurmctld", "-D", "-f", str(self._public / "slurm.conf"))
        for name in self.node_names:
            self._launch_node(name)
        self._await_daemon("slurmctld", lambda: self.run("scontrol", "ping").returncode == 0)
        self.wait_idle()

    def _prepare(self) -> None:
        """Makes the folders and every file of configuration, side by side as Slurm wants them, for ports free now."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "state").mkdir(mode=0o700, exist_ok=True)
        self._public = public = Path(tempfile.mkdtemp(prefix="slurm-"))
        public.chmod(0o755)
        (public / "spool").mkdir(mode=0o755)
        (public / "private").mkdir(mode=0o700)
        (public / "home").mkdir()
        (public / "home").chmod(0o1777)
        for index in range(
            CHIP_FILES
        ):  # They stand for chips: slurmd refuses plain files, and follows links to a device.
            (public / f"nvidia{index}").symlink_to(os.devnull)
        self._must(_found("mungekey"), "--create", f"--keyfile={public / 'private' / 'munge.key'}")
        ports = free_ports(len(self.node_names) + 2)
        place = SlurmPlace(
            host=socket.gethostname().partition(".")[0],
            address=_address(),
            owner=self._owner,
            public=public,
            folder=self.folder,
            port=ports[0],
            node_ports=dict(zip(self.node_names, ports[2:], strict=True)),
            database_port=ports[1] if self._accounting else 0,
        )
        (public / "slurm.conf").write_text(
            slurm_conf(
                place,
                nodes=self.nodes,
                partitions=self.partitions,
                tree=bool(self._topology),
                extra=self._extra_conf,
            )
        )
        (public / "gres.conf").write_text(gres_conf(place, self.nodes))
        if self._topology:
            (public / "topology.conf").write_text(self._topology.rstrip() + "\n")
        if self._accounting:
            path = public / "private" / "slurmdbd.conf"
            path.touch(mode=0o600)  # slurmdbd refuses a file that others may read.
            path.write_text(slurmdbd_conf(place))

    def _start_accounting(self) -> None:
        data, private = self.folder / "database", self._public / "private"
        path = private / "mariadb.socket"
        if not data.exists():
            words = ("--no-defaults", f"--datadir={data}", f"--user={self._owner}", "--skip-test-db")
            self._must(_found("mariadb-install-db"), *words)
        # Access is by the socket's folder, which is the owner's alone.
        words = ("--no-defaults", f"--datadir={data}", f"--user={self._owner}", "--skip-grant-tables")
        self._launch("mariadbd", *words, "--skip-networking", f"--socket={path}")
        self._await_daemon("mariadbd", lambda: self._listens(path))
        settings = (f"MYSQL_UNIX_PORT={path}", f"SLURM_CONF={private / 'slurmdbd.conf'}")
        self._begin("slurmdbd", "env", *settings, _found("slurmdbd"), "-D")
        self._await_daemon("slurmdbd", lambda: self.run("sacctmgr", "-n", "show", "cluster").returncode == 0)
        self._must("sacctmgr", "-i", "add", "cluster", "bench")
        self._must("sacctmgr", "-i", "add", "account", "main")
        users = ",".join(self._account_users)
        self._must("sacctmgr", "-i", "add", "user", users, "account=main", "defaultaccount=main")
        # The database is born with root in an account of its own, where no limit of "main" would hold.
        self._must("sacctmgr", "-i", "modify", "user", users, "set", "defaultaccount=main")

    def _launch_node(self, name: str) -> None:
        self._begin(f"slurmd-{name}", _found("slurmd"), "-D", "-N", name, "-f", str(self._public / "slurm.conf"))

    def _launch(self, name: str, *words: str) -> None:
        self._begin(name, _found(name), *words)

    def _begin(self, name: str, *command: str) -> None:
        assert self._daemons is not None, "not started"
        if error := self._daemons.start(name, self._log(name), *command):
            raise Unavailable("start Slurm", on=name, got=error)

    def _kill(self, name: str) -> None:
        assert self._daemons is not None, "not started"
        assert self._daemons.kill(name, signal.SIGKILL), f"{name} was not running"

    def _must(self, *words: str) -> None:
        done = self.run(*words)
        if done.returncode:
            raise Unavailable("set Slurm up", on=" ".join(words), got=(done.stderr or done.stdout).strip())

    def _await_daemon(self, name: str, ready: Callable[[], bool]) -> None:
        """Waits until a daemon is ready, or has ended, or too long."""
        assert self._daemons is not None
        runs = self._daemons.runs
        if not self._await(lambda: not runs(name) or ready(), DAEMON_S) or not ready():
            raise Unavailable("start Slurm", on=name, got=last_words(self._log(name)))

    def _await(self, condition: Callable[[], bool], bound_s: float) -> bool:
        for _ in range(max(1, round(bound_s / LOOK_S))):
            if condition():
                return True
            select.select([], [], [], LOOK_S)
        return False

    def _listens(self, path: Path) -> bool:
        with socket.socket(socket.AF_UNIX) as client:
            return client.connect_ex(str(path)) == 0

    def _log(self, daemon: str) -> Path:
        return self.folder / f"{daemon}.log"


def _find(program: str) -> str | None:
    return shutil.which(program) or shutil.which(program, path=DAEMON_FOLDERS)


def _found(program: str) -> str:
    path = _find(program)
    assert path is not None, f"{program} was there a moment ago"
    return path


def _address() -> str:
    return socket.gethostbyname(socket.gethostname())
