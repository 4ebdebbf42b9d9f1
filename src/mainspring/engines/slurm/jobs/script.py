"""The words sbatch gets, and the script it takes: one that begins once however often it is submitted.

The script's first act is to create `begun` in the allocation's folder, which only one job can; any other ends at once.
Then one task on each node starts one agent. Signals that Slurm sends reach that task, or all its descendants too (it
depends on how the cluster tracks processes), so we send none whose default is deadly to a rank. SIGURG means "read the
word": the file `word` says "stop <seconds>" or "kill". A task also reads it unasked, so one whose slurmd is gone ends
too. It is there from the beginning and written in place, since file systems of networks tell late that a file is new,
but never show an old one to who opens it. SIGWINCH is Slurm's notice before a time limit, SIGTERM its order to end.

Everything the script needs is in it, in the folder, or on the node; nothing comes from the controller's environment.
Source: sbatch(1), srun(1), scancel(1) of Slurm 22.05; signal(7).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from mainspring.domain.fleet import MEMORY
from mainspring.engines.common.hostlist import compress_hosts
from mainspring.engines.slurm.cluster.queue import NAME

LOOK_S = 5  # How often a task reads the word unasked. A lease is three times that.
EARLY_S = 90  # Slurm gives notice up to a minute early (sbatch(1), --signal); half a minute more for a slow start.
SIGWINCH = 28  # By number: Slurm knows no name for it. Source: signal(7), the same on x86 and Arm.
COMMENT_LETTERS_MAX = 64
UNLIMITED = "UNLIMITED"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

# Waits for a child whatever signals come; a shell may learn of its end while it serves one, and tells when asked again.
_WAIT = r"""while :; do
  wait "$NAME"
  code=$?
  [ "$code" -gt 128 ] || break
  kill -0 "$NAME" 2> /dev/null && continue
  wait "$NAME"
  again=$?
  [ "$again" -eq 127 ] || code=$again
  break
done"""

# One task a node. Arguments: the folder, the scratch folder of ours, the seconds of Slurm's notice before a time limit
# and of its SIGTERM, the time limit in seconds (0: none), and the agent's command.
_TASK = r"""
folder=$1 base=$2 notice_s=$3 taken_s=$4 limit_s=$5 began_s=$(date +%s)
shift 5
line=0 index= mine= child= asked=
while read -r number host user theirs; do
  line=$((line + 1))
  if [ "$host" = "$SLURMD_NODENAME" ] || { [ "$host" = - ] && [ "$line" -eq $((SLURM_PROCID + 1)) ]; }; then
    index=$number mine=${user:+$user $theirs}
    break
  fi
done < "$folder/agents"
if [ -z "$index" ]; then
  echo "no agent of this allocation is meant for $SLURMD_NODENAME" >&2
  exit 64
fi
node=$folder/node-$index work=$base/${folder##*/}-$index
mkdir -p "$node" "$folder/over"
exec >> "$node/agent.log" 2>&1

say() { # Seconds the agent has, whole or not at all.
  echo "$1" > "$node/.grace" && mv -f "$node/.grace" "$node/grace"
}
memory() { # A folder; see `memory_of`.
  printf 'MEMORY/mainspring-%.32s' "$(printf %s "$1" | sha256sum)"
}
gone() { # A work folder of an agent, and what it says that ranks' user may have left in one of its own.
  user= theirs= as=
  [ ! -e "$1/theirs" ] || read -r user theirs < "$1/theirs"
  [ "$(id -u)" = 0 ] || as="sudo -n -u $user --"
  [ -z "$user" ] || $as rm -rf -- "$theirs" "$(memory "$theirs")"
  rm -rf "$1" "$(memory "$1")"
}
end() { # Exit code, words if the agent has none of its own; the code is said last but for tidying up.
  rm -f "$work/order.json"
  [ -z "$2" ] || printf '{"exit_code": %d, "reason": "%s"}' "$1" "$2" > "$node/exit.json"
  : > "$folder/over/$index.$1" || { sleep 1; : > "$folder/over/$index.$1"; }
  [ ! -O "$base" ] || gone "$work"
  exit "$1"
}
look() { # Seconds and words of a notice by Slurm itself, none when the word is to be read.
  verb= seconds=
  read -r verb seconds < "$folder/word"
  case $verb in
    kill)
      [ -z "$child" ] || kill -KILL "$child"
      return
      ;;
    stop) ;;
    *)
      [ -n "$2" ] || return
      echo "$2" > "$folder/over/taken"
      seconds=$1
      ;;
  esac
  [ "$asked" != "$seconds" ] || return
  asked=$seconds
  say "$seconds"
  [ -z "$child" ] || kill -TERM "$child"
}
trap 'look "" ""' URG
notice() { # Where Slurm is configured so, it also comes when a job is preempted, long before the time limit.
  if [ "$limit_s" -gt 0 ] && [ $(($(date +%s) - began_s + notice_s + EARLY_S)) -ge "$limit_s" ]; then
    look "$notice_s" "gave notice that its time is over"
  else
    look "$taken_s" "gave notice that it will end the job"
  fi
}
trap notice WINCH
trap 'look "$taken_s" "asked the job to end: preempted, cancelled, or out of time"' TERM

