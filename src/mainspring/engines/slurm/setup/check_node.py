"""A job on one node that looks whether an agent could run there; cleaned up whatever happens.

Its script holds all it needs, so that it also says something where the node sees no shared folder: then by its exit
code, which Slurm tells.
"""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from mainspring.domain.codec import decode
from mainspring.domain.errors import InvalidMessage, MainspringError, Unavailable
from mainspring.domain.ports import Clock
from mainspring.engines.common.clocks import clock_finding, outside_s
from mainspring.engines.common.kind import CheckResult, Finding
from mainspring.engines.common.steps import as_advice, in_one
from mainspring.engines.slurm.cluster.commands import Commands, Refused
from mainspring.engines.slurm.cluster.queue import Stage, stage_of, state_words, waits_for
from mainspring.engines.slurm.setup import probe
from mainspring.engines.slurm.setup.findings import NodeAnswer, NodeAsk, in_words

QUEUED_S_MAX = 60.0  # Where a node is free, a job gets its turn within a scheduling cycle: 30 s or 60 s by default.
RUN_S_MAX = 60.0  # Python with an agent's libraries starts in 1 s; from a cold network file system in tens.
SHOWN_S_MAX = 70.0  # NFS may show a new file only after its caches are 60 s old (acdirmax).
LOOK_S = 0.5
MEMORY_MIB = 512
OUTPUT_BYTES_MAX = 4_096
SCRATCH_BYTES_MIN = 1 << 30  # Code, sockets and state of an agent; checkpoints go wherever the program says.
_MINUTES = 3  # More than RUN_S_MAX.
_NAME = "mainspring-check"  # Not as allocations are called, so that no engine takes it for one.
_NO_FOLDER, _NO_WRITE, _NO_PYTHON = 81, 82, 83
_SCRIPT = """#!/bin/sh
folder={folder}
python={python}
[ -r "$folder/asked" ] || exit {no_folder}
(: > "$folder/output") 2> /dev/null || exit {no_write}
[ -x "$python" ] || exit {no_python}
exec "$python" - "$folder" {scratch} {url} {users} > "$folder/output" 2>&1 <<'END'
{probe}END
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What came of the job.

    Args:
        node: Slurm's name of the node it ran on; "" where it never ran.
        waits: Why it never ran: Slurm's reason for letting it wait.
        wrong: What kept it from answering, "" where it answered.
        fix: What to do about that.
        waited_s: From when it was submitted until it was over.
        begun_s: This machine's clock before it was submitted.
        over_s: This machine's clock when its end was seen.
        answer: What the node says; None where it said nothing.
    """

    node: str = ""
    waits: str = ""
    wrong: str = ""
    fix: str = ""
    waited_s: float = 0.0
    begun_s: float = 0.0
    over_s: float = 0.0
    answer: NodeAnswer | None = None


