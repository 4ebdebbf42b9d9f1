"""A release as it is served, from the store or a robot's slot: its own chunks, nothing where a byte is another."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax", reason="the train extra is not installed")

import jax
from safetensors.numpy import save

from mainspring.domain.answers.policies.releases import (
    SLOT_RELEASE,
    Embodiment,
    GateSeen,
    GateStanding,
    NewPolicyRelease,
    PolicyRelease,
    ReleaseFile,
    ReleaseLineage,
    artifact_key,
)
from mainspring.domain.codec import decode, encode
from mainspring.domain.errors import DamagedData, NotFound
from mainspring.objects import ObjectStore, open_store
from mainspring.robots.serving.policies.released import TEXT_BYTES_MAX, load_release, load_slot
from mainspring.robots.serving.policies.trained import CheckpointPolicy
from mainspring.robots.serving.policy import Asked
from mainspring.train.evaluate import TrainedPolicy
from tests.robots.serving.trained_policies import DIMS, trained_of

pytestmark = pytest.mark.slow
SEEN = Asked(observation={"state": np.full(DIMS, 0.3, np.float32)}, seed=1)


def _put(store: ObjectStore, data: bytes) -> str:
    sha256 = hashlib.sha256(data).hexdigest()
    store.put(artifact_key(sha256), data)
    return sha256


def _released(store: ObjectStore, policy: TrainedPolicy, dtype: type = np.float32) -> str:
    """Releases a policy; returns the hash of what the release says."""
    tree = {"weights": policy.weights, "statistics": policy.statistics}
    found = {
        jax.tree_util.keystr(key, simple=True, separator="/"): np.asarray(leaf)
        for key, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }
    weights: dict[str, np.ndarray[Any, Any]] = {
        name: each.astype(dtype) for name, each in found.items() if name.startswith("weights/")
    }
    rest = {name: each for name, each in found.items() if name not in weights}
    facts = {"signature": encode(policy.signature).decode(), "by": "Zoë"}
    contents = {
        "facts.json": json.dumps(facts, ensure_ascii=False).encode(),
        "recipe.json": encode(policy.recipe),
        "weights/statistics/model.safetensors": save(rest),
        "weights/weights/model.safetensors": save(weights),
    }
    files = tuple(
        ReleaseFile(path=path, sha256=_put(store, data), size_bytes=len(data)) for path, data in contents.items()
    )
    asked = NewPolicyRelease(
        name="pick",
        files=files,
        lineage=ReleaseLineage(checkpoint="job@1"),
        fits=Embodiment(),
        gates=(GateSeen(name="gate", standing=GateStanding.PASSED),),
        runtime="0.3.0",
    )
    return _put(store, encode(PolicyRelease(version=3, made_s=0.0, maker="ada", content=asked)))


@pytest.mark.parametrize(("dtype", "within"), [(np.float32, 1e-6), (np.float16, 1e-2)])
def test_a_release_gives_the_chunks_of_its_checkpoint(tmp_path: Path, dtype: type, within: float) -> None:
    store, trained = open_store("memory://"), trained_of("plain")
    found = load_release(store, _released(store, trained, dtype), tmp_path, tokenizer=None, batch_max=2)
    assert found.facts.name == "pick@3"
    wanted = CheckpointPolicy(trained, name="job@1", batch_max=2).infer([SEEN])
    np.testing.assert_allclose(found.infer([SEEN]), wanted, atol=within)


def test_a_release_of_which_a_byte_is_another_is_not_served(tmp_path: Path) -> None:
    store = open_store("memory://")
    said = _released(store, trained_of("plain"))
    text = store.get(artifact_key(said))
    file = next(each for each in json.loads(text)["content"]["files"] if each["path"].startswith("weights/weights"))
    data = bytearray(store.get(artifact_key(file["sha256"])))
    data[-1] ^= 1
    store.put(artifact_key(file["sha256"]), bytes(data))
    with pytest.raises(DamagedData, match="weights/weights"):
        load_release(store, said, tmp_path, tokenizer=None, batch_max=1)
    store.put(artifact_key(said), text.replace(b"ada", b"eve"))
    with pytest.raises(DamagedData, match="other bytes than were signed"):
        load_release(store, said, tmp_path, tokenizer=None, batch_max=1)
    with pytest.raises(NotFound):
        load_release(store, "0" * 64, tmp_path, tokenizer=None, batch_max=1)


def test_a_text_that_is_too_long_is_not_fetched(tmp_path: Path) -> None:
    store = open_store("memory://")
    said = decode(PolicyRelease, store.get(artifact_key(_released(store, trained_of("plain")))))
    files = [replace(file, size_bytes=TEXT_BYTES_MAX + 1) for file in said.content.files if file.path == "recipe.json"]
    long = _put(store, encode(replace(said, content=replace(said.content, files=tuple(files)))))
    with pytest.raises(DamagedData, match=r"recipe\.json; got 4194305 bytes; wanted a text"):
        load_release(store, long, tmp_path, tokenizer=None, batch_max=1)
    assert not list(tmp_path.iterdir())


def _slot(store: ObjectStore, said: str, folder: Path) -> Path:
    """Lays a release out as the agent does: links to files that are called by their bytes."""
    words = store.get(artifact_key(said))
    files = {file.path: file.sha256 for file in decode(PolicyRelease, words).content.files}
    for name, sha256 in {SLOT_RELEASE: said, **files}.items():
        kept = folder / f"file-{sha256}"
        kept.write_bytes(store.get(artifact_key(sha256)))
        (folder / "a" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "a" / name).symlink_to(kept)
    return folder / "a"


def test_a_slot_gives_the_chunks_of_the_release_in_it(tmp_path: Path) -> None:
    store, trained = open_store("memory://"), trained_of("plain")
    found = load_slot(_slot(store, _released(store, trained), tmp_path), tokenizer=None, batch_max=2)
    assert found.facts.name == "pick@3"
    wanted = CheckpointPolicy(trained, name="job@1", batch_max=2).infer([SEEN])
    np.testing.assert_allclose(found.infer([SEEN]), wanted, atol=1e-6)


@pytest.mark.timeout(300)
def test_the_program_serves_a_slot_under_the_name_of_its_release(tmp_path: Path) -> None:
    store = open_store("memory://")
    slot = _slot(store, _released(store, trained_of("plain")), tmp_path)
    command = [sys.executable, "-m", "mainspring", "serve", f"slot:{slot}", "--port", "0", "--batched", "1"]
    plain = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}  # Ours is UTF-8 all the same.
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=plain) as program:
        assert program.stderr is not None
        try:
            told = next((line for line in program.stderr if line.startswith("serving")), "")
        finally:
            program.kill()
    assert told.startswith("serving pick@3 on ws://127.0.0.1:")


def test_a_slot_with_another_byte_or_without_a_file_is_not_served(tmp_path: Path) -> None:
    store = open_store("memory://")
    slot = _slot(store, _released(store, trained_of("plain")), tmp_path)
    weights = next(slot.glob("weights/weights/*"))
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(bytes(data))
    with pytest.raises(DamagedData, match="weights/weights"):
        load_slot(slot, tokenizer=None, batch_max=1)
    weights.unlink()
    with pytest.raises(NotFound, match="robot install"):
        load_slot(slot, tokenizer=None, batch_max=1)
    with pytest.raises(NotFound, match="slot"):
        load_slot(tmp_path, tokenizer=None, batch_max=1)
