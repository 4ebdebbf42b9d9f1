"""Prompts: what a robot shall do, and for pi0.5 the state it is in, as the tokens of a VLA's language model.

Source: openpi, `tokenizer.py`: pi0 reads the task and a line end; pi0.5 reads `Task: ..., State: ...;`, a line end and
`Action: `, the state as whole numbers from 0 to 255.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import sentencepiece
from numpy.typing import NDArray

from mainspring.domain.errors import InvalidInput
from mainspring.train.models.shapes import VlaKind, VlaRecipe
from mainspring.train.robots import BYTES, WORDS

STATE_BINS = 256  # Between -1 and 1.
_NEEDED = "Task: , State: 0 1 2 3 4 5 6 7 8 9;\nAction: "
KNOWN_MAX = 100_000  # Prompts of tasks that are kept: some 40 MB; the largest published mixtures have fewer tasks.
_FIRST = 2  # Before it are padding and what begins a text.
_WORD = re.compile(r"\w+|[^\w ]")
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


class _Bytes:
    """Words that need no file: a text's bytes. What begins one is a byte that texts do not have."""

    def GetPieceSize(self) -> int:
        return 256

    def EncodeAsIds(self, texts: str | list[str]) -> Any:
        return list(texts.encode()) if isinstance(texts, str) else [list(text.encode()) for text in texts]

    def unk_id(self) -> int:
        return -1

    def bos_id(self) -> int:
        return 1


class _Hashed(_Bytes):
    """Words that need no file either: each word of a text is one by its hash, capital letters and small ones alike.

    What is common to two sentences is so wherever it stands, which a small model does not learn of bytes from a few.
    """

    def __init__(self, vocabulary: int) -> None:
        self._count = vocabulary - _FIRST

    def GetPieceSize(self) -> int:
        return _FIRST + self._count

    def EncodeAsIds(self, texts: str | list[str]) -> Any:
        if isinstance(texts, str):
            return [_FIRST + crc32(word.encode()) % self._count for word in _WORD.findall(texts.lower())]
        return [self.EncodeAsIds(text) for text in texts]


class Tokenizer:
    """The words of a language model, from a SentencePiece file; or what needs none, for one that learns from nothing.

    What it has made of a task is kept where prompts tell no state: a batch then costs a look for each row.
    """

    def __init__(self, path: Path, policy: VlaRecipe) -> None:
        """Opens a tokenizer for a policy.

        Args:
            path: A SentencePiece model, or `BYTES` or `WORDS`.
            policy: The policy that is to read its words.

        Raises:
            InvalidInput: The file is none, knows more words than the policy, or lacks some that prompts need.
        """
        self._policy = policy
        self._known: dict[str, Prompt] = {}
        if str(path) in (BYTES, WORDS):
            self._words: Any = _Bytes() if str(path) == BYTES else _Hashed(policy.language.vocabulary)
            self._check(path)
            return
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
        both = self.prompts([task], state[None])
        return Prompt(tokens=both.tokens[0], valid=both.valid[0])

    def prompts(self, tasks: Sequence[str], state_BS: NDArray[np.float32]) -> Prompt:
        """Returns the prompts of a batch, [B,P].

        Args:
            tasks: What the robot shall do in each row.
            state_BS: As for `prompt`.

        Raises:
            InvalidInput: As for `prompt`.
        """
        if self._policy.kind is VlaKind.PI05:
            found = self._made(tasks, state_BS)
        else:
            if len(self._known) > KNOWN_MAX:
                self._known.clear()
            fresh = [task for task in dict.fromkeys(tasks) if task not in self._known]
            self._known |= dict(zip(fresh, self._made(fresh, state_BS[: len(fresh)]), strict=True))
            found = [self._known[task] for task in tasks]
        return Prompt(tokens=np.stack([one.tokens for one in found]), valid=np.stack([one.valid for one in found]))

    def _made(self, tasks: Sequence[str], state_BS: NDArray[np.float32]) -> list[Prompt]:
        texts = [task.strip().replace("_", " ").replace("\n", " ") for task in tasks]
        made = zip(tasks, self._tokens(texts, state_BS), strict=True)
        return [self._padded(task, [self._words.bos_id(), *tokens]) for task, tokens in made]

    def _padded(self, task: str, tokens: list[int]) -> Prompt:
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

    def _tokens(self, texts: list[str], state_BS: NDArray[np.float32]) -> list[list[int]]:
        words = self._words
        match self._policy.kind:
            case VlaKind.PI0:  # Its line end is always a word of its own.
                end = words.EncodeAsIds("\n")
                return [[*tokens, *end] for tokens in words.EncodeAsIds(texts)]
            case VlaKind.PI05:
                bins = np.digitize(state_BS, np.linspace(-1, 1, STATE_BINS + 1)[:-1]) - 1
                told = [" ".join(map(str, row)) for row in bins.tolist()]
                both = zip(texts, told, strict=True)
                found: list[list[int]] = words.EncodeAsIds(
                    [f"Task: {task}, State: {state};\nAction: " for task, state in both]
                )
                return found
