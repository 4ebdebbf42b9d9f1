"""A release as it is served: the chunks of what was signed, and nothing where a byte of it is another."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax", reason="the train extra is not installed")

import jax
from safetensors.numpy import save

from mainspring.domain.answers.policies.releases import (
    Embodiment,
    GateSeen,
    GateStanding,
    NewPolicyRelease,
    PolicyRelease,
    ReleaseFile,
    ReleaseLineage,
    artifact_key,
)
from mainspring.domain.codec import encode
from mainspring.domain.errors import DamagedData, NotFound
from mainspring.objects import ObjectStore, open_store
from mainspring.robots.serving.policies.released import load_release
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
    contents = {
        "facts.json": json.dumps({"signature": encode(policy.signature).decode()}).encode(),
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
