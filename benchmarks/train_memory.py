"""What a step of Gemma 2 B takes of a chip's memory: ours beside MaxText 0.2, both as the compiler of TPUs has it.

Run as `python -m benchmarks.train_memory [--peer FOLDER]`; needs the extra `tpu-plan`, and Python 3.12 for the peer: it
is installed into a virtual environment of its own, in FOLDER if that is given and kept there, with the libtpu of ours.
Both train on 4 sequences of 1,024 words a chip of a v5p 4x4x4: weights and moments in float32, computed in bfloat16,
blocks computed again, a softmax over 257,152 words, the state donated and shared by all chips. Bytes are arguments +
outputs - aliased + temporaries: ours from `ms recipe plan`'s figures, the peer's from what its own `train_compile`
prints. Without Python 3.12, or what the peer needs, the peer is skipped and why is said; `ratio` is ours over its.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from benchmarks.control_submit import loop_s
from benchmarks.running import run

from mainspring.train.models.shapes import Signature
from mainspring.train.plan.compiled import ENVIRONMENT, compiled_figures
from mainspring.train.plan.targets import parsed_target
from mainspring.train.recipe import changed, recipe_named

MISSING = "" if find_spec("libtpu") else "no compiler for TPUs: python -m pip install 'mainspring[tpu-plan]'"
GIB = 2**30
ROWS, WORDS, CHIPS = 4, 1024, 64
DEADLINE_S = 600.0  # Of each compile; one takes a core some two minutes.
INSTALL_S = 900.0
PEER = "maxtext[tpu]==0.2.0"
PEER_SETTINGS = {
    "model_name": "gemma-2b",
    "override_model_config": True,
    "vocab_size": 257_152,
    "compile_topology": "v5p-128",  # It counts cores: two a chip.
    "compile_topology_num_slices": 1,
    "per_device_batch_size": ROWS,
    "max_target_length": WORDS,
    "dtype": "bfloat16",
    "weight_dtype": "float32",
    "remat_policy": "full",
    "ici_fsdp_parallelism": CHIPS,
    "dataset_type": "synthetic",
    "enable_checkpointing": False,
    "run_name": "memory",
}
SIZES = ("argument", "output", "alias", "temp")


def ours_bytes(folder: Path) -> int:
    recipe = changed(
        recipe_named("gemma_2b"),
        {"batch_size": ROWS * CHIPS, "policy": {"horizon": WORDS}, "mesh": {"replica": 1, "data": CHIPS}},
    )
    nothing = Signature(state_dim=0, action_dim=0)
    need = compiled_figures(recipe, nothing, parsed_target("v5p:4x4x4"), cache=folder / "ours", deadline_s=DEADLINE_S)
    return need.memory.peak - need.memory.code


def peer_bytes(folder: Path) -> int:
    """Returns the peer's bytes.

    Raises:
        RuntimeError: It cannot be had here.
    """
    python = installed(folder)
    settings = [f"{name}={value}" for name, value in PEER_SETTINGS.items()]
    where = subprocess.run(
        [
            python,
            "-c",
            "import importlib.util as u; print(u.find_spec('maxtext.configs').submodule_search_locations[0])",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    config = Path(where.stdout.split()[-1]) / "base.yml"
    words = [
        "-m",
        "maxtext.trainers.pre_train.train_compile",
        str(config),
        *settings,
        f"base_output_directory={folder}",
    ]
    said = _said([str(python), *words], DEADLINE_S, environment=ENVIRONMENT)
    found = {size: re.findall(rf"(?<!_){size}_size_in_bytes=(\d+)", said) for size in SIZES}
    if not all(found.values()):
        raise RuntimeError(f"it printed no memory: {said[-500:]}")
    argument, output, alias, temporary = (int(found[size][0]) for size in SIZES)
    return argument + output - alias + temporary


def installed(folder: Path) -> Path:
    """Returns the Python of the peer's own environment, which is made where there is none.

    Raises:
        RuntimeError: There is no Python 3.12, or the packages are not to be had.
    """
    python = folder / "venv" / "bin" / "python"
    done = folder / "installed"
    if done.exists():
        return python
    found = python_312()
    if not found:
        raise RuntimeError("no Python 3.12, which MaxText 0.2 needs: put python3.12 on the path, or into ~/.pyenv")
    print(f"installing {PEER} with {found}", flush=True)
    _said([found, "-m", "venv", str(folder / "venv")], INSTALL_S)
    same = [f"{name}=={version(name)}" for name in ("libtpu", "jax", "jaxlib")]
    _said([str(python), "-m", "pip", "install", "--quiet", PEER, *same], INSTALL_S)
    done.touch()
    return python


def python_312() -> str:
    """Returns a Python 3.12 that runs, "" for none: a name on the path may stand for one that nobody chose."""
    kept = sorted(map(str, Path.home().glob(".pyenv/versions/3.12*/bin/python3.12")), reverse=True)
    for found in (shutil.which("python3.12"), *kept):
        if found and not subprocess.run([found, "-c", ""], capture_output=True, timeout=60).returncode:
            return found
    return ""


def _said(command: list[str], deadline_s: float, environment: Mapping[str, str] | None = None) -> str:
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=deadline_s,
        )
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"{' '.join(command[:5])} took longer than {deadline_s:g} s") from error
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:5])} failed: {done.stdout[-800:]}")
    return done.stdout


def measured(folder: Path, peer: Path | None) -> Mapping[str, float]:
    ours = ours_bytes(folder) / GIB
    figures = {"ours_gib": ours}
    print(f"ours: {ours:.3f} GiB", flush=True)
    try:
        theirs = peer_bytes(peer or folder / "peer") / GIB
        figures |= {"peer_gib": theirs, "ratio": ours / theirs}
    except RuntimeError as error:
        print(f"the peer was skipped: {error}", flush=True)
    return {**figures, "loop_s": loop_s()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", type=Path, help="folder in which the peer's environment is kept")
    peer = parser.parse_args().peer
    if peer is not None:
        peer.mkdir(parents=True, exist_ok=True)
    run("train_memory", MISSING, lambda folder: measured(folder, None if peer is None else peer.resolve()))