mkdir -p "$base"
[ -O "$base" ] || end 1 "the scratch folder is not to be used on this node: somebody else made it, or it cannot be made"
gone "$work"
mkdir "$work" || end 1 "the scratch folder cannot be used on this node"
[ -z "$mine" ] || echo "$mine" > "$work/theirs"
sed -n "$line{p;q;}" "$folder/orders.jsonl" > "$work/order.json" || end 1 "the order cannot be written on this node"
# Libraries that see a Slurm job in their variables would take the ranks for its tasks.
for name in $(env | sed -nE 's/^((SLURM|SBATCH|SRUN|PMI)[A-Za-z0-9_]*)=.*/\1/p'); do
  case $name in
    SLURM_CONF | SLURM_JOB_ID | SLURMD_NODENAME) ;;
    *) unset "$name" ;;
  esac
done
. "$folder/environment"
cd "$work" || end 1 "the scratch folder cannot be used on this node"
say "$taken_s"
look "" ""
[ -z "$asked$verb" ] || end 0 "stopped before it began"
"$@" --order "$work/order.json" < /dev/null &
child=$!
[ -z "$asked" ] || kill -TERM "$child"
( # Removes what a killed task once left here; then asks for the word to be read, which no signal may tell.
  trap '' TERM URG WINCH
  exec > /dev/null 2>&1
  for old in "$base"/*; do
    other=${old##*/}
    other=${other%-*}
    for place in "${folder%/*}" "${folder%/*}/.ended"; do
      [ ! -e "$place/$other/ended.json" ] || gone "$old"
    done
  done
  while sleep LOOK_S; do kill -URG $$; done
) &
watcher=$!
WAIT_FOR child
kill -KILL "$watcher"
end "$code" ""
"""

_SCRIPT = r"""#!/bin/sh
umask 077
folder={folder}
if ! ( set -C; echo "$SLURM_JOB_ID" > "$folder/begun" ) 2> /dev/null; then
  [ -e "$folder/begun" ] && echo "job $SLURM_JOB_ID ends: this allocation has begun, or was withdrawn" && exit 0
  echo "the shared folder cannot be used on $SLURMD_NODENAME"
  exit 1
fi
read -r verb seconds < "$folder/word"
[ -z "$verb" ] || exit 0
groups= group=0
if [ -n "$SLURM_HET_SIZE" ]; then groups=--het-group=0-$((SLURM_HET_SIZE - 1)); fi
while [ "$group" -lt "${{SLURM_HET_SIZE:-1}}" ]; do
  eval echo "\"\${{SLURM_JOB_NODELIST_HET_GROUP_$group:-$SLURM_JOB_NODELIST}}\""
  group=$((group + 1))
done > "$folder/hosts"
# A component without chips would else have those of the first one in its variables.
unset CUDA_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES HIP_VISIBLE_DEVICES GPU_DEVICE_ORDINAL ZE_AFFINITY_MASK
# It must outlive Slurm's SIGTERM: its end is the end of all.
trap : TERM URG WINCH
task=$(cat << 'END_OF_TASK'{task}END_OF_TASK
)
srun $groups --export=ALL --kill-on-bad-exit=0 --wait=0 --no-kill --mem=0 --cpu-bind=quiet,none --mpi=none \
  --input=none /bin/sh -c "$task" mainspring-task "$folder" {arguments} &
