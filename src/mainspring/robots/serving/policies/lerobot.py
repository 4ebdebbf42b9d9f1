"""PyTorch policies as LeRobot saves them, such as its ACT: a folder of config, processors and safetensors.

Needs the package `lerobot`, which brings PyTorch and is imported when such a policy is opened. Only safetensors are
read: a backbone that its config would load from elsewhere comes from the folder, too, with all other weights.
Source: LeRobot, `policies/factory.py`, `policies/utils.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, final

import numpy as np

from mainspring.domain.errors import InvalidInput
from mainspring.robots.serving.policy import Asked, FloatArray, PolicyFacts

WEIGHTS = "model.safetensors"


@final
class LerobotPolicy:
    """A policy of LeRobot as it is served. What it sees has LeRobot's names, or the same with slashes for dots.

    Args:
        policy: Gives chunks for batches of tensors.
        before: From a batch as the robot sees it to one that the policy takes.
        after: From the policy's chunks to the robot's units.
        name: What it is called.
        batch_max: Observations at once.
    """

    def __init__(self, policy: Any, before: Any, after: Any, *, name: str, batch_max: int) -> None:
        self._policy, self._before, self._after = policy, before, after
        self._torch = import_module("torch")
        self._shapes = {key: tuple(each.shape) for key, each in policy.config.input_features.items()}
        example = {
            key: np.zeros((*shape[1:], shape[0]), np.uint8) if _is_image(key) else np.zeros(shape, np.float32)
            for key, shape in self._shapes.items()
        }
        self._facts = PolicyFacts(
            name=name,
            batch_max=batch_max,
            action_dim=int(policy.config.output_features["action"].shape[0]),
            metadata={"sees": {key: list(each.shape) for key, each in example.items()}},
            examples=(example,),
        )

    @property
    def facts(self) -> PolicyFacts:
        """Returns what it sees and gives."""
        return self._facts

    def infer(self, asked: Sequence[Asked]) -> FloatArray:
        """Returns a chunk for each observation.

        Raises:
            InvalidInput: An observation lacks something, or has it in another shape.
        """
        batch: dict[str, Any] = {
            key: self._torch.from_numpy(np.stack([_seen(each.observation, key, shape) for each in asked]))
            for key, shape in self._shapes.items()
        }
        batch["task"] = [str(each.observation.get("task", each.observation.get("prompt", ""))) for each in asked]
        with self._torch.inference_mode():
            self._torch.manual_seed(asked[0].seed)  # ACT draws nothing; of others, a batch's first seed decides.
            chunks: FloatArray = self._after(self._policy.predict_action_chunk(self._before(batch))).float().numpy()
        return chunks


def _is_image(key: str) -> bool:
    return "image" in key


def _seen(observation: Mapping[str, Any], key: str, shape: tuple[int, ...]) -> Any:
    """Returns one thing that is seen, as the policy's tensors have it: pictures channels first, from 0 to 1."""
    given = observation.get(key, observation.get(key.replace(".", "/")))
    array = given if isinstance(given, np.ndarray) else np.zeros(())
    if _is_image(key) and array.ndim == 3 and array.dtype == np.uint8:
        array = (array if array.shape == shape else np.moveaxis(array, -1, 0)).astype(np.float32) / np.float32(255)
    if array.shape != shape or array.dtype.kind not in "fiu":
        got = "nothing" if given is None else f"{array.dtype} {array.shape}"
        raise InvalidInput("show a policy what it sees", on=key, got=got, wanted=f"{shape}")
    return np.ascontiguousarray(array, np.float32)


def open_lerobot(folder: Path, *, batch_max: int) -> LerobotPolicy:
    """Returns the policy that LeRobot saved in a folder.

    Raises:
        InvalidInput: There is none, or LeRobot is not installed.
    """
    if not (folder / WEIGHTS).is_file():
        raise InvalidInput("open a policy of LeRobot", on=str(folder), got=f"no {WEIGHTS}", wanted="a saved policy")
    try:
        configs = import_module("lerobot.configs.policies")
        factory = import_module("lerobot.policies.factory")
    except ImportError as error:
        raise InvalidInput(
            "open a policy of LeRobot", on=str(folder), got=str(error), next_step="pip install lerobot"
        ) from error
    config = configs.PreTrainedConfig.from_pretrained(folder, local_files_only=True)
    if hasattr(config, "pretrained_backbone_weights"):
        config.pretrained_backbone_weights = None  # They would be downloaded, and are a pickle.
    policy = factory.get_policy_class(config.type).from_pretrained(folder, config=config, strict=True)
    before, after = factory.make_pre_post_processors(config, pretrained_path=str(folder))
    return LerobotPolicy(policy, before, after, name=folder.name, batch_max=batch_max)
