"""The Slurm engine: each allocation is one job of Slurm, with one task a node that starts one agent.

All state is in the folder shared with the nodes (see `folder`) and in Slurm, so a new instance, here or on another
machine, sees everything. Nothing is started twice however often a job is submitted: see `script`. There is no thread:
stops are seen through by the next `observe`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from mainspring.domain.errors import Conflict, Unavailable
from mainspring.domain.fleet import AllocationSeen, EndedBefore, Inventory, LaunchOrder, LogChunk, NodeCondition
from mainspring.domain.ids import AllocationId, NodeName
from mainspring.domain.ports import Clock
from mainspring.engines.common.hostlist import compress_hosts
from mainspring.engines.common.kind import JobUsers
from mainspring.engines.common.records import ATTESTATION, Claim
from mainspring.engines.common.work_folder import read_rank
from mainspring.engines.slurm.cluster.commands import Commands, Refused
from mainspring.engines.slurm.cluster.config import SlurmCluster
from mainspring.engines.slurm.cluster.hosts import stands
from mainspring.engines.slurm.cluster.inventory import Ours, SlotHolding, Stock
from mainspring.engines.slurm.cluster.queue import (
    HISTORY_FORMAT,
    NAME,
    QUEUE_FORMAT,
    Stage,
    read_history,
    read_queue,
    stage_of,
)
from mainspring.engines.slurm.cluster.text import node_fields
from mainspring.engines.slurm.jobs.folder import WITHDRAWN, AllocationFiles, Folder, Over, Submitted
from mainspring.engines.slurm.jobs.launching import Launching, Prepared
from mainspring.engines.slurm.jobs.watch import KILL_ASKED, Deeds, Watch, Watched

ENDED_VISIBLE_S = 3_600.0  # The port's promise: a controller that was away learns how an allocation ended.
REFUSAL_PAUSE_S = 60.0  # How long nothing is asked of a partition that refused; longer than a few planning cycles.
JOBS_AT_ONCE_MAX = 500  # Of one command: 5 KB of words.
HOSTS_AT_ONCE_MAX = 4_000  # As many as fit into one word of a command in the worst case, 128 KiB.


class SlurmEngine:
    """The `Engine` port over one Slurm cluster. Several instances may share its folder, also on several machines.

    Args:
        cluster: What the operator says of it.
        agent_command: Program and first words of an agent on its nodes; `--order <path>` is added.
        environment: Every variable an agent gets beside those of its node; Slurm's own commands get a few of them.
        users: Whose ranks run as whom, None where all run under the account that submits them.
    """

    def __init__(
        self,
        cluster: SlurmCluster,
        *,
        agent_command: tuple[str, ...],
        environment: Mapping[str, str],
        clock: Clock,
        users: JobUsers | None = None,
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._folder = Folder(Path(cluster.shared))
        self._commands = Commands(cluster, environment)
        self._stock = Stock(cluster, self._commands, clock)
        self._launching = Launching(
            cluster, self._stock, agent_command=agent_command, environment=environment, users=users
        )
        self._mutex = threading.Lock()  # Over what is remembered; never held while a command runs.
        self._watched: dict[AllocationId, Watched] = {}
        self._looked = False
        self._refused: dict[str, tuple[float, str]] = {}

    def inventory(self) -> Inventory:
        """Returns every node, or slot; see `Engine.inventory`.

        Raises:
            Unavailable: Slurm does not answer, or the folder cannot be used.
        """
        if not self._looked:
            self.observe()  # What others use is what is in use and not ours.
        now_s = self._clock.monotonic_s()
        with self._mutex:
            holdings = tuple(holding for one in self._watched.values() for holding in _holdings(one))
            self._refused = {name: known for name, known in self._refused.items() if known[0] > now_s}
            refusals = {name: words for name, (_, words) in self._refused.items()}
        with self._folder.records.locked("look at a Slurm cluster"):
            cordons = self._folder.records.cordons()
        return self._stock.look(Ours(holdings=holdings, cordons=cordons, refusals=refusals))

    def observe(self) -> tuple[AllocationSeen, ...]:
        """Returns every allocation, and moves those that are being stopped along; see `Engine.observe`.

        Raises:
            Unavailable: Slurm does not answer, or the folder cannot be used.
        """
        attempted = "observe a Slurm cluster"
        words = ("squeue", "--noheader", "--me", "--states=all", f"--format={QUEUE_FORMAT}")
        asked_s = self._clock.monotonic_s()
        watch = Watch(
            self._cluster,
            self._folder.records,
            read_queue(self._commands.run(*words, attempted=attempted)),
            asked_s=asked_s,
            now_s=self._clock.now_s(),
            monotonic_s=self._clock.monotonic_s(),
        )
        with _as_unavailable(attempted, self._cluster.shared), self._mutex:
            known = [one for name in self._folder.allocations() if (one := self._watch_over(name)) is not None]
            self._watched = {one.allocation: one for one in known}
            seen = [watch.see(one) for one in known if one.claim.nodes]
            old = [one for one in known if self._is_old(one)]
        self._write_down(watch.deeds, old, attempted)
        self._tell(watch.deeds, attempted)
        self._ask(watch.deeds, attempted)
        self._looked = True
        put_away = {one.allocation for one in old}
        return tuple(each for each in seen if each is not None and each.allocation not in put_away)

    def launch(self, order: LaunchOrder) -> None:
        """Submits a job that starts one agent on each node of the order; see `Engine.launch`.

        A job's start takes as long as Slurm takes: seconds on nodes that are free.

        Raises:
            NotFound: A node of the order does not exist here.
            NotAllowed: Its team has no user for its ranks to run as.
            Unavailable: Slurm does not answer, or the folder cannot be used; what was submitted starts once at most.
        """
        attempted = f"launch {order.allocation}"
        place = self._folder.place(order.allocation)
        with _as_unavailable(attempted, self._cluster.shared):
            known = place.names()
        if known & {"begun", "ended.json", "job.json"}:
            return
        prepared = self._launching.prepare(order, str(place.path), now_s=self._clock.now_s())
        with self._folder.records.locked(attempted):
            fresh = self._folder.claim(order.allocation, Claim(nodes=order.nodes, job_id=order.job_id))
            if not self._lay_out(place, prepared):
                return
            if order.attestation:
                self._folder.records.write(place.path / ATTESTATION, order.attestation)
        found = () if fresh else self._find(order.allocation, attempted)
        try:
            number = found[0] if found else self._submit(prepared, attempted)
        except Refused as error:
            self._refuse(place, prepared, error)
            return
        with self._folder.records.locked(attempted):
            self._folder.records.write(place.path / "job.json", Submitted(number=number, at_s=self._clock.now_s()))

    def stop(self, allocation: AllocationId, *, grace_s: float) -> None:
        """Asks the allocation's agents to end; see `Engine.stop`. What has not begun never will.

        Args:
            grace_s: Seconds from now after which the next `observe` ends them by force.

        Raises:
            Unavailable: The folder cannot be used.
        """
        attempted = f"stop {allocation}"
        with self._folder.records.locked(attempted):
            self._folder.claim(allocation, Claim(nodes=()))
            place = self._folder.place(allocation)
            claim = self._folder.records.read(Claim, place.path / "claim.json")
            if claim is None or not claim.nodes or "ended.json" in place.names():
                return
            word = place.text("word")
            if self._hurry(allocation, claim, grace_s) and not word.startswith("kill"):
                place.tell(f"stop {grace_s:g}" if grace_s > 0 else KILL_ASKED)
            if withdrawn := place.begin(WITHDRAWN):
                over = Over(
                    ended_s=self._clock.now_s(), exit_code=None, reason="stopped before it began", agent_lost=False
                )
                self._folder.records.write(place.path / "ended.json", over)
                place.tidy()
            submitted = self._folder.records.read(Submitted, place.path / "job.json")
            begun = place.text("begun")
        number = int(begun) if begun.isdigit() else submitted.number if submitted else None
        if number is not None:
            # The word is written; a task reads it unasked, too, and what waits is cancelled by the next look.
            with suppress(Refused, Unavailable):
                words = () if withdrawn else ("--signal=URG",)
                name = f"--name={NAME}{allocation}"  # Its number may be another's by now; see `watch`.
                self._commands.run("scancel", *words, name, str(number), attempted=attempted)

    def logs(self, allocation: AllocationId, *, rank: int, since: int, limit: int) -> LogChunk:
        """Returns a piece of one rank's output, at most a MiB, from the shared folder; see `Engine.logs`.

        Args:
            rank: The rank's number in its attempt.
            since: Byte to start from.
            limit: How many bytes at most.

        Raises:
            NotFound: No such allocation, or that rank wrote nothing yet.
            InvalidInput: `since` or `limit` is out of its range.
            Unavailable: The folder cannot be used.
        """
        with _as_unavailable("read a log", self._cluster.shared):
            return read_rank(self._folder.place(allocation).log(rank), allocation, rank=rank, since=since, limit=limit)

    def forget_ended(self, due: EndedBefore) -> int:
        """Removes folders of allocations that ended before a time, and over an hour ago; see `Forgetting.forget_ended`.

        Args:
            due: Which of them; by this machine's clock.

        Raises:
            Unavailable: The folder cannot be used.
        """
        with _as_unavailable("forget allocations", self._cluster.shared):
            return self._folder.forget_ended(due)

    def attestation(self, allocation: AllocationId) -> str:
        """Returns what came with an allocation's order; see `Engine.attestation`.

        Raises:
            NotFound: There is no such allocation, it is over, or nothing came with its order.
            Unavailable: The folder cannot be used.
        """
        with _as_unavailable("know an allocation again", self._cluster.shared):
            return self._folder.records.attestation(self._folder.place(allocation).path)

    def cordon(self, node: NodeName, *, owner: str, reason: str) -> None:
        """Keeps our new allocations off a node; Slurm is not told. See `Engine.cordon`.

        Raises:
            NotFound: No such node.
            Conflict: Another owner has cordoned it, or the cluster is delegated.
            Unavailable: Slurm does not answer, or the folder cannot be used.
        """
        self._check_node(node, "cordon a node")
        self._folder.records.cordon(node, owner=owner, reason=reason)

    def uncordon(self, node: NodeName, *, owner: str) -> None:
        """Takes back our own cordon, never a drain by the cluster's operators; see `Engine.uncordon`.

        Raises:
            NotFound: No such node.
            Conflict: The cordon belongs to another owner, or the cluster is delegated.
            Unavailable: Slurm does not answer, or the folder cannot be used.
        """
        self._check_node(node, "uncordon a node")
        self._folder.records.uncordon(node, owner=owner)

    # ------------------------------------------------------------ cordons

    def _check_node(self, node: NodeName, attempted: str) -> None:
        self._stock.machine(node)
        if self._cluster.delegated:
            raise Conflict(
                attempted, on=node, got="a slot, which is no machine in particular", wanted="a node of a pinned cluster"
            )

    # ------------------------------------------------------------ launching

    def _lay_out(self, place: AllocationFiles, prepared: Prepared) -> bool:
        """Writes what a job needs into the folder; returns whether one is wanted still. The lock must be held."""
        claim = self._folder.records.read(Claim, place.path / "claim.json")
        names = place.names()
        if claim is None or not claim.nodes or names & {"begun", "ended.json", "job.json"}:
            return False
        (place.path / "over").mkdir(mode=0o700, exist_ok=True)
        for name, text in prepared.files.items():
            place.put(name, text)
        self._folder.records.write(place.path / "asked.json", prepared.asked)
        if "word" not in names:
            place.tell("")
        return True

    def _find(self, allocation: AllocationId, attempted: str) -> tuple[int, ...]:
        """Returns the jobs that were submitted for an allocation and may begin, though nobody wrote that down."""
        words = ("squeue", "--noheader", "--me", "--states=all", f"--name={NAME}{allocation}")
        queue = read_queue(self._commands.run(*words, f"--format={QUEUE_FORMAT}", attempted=attempted))
        jobs = queue.by_allocation.get(allocation, ())
        return tuple(job.number for job in jobs if job.stage is not Stage.OVER)

    def _submit(self, prepared: Prepared, attempted: str) -> int:
        answer = self._commands.run(*prepared.words, attempted=attempted, stdin=prepared.script)
        number = answer.strip().rpartition("\n")[2].partition(";")[0]
        if not number.isdigit():
            raise Unavailable(attempted, on="sbatch", got=repr(answer[-80:]), wanted="the number of a job")
        return int(number)

    def _refuse(self, place: AllocationFiles, prepared: Prepared, error: Refused) -> None:
        """Writes down that Slurm will not have it, unless another controller's job has begun meanwhile."""
        until_s = self._clock.monotonic_s() + REFUSAL_PAUSE_S
        with self._mutex:
            self._refused |= dict.fromkeys(prepared.asked.partitions, (until_s, error.got))
        over = Over(
            ended_s=self._clock.now_s(),
            exit_code=None,
            reason=f"Slurm refused it: {error.got}",
            agent_lost=False,
            taken=True,
        )
        with self._folder.records.locked(error.attempted):
            if place.begin(WITHDRAWN):
                self._folder.records.write(place.path / "ended.json", over)

    # ------------------------------------------------------------ watching

    def _watch_over(self, name: AllocationId) -> Watched | None:
        """Returns what is remembered of an allocation, None of what is none; the mutex must be held."""
        known = self._watched.get(name)
        if known is not None and known.claim.nodes:
            return known
        place = self._folder.place(name)
        claim = self._folder.records.read(Claim, place.path / "claim.json")
        return None if claim is None else Watched(allocation=name, place=place, claim=claim)

    def _is_old(self, one: Watched) -> bool:
        return not one.claim.nodes if one.over is None else self._clock.now_s() - one.over.ended_s >= ENDED_VISIBLE_S

    def _hurry(self, allocation: AllocationId, claim: Claim, grace_s: float) -> bool:
        """Remembers until when an allocation's agents have; returns whether that is sooner than before."""
        by_s = self._clock.monotonic_s() + grace_s
        with self._mutex:
            one = self._watched.setdefault(
                allocation, Watched(allocation=allocation, place=self._folder.place(allocation), claim=claim)
            )
            if one.kill_at_s is not None and one.kill_at_s <= by_s:
                return False
            one.kill_at_s = by_s
        return True

    def _write_down(self, deeds: Deeds, old: list[Watched], attempted: str) -> None:
        if not (deeds.words or deeds.withdraw or deeds.end or old):
            return
        with self._folder.records.locked(attempted):
            for one, word in deeds.words:
                one.place.tell(word)
            ended = [(one, over) for one, over in deeds.withdraw if one.place.begin(WITHDRAWN)] + deeds.end
            for one, over in ended:
                if "ended.json" not in one.place.names():  # Else another controller's word holds.
                    self._folder.records.write(one.place.path / "ended.json", over)
                one.place.tidy()
            for one in old:
                self._folder.put_away(one.allocation)

    def _tell(self, deeds: Deeds, attempted: str) -> None:
        """Tells Slurm what a look found to be done. What fails is found again by the next look."""
        for words, numbers in (
            ((), deeds.cancel),
            (("--signal=URG",), deeds.urge),
            (("--signal=KILL",), [f"{number}.0" for number in deeds.kill]),
            ((), deeds.kill),
        ):
            for begin in range(0, len(numbers), JOBS_AT_ONCE_MAX):
                some = map(str, numbers[begin : begin + JOBS_AT_ONCE_MAX])
                with suppress(Unavailable, Refused):
                    self._commands.run("scancel", *words, *some, attempted=attempted)

    def _ask(self, deeds: Deeds, attempted: str) -> None:
        """Asks Slurm what the next look needs: how jobs ended that its queue forgot, and whether nodes answer."""
        numbers = {one.number: one for one in deeds.look_up if one.number is not None}
        if numbers:
            some = ",".join(map(str, list(numbers)[:JOBS_AT_ONCE_MAX]))
            words = ("sacct", "-nPX", f"--format={HISTORY_FORMAT}", f"--jobs={some}")
            with suppress(Unavailable, Refused):  # Without accounting nobody knows; time tells then.
                states = read_history(self._commands.run(*words, attempted=attempted))
                with self._mutex:
                    for number, one in numbers.items():
                        if stage_of(states.get(number, "RUNNING")) is Stage.OVER:
                            one.state = states[number]
        hosts = sorted({host for one in deeds.ask_nodes for host in one.machines})
        if hosts:
            shown = compress_hosts(hosts[:HOSTS_AT_ONCE_MAX])
            with suppress(Unavailable, Refused):
                lines = self._commands.run(
                    "scontrol", "--oneliner", "show", "node", shown, attempted=attempted
                ).splitlines()
                answering = {row.get("NodeName") for row in map(node_fields, lines) if _answers(row.get("State", ""))}
                with self._mutex:
                    for one in deeds.ask_nodes:
                        one.absent = frozenset(one.machines) - answering
                        one.answered = bool(one.machines) and not one.absent


def _answers(state: str) -> bool:
    return stands(state).condition is not NodeCondition.DOWN


def _holdings(one: Watched) -> Iterable[SlotHolding]:
    """Yields what an allocation that has not ended holds, or waits for in Slurm's queue."""
    if one.asked is None or one.over is not None:
        return
    hosts = one.machines if one.holds else ()
    for index, node in enumerate(one.claim.nodes):
        yield SlotHolding(
            node=node,
            host=hosts[index] if hosts else "",
            chips=one.asked.chips[index],
            cpus=one.asked.cpus[index],
            memory_mib=one.asked.memory_mib[index],
        )


@contextmanager
def _as_unavailable(attempted: str, folder: str) -> Iterator[None]:
    """Turns trouble with the shared folder into what callers know."""
    try:
        yield
    except OSError as error:
        raise Unavailable(attempted, on=folder, got=str(error), next_step="look at that folder") from error
