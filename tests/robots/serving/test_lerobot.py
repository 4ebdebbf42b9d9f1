"""LeRobot's ACT behind the port: by its own package where that is installed, and by what stands for one elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mainspring.domain.errors import InvalidInput
from mainspring.robots.serving.policies.lerobot import open_lerobot
from mainspring.robots.serving.policy import Asked, warm


def test_a_folder_without_safetensors_is_refused_whatever_else_it_holds(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'exit 1'\ntR.")
    with pytest.raises(InvalidInput, match=r"no model\.safetensors"):
        open_lerobot(tmp_path, batch_max=1)


@pytest.mark.slow
def test_an_act_that_lerobot_saved_gives_the_chunks_that_lerobot_gives(tmp_path: Path) -> None:
    torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed; pip install lerobot")
    pytest.importorskip("lerobot", reason="LeRobot is not installed; pip install lerobot")
    from lerobot.configs.types import FeatureType, PolicyFeature
    from lerobot.policies.act.configuration_act import ACTConfig
    from lerobot.policies.act.modeling_act import ACTPolicy
    from lerobot.policies.factory import make_pre_post_processors

    config = ACTConfig(
        input_features={
            "observation.state": PolicyFeature(type=FeatureType.STATE, shape=(3,)),
            "observation.images.top": PolicyFeature(type=FeatureType.VISUAL, shape=(3, 32, 32)),
        },
        output_features={"action": PolicyFeature(type=FeatureType.ACTION, shape=(3,))},
        chunk_size=8,
        n_action_steps=8,
        dim_model=32,
        dim_feedforward=32,
        n_heads=2,
        n_encoder_layers=1,
        n_vae_encoder_layers=1,
        pretrained_backbone_weights=None,
        device="cpu",
    )
    theirs = ACTPolicy(config).eval()
    ones = {"mean": torch.full((3,), 0.5), "std": torch.full((3,), 2.0)}
    picture = {"mean": torch.zeros(3, 1, 1), "std": torch.ones(3, 1, 1)}
    stats = {"observation.state": ones, "action": ones, "observation.images.top": picture}
    before, after = make_pre_post_processors(config, dataset_stats=stats)
    for part in (theirs, before, after):
        part.save_pretrained(tmp_path)
    state, image = np.ones(3, np.float32), np.full((32, 32, 3), 128, np.uint8)
    shown = {
        "observation.state": torch.from_numpy(state)[None],
        "observation.images.top": torch.from_numpy(image).permute(2, 0, 1)[None].float() / 255,
    }
    with torch.inference_mode():
        expected = after(theirs.predict_action_chunk(before(shown))).numpy()
    policy = open_lerobot(tmp_path, batch_max=2)
    warm(policy)
    seen = {"observation/state": state, "observation.images.top": image}
    np.testing.assert_allclose(policy.infer([Asked(observation=seen, seed=0)]), expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(InvalidInput, match=r"on observation\.state"):
        policy.infer([Asked(observation={"observation.images.top": image}, seed=0)])
