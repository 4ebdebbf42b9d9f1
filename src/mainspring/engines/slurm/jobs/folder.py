"""The folder shared with the nodes: what is remembered of each allocation, and what its script and agents leave there.

<shared>/.lock, .cordons.json           as in `engines.records`; the lock is never held while a command of Slurm runs
<shared>/.ended/<allocation>/           allocations that ended over an hour ago, so that a look need not pass them
<shared>/.ended/.gone-<allocation>/     what is left of one that is forgotten
<shared>/<allocation>/claim.json        there as soon as the folder is: the id can never be launched again
                      asked.json        what was asked of Slurm, node by node
                      orders.jsonl      an `AgentOrder` a line, in task order
                      agents            "<index> <host>" a line, in the same order; "-" where Slurm decides
                      environment       the agents' variables, as a shell reads them
                      attestation.json  what came with its order, until all is over
                      job.json          Slurm's id of its job, once known
                      begun             whoever creates it decides: a job that is to run (its id), or a withdrawal
                      hosts             Slurm's list of the nodes of each of the job's components, a line each
                      word              "", then "stop <seconds>", then "kill <why>": what the agents are to do
                      over/<i>.<code>   agent i is gone, with this exit code
                      over/taken        what Slurm said when it asked the agents to end
                      node-<i>/         agent i's report folder: agent.log, rank-<rank>.log, grace, exit.json
                      slurm.log         what the script and srun wrote
                      ended.json        how it ended
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mainspring.domain.codec import decode
from mainspring.domain.errors import InvalidInput, InvalidMessage
from mainspring.domain.fleet import AgentExit, EndedBefore
from mainspring.domain.ids import AllocationId, NodeName, checked_name
from mainspring.engines.common.records import ATTESTATION, Claim, Records

WITHDRAWN = "withdrawn"
ENDED = ".ended"
TAIL_BYTES = 2_000  # Slurm's last words are a line or two.
SMALL_BYTES_MAX = 1 << 20  # Lists of 10,000 hosts.
NO_NEWS = "lacks support for cpu binding"  # Where cores are not bound, srun says so of every step that asks for none.
SIGNALLED = 128  # What a shell adds to the number of a signal.


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What was asked of Slurm, in rank order.

    Args:
        partitions: The partition of each node.
        hosts: Slurm's name of each node; "" where Slurm decides.
        tasks: The place of each task, in task order.
    """

    partitions: tuple[str, ...]
    hosts: tuple[str, ...]
    chips: tuple[int, ...]
    cpus: tuple[int, ...]
    memory_mib: tuple[int, ...]
    tasks: tuple[int, ...]
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """Slurm's id of an allocation's job, and when it was given."""

    number: int
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Over:
    """How an allocation ended, and when that was seen; see `AllocationSeen`."""

    ended_s: float
    exit_code: int | None
    reason: str
    agent_lost: bool
    lost_nodes: tuple[NodeName, ...] = ()
    taken: bool = False
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    """What agents left as they ended.

    Args:
        codes: Their exit codes by index; of one that a signal ended, less than zero.
        taken: Slurm's words, where it asked them to end; "" where it did not.
    """

    codes: Mapping[int, int]
    taken: str


