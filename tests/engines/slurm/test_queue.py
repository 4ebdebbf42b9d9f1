"""What Slurm says of jobs, and the words it is told, without any Slurm."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.domain.errors import Unavailable
from mainspring.engines.slurm.cluster.queue import Stage, read_history, read_queue, stage_of, state_words, waits_for
from mainspring.engines.slurm.jobs.script import (
    Share,
    Submission,
    environment_text,
    in_order,
    sbatch_words,
    script,
    time_text,
)


def share(host: str = "", **fields: object) -> Share:
    usual: dict[str, object] = {
        "host": host,
        "partition": "main",
        "gres_type": "h100",
        "gpus": 4,
        "cpus": 32,
        "memory_mib": 1_000,
        "whole": False,
    }
    return Share(**{**usual, **fields})  # type: ignore[arg-type]


def submission(**fields: object) -> Submission:
    usual: dict[str, object] = {
        "allocation": "allocation-1",
        "folder": "/shared/allocation-1",
        "job": "tune",
        "account": "",
        "qos": "",
        "time_s": None,
        "notice_s": 60.0,
    }
    return Submission(**{**usual, **fields})  # type: ignore[arg-type]


def test_queue_joins_components_and_finds_our_jobs_by_name() -> None:
    queue = read_queue(
        "12|RUNNING|None|mainspring.allocation-1\n"
        "14+0|PENDING|Priority|mainspring.allocation-2\n14+1|RUNNING|None|mainspring.allocation-2\n"
        "20_[1-9%2]|PENDING|JobArrayTaskLimit|a|b 'c'\n"
    )
    assert [job.number for job in queue.by_allocation["allocation-1"]] == [12]  # type: ignore[index]
    assert queue.by_number[14].state == "RUNNING"
    assert set(queue.by_number) == {12, 14, 20}
    assert len(queue.by_allocation) == 2


def test_queue_of_components_that_are_over_tells_of_the_one_that_failed() -> None:
    rows = ("COMPLETED", "NODE_FAIL", "COMPLETED")
    text = "".join(f"7+{index}|{state}|None|mainspring.x\n" for index, state in enumerate(rows))
    assert read_queue(text).by_number[7].state == "NODE_FAIL"


def test_queue_with_line_breaks_in_a_name_is_read() -> None:
    queue = read_queue("12|RUNNING|None|two\nlines | of it\n13|RUNNING|None|mainspring.allocation-1\n")
    assert set(queue.by_number) == {12, 13}


@pytest.mark.parametrize(
    "text", ["garbage\n", "12|RUNNING\n", "12|RUNNING|None|x\n13|RUN\n", "JOBID|STATE|REASON|NAME\n"]
)
def test_queue_that_is_not_one_is_unavailable(text: str) -> None:
    with pytest.raises(Unavailable):
        read_queue(text)


@given(st.text())
def test_queue_of_any_text_is_read_or_unavailable(text: str) -> None:
    try:
        read_queue(text)
    except Unavailable:
        return


def test_a_state_nobody_heard_of_is_never_over() -> None:
    assert stage_of("DANCING") is Stage.ALIVE
    assert stage_of("CANCELLED by 1000") is Stage.OVER
    assert "cancelled" in state_words("CANCELLED by 1000")


def test_history_tells_the_state_of_the_component_that_failed() -> None:
    states = read_history("12|COMPLETED\n13+0|COMPLETED\n13+1|TIMEOUT\nrubbish\n14|CANCELLED by 0\n")
    assert states == {12: "COMPLETED", 13: "TIMEOUT", 14: "CANCELLED by 0"}


def test_reasons_are_told_in_plain_words_after_slurms_own() -> None:
    assert waits_for("Priority") == "Slurm: Priority: jobs that come before it"
    assert "down, drained" in waits_for("ReqNodeNotAvail, UnavailableNodes:n[1-3]")
    assert waits_for("QOSMaxGRESPerUser") == "Slurm: QOSMaxGRESPerUser: a limit of its QOS"
    assert waits_for("AssocGrpCpuLimit") == "Slurm: AssocGrpCpuLimit: a limit of its account"
    assert waits_for("SomethingNew") == "Slurm: SomethingNew"


def test_equal_shares_are_one_component_and_tasks_follow_components() -> None:
    shares = (share("n3"), share("c1", gres_type="", gpus=0), share("n1"), share("n2", whole=True))
    assert in_order(shares) == (0, 2, 1, 3)
    words = list(sbatch_words(submission(), shares))
    parts = shlex.join(words).split(" : ")
    assert len(parts) == 3
    assert "--nodelist=n[1,3]" in words
    assert "--nodes=2" in words
    assert "--gres=gpu:h100:4" in parts[0]
    assert "--gres" not in parts[1]
    assert "--exclusive --mem=0" in parts[2]
    assert all("--job-name=mainspring.allocation-1" in part for part in parts)


def test_words_for_sbatch_quote_nothing_that_could_break_a_table() -> None:
    words = sbatch_words(submission(job="a\tb\nc \u2603" + "x" * 100, account="lab", qos="high"), (share(),))
    comment = next(word for word in words if word.startswith("--comment="))
    assert comment == "--comment=a?b?c ?" + "x" * 57
    assert {"--account=lab", "--qos=high", "--no-requeue", "--time=UNLIMITED", "--signal=28@60"} <= set(words)
    assert not any(word.startswith("--nodelist") for word in words)


def test_time_limits_are_rounded_up_to_minutes() -> None:
    assert [time_text(time_s) for time_s in (None, 0.0, 60.0, 61.0)] == ["UNLIMITED", "1", "1", "2"]


@pytest.mark.slow
@given(
    st.dictionaries(
        st.from_regex(r"[A-Z][A-Z0-9_]{0,5}", fullmatch=True).map("X_".__add__),
        st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20),
        max_size=5,
    )
)
def test_variables_come_out_of_a_shell_as_they_went_in(variables: dict[str, str]) -> None:
    text = environment_text({**variables, "not a name": "x"})
    done = subprocess.run(["env", "-i", "/bin/sh", "-c", text + "\nenv -0"], capture_output=True, check=True)
    found = dict(entry.split("=", 1) for entry in done.stdout.decode().split("\0") if entry)
    assert {name: value for name, value in found.items() if name.startswith("X_")} == variables


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_the_script_is_sound_in_every_shell_and_for_every_path(shell: str, tmp_path: Path) -> None:
    odd = submission(folder="/a b/'c'/x")
    text = script(odd, base="/tmp/m-0", taken_s=20.0, agent_command=("python", "-m", "x y"))
    path = tmp_path / "script"
    path.write_text(text)
    try:
        done = subprocess.run([shell, "-n", str(path)], capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip(f"{shell} is not installed here")
    assert (done.returncode, done.stderr) == (0, b"")