srun=$!
WAIT_FOR srun
exit "$code"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What is asked for on one node.

    Args:
        host: Slurm's name of it; "" where Slurm decides.
        gres_type: The type of its GPUs in Slurm; "" where they have none.
        memory_mib: Memory; 0 to say nothing.
        whole: Whether the node is wanted whole, with all of its memory.
    """

    host: str
    partition: str
    gres_type: str
    gpus: int
    cpus: int
    memory_mib: int
    whole: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """What sbatch is told of an allocation as a whole.

    Args:
        job: The job's name, for people.
        account: Slurm's account; "" for the user's own.
        qos: Slurm's QOS; "" for the default one.
        time_s: Time asked for, None for no limit.
        notice_s: How long before that the agents are told.
    """

    allocation: str
    folder: str
    job: str
    account: str
    qos: str
    time_s: float | None
    notice_s: float


def in_order(shares: tuple[Share, ...]) -> tuple[int, ...]:
    """Returns the places of shares in the order of the job's tasks: equal ones together, each kind where it is first.

    Args:
        shares: In rank order.
    """
    first: dict[tuple[object, ...], int] = {}
    for index, share in enumerate(shares):
        first.setdefault(_kind(share), index)
    return tuple(sorted(range(len(shares)), key=lambda index: (first[_kind(shares[index])], index)))


def sbatch_words(submission: Submission, shares: tuple[Share, ...]) -> tuple[str, ...]:
    """Returns the command that submits an allocation, with a component for each kind of share.

    Args:
        submission: What holds for all of it.
        shares: In rank order.
    """
    kinds: dict[tuple[object, ...], list[Share]] = {}
    for index in in_order(shares):
        kinds.setdefault(_kind(shares[index]), []).append(shares[index])
    words = ["sbatch", "--parsable"]
    for number, alike in enumerate(kinds.values()):
        words += [":"] * (number > 0) + _common_words(submission) + _share_words(alike)
    return tuple(words)


def script(submission: Submission, *, base: str, taken_s: float, agent_command: tuple[str, ...]) -> str:
    """Returns the script of an allocation.

    Args:
        submission: What sbatch is told of it.
        base: Our scratch folder on its nodes.
        taken_s: How long they have once Slurm asks them to end.
        agent_command: Program and first words of an agent.
    """
    limit_s = 0 if submission.time_s is None else int(submission.time_s)
    numbers = (str(int(submission.notice_s)), f"{taken_s:g}", str(limit_s))
    arguments = shlex.join((base, *numbers, *agent_command))
    task = (
        _TASK.replace("LOOK_S", str(LOOK_S))
        .replace("MEMORY", MEMORY)
        .replace("EARLY_S", str(EARLY_S))
        .replace("WAIT_FOR child", _WAIT.replace("NAME", "child"))
    )
    text = _SCRIPT.replace("WAIT_FOR srun", _WAIT.replace("NAME", "srun"))
    return text.format(folder=shlex.quote(submission.folder), task=task, arguments=arguments)


def environment_text(environment: Mapping[str, str]) -> str:
    """Returns what a shell reads to set these variables; what no shell can set is left out."""
    return "".join(
        f"export {name}={shlex.quote(value)}\n"
        for name, value in sorted(environment.items())
        if _VARIABLE.fullmatch(name) and "\0" not in value
    )


def time_text(time_s: float | None) -> str:
    """Returns a time limit as sbatch takes it, rounded up to whole minutes.

    Args:
        time_s: Seconds, None for no limit.
    """
    return UNLIMITED if time_s is None else str(max(1, -int(-time_s // 60)))


def _kind(share: Share) -> tuple[object, ...]:
    return share.partition, share.gres_type, share.gpus, share.cpus, share.memory_mib, share.whole


def _common_words(submission: Submission) -> list[str]:
    # An operator's tools show it: letters that break neither a table nor a terminal.
    comment = "".join(letter if " " <= letter <= "~" else "?" for letter in submission.job)[:COMMENT_LETTERS_MAX]
    words = [
        f"--job-name={NAME}{submission.allocation}",
        f"--comment={comment}",
        "--export=ALL",  # Of next to nothing: see `commands`. Anything else makes newer releases run a login shell.
        "--no-requeue",
        "--no-kill",
        "--input=/dev/null",
        f"--output={_pattern(submission.folder)}/slurm.log",
        "--open-mode=append",
        "--chdir=/",
        f"--time={time_text(submission.time_s)}",
    ]
    # To the tasks alone: without "B:" the script itself gets none.
    words += [f"--signal={SIGWINCH}@{int(submission.notice_s)}"] if int(submission.notice_s) else []
    words += [f"--account={submission.account}"] if submission.account else []
    return words + ([f"--qos={submission.qos}"] if submission.qos else [])


def _share_words(alike: list[Share]) -> list[str]:
    share = alike[0]
    words = [f"--partition={share.partition}", f"--nodes={len(alike)}", "--ntasks-per-node=1"]
    words += [f"--cpus-per-task={share.cpus}"]
    words += [f"--nodelist={compress_hosts(one.host for one in alike)}"] if share.host else []
    words += ["--gres=" + ":".join(filter(None, ("gpu", share.gres_type, str(share.gpus))))] if share.gpus else []
    if share.whole:
        return [*words, "--exclusive", "--mem=0"]
    return words + ([f"--mem={share.memory_mib}M"] if share.memory_mib else [])


def _pattern(path: str) -> str:
    """Returns a path as a file name pattern of sbatch, in which % means something."""
    return path.replace("%", "%%")
