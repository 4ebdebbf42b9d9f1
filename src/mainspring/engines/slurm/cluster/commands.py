"""Runs one of Slurm's commands at a time, each bounded in time and output, and tells "no" from "no answer".

A command gets no shell and next to no environment: `KEPT`, and nothing of the controller's. What it says of time is in
UTC. Its output is whole, or it is `Unavailable`.
"""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from typing import IO, final

from mainspring.domain.errors import MainspringError, Unavailable
from mainspring.engines.slurm.cluster.config import SlurmCluster

# What finds and may use Slurm. sbatch hands its own environment to the job, so whatever is named here reaches nodes.
KEPT = frozenset(
    {"HOME", "KRB5CCNAME", "LD_LIBRARY_PATH", "LOGNAME", "PATH", "SLURM_CLUSTERS", "SLURM_CONF", "SLURM_JWT", "USER"}
)
OUTPUT_BYTES_MAX = 256 << 20  # 100,000 nodes at 2 KiB each.
WORDS_MAX = 400  # Letters of Slurm's own words in a message; they go into stores and onto screens.
REAP_S = 1.0  # A killed process is gone in milliseconds, unless a disk or file server holds it.
# Slurm 22.05 to 24.05's own words for "not now"; everything else that fails is an answer.
# Source: slurm_errno.c, slurm_protocol_api.c, auth_munge.c, sbatch.c of Slurm 22.05.
_NOT_NOW = re.compile(
    r"unable to contact slurm|unable to connect|connection (refused|timed out|reset|failure|aborted)|socket timed out"
    r"|zero bytes were transmitted|communication (error|connection failure|shutdown failure)|munge"
    r"|authentication|invalid credential|standby mode|temporarily|try again|transport endpoint|message (send|receive)"
    r"|no route to host|network is unreachable|host is down|slurmdbd.*(not responding|connection)"
    r"|unable to (resolve|establish)|could not establish|dns srv|database (error|failure|is busy)"
    r"|slurm(ctld|dbd) is down|too many open files|cannot allocate memory|insane message|protocol version",
    re.IGNORECASE,
)
# Says nothing of a job that is over already; its code is then the error's number.
_SILENT = ("scancel",)


class Refused(MainspringError):
    """Slurm understood, and said no; `got` holds its words."""


@final
class Commands:
    """Runs Slurm's commands. Safe to use from several threads at once.

    Args:
        environment: The variables of this process; only `KEPT` ones are passed on.
    """

    def __init__(self, cluster: SlurmCluster, environment: Mapping[str, str]) -> None:
        self._limit_s = cluster.command_s_max
        self._environment = {name: value for name, value in environment.items() if name in KEPT}
        self._environment |= {"LC_ALL": "C", "TZ": "UTC", "SLURM_TIME_FORMAT": "standard"}
        self._environment.setdefault("PATH", os.defpath)

    def run(self, *words: str, attempted: str, stdin: str = "") -> str:
        """Returns what a command wrote to its standard output.

        Args:
            words: The command ("squeue", "--me").
            attempted: What it is for, as a clause, for messages.

        Raises:
            Unavailable: It is not there, took too long, wrote too much, or told of trouble that passes.
            Refused: It said no.
        """
        with tempfile.TemporaryFile() as asked, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
            asked.write(stdin.encode())
            asked.seek(0)
            code = self._run(words, attempted, asked, out, errors)
            out.seek(0)
            text = out.read().decode(errors="replace")
            errors.seek(0)
            said = " ".join(errors.read(1 << 16).decode(errors="replace").split())[:WORDS_MAX]
        if code == 0:
            if text and not text.endswith("\n"):
                raise Unavailable(attempted, on=words[0], got=f"output that breaks off at {text[-60:]!r}")
            return text
        if code < 0 or _NOT_NOW.search(said) or (not said and words[0] not in _SILENT):
            ended = f"signal {-code}" if code < 0 else f"code {code}"
            raise Unavailable(attempted, on=words[0], got=said or f"an end by {ended}, without a word")
        raise Refused(attempted, on=words[0], got=said or f"code {code}")

    def _run(self, words: tuple[str, ...], attempted: str, asked: IO[bytes], out: IO[bytes], errors: IO[bytes]) -> int:
        """Returns how the command ended, at most `limit_s` later; nothing of it is left then."""
        try:
            process = subprocess.Popen(
                words, stdin=asked, stdout=out, stderr=errors, env=self._environment, cwd="/", start_new_session=True
            )
        except OSError as error:
            raise Unavailable(
                attempted, on=words[0], got=str(error), next_step="see that Slurm's commands are in PATH"
            ) from error
        try:
            with suppress(ProcessLookupError):
                resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (OUTPUT_BYTES_MAX, OUTPUT_BYTES_MAX))
            return process.wait(self._limit_s)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)  # It was not reaped, so the number is its own.
            with suppress(subprocess.TimeoutExpired):
                process.wait(REAP_S)
            if isinstance(error, subprocess.TimeoutExpired):
                raise Unavailable(attempted, on=words[0], got=f"no answer within {self._limit_s:g} s") from error
            raise
