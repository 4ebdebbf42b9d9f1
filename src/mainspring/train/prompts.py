"""Prompts: what a robot shall do, and for pi0.5 the state it is in, as the tokens of a VLA's language model.

Source: openpi, `tokenizer.py`: pi0 reads the task and a line end; pi0.5 reads `Task: ..., State: ...;`, a line end and
`Action: `, the state as whole numbers from 0 to 255.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import sentencepiece
from numpy.typing import NDArray

from mainspring.domain.errors import InvalidInput
from mainspring.train.models.shapes import VlaKind, VlaRecipe

STATE_BINS = 256  # Between -1 and 1.
_NEEDED = "Task: , State: 0 1 2 3 4 5 6 7 8 9;\nAction: "
MODEL_BYTES_MAX = 64 << 20  # That of Gemma is 4 MB.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prompt:
    """A prompt as a batch has it for each of its rows.

    Args:
        tokens: [P] whole numbers, padded with zeros.
        valid: [P], False where padding is.
    """

    tokens: NDArray[np.int32]
    valid: NDArray[np.bool_]


class Tokenizer:
    """The words of a language model, from a SentencePiece file."""

    def __init__(self, path: Path, policy: VlaRecipe) -> None:
        """Opens a tokenizer for a policy.

        Args:
            path: A SentencePiece model.
            policy: The policy that is to read its words.

        Raises:
            InvalidInput: The file is none, knows more words than the policy, or lacks some that prompts need.
        """
        self._policy = policy
        self._words = sentencepiece.SentencePieceProcessor()
        try:
            size_bytes = path.stat().st_size
            model = path.read_bytes() if size_bytes <= MODEL_BYTES_MAX else b""
            loaded = bool(model) and self._words.LoadFromSerializedProto(model)
        except (OSError, RuntimeError) as error:
            raise InvalidInput(
                "open a tokenizer", on=str(path), got=str(error), wanted="a SentencePiece model"
            ) from error
        if not loaded:
            raise InvalidInput(
                "open a tokenizer", on=str(path), got=f"{size_bytes} bytes", wanted=f"1 to {MODEL_BYTES_MAX} bytes"
            )
        self._check(path)

    def _check(self, path: Path) -> None:
        count, most = self._words.GetPieceSize(), self._policy.language.vocabulary
        if count > most:
            raise InvalidInput("open a tokenizer", on=str(path), got=f"{count} words", wanted=f"at most {most}")
        lacking = [part for part in _NEEDED.split(" ") if self._words.unk_id() in self._words.EncodeAsIds(part)]
        if lacking or self._words.bos_id() < 0:
            raise InvalidInput(
                "open a tokenizer",
                on=str(path),
                got=f"no words for {lacking}" if lacking else "no word that begins a text",
                wanted="what prompts are made of",
                next_step="use the tokenizer that the language model was trained with",
            )

    def prompt(self, task: str, state: NDArray[np.float32]) -> Prompt:
        """Returns the prompt of one task in one state.

        Args:
            task: What the robot shall do, in words.
            state: [S], normalised; what is beyond -1 to 1 falls into the bins at the ends, as openpi has it.

        Raises:
            InvalidInput: It is longer than the policy's prompts: cut, it would lose the state or the end.
        """
        tokens = [self._words.bos_id(), *self._tokens(task.strip().replace("_", " ").replace("\n", " "), state)]
        most = self._policy.prompt_length
        if len(tokens) > most:
            raise InvalidInput(
                "make a prompt",
                on=repr(task[:80]),
                got=f"{len(tokens)} tokens",
                wanted=f"at most {most}",
                next_step="shorten the task, or set policy.prompt_length",
            )
        padding = most - len(tokens)
        return Prompt(tokens=np.asarray([*tokens, *[0] * padding], np.int32), valid=np.arange(most) < len(tokens))

    def _tokens(self, task: str, state: NDArray[np.float32]) -> list[int]:
        words = self._words
        match self._policy.kind:
            case VlaKind.PI0:  # Its line end is always a word of its own.
                return [*words.EncodeAsIds(task), *words.EncodeAsIds("\n")]
            case VlaKind.PI05:
                bins = np.digitize(state, np.linspace(-1, 1, STATE_BINS + 1)[:-1]) - 1
                return list(words.EncodeAsIds(f"Task: {task}, State: {' '.join(map(str, bins))};\nAction: "))
