"""The local engine: pretends to be one cluster of any chips, and starts one real agent process a node.

Agents live in sessions of their own and outlive the controller. A launch happens in one instant: every agent is started
behind a gate (one that was ready is there already), all their process numbers are written to one file, and only that
file opens the gate; a controller that dies before leaves gates that close by themselves, so nothing runs. Stopping has
no thread: `stop` sends SIGTERM, and the first `stop` or `observe` after the grace sends SIGKILL to the agent's session
and descendants.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mainspring.domain.codec import decode
from mainspring.domain.errors import DamagedData, InvalidMessage, NotFound, nearest
from mainspring.domain.fleet import (
    AgentExit,
    AgentOrder,
    AllocationPhase,
    AllocationSeen,
    EndedBefore,
    Inventory,
    LaunchOrder,
    LogChunk,
    Node,
    NodeCondition,
)
from mainspring.domain.ids import AllocationId, NodeName
from mainspring.domain.ports import Clock
from mainspring.engines.common.kind import JobUsers
from mainspring.engines.common.processes import Process, alive, ask_to_end, identify, kill_all
from mainspring.engines.common.records import ATTESTATION, Claim, Ended, Launched, Records, StopAsked
from mainspring.engines.common.users import remove_of
from mainspring.engines.common.work_folder import read_rank, tidy
from mainspring.engines.local.config import LocalCluster
from mainspring.engines.local.ready import ReadyAgent

ENDED_VISIBLE_S = 3_600.0  # The port's promise: a controller that was away learns how an allocation ended.
# Waits for the launcher to let go of the pipe, then goes on only if the launch was recorded.
_GATE = 'read -r _; [ -e "$1" ] || exit 1; shift; exec "$@" </dev/null'


@dataclass(frozen=True, slots=True, kw_only=True)
class _AgentState:
    """One agent as found: its last words once it is gone, `exit_code` None when it left none."""

    alive: bool
    exit_code: int | None = None
    reason: str = ""

    @property
    def lost(self) -> bool:
        """Returns whether it is gone, and did not end well."""
        return not self.alive and self.exit_code != 0


class LocalEngine:
    """The `Engine` port over processes of this Linux machine. Several instances may share a folder.

    Args:
        root: Folder of this cluster alone; what is in it outlives the engine.
        agent_command: Program and first words of an agent; `--order <path>` is added.
        ready_command: The same of one that is told its order later; see `ReadyAgent`.
        environment: Every variable an agent gets.
        users: Whose ranks run as whom, None where all run under the account of their agents.
    """

    def __init__(
        self,
        cluster: LocalCluster,
        *,
        root: Path,
        agent_command: tuple[str, ...],
        ready_command: tuple[str, ...] = (),
        environment: Mapping[str, str],
        clock: Clock,
        users: JobUsers | None = None,
    ) -> None:
        self._users = users
        self._cluster = cluster
        self._names = cluster.node_names
        self._records = Records(root)
        self._agent_command = agent_command
        self._environment = dict(environment)
        self._clock = clock
        self._ready = ReadyAgent(ready_command, self._environment, clock)
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._kill_at_s: dict[AllocationId, float] = {}
        self._forgotten: set[AllocationId] = set()

    def inventory(self) -> Inventory:
        """Returns every pretended node; see `Engine.inventory`."""
        cluster = self._cluster
        cordons = self._records.cordons()
        width = len(str(max(cluster.racks - 1, 0)))
        nodes = []
        for index, name in enumerate(self._names):
            cordon = cordons.get(name)
            rack = f"rack-{index * cluster.racks // cluster.nodes:0{width}}"
            nodes.append(
                Node(
                    name=name,
                    chip=cluster.chip,
                    chips=cluster.chips_per_node,
                    domains=(("rack", rack),) if cluster.racks else (),
                    condition=NodeCondition.CORDONED if cordon else NodeCondition.READY,
                    condition_owner=cordon.owner if cordon else "",
                    condition_reason=cordon.reason if cordon else "",
                    cpus=cluster.cpus_per_node,
                    memory_gib=cluster.memory_gib_per_node,
                    chip_memory_gib=cluster.chip_memory_gib,
                )
            )
        return Inventory(
            cluster=cluster.name,
            engine="local",
            simulated=cluster.simulated,
            dollars_per_chip_hour={cluster.chip: cluster.dollars_per_chip_hour},
            nodes=tuple(nodes),
        )

    def observe(self) -> tuple[AllocationSeen, ...]:
        """Returns every allocation, and moves those that are being stopped along; see `Engine.observe`.

        Raises:
            Unavailable: The folder cannot be used.
        """
        with self._records.locked("observe a local cluster"):
            seen = [self._see(name) for name in self._records.allocations() if name not in self._forgotten]
            self._ready.keep()
        return tuple(allocation for allocation in seen if allocation)

    def launch(self, order: LaunchOrder) -> None:
        """Starts one agent on each node of the order; see `Engine.launch`.

        Raises:
            NotFound: A node of the order does not exist here.
            NotAllowed: Its team has no user for its ranks to run as.
            Unavailable: An agent could not be started; none was, and none will be for this allocation.
        """
        for node in order.nodes:
            self._check_node(node, "launch an allocation")
        self._user(order)
        with self._records.locked(f"launch {order.allocation}"):
            if self._records.claim(order.allocation, Claim(nodes=order.nodes, job_id=order.job_id)):
                if order.attestation:
                    self._records.write(self._records.folder(order.allocation) / ATTESTATION, order.attestation)
                self._spawn(order)

    def stop(self, allocation: AllocationId, *, grace_s: float) -> None:
        """Asks the allocation's agents to end; see `Engine.stop`.

        Args:
            grace_s: Seconds from now after which the next `stop` or `observe` ends them by force.

        Raises:
            Unavailable: The folder cannot be used.
        """
        folder = self._records.folder(allocation)
        with self._records.locked(f"stop {allocation}"):
            self._records.claim(allocation, Claim(nodes=()))
            if self._records.read(Ended, folder / "ended.json"):
                return
            if self._records.read(StopAsked, folder / "stop.json") is None:
                self._records.write(folder / "stop.json", StopAsked(grace_s=grace_s))
            launched = self._records.read(Launched, folder / "launched.json")
            if launched:
                self._press(allocation, launched, grace_s)

    def logs(self, allocation: AllocationId, *, rank: int, since: int, limit: int) -> LogChunk:
        """Returns a piece of one rank's output, at most `LOG_BYTES_MAX`; see `Engine.logs`.

        Args:
            rank: The rank's number in its attempt.
            since: Byte to start from.
            limit: How many bytes at most.

        Raises:
            NotFound: No such allocation, or that rank wrote nothing yet.
            InvalidInput: `since` or `limit` is out of its range.
        """
        found = sorted(self._records.folder(allocation).glob(f"node-*/rank-{rank}.log"))
        return read_rank(found[0] if found else None, allocation, rank=rank, since=since, limit=limit)

    def forget_ended(self, due: EndedBefore) -> int:
        """Removes folders of allocations that ended before a time; see `Forgetting.forget_ended`.

        Args:
            due: Which of them; by this machine's clock.

        Raises:
            Unavailable: The folder cannot be used.
        """
        return self._records.forget_ended(due)

    def attestation(self, allocation: AllocationId) -> str:
        """Returns what came with an allocation's order; see `Engine.attestation`.

        Raises:
            NotFound: There is no such allocation, it is over, or nothing came with its order.
        """
        return self._records.attestation(self._records.folder(allocation))

    def cordon(self, node: NodeName, *, owner: str, reason: str) -> None:
        """Keeps new allocations off a node; see `Engine.cordon`.

        Raises:
            NotFound: No such node.
            Conflict: Another owner has cordoned it.
        """
        self._check_node(node, "cordon a node")
        self._records.cordon(node, owner=owner, reason=reason)

    def uncordon(self, node: NodeName, *, owner: str) -> None:
        """Takes back our own cordon; see `Engine.uncordon`.

        Raises:
            NotFound: No such node.
            Conflict: The cordon belongs to another owner.
        """
        self._check_node(node, "uncordon a node")
        self._records.uncordon(node, owner=owner)

    def _check_node(self, node: NodeName, attempted: str) -> None:
        if node not in self._names:
            raise NotFound(attempted, on=self._cluster.name, got=node, wanted=nearest(node, self._names))

    def _user(self, order: LaunchOrder) -> str:
        """Returns the user that ranks run as, "" for their agents' own."""
        return self._users.of(order) if self._users is not None else ""

    def _shared_dir(self, order: LaunchOrder, index: int) -> str:
        if self._users is None:
            return ""
        assert self._users.folder is not None
        return str(self._users.folder / self._users.folder_name(order, index, where=str(self._records.root)))

    def _spawn(self, order: LaunchOrder) -> None:
        folder = self._records.folder(order.allocation)
        gate, opener = os.pipe()
        begun: list[subprocess.Popen[bytes]] = []
        try:
            for index in range(len(order.nodes)):
                begun.append(self._begin_agent(order, index, folder, gate))
            self._records.write(
                folder / "launched.json", Launched(agents=tuple(identify(child.pid) for child in begun))
            )
        except OSError:
            for child in begun:
                child.kill()
                child.wait()
            raise
        finally:
            os.close(opener)
            os.close(gate)
            for child in begun:
                if child.stdin is not None:
                    child.stdin.close()
        self._children |= {child.pid: child for child in begun}

    def _begin_agent(self, order: LaunchOrder, index: int, folder: Path, gate: int) -> subprocess.Popen[bytes]:
        work_dir = folder / f"node-{index}"
        work_dir.mkdir(mode=0o700)
        agent_order = AgentOrder(
            allocation=order.allocation,
            attempt=order.attempt,
            role=order.role,
            node=order.nodes[index],
            index=index,
            chip_milli=order.chip_milli[index],
            controller=order.controller,
            controllers_beside=order.controllers_beside,
            job_id=order.job_id,
            log_form=order.log_form,
            token=order.token,
            work_dir=str(work_dir),
            run_as=self._user(order),
            shared_dir=self._shared_dir(order, index),
        )
        self._records.write(work_dir / "order.json", agent_order)
        launched = folder / "launched.json"
        if ready := self._ready.take(work_dir / "order.json", launched):
            return ready
        gate_words = ("/bin/sh", "-c", _GATE, "agent", str(launched))
        with (work_dir / "agent.log").open("ab") as log:
            return subprocess.Popen(
                (*gate_words, *self._agent_command, "--order", str(work_dir / "order.json")),
                stdin=gate,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=work_dir,
                env=self._environment,
                start_new_session=True,
            )

    def _see(self, allocation: AllocationId) -> AllocationSeen | None:
        folder = self._records.folder(allocation)
        claim = self._records.read(Claim, folder / "claim.json") or Claim(nodes=())
        ended = self._records.read(Ended, folder / "ended.json")
        if not claim.nodes or (ended and self._clock.now_s() - ended.ended_s >= ENDED_VISIBLE_S):
            self._forgotten.add(allocation)
            return None
        if ended is None:
            launched = self._records.read(Launched, folder / "launched.json")
            agents = [
                self._agent(folder, index, agent) for index, agent in enumerate(launched.agents if launched else ())
            ]
            if launched and any(agent.alive for agent in agents):
                stop = self._records.read(StopAsked, folder / "stop.json")
                if stop:
                    self._press(allocation, launched, stop.grace_s)
                return AllocationSeen(
                    allocation=allocation,
                    phase=AllocationPhase.STOPPING if stop else AllocationPhase.RUNNING,
                    nodes=claim.nodes,
                    reason=_last_words(claim, agents),
                    agent_lost=any(agent.lost for agent in agents),
                    lost_nodes=_lost_nodes(claim, agents),
                    job_id=claim.job_id,
                )
            ended = self._end(allocation, claim, launched, agents)
        return AllocationSeen(
            allocation=allocation,
            phase=AllocationPhase.ENDED,
            nodes=claim.nodes,
            exit_code=ended.exit_code,
            reason=ended.reason,
            agent_lost=ended.exit_code != 0,
            lost_nodes=ended.lost_nodes,
            job_id=claim.job_id,
        )

    def _end(
        self, allocation: AllocationId, claim: Claim, launched: Launched | None, agents: list[_AgentState]
    ) -> Ended:
        """Writes down that an allocation is over, and ends what its agents may have left in their sessions."""
        if launched is None:
            ended = Ended(
                exit_code=None, reason="the launch was cut short; nothing was started", ended_s=self._clock.now_s()
            )
        else:
            kill_all(launched.agents)
            codes = [agent.exit_code for agent in agents]
            failed = next((code for code in codes if code), None)
            unknown = any(code is None for code in codes)
            ended = Ended(
                exit_code=None if failed is None and unknown else failed or 0,
                reason=_last_words(claim, agents),
                ended_s=self._clock.now_s(),
                lost_nodes=_lost_nodes(claim, agents),
            )
            for index, agent in enumerate(launched.agents):
                self._children.pop(agent.pid, None)
                self._tidy(self._records.folder(allocation) / f"node-{index}")
        (self._records.folder(allocation) / ATTESTATION).unlink(missing_ok=True)
        self._records.write(self._records.folder(allocation) / "ended.json", ended)
        self._kill_at_s.pop(allocation, None)
        return ended

    def _tidy(self, work: Path) -> None:
        with suppress(DamagedData):
            order = self._records.read(AgentOrder, work / "order.json")
            if order is not None and order.shared_dir:
                remove_of(order.run_as, Path(order.shared_dir))
        tidy(work)

    def _press(self, allocation: AllocationId, launched: Launched, grace_s: float) -> None:
        """Sends SIGTERM the first time this instance is asked, SIGKILL once the shortest grace asked for is over."""
        now_s = self._clock.monotonic_s()
        known_s = self._kill_at_s.get(allocation)
        self._kill_at_s[allocation] = now_s + grace_s if known_s is None else min(known_s, now_s + grace_s)
        if known_s is None:
            for index, agent in enumerate(launched.agents):
                self._tell_grace(allocation, index, grace_s)
                ask_to_end(agent)
        if now_s >= self._kill_at_s[allocation]:
            kill_all(launched.agents)

    def _tell_grace(self, allocation: AllocationId, index: int, grace_s: float) -> None:
        """Writes how long an agent has, whole or not at all: it reads that once it is asked to end."""
        work_dir = self._records.folder(allocation) / f"node-{index}"
        draft = work_dir / ".grace"
        with suppress(OSError):  # An agent that finds none takes the usual grace; it must be asked all the same.
            draft.write_text(f"{grace_s:g}")
            draft.rename(work_dir / "grace")

    def _agent(self, folder: Path, index: int, agent: Process) -> _AgentState:
        if alive(agent):
            return _AgentState(alive=True)
        child = self._children.get(agent.pid)
        code = child.poll() if child else None
        with suppress(FileNotFoundError, InvalidMessage):
            words = decode(AgentExit, (folder / f"node-{index}" / "exit.json").read_bytes())
            return _AgentState(alive=False, exit_code=words.exit_code, reason=words.reason)
        if code is None:
            return _AgentState(alive=False, reason="ended unseen, without a last word")
        ended = f"was ended by signal {-code}" if code < 0 else f"exited with code {code}"
        return _AgentState(alive=False, exit_code=code, reason=f"{ended}, without a last word")


def _lost_nodes(claim: Claim, agents: list[_AgentState]) -> tuple[NodeName, ...]:
    return tuple(node for node, agent in zip(claim.nodes, agents, strict=False) if agent.lost)


def _last_words(claim: Claim, agents: list[_AgentState]) -> str:
    """Returns what the first agent that failed said, else the first that said anything."""
    gone = [(node, agent) for node, agent in zip(claim.nodes, agents, strict=True) if agent.reason]
    gone.sort(key=lambda pair: not pair[1].exit_code)
    return f"agent on {gone[0][0]}: {gone[0][1].reason}" if gone else ""
