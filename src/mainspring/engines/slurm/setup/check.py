"""Looks at a Slurm cluster's set-up step by step, as far as an account without rights can, and says what to fix.

Decides what must hold before jobs are sent there. Every step gives exactly one finding, in the order of `STEPS`; one
whose ground is missing is skipped. Nothing is changed but for one short job and its files, both gone afterwards.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from mainspring.domain.errors import InvalidSpec, MainspringError, Unavailable, nearest
from mainspring.domain.fleet import Inventory
from mainspring.domain.job import LAB
from mainspring.domain.ports import Clock
from mainspring.engines.common.kind import CheckResult, Finding
from mainspring.engines.common.steps import look, walk
from mainspring.engines.slurm.cluster.commands import Commands, Refused
from mainspring.engines.slurm.cluster.config import SlurmCluster
from mainspring.engines.slurm.cluster.inventory import Ours, Stock
from mainspring.engines.slurm.setup import check_node
from mainspring.engines.slurm.setup.check_node import Trial, TrialJob
from mainspring.engines.slurm.setup.findings import STEPS, NodeAsk, in_words

COMMANDS = ("sinfo", "squeue", "scontrol", "sbatch", "srun", "scancel")
VERSION_MIN = (22, 5)
SUBMISSIONS_MAX = 96  # All partitions a cluster may have, and some accounts; each takes about 20 ms.
SLOW_PART = 0.25  # Of the time a command may take: from there on a busier day is one on which it fails.
SHARED_BYTES_MIN = 1 << 30  # Output of a rank is turned over at tens of MB; this is room for dozens of them.


class SetUp:
    """The set-up of one cluster.

    Args:
        cluster: As its operator describes it.
        commands: Runs Slurm's commands.
        ask: What one of its nodes is to answer.
        version: Of the Mainspring here.
    """

    def __init__(self, cluster: SlurmCluster, commands: Commands, *, ask: NodeAsk, version: str, clock: Clock) -> None:
        self._cluster = cluster
        self._commands = commands
        self._version = version
        self._ask = ask
        self._clock = clock
        self._job = TrialJob(commands, shared=Path(cluster.shared), ask=ask, clock=clock)
        self._config: dict[str, str] = {}
        self._inventory: Inventory | None = None
        self._trial = Trial()

    def findings(self) -> Iterator[Finding]:
        """Yields what each step found, as soon as it has; one for each of `STEPS`, in their order."""
        here: tuple[tuple[Callable[[], Finding], tuple[str, ...]], ...] = (
            (self._commands_are_there, ()),
            (self._version_is_known, ("commands",)),
            (self._controller_answers, ("commands",)),
            (self._partitions_are_up, ("slurmctld",)),
            (self._chips_are_known, ("partitions",)),
            (self._chips_have_prices, ("chips",)),
            (self._accounts_are_known, ("slurmctld",)),
            (self._jobs_are_accepted, ("partitions",)),
            (self._folder_is_usable, ()),
            (self._job_runs, ("submitting", "shared folder")),
        )
        yield from walk([(name, *step) for name, step in zip(STEPS, here, strict=False)], _FIXES)
        trial, scratch = self._trial, self._cluster.scratch
        on_node = (
            lambda: check_node.folder_is_the_same(trial, self._cluster.shared),
            lambda: check_node.agent_can_start(trial, self._version),
            lambda: check_node.scratch_has_room(trial, scratch),
            lambda: check_node.users_can_be(trial, self._ask.users),
            lambda: check_node.network_is_set_up(trial),
            lambda: check_node.clocks_agree(trial),
            lambda: check_node.server_answers(trial, self._ask.controller),
        )
        for name, step in zip(STEPS[len(here) :], on_node, strict=True):
            yield look(name, step, [] if trial.answer else ["test job"], _FIXES)

    # ---------------------------------------------------------------- Slurm

    def _commands_are_there(self) -> Finding:
        for command in COMMANDS:
            try:
                self._commands.run(command, "--version", attempted=f"find {command}")
            except MainspringError as error:
                if isinstance(error.__cause__, OSError):  # Not there, or not for this account.
                    raise
                # Some look for slurm.conf before they tell their version.
                raise Unavailable("use it", on=error.on, got=error.got, next_step=_FIXES["slurmctld"]) from error
        return _ok("commands", in_words(COMMANDS))

    def _version_is_known(self) -> Finding:
        said = self._commands.run("sinfo", "--version", attempted="ask for Slurm's version").strip()
        found = re.search(r"(\d+)\.(\d+)", said)
        wanted = ".".join(f"{part:02}" for part in VERSION_MIN)
        if found is None or (int(found[1]), int(found[2])) < VERSION_MIN:
            raise InvalidSpec("use this Slurm", got=said, next_step=f"have Slurm {wanted} or newer")
        return _ok("version", said)

    def _controller_answers(self) -> Finding:
        begun_s = self._clock.monotonic_s()
        said = self._commands.run("scontrol", "show", "config", attempted="reach slurmctld")
        took_s = self._clock.monotonic_s() - begun_s
        lines = [line.partition("=") for line in said.splitlines() if "=" in line]
        self._config = {name.strip(): value.strip() for name, _, value in lines}
        name, version = self._config.get("ClusterName", "?"), self._config.get("SLURM_VERSION", "?")
        found = f"cluster {name}, Slurm {version}, answers in {took_s:.2f} s"
        limit_s = self._cluster.command_s_max
        if took_s > SLOW_PART * limit_s:
            return Finding(
                name="slurmctld",
                standing=CheckResult.WARNING,
                found=found,
                fix=f"raise command_s_max ({limit_s:g} s) in config.yaml, or find out what keeps slurmctld busy",
            )
        return _ok("slurmctld", found)

    def _partitions_are_up(self) -> Finding:
        said = self._commands.run("scontrol", "-a", "-o", "show", "partition", attempted="list partitions")
        rows = [dict(part.partition("=")[::2] for part in line.split()) for line in said.splitlines() if line.strip()]
        known = {row.get("PartitionName", ""): row for row in rows}
        for name in self._cluster.partitions:
            if name not in known:
                raise InvalidSpec("find a partition", got=f"no partition {name!r}", next_step=nearest(name, known))
        own = {name: known[name] for name in self._cluster.partitions}
        down = [f"{name} is {row.get('State')}" for name, row in own.items() if row.get("State") != "UP"]
        if down:
            return Finding(
                name="partitions",
                standing=CheckResult.FAILED,
                found=in_words(down),
                fix="have an operator run: scontrol update PartitionName=... State=UP",
            )
        found = in_words(
            f"{name} ({row.get('TotalNodes', '?')} nodes, jobs up to {row.get('MaxTime', '?')})"
            for name, row in own.items()
        )
        others = 0 if self._cluster.delegated else self._jobs_of_others()
        if others:
            fix = "see that the partition is Mainspring's alone, or add it as --delegated"
            found += f"; {others} jobs of others are in it"
            return Finding(name="partitions", standing=CheckResult.WARNING, found=found, fix=fix)
        return _ok("partitions", found)

    def _jobs_of_others(self) -> int:
        where = f"--partition={','.join(self._cluster.partitions)}"
        said = self._commands.run("squeue", "-h", where, "-o", "%U", attempted="look for jobs of others")
        return sum(line.strip() != str(os.getuid()) for line in said.splitlines())

    def _chips_are_known(self) -> Finding:
        stock = Stock(self._cluster, self._commands, self._clock)
        self._inventory = stock.look(Ours())
        machines = [stock.machine(node.name) for node in self._inventory.nodes]
        if not machines:
            raise InvalidSpec("find nodes", got="no node in these partitions")
        kinds = Counter((machine.chips, machine.chip, machine.gres_type) for machine in machines)
        found = in_words(
            f"{count} x {chips} {chip}{f' (gpu:{gres})' if gres and gres != chip else ''}"
            for (chips, chip, gres), count in sorted(kinds.items())
        )
        absent = sorted(set(self._cluster.chips) - {machine.gres_type for machine in machines})
        if absent:
            there = sorted({machine.gres_type for machine in machines if machine.gres_type})
            fix = f"GRES types here: {in_words(there) or 'none'}"
            found += f"; no node has {in_words(absent)}, which --chip renames"
            return Finding(name="chips", standing=CheckResult.WARNING, found=found, fix=fix)
        return _ok("chips", found)

    def _chips_have_prices(self) -> Finding:
        assert self._inventory is not None
        prices = self._cluster.dollars_per_chip_hour
        chips = sorted({node.chip for node in self._inventory.nodes})
        free = [chip for chip in chips if chip not in prices]
        if free:
            return Finding(
                name="prices",
                standing=CheckResult.WARNING,
                found=f"none for {in_words(free)}, which counts as free of charge",
                fix=f"--price {free[0]}=DOLLARS, per chip and hour: jobs go where work is cheapest",
            )
        return _ok("prices", in_words(f"{chip} ${prices[chip]:g}" for chip in chips))

    def _accounts_are_known(self) -> Finding:
        accounts, qos = set(self._cluster.accounts.values()), set(self._cluster.qos.values())
        if self._config.get("AccountingStorageType") == "accounting_storage/none":
            if accounts or qos:
                return Finding(
                    name="accounts",
                    standing=CheckResult.WARNING,
                    found="Slurm keeps no accounts here and looks at neither account nor QOS",
                    fix="leave --account and --qos out, or map tiers to partitions in config.yaml (tier_partitions)",
                )
            return _ok("accounts", "Slurm keeps none here")
        user = pwd.getpwuid(os.getuid()).pw_name
        words = ("sacctmgr", "-n", "-P", "show", "assoc", f"user={user}", "format=account,qos")
        rows = [line.split("|") for line in self._commands.run(*words, attempted="list accounts").splitlines()]
        own = {row[0] for row in rows if len(row) == 2}
        allowed = {name for row in rows if len(row) == 2 for name in row[1].split(",") if name}
        for what, wanted, known in (("account", accounts, own), ("QOS", qos, allowed)):
            for name in sorted(wanted - known):
                raise InvalidSpec(
                    f"use the {what}",
                    got=f"{user} has no {what} {name!r}",
                    next_step=f"{nearest(name, known)}; or have it granted to {user} with sacctmgr",
                )
        if not own and "associations" in self._config.get("AccountingStorageEnforce", ""):
            raise InvalidSpec("find an account", got=f"{user} is in no account")
        told = (in_words(sorted(names)) or "none" for names in (own, allowed))
        return _ok("accounts", "{} in {}; QOS {}".format(user, *told))

    def _jobs_are_accepted(self) -> Finding:
        asked = self._submissions()
        own = ("--test-only", "--nodes=1", "--ntasks=1", "--export=ALL", "--output=/dev/null")
        for words in asked[:SUBMISSIONS_MAX]:
            try:
                self._commands.run("sbatch", *own, *words, attempted="try a submission", stdin="#!/bin/sh\n")
            except Refused as error:
                raise InvalidSpec("submit", got=f"with {' '.join(words)}: {error.got}") from error
        return _ok("submitting", f"accepted with {in_words(' '.join(words) for words in asked)}")

    def _submissions(self) -> list[tuple[str, ...]]:
        """Returns what jobs will be submitted with: every partition, every tier's own words, every account."""
        cluster = self._cluster
        time = (f"--time={max(1, round(cluster.time_limit_s / 60))}",) if cluster.time_limit_s else ()
        first = cluster.partitions[0]
        own = cluster.accounts.get(LAB, "")  # Of every team that no other account is named for.
        asked = [(name, own, "") for name in cluster.partitions]
        asked += [(cluster.tier_partitions.get(tier, first), own, qos) for tier, qos in sorted(cluster.qos.items())]
        asked += [(first, account, "") for account in sorted(cluster.accounts.values())]
        return [
            (
                f"--partition={partition}",
                *([f"--account={account}"] if account else []),
                *([f"--qos={qos}"] if qos else []),
                *time,
            )
            for partition, account, qos in dict.fromkeys(asked)
        ]

    # ---------------------------------------------------------------- files and the test job

    def _folder_is_usable(self) -> Finding:
        path = Path(self._cluster.shared)
        made = False
        if not path.exists() and path.parent.is_dir():
            path.mkdir(mode=0o700)
            made = True
        if not path.is_dir():
            raise InvalidSpec(
                "use the shared folder",
                got="a file" if path.exists() else "no such folder, nor the one above it",
                on=str(path),
                next_step=f"mkdir -p -m 700 {path}",
            )
        about = path.stat()
        if about.st_uid != os.getuid() or stat.S_IMODE(about.st_mode) & 0o077:
            owner, mode = about.st_uid, stat.S_IMODE(about.st_mode)
            raise InvalidSpec(
                "use the shared folder",
                got=f"{path} belongs to user {owner}, mode {mode:o}: others could read secrets of jobs there",
                next_step=f"chmod 700 {path}" if owner == os.getuid() else "name a folder of this account's own",
            )
        if not os.access(path, os.W_OK | os.X_OK):
            raise InvalidSpec("use the shared folder", got=f"{path} cannot be written")
        free = shutil.disk_usage(path).free
        found = f"{path}{' (made now)' if made else ''}, {free / 1e9:.1f} GB free"
        if free < SHARED_BYTES_MIN:
            return Finding(
                name="shared folder",
                standing=CheckResult.WARNING,
                found=found,
                fix="make room: output of jobs is kept there",
            )
        return _ok("shared folder", found)

    def _job_runs(self) -> Finding:
        self._trial = trial = self._job.run(self._submissions()[0])
        if trial.waits:
            return Finding(
                name="test job",
                standing=CheckResult.WARNING,
                found=f"waited {trial.waited_s:.0f} s in Slurm's queue and was taken back: {trial.waits}",
                fix=f"once a node is free: ms cluster check {self._cluster.name}",
            )
        if trial.wrong:
            return Finding(
                name="test job", standing=CheckResult.FAILED, found=f"on {trial.node}: {trial.wrong}", fix=trial.fix
            )
        return _ok("test job", f"ran on {trial.node}, over {trial.waited_s:.1f} s after it was submitted")


def _ok(name: str, found: str) -> Finding:
    return Finding(name=name, standing=CheckResult.OK, found=found)


# What to do where a step failed and the error does not say it.
_FIXES = {
    "commands": "install Slurm's client commands here and put them in PATH, or name the login node with --ssh",
    "version": "have Slurm 22.05 or newer",
    "slurmctld": "see that sinfo works in a shell of this account: SLURM_CONF, munge, slurmctld",
    "partitions": "see what sinfo lists",
    "chips": "see what scontrol show node lists: State, Gres",
    "prices": "--price CHIP=DOLLARS",
    "accounts": "have an operator run: sacctmgr add user ... account=...",
    "submitting": "try the same with sbatch by hand; Slurm's words say which limit or right is missing",
    "shared folder": "name a folder that this account may write, on this machine and on the nodes",
    "test job": "try sbatch by hand",
    "folder on a node": "mount the shared folder on every node",
    "Mainspring on a node": "install the same Mainspring on the nodes and name its interpreter with --python",
    "scratch on a node": "name a folder of the nodes with scratch: in config.yaml",
    "network on a node": "run python -m mainspring probes network there",
    "clocks": "run NTP on this machine and on the nodes",
    "server from a node": "let the nodes reach the server",
}
