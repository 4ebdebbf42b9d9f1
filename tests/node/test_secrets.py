"""Secrets on a node: given to ranks as variables and files, masked in all that is told of them, left nowhere."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mainspring.domain.ids import RoleName, SecretName
from mainspring.domain.wire import RoleOrders
from mainspring.node.process import guard as guard_program
from mainspring.node.process.account import OwnAccount
from mainspring.node.process.ranks import LAST_WORDS_BYTES, RankLog
from mainspring.node.process.secrets import (
    HELD_BYTES_MAX,
    MASKED_BYTES_MIN,
    PIECE_BYTES_MAX,
    MaskedOutput,
    Masks,
)
from mainspring.node.supervise.secrets import RankSecrets

HF, KEY = SecretName("HF_TOKEN"), SecretName("KEY")
VALUE = "hf_0123456789abcdef"
LINES = "-----BEGIN KEY-----\nMIIEvQIBADANBgkq\n}\nhkiG9w0BAQEFAASC\n"
# The front of one is the end of another, one is the front of another, one holds the front of another, one repeats.
_VALUES = ("abcabd", "abdabcabc", "abcabdab", "bdabca", "cccccc")
TANGLED = {SecretName(f"S{at}"): value for at, value in enumerate(_VALUES)}
PASSED_S_MAX = 2.0


def masks(**values: str) -> Masks:
    made = Masks()
    made.add({SecretName(name): value for name, value in values.items()})
    return made


@pytest.fixture
def account(tmp_path: Path) -> Iterator[OwnAccount]:
    made = OwnAccount(tmp_path)
    yield made
    asyncio.run(made.close())


# ---------------------------------------------------------------- masks


@pytest.mark.parametrize("spell", [str, json.dumps, repr, lambda value: quote(value, safe="")])
def test_value_is_masked_as_programs_spell_it(spell: object) -> None:
    assert callable(spell)
    value = 'p"ss w\\rd/ü&x'
    told = masks(PASSWORD=value).masked(f"login({spell(value)})")
    assert "[secret PASSWORD]" in told
    assert "rd/" not in told
    assert "%2F" not in told


def test_each_line_of_a_value_is_masked_and_brackets_are_not() -> None:
    _, line, _, other = LINES.splitlines()
    assert masks(KEY=LINES).masked(f"> {line} }} {other[:-1]}") == f"> [secret KEY] }} {other[:-1]}"


@pytest.mark.parametrize("size", [PIECE_BYTES_MAX, PIECE_BYTES_MAX + 1, 3 * PIECE_BYTES_MAX - 1])
def test_value_of_one_long_line_is_masked_from_end_to_end(size: int) -> None:
    value = "".join(f"{number:05}" for number in range(size))[:size]
    told = masks(KEY=value).masked(f"<{value}>")
    assert told.replace("[secret KEY]", "") == "<>"


def test_facts_of_a_result_are_masked_in_values_and_names() -> None:
    told = masks(HF_TOKEN=VALUE).facts({"loss": 0.5, "at": f"s3://{VALUE}/x", VALUE: 1})
    assert told == {"loss": 0.5, "at": "s3://[secret HF_TOKEN]/x", "[secret HF_TOKEN]": 1}


def test_value_of_before_is_still_masked_once_there_is_another() -> None:
    made = masks(HF_TOKEN=VALUE)
    made.add({HF: "hf_fedcba9876543210"})
    assert made.masked(f"{VALUE} hf_fedcba9876543210") == "[secret HF_TOKEN] [secret HF_TOKEN]"


@given(
    pieces=st.lists(st.sampled_from([*TANGLED.values(), "a", "b", "ab", "c", "x", "\n"]), max_size=12),
    cuts=st.lists(st.integers(0, 80), max_size=6),
)
@example(pieces=["abcabd"], cuts=[3])
@example(pieces=["abcabd", "ab"], cuts=[6])
@example(pieces=["abdabcabc", "abd"], cuts=[1, 9])
def test_output_is_masked_alike_wherever_it_is_cut(pieces: list[str], cuts: list[int]) -> None:
    made = Masks()
    made.add(TANGLED)
    data = "".join(pieces).encode() + b"\n"  # Nothing is begun at its end.
    output, told, at = MaskedOutput(made), b"", 0
    for cut in [*sorted(cuts), len(data)]:
        told += output.passed(data[at:cut])
        at = max(at, cut)
    assert told == made.masked(data.decode()).encode()
    assert not [value for value in TANGLED.values() if value.encode() in told]
    assert output.rest() == b""


def test_most_of_a_value_at_the_end_of_output_is_masked_like_all_of_it() -> None:
    for length in range(len(VALUE) + 1):
        output = MaskedOutput(masks(HF_TOKEN=VALUE))
        told = output.passed(f"it is {VALUE[:length]}".encode()) + output.rest()
        assert (VALUE[:MASKED_BYTES_MIN].encode() in told) is False
        assert told.startswith(b"it is ")


def test_output_that_is_no_secret_is_not_held_back() -> None:
    output = MaskedOutput(masks(HF_TOKEN=VALUE))
    assert output.passed(b"step 12\n") == b"step 12\n"
    assert output.passed(b"hello h") == b"hello "
    assert output.passed(b"i") == b"hi"


@pytest.mark.slow
def test_output_that_repeats_the_front_of_a_secret_is_held_within_a_bound() -> None:
    output = MaskedOutput(masks(A="a" * 65_536))
    began_s = time.thread_time()  # What others take of the processor says nothing.
    told = sum(len(output.passed(b"a" * 65_535)) for _ in range(5))
    assert time.thread_time() - began_s < 5 * PASSED_S_MAX
    assert len(output.rest()) <= HELD_BYTES_MAX
    assert told <= 5 * 65_536


# ---------------------------------------------------------------- logs


def test_log_masks_a_value_that_is_cut_between_writes_on_disk_and_in_its_last_words(tmp_path: Path) -> None:
    log = RankLog(tmp_path / "rank-0.log", bytes_max=1 << 20, masks=masks(HF_TOKEN=VALUE))
    log.listen()
    for letter in f"the token is {VALUE}, bye\n":
        log.write(letter.encode())
    assert log.heard() == b"the token is [secret HF_TOKEN], bye\n"
    assert log.close() == "the token is [secret HF_TOKEN], bye"
    assert (tmp_path / "rank-0.log").read_bytes() == b"the token is [secret HF_TOKEN], bye\n"


def test_log_whose_last_words_begin_inside_a_value_tells_none_of_it(tmp_path: Path) -> None:
    log = RankLog(tmp_path / "rank-0.log", bytes_max=1 << 20, masks=masks(HF_TOKEN=VALUE))
    log.write(VALUE.encode() + b"x" * (LAST_WORDS_BYTES - 10))
    assert VALUE[-8:] not in log.close()


# ---------------------------------------------------------------- given


def test_process_finds_its_secrets_and_its_files_go_with_it(account: OwnAccount) -> None:
    secrets = RankSecrets({HF: VALUE, KEY: LINES}, account)
    orders = RoleOrders(role=RoleName("main"), command=("x",), environment={}, secrets=(HF,), secret_files=(KEY, HF))
    first, second = (asyncio.run(secrets.given(orders, name)) for name in ("first", "second"))
    assert first.keys() == {"HF_TOKEN", "KEY_FILE", "HF_TOKEN_FILE"}
    assert first["HF_TOKEN"] == VALUE
    file = Path(first["KEY_FILE"])
    assert file.read_text() == LINES
    assert [path.stat().st_mode & 0o777 for path in (file, file.parent)] == [0o400, 0o700]
    assert file.parent == Path(first["HF_TOKEN_FILE"]).parent != Path(second["KEY_FILE"]).parent
    secrets.forget("first")
    assert not file.parent.exists()
    assert Path(second["KEY_FILE"]).read_text() == LINES
    secrets.renew({HF: "another value"})
    third = asyncio.run(secrets.given(orders, "third"))
    assert (third["HF_TOKEN"], Path(third["KEY_FILE"]).read_text()) == ("another value", LINES)
    for each in ("second", "third"):
        secrets.forget(each)


def test_role_that_names_no_secret_is_given_none(account: OwnAccount) -> None:
    secrets = RankSecrets({HF: VALUE}, account)
    orders = RoleOrders(role=RoleName("main"), command=("x",), environment={})
    assert asyncio.run(secrets.given(orders, "one")) == {}


def test_guard_left_alone_removes_files_of_secrets(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    folder.mkdir(mode=0o700)
    (folder / "KEY").write_text(LINES)
    os.chmod(folder / "KEY", 0o400)
    words = [sys.executable, "-I", "-S", guard_program.__file__, str(tmp_path)]
    subprocess.run(words, input=f"*{folder}\n".encode(), timeout=120, check=True)
    assert not folder.exists()
