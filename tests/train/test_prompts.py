from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mainspring.domain.errors import InvalidInput
from mainspring.train.models.shapes import VlaKind, VlaRecipe
from mainspring.train.models.vla import with_varied_words
from mainspring.train.prompts import Tokenizer
from mainspring.train.recipe import recipe_named

sentencepiece = pytest.importorskip("sentencepiece")
LINES = ["Task: pick the red cube, State: 0 1 2 3 4 5 6 7 8 9 -;\nAction: ", "put it into the box", "open a drawer"]


def words(folder: Path, lines: list[str], **options: Any) -> Path:
    """Trains a tokenizer that, as Gemma's, changes no text and has a word for the line end."""
    (folder / "lines.txt").write_text("\n".join(line.replace("\n", " ") for line in lines))
    settings = {
        "model_type": "char",
        "normalization_rule_name": "identity",
        "add_dummy_prefix": False,
        "remove_extra_whitespaces": False,
        "user_defined_symbols": ["\n"],
        "minloglevel": 2,
    }
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "lines.txt"),
        model_prefix=str(folder / "words"),
        vocab_size=40,
        hard_vocab_limit=False,
        **{**settings, **options},
    )
    return folder / "words.model"


def policy(kind: VlaKind, *, length: int) -> VlaRecipe:
    tiny = recipe_named("vla_tiny").policy
    assert isinstance(tiny, VlaRecipe)
    return replace(tiny, kind=kind, prompt_length=length)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return words(tmp_path_factory.mktemp("words"), LINES)


def text_of(model: Path, tokens: Any) -> str:
    told: str = sentencepiece.SentencePieceProcessor(model_file=str(model)).decode(tokens.tolist())
    return told


def test_prompt_of_pi0_is_the_task_and_a_line_end_between_the_beginning_and_padding(model: Path) -> None:
    prompt = Tokenizer(model, policy(VlaKind.PI0, length=20)).prompt(" pick_the cube\n", np.zeros(3, np.float32))
    length = int(prompt.valid.sum())
    assert prompt.valid.tolist() == [True] * length + [False] * (20 - length)
    assert not prompt.tokens[length:].any()
    assert prompt.tokens[0] == sentencepiece.SentencePieceProcessor(model_file=str(model)).bos_id()
    assert text_of(model, prompt.tokens[1:length]) == "pick the cube\n"


def test_prompt_of_pi05_tells_the_state_in_bins_and_beyond_their_ends_as_openpi_does(model: Path) -> None:
    state = np.asarray([-1.0, -0.001, 0.0, 1.0, 9.0, -9.0], np.float32)
    prompt = Tokenizer(model, policy(VlaKind.PI05, length=99)).prompt("open", state)
    told = text_of(model, prompt.tokens[1 : int(prompt.valid.sum())])
    assert told == "Task: open, State: 0 127 128 255 255 -1;\nAction: "


def test_prompt_that_is_too_long_is_refused_with_its_length(model: Path) -> None:
    tokenizer = Tokenizer(model, policy(VlaKind.PI0, length=4))
    with pytest.raises(InvalidInput, match=r"6 tokens.*at most 4"):
        tokenizer.prompt("open", np.zeros(3, np.float32))


def test_tokenizer_that_lacks_words_is_refused_by_what_it_lacks(tmp_path: Path) -> None:
    model = words(tmp_path, [line.replace("7", "") for line in LINES])
    with pytest.raises(InvalidInput, match=r"no words for \['7'\]"):
        Tokenizer(model, policy(VlaKind.PI05, length=20))


def test_tokenizer_without_a_beginning_is_refused(tmp_path: Path) -> None:
    model = words(tmp_path, LINES, bos_id=-1)
    with pytest.raises(InvalidInput, match="no word that begins a text"):
        Tokenizer(model, policy(VlaKind.PI0, length=20))


def test_tokenizer_of_more_words_than_the_policy_is_refused(model: Path) -> None:
    few = policy(VlaKind.PI0, length=20)
    with pytest.raises(InvalidInput, match="at most 9"):
        Tokenizer(model, replace(few, language=replace(few.language, vocabulary=9)))


@pytest.mark.parametrize("data", [b"", b"no model at all", None])
def test_file_that_is_no_tokenizer_is_refused(tmp_path: Path, data: bytes | None) -> None:
    path = tmp_path / "other.model"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(InvalidInput, match="open a tokenizer"):
        Tokenizer(path, policy(VlaKind.PI0, length=20))


def test_words_by_their_hash_are_the_same_wherever_they_stand_and_capitals_are_none() -> None:
    tokenizer = Tokenizer(Path("words"), policy(VlaKind.PI0, length=9))
    one, other = (
        tokenizer.prompt(task, np.zeros(3, np.float32)).tokens.tolist()
        for task in ("bring it Left", "left, where it belongs")
    )
    assert one[3] == other[1]
    assert one[2] == other[4]
    assert len({*one[:5]}) == 5
    assert one[5:] == [0] * 4
    assert max(one + other) < 256


def test_words_by_their_hash_fit_a_model_of_few_words() -> None:
    tiny = policy(VlaKind.PI0, length=9)
    few = replace(tiny, language=replace(tiny.language, vocabulary=16))
    tokens = Tokenizer(Path("words"), few).prompt("put it there", np.zeros(3, np.float32)).tokens
    assert tokens[0] == 1
    assert all(2 <= token < 16 for token in tokens[1:5])


def test_noise_leaves_out_words_and_replaces_others_but_never_the_ends() -> None:
    noisy = replace(policy(VlaKind.PI0, length=12), prompt_noise=0.5)
    words, rows = 8, 400
    batch = {
        "prompt": jnp.tile(jnp.asarray([1, *range(20, 20 + words), 5, 0, 0]), (rows, 1)),
        "prompt_valid": jnp.tile(jnp.arange(12) < words + 2, (rows, 1)),
    }
    keys = jax.random.split(jax.random.key(0), rows)
    found = with_varied_words(batch, noisy, keys)
    tokens, valid = np.asarray(found["prompt"]), np.asarray(found["prompt_valid"])
    assert valid[:, [0, words + 1]].all()
    assert (tokens[:, [0, words + 1]] == (1, 5)).all()
    assert not valid[:, words + 2 :].any()
    inner = slice(1, words + 1)
    left_out, replaced = ~valid[:, inner], tokens[:, inner] != np.asarray(batch["prompt"])[:, inner]
    assert left_out.mean() == pytest.approx(0.25, abs=0.03)
    assert (replaced & ~left_out).mean() == pytest.approx(0.25, abs=0.03)
    assert len({tuple(row) for row in left_out.tolist()}) > 50
    again = with_varied_words(batch, noisy, keys)
    assert all((found[name] == again[name]).all() for name in found)
    assert with_varied_words(batch, replace(noisy, prompt_noise=0.0), keys) is batch


def test_noise_is_refused_where_prompts_tell_the_state() -> None:
    with pytest.raises(InvalidInput, match="prompt_noise"):
        replace(policy(VlaKind.PI05, length=99), prompt_noise=0.1)