class TrialJob:
    """Submits such a job.

    Args:
        commands: Runs Slurm's commands.
        ask: What the node is to answer.
    """

    def __init__(self, commands: Commands, *, shared: Path, ask: NodeAsk, clock: Clock) -> None:
        self._commands = commands
        self._shared = shared
        self._ask = ask
        self._clock = clock

    def run(self, words: Sequence[str]) -> Trial:
        """Returns what came of it.

        Args:
            words: What to ask of sbatch: partition, account, QOS.

        Raises:
            MainspringError: Slurm refused it, or does not answer.
            OSError: The shared folder cannot be written here.
        """
        folder = Path(tempfile.mkdtemp(prefix=".check-", dir=self._shared))
        try:
            return self._run(folder, words)
        finally:
            with suppress(MainspringError):  # It ends by itself within its time limit.
                self._commands.run("scancel", f"--name={_name(folder)}", attempted="take the test job back")
            shutil.rmtree(folder, ignore_errors=True)

    def _run(self, folder: Path, words: Sequence[str]) -> Trial:
        (folder / "asked").write_text(folder.name)
        (folder / "certificate.pem").write_text(self._ask.certificate)
        begun_s, begun_at_s = self._clock.now_s(), self._clock.monotonic_s()
        facts = self._over(self._submit(folder, words))
        waited_s = self._clock.monotonic_s() - begun_at_s
        state = facts.get("JobState", "")
        if stage_of(state) is Stage.WAITING:
            return Trial(waits=waits_for(facts.get("Reason", "")), waited_s=waited_s)
        answer, wrong, fix = None, *self._excuse(int(facts.get("ExitCode", "0").partition(":")[0] or 0))
        if not wrong:
            answer = self._answer(folder, wait_s=SHOWN_S_MAX if state == "COMPLETED" else 0.0)
        if answer is not None and answer.asked != folder.name:
            wrong, fix = "the node read something else than was written here", "see that both see the same folder"
        elif answer is None and not wrong:
            output = _tail(folder / "output")
            wrong = f"the job left no answer ({state_words(state)}{f'; it wrote: {output}' if output else ''})"
            fix = f"read the node's slurmd log, and see that {self._shared} is the same folder there"
        return Trial(
            node=facts.get("BatchHost", ""),
            wrong=wrong,
            fix=fix,
            waited_s=waited_s,
            begun_s=begun_s,
            over_s=self._clock.now_s(),
            answer=answer,
        )

    def _submit(self, folder: Path, words: Sequence[str]) -> str:
        script = _SCRIPT.format(
            folder=shlex.quote(str(folder)),
            python=shlex.quote(self._ask.python),
            scratch=shlex.quote(self._ask.scratch),
            url=shlex.quote(self._ask.controller),
            users=shlex.join(self._ask.users),
            no_folder=_NO_FOLDER,
            no_write=_NO_WRITE,
            no_python=_NO_PYTHON,
            probe=Path(probe.__file__).read_text(),
        )
        own = (f"--job-name={_name(folder)}", "--output=/dev/null", "--chdir=/", "--export=ALL", "--no-requeue")
        size = ("--nodes=1", "--ntasks=1", "--cpus-per-task=1", f"--mem={MEMORY_MIB}", f"--time={_MINUTES}")
        said = self._commands.run(
            "sbatch", "--parsable", *own, *size, *words, attempted="submit a test job", stdin=script
        )
        job = said.strip().partition(";")[0]
        if not job.isdigit():
            raise Unavailable("submit a test job", got=repr(said)[:200], wanted="the number of a job")
        return job

    def _over(self, job: str) -> Mapping[str, str]:
        """Returns what Slurm says of the job once it is over, or has waited or run for too long."""
        pause = threading.Event()
        facts: dict[str, str] = {"JobState": "PENDING"}
        queued_s = running_s = 0.0
        looked_s = self._clock.monotonic_s()
        while queued_s < QUEUED_S_MAX and running_s < RUN_S_MAX:
            try:
                said = self._commands.run("scontrol", "-o", "show", "job", job, attempted="look at the test job")
            except Refused:  # Slurm has forgotten it already (MinJobAge), so it is over.
                return {**facts, "JobState": "COMPLETED"}
            facts = dict(part.partition("=")[::2] for part in said.split() if "=" in part)
            stage = stage_of(facts.get("JobState", ""))
            if stage is Stage.OVER:
                return facts
            pause.wait(LOOK_S)
            passed_s, looked_s = self._clock.monotonic_s() - looked_s, self._clock.monotonic_s()
            if stage is Stage.WAITING:
                queued_s += passed_s
            else:
                running_s += passed_s
        return facts

    def _excuse(self, code: int) -> tuple[str, str]:
        """Returns what the script's own exit codes mean, and what to do about it."""
        shared, python = self._shared, self._ask.python
        return {
            _NO_FOLDER: (f"the node does not see {shared}", f"mount {shared} on every node, or name one that is"),
            _NO_WRITE: (f"the node may not write to {shared}", "let this account write there from the nodes too"),
            _NO_PYTHON: (
                f"the node has no program {python}",
                "install Python and Mainspring there, and name it with --python",
            ),
        }.get(code, ("", ""))

    def _answer(self, folder: Path, *, wait_s: float) -> NodeAnswer | None:
        pause = threading.Event()
        for _ in range(1 + round(wait_s / LOOK_S)):
            if "answer.json" in os.listdir(folder):
                with suppress(InvalidMessage):
                    return decode(NodeAnswer, (folder / "answer.json").read_bytes())
                return None
            pause.wait(LOOK_S)
        return None


def _name(folder: Path) -> str:
    return f"{_NAME}.{folder.name.rpartition('-')[2]}"


def _tail(path: Path) -> str:
    """Returns the last line of a file that there may not be."""
    with suppress(OSError):
        lines = path.read_bytes()[-OUTPUT_BYTES_MAX:].decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""
    return ""


# -------------------------------------------------------------------- what the answer means


def folder_is_the_same(trial: Trial, shared: str) -> Finding:
    """Returns whether the node read what was written here; its answer came the other way."""
    name, answer = "folder on a node", _answer(trial)
    return Finding(name=name, standing=CheckResult.OK, found=f"{answer.node} and this machine see {shared} alike")


