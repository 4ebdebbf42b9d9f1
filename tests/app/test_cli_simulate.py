"""`ms simulate` as people and machines use it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TRACE = "submit_s,duration_s,team,chips,replicas,replicas_min,requested_s\n" + "".join(
    f"{60 * n},{300 + 37 * n % 900},{('red', 'blue')[n % 2]},{(1, 4, 8)[n % 3]},{1 + n % 2},1,{1800}\n"
    for n in range(24)
)


def ms(*words: str, cwd: Path, hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "COLUMNS": "160"}
    return subprocess.run(
        [sys.executable, "-c", "from mainspring.app.cli.main import main; main()", "simulate", *words],
        cwd=cwd, env=environment, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_simulate_of_the_example_shows_tables_and_writes_plots(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    wrote = ms("--example", "lab", cwd=tmp_path)
    assert wrote.returncode == 0, wrote.stderr
    assert "ms simulate lab/trace.csv" in wrote.stdout

    ran = ms(
        "lab/trace.csv", "--fleet", "lab/fleet.yaml", "--teams", "lab/teams.yaml", "--first", "40", "--out", "out",
        cwd=tmp_path,
    )  # fmt: skip

    assert ran.returncode == 0, ran.stderr
    for word in ("40 succeeded", "utilization", "Jain's index", "manipulation", "h200 (chips)", "out/utilization.png"):
        assert word in ran.stdout
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "completion.png", "events.jsonl", "measures.json", "slowdown.png", "teams.png", "utilization.png",
    ]  # fmt: skip


@pytest.mark.slow
def test_simulate_with_one_seed_gives_the_same_bytes_under_two_hash_seeds(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "trace.csv").write_text(TRACE)
    (tmp_path / "teams.yaml").write_text("- {name: red, guarantee: {gpu: 12}}\n- {name: blue, guarantee: {gpu: 4}}\n")
    bytes_of = []
    for hash_seed in ("1", "2"):
        out = f"out-{hash_seed}"
        ran = ms(
            "trace.csv", "--nodes", "2x8:gpu", "--teams", "teams.yaml", "--faults", "3000", "--seed", "5",
            "--against-nodes", "3x8:gpu", "--out", out, "--json",
            cwd=tmp_path, hash_seed=hash_seed,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
        bytes_of.append(
            {path.name: path.read_bytes() for path in sorted((tmp_path / out).iterdir())} | {"": ran.stdout.encode()}
        )

    assert bytes_of[0] == bytes_of[1]
    assert len(bytes_of[0]) == 8
    assert b"attempt_ended" in bytes_of[0]["events.jsonl"]


@pytest.mark.slow
def test_simulate_against_another_policy_compares_the_two(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text(TRACE)
    (tmp_path / "gentle.yaml").write_text("preempt: false\n")

    ran = ms("trace.csv", "--nodes", "1x8:gpu", "--against-policy", "gentle.yaml", "--json", cwd=tmp_path)

    assert ran.returncode == 0, ran.stderr
    answer = json.loads(ran.stdout)
    assert answer["comparison"]["base"] == "default policy"
    assert answer["comparison"]["other"] == "gentle"
    assert answer["against"]["preemptions"] == 0
    assert answer["measures"]["jobs"]["succeeded"] == answer["against"]["jobs"]["succeeded"]


@pytest.mark.slow
def test_simulate_in_which_no_job_ends_shows_no_times_it_never_saw(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text(TRACE)

    ran = ms("trace.csv", "--nodes", "9x8:gpu", "--until", "1s", cwd=tmp_path)

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("no job succeeded") == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], 2, "no trace"),
        (["trace.csv"], 2, "no fleet"),
        (["trace.csv", "--nodes", "many"], 2, "NODESxCHIPS:CHIP"),
        (["trace.csv", "--nodes", "1x8:gpu", "--fleet", "trace.csv"], 2, "one or the other"),
        (["nothing.csv", "--nodes", "1x8:gpu"], 3, "nothing.csv"),
        (["bad.csv", "--nodes", "1x8:gpu"], 2, "line 2"),
        (["trace.csv", "--nodes", "1x8:gpu", "--policy", "bad.csv"], 2, "policy"),
        (["trace.csv", "--nodes", "1x8:gpu", "--teams", "bad.csv"], 2, "teams"),
        (["trace.csv", "--nodes", "1x8:gpu", "--plan-every", "soon"], 2, "soon"),
        (["trace.csv", "--nodes", "1x8:gpu", "--restart", "inf"], 2, "'inf'"),
        (["trace.csv", "--nodes", "1x8:gpu", "--checkpoint", "0"], 2, "checkpoint_s"),
    ],
)
def test_simulate_with_wrong_input_says_so_and_exits_as_every_verb_does(
    tmp_path: Path, words: list[str], code: int, said: str
) -> None:
    (tmp_path / "trace.csv").write_text(TRACE)
    (tmp_path / "bad.csv").write_text("submit_s,duration_s\n1,x\n")

    ran = ms(*words, cwd=tmp_path)

    assert ran.returncode == code, ran.stderr
    assert said in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.slow
def test_simulate_without_the_plotting_package_names_the_extra_before_it_replays(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text(TRACE)
    (tmp_path / "matplotlib.py").write_text("raise ModuleNotFoundError(\"No module named 'matplotlib'\")\n")

    ran = ms("trace.csv", "--nodes", "1x8:gpu", "--out", "out", cwd=tmp_path)

    assert ran.returncode == 6, ran.stderr
    assert "mainspring[plot]" in ran.stderr
    assert not (tmp_path / "out").exists()