class AllocationFiles:
    """One allocation's folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def names(self) -> frozenset[str]:
        """Returns what is in it; nothing when it is not there (or no longer)."""
        with suppress(FileNotFoundError, NotADirectoryError):
            return frozenset(os.listdir(self.path))
        return frozenset()

    def text(self, name: str) -> str:
        """Returns what a small file holds; "" when it is not there."""
        with suppress(FileNotFoundError), (self.path / name).open("rb") as file:
            return file.read(SMALL_BYTES_MAX).decode(errors="replace").strip()
        return ""

    def put(self, name: str, text: str) -> None:
        """Writes a file, whole or not at all, readable by its owner alone. The lock must be held."""
        draft = self.path / f".{name}"
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.rename(self.path / name)

    def begin(self, who: str) -> bool:
        """Decides that no job of this allocation shall begin; returns False when one has, or it was decided before.

        Args:
            who: What to write there.
        """
        try:
            descriptor = os.open(self.path / "begun", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return False
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(who)
        return True

    def tell(self, word: str) -> None:
        """Tells the agents what to do, in place: the file is always there, and read by whoever opens it as it is then.

        Args:
            word: "", "stop <seconds>" or "kill".
        """
        with open(
            os.open(self.path / "word", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8"
        ) as file:
            file.write(f"{word}\n")
            file.flush()
            os.fsync(file.fileno())

    def gone(self, *, surely: bool) -> Gone:
        """Returns what agents left as they ended.

        Args:
            surely: Whether to make a file system of a network forget what it knew.
        """
        codes: dict[int, int] = {}
        taken = ""
        folder = self.path / "over"
        with suppress(FileNotFoundError):
            if surely:
                (folder / ".look").touch()
                (folder / ".look").unlink(missing_ok=True)
            for name in sorted(os.listdir(folder)):
                index, _, code = name.partition(".")
                if index.isdigit() and code.isdigit():
                    codes[int(index)] = int(code) if int(code) <= SIGNALLED else SIGNALLED - int(code)
                taken = taken or (self.text("over/taken") if name == "taken" else "")
        return Gone(codes=dict(sorted(codes.items())), taken=taken)

    def last_words(self, index: int) -> AgentExit | None:
        """Returns what an agent said as its last act; None when it said nothing."""
        with suppress(FileNotFoundError, InvalidMessage):
            return decode(AgentExit, (self.path / f"node-{index}" / "exit.json").read_bytes())
        return None

    def tidy(self) -> None:
        """Deletes what no agent reads any more: the token, and variables that may hold other secrets."""
        for name in ("orders.jsonl", "agents", "environment", ATTESTATION):
            (self.path / name).unlink(missing_ok=True)

    def log(self, rank: int) -> Path | None:
        """Returns the newest part of a rank's output; None when there is none."""
        return next(iter(sorted(self.path.glob(f"node-*/rank-{rank}.log"))), None)

    def log_tail(self) -> str:
        """Returns the last line that Slurm or the script wrote; "" when there is none."""
        with suppress(FileNotFoundError), (self.path / "slurm.log").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            lines = file.read(TAIL_BYTES).decode(errors="replace").split("\n")
            said = (line.strip() for line in reversed(lines) if NO_NEWS not in line)
            return next((line for line in said if line), "")
        return ""


class Folder:
    """The shared folder of one cluster. Safe to use from several processes, machines and threads at once.

    Args:
        root: Where it is; made when missing, its owner's alone.
    """

    def __init__(self, root: Path) -> None:
        self.records = Records(root)

    def allocations(self) -> tuple[AllocationId, ...]:
        """Returns the ids of those that did not end long ago, in order; whatever else lies there is passed over."""
        found = []
        for name in self.records.allocations():
            with suppress(InvalidInput):
                found.append(AllocationId(checked_name(name, "allocation")))
        return tuple(found)

    def place(self, allocation: AllocationId) -> AllocationFiles:
        """Returns an allocation's folder, whether or not it is there.

        Raises:
            InvalidInput: The id is not one that could name a folder.
        """
        path = self.records.folder(allocation)
        old = self.records.root / ENDED / allocation
        return AllocationFiles(old if not path.exists() and old.exists() else path)

    def claim(self, allocation: AllocationId, claim: Claim) -> bool:
        """Takes an id for good; returns whether it was still free. The lock must be held."""
        if not self.records.folder(allocation).exists() and (self.records.root / ENDED / allocation).exists():
            return False
        return self.records.claim(allocation, claim)

    def forget_ended(self, due: EndedBefore) -> int:
        """Removes allocations that ended before a time, of those that were put away; see `Forgetting.forget_ended`."""
        return self.records.forget_ended(due, below=ENDED)

    def put_away(self, allocation: AllocationId) -> None:
        """Moves an allocation that ended long ago out of the way. The lock must be held."""
        (self.records.root / ENDED).mkdir(mode=0o700, exist_ok=True)
        with suppress(FileNotFoundError):
            self.records.folder(allocation).rename(self.records.root / ENDED / checked_name(allocation, "allocation"))