def agent_can_start(trial: Trial, version: str) -> Finding:
    """Returns whether the node's Mainspring is the one that runs here, with all an agent needs."""
    name, answer = "Mainspring on a node", _answer(trial)
    found = f"{answer.version or 'none'} under Python {answer.python}"
    if answer.agent_error:
        return Finding(
            name=name,
            standing=CheckResult.FAILED,
            found=f"{found}: {answer.agent_error}",
            fix=f"install mainspring=={version} for that Python on every node, or name another one with --python",
        )
    if answer.version != version:
        return Finding(
            name=name,
            standing=CheckResult.FAILED,
            found=f"{found}, here {version}",
            fix=f"install mainspring=={version} there",
        )
    return Finding(name=name, standing=CheckResult.OK, found=found)


def scratch_has_room(trial: Trial, folder: str) -> Finding:
    """Returns whether agents can write to the node's scratch folder."""
    name, answer = "scratch on a node", _answer(trial)
    if answer.scratch_error:
        return Finding(
            name=name,
            standing=CheckResult.FAILED,
            found=f"{folder}: {answer.scratch_error}",
            fix="name a folder of the nodes that this account may write with --scratch",
        )
    found = f"{folder}, {answer.scratch_free_bytes / 1e9:.1f} GB free"
    if answer.scratch_free_bytes < SCRATCH_BYTES_MIN:
        return Finding(
            name=name,
            standing=CheckResult.WARNING,
            found=found,
            fix=f"make room, or name a folder with --scratch that has {SCRATCH_BYTES_MIN / 1e9:.0f} GB",
        )
    return Finding(name=name, standing=CheckResult.OK, found=found)


def users_can_be(trial: Trial, users: Sequence[str]) -> Finding:
    """Returns whether agents can run ranks as the users of their teams.

    Args:
        users: By name; none where ranks run under the account that submits jobs.
    """
    name, answer = "users on a node", _answer(trial)
    if not users:
        return Finding(name=name, standing=CheckResult.OK, found="ranks run under the account that submits jobs")
    if answer.agent_error:
        return Finding(name=name, standing=CheckResult.SKIPPED, found="waits for: Mainspring on a node")
    if answer.users:
        first = answer.users[0]
        found = f"{first.user}: {first.found}"
        more = [trouble.user for trouble in answer.users[1:]]
        return Finding(
            name=name,
            standing=CheckResult.FAILED,
            found=f"{found}; and {in_words(more)}" if more else found,
            fix=f"on every node, {first.fix}" if first.fix else "see that sudo works there without a password",
        )
    return Finding(name=name, standing=CheckResult.OK, found=f"{answer.node} runs ranks as {in_words(users)}")


def network_is_set_up(trial: Trial) -> Finding:
    """Returns what of the node's network keeps collectives from being fast: advice, without which jobs run too."""
    name, answer = "network on a node", _answer(trial)
    if answer.agent_error:
        return Finding(name=name, standing=CheckResult.SKIPPED, found="waits for: Mainspring on a node")
    if not answer.network:
        return Finding(name=name, standing=CheckResult.SKIPPED, found="the node's Mainspring does not look at it")
    return in_one(name, [as_advice(each) for each in answer.network])


def clocks_agree(trial: Trial) -> Finding:
    """Returns how far the node's clock is from the server's; without one, from this machine's.

    Without the server's word all that is known is that the job ran between two looks at the clock here.
    """
    answer = _answer(trial)
    if answer.server_ahead_s is not None:
        ahead_s = -answer.server_ahead_s
    else:
        ahead_s = outside_s(answer.time_s, begun_s=trial.begun_s, over_s=trial.over_s)
    return clock_finding("clocks", answer.node, ahead_s)


def server_answers(trial: Trial, url: str) -> Finding:
    """Returns whether the node can reach the server, as its agents will.

    Args:
        url: Where; "" when no server runs.
    """
    name, answer = "server from a node", _answer(trial)
    if not url:
        return Finding(
            name=name, standing=CheckResult.SKIPPED, found="no server runs here", fix="ms up, then ms cluster check"
        )
    if answer.agent_error:
        return Finding(name=name, standing=CheckResult.SKIPPED, found="waits for: Mainspring on a node")
    if answer.server_status == 200:
        return Finding(name=name, standing=CheckResult.OK, found=f"{answer.node} reaches {url}")
    got = answer.server_error or f"HTTP {answer.server_status}"
    host = urlsplit(url).hostname or ""
    if host in ("localhost", "::1") or host.startswith("127."):
        fix = "in config.yaml, set host to an address that nodes reach, and certificate and key; then ms down, ms up"
    else:
        fix = f"let the nodes reach {url} (firewall, name, certificate), or set public_url in config.yaml"
    return Finding(name=name, standing=CheckResult.FAILED, found=f"{answer.node} asked {url}: {got}", fix=fix)


def _answer(trial: Trial) -> NodeAnswer:
    assert trial.answer is not None, "the steps before have seen to it"
    return trial.answer
