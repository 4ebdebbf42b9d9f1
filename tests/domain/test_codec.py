"""Codec and frames: everything that goes out comes back, and nothing wrong comes in."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.domain.answers import Submit, SubmitBatch
from mainspring.domain.codec import (
    DEPTH_MAX,
    FRAME_HEADER_BYTES,
    MESSAGE_BYTES_MAX,
    decode,
    encode,
    encode_each,
    frame,
    frame_length,
    from_plain,
    to_plain,
    unframe,
)
from mainspring.domain.errors import InvalidMessage, InvalidSpec
from mainspring.domain.ids import ChipName, RoleName, TeamName
from mainspring.domain.job import JobKind, JobSpec, Option, Role, Tier
from mainspring.domain.wire import Holder, Holding, PrepareGeneration, RestorePlan, Shard, StepReport, StoreFailed

NAMES = st.from_regex(r"[a-z0-9]([a-z0-9._-]{0,20}[a-z0-9])?", fullmatch=True)
WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
OPTIONS = st.builds(
    Option,
    chip=NAMES.map(ChipName),
    chips=st.one_of(st.integers(1, 64).map(float), st.integers(1, 999).map(lambda milli: milli / 1000)),
    replicas=st.integers(1, 1000),
    within=st.one_of(st.none(), NAMES),
    speed=st.floats(0.01, 100),
)
ROLES = st.builds(
    Role,
    name=NAMES.map(RoleName),
    command=st.lists(WORDS.filter(bool), min_size=1, max_size=4).map(tuple),
    options=st.lists(OPTIONS, min_size=1, max_size=3).map(tuple),
    environment=st.dictionaries(NAMES, WORDS, max_size=3),
)
SPECS = st.builds(
    JobSpec,
    name=NAMES,
    team=NAMES.map(TeamName),
    kind=st.sampled_from(JobKind),
    tier=st.sampled_from(Tier),
    roles=st.lists(ROLES, min_size=1, max_size=3, unique_by=lambda role: role.name).map(tuple),
)


@given(SPECS, st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
def test_frames_come_back_as_they_went(spec: JobSpec, key: str) -> None:
    sent = Submit(spec=spec, key=key)
    data = frame(sent)
    assert frame_length(data[:FRAME_HEADER_BYTES]) == len(data) - FRAME_HEADER_BYTES
    assert unframe(data[FRAME_HEADER_BYTES:], Submit) == sent


@given(st.binary(max_size=200))
def test_unframe_of_any_bytes_raises_only_invalid_message(data: bytes) -> None:
    with pytest.raises(InvalidMessage):
        unframe(data, StepReport)


@given(DOCUMENTS)
def test_from_plain_of_any_document_returns_a_spec_or_a_named_error(document: object) -> None:
    with pytest.raises(InvalidSpec):
        from_plain(JobSpec, document, strict=True)


def test_messages_with_unknown_fields_are_accepted() -> None:
    body = json.loads(encode(StepReport(step=4)))
    assert decode(StepReport, json.dumps({**body, "from_the_future": [1]}).encode()) == StepReport(step=4)


def test_documents_with_unknown_fields_are_refused_naming_the_nearest() -> None:
    spec = to_plain(JobSpec(name="a", roles=(Role(command=("x",), options=(Option(chip=ChipName("cpu")),)),)))
    spec["roles"][0]["options"][0]["replica"] = 2
    with pytest.raises(InvalidSpec, match=r"roles\[0\]\.options\[0\]\.replica.*did you mean 'replicas'"):
        from_plain(JobSpec, spec, strict=True)


@pytest.mark.parametrize(
    ("plain", "words"),
    [
        ({"step": "4"}, "a whole number"),
        ({"step": True}, "a whole number"),
        ({}, "this field of StepReport"),
        ({"step": 1, "metrics": {"loss": "low"}}, "a number"),
        ({"step": 1, "metrics": [1]}, "a mapping"),
    ],
)
def test_messages_of_wrong_types_are_refused_naming_the_field(plain: object, words: str) -> None:
    with pytest.raises(InvalidMessage, match=words):
        from_plain(StepReport, plain)


def test_messages_over_their_bounds_are_refused() -> None:
    with pytest.raises(InvalidMessage, match="at most"):
        decode(StepReport, b" " * (MESSAGE_BYTES_MAX + 1))
    with pytest.raises(InvalidMessage):
        frame_length((MESSAGE_BYTES_MAX + 1).to_bytes(FRAME_HEADER_BYTES, "big"))
    deep: object = 1
    for _ in range(DEPTH_MAX * 100):
        deep = [deep]
    with pytest.raises(InvalidMessage):
        from_plain(StepReport, {"step": deep})
    with pytest.raises(InvalidMessage, match="JSON"):
        decode(StepReport, b'{"step": 1, "metrics": {"loss": NaN}}')


def test_messages_of_another_version_are_refused_by_name() -> None:
    body = json.dumps({"type": "StepReport", "version": 99, "body": {"step": 1}}).encode()
    with pytest.raises(InvalidMessage, match="version 99"):
        unframe(body, StepReport)


def test_nested_messages_keep_tuples_and_mappings() -> None:
    shard = Shard(path="a/b", dtype="float32", global_shape=(2, 3), start=(0, 0), shape=(2, 3), offset=64, size_bytes=9)
    plan = RestorePlan(step=7, shards=(shard,), state={"seed": 1, "name": "x", "rate": 0.5})
    assert decode(RestorePlan, encode(plan)) == plan


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'{"step": 1, "metrics": {"loss": 1e999}}', "finite"),
        (b'{"step": 36893488147419103232}', "64 bits"),
        (b'{"step": 1, "metrics": {"loss": 36893488147419103232}}', "64 bits"),
        (b'{"step": 1, "metrics": {"\\ud800": 1}}', "text"),
    ],
)
def test_messages_with_values_no_store_can_hold_are_refused(data: bytes, words: str) -> None:
    with pytest.raises(InvalidMessage, match=words):
        decode(StepReport, data)


def test_messages_with_half_a_character_are_refused() -> None:
    with pytest.raises(InvalidMessage, match="UTF-8"):
        decode(StoreFailed, b'{"rank": 0, "step": 1, "reason": "\\ud800"}')


def test_frames_that_share_a_long_part_each_come_back_as_they_went() -> None:
    holding = Holding(step=5, generation=1, rank=0, role=RoleName("main"), role_rank=0, role_size=1)
    first, second = ((Holder(agent=agent, address='a"holders":[]', holdings=(holding,)),) for agent in range(2))
    for holders in (first, first, second, (), first):
        for generation in range(3):
            sent = PrepareGeneration(
                generation=generation, step=5, source='"holders":[]', holders=holders, peer='\\"holders":[]'
            )
            assert unframe(frame(sent)[FRAME_HEADER_BYTES:], PrepareGeneration) == sent


def test_parts_that_repeat_in_a_message_are_one_value(spec_of_two: tuple[JobSpec, JobSpec]) -> None:
    first, second = spec_of_two
    told = SubmitBatch(submits=(Submit(spec=first), Submit(spec=second), Submit(spec=first)))
    read = decode(SubmitBatch, encode(told))
    assert read == told
    one, other, same = (submit.spec.roles[0].options for submit in read.submits)
    assert one is other is same


@pytest.mark.parametrize("replicas", ["true", "2.0"])
def test_parts_that_only_look_like_the_one_before_are_refused(
    spec_of_two: tuple[JobSpec, JobSpec], replicas: str
) -> None:
    """To Python 1 is True, and 2 is 2.0; to a store they are not."""
    text = encode(SubmitBatch(submits=tuple(Submit(spec=spec) for spec in spec_of_two))).decode()
    whole = '"replicas":1,' if replicas == "true" else '"replicas":2,'
    text = text.replace('"replicas":1,"replicas_min":1,', f'{whole}"replicas_min":1,')
    before, _, after = text.rpartition(whole)
    assert len(decode(SubmitBatch, text.encode()).submits) == 2
    with pytest.raises(InvalidMessage, match="replicas"):
        decode(SubmitBatch, f'{before}"replicas":{replicas},{after}'.encode())


def test_roles_that_repeat_in_a_message_are_one_value(spec_of_two: tuple[JobSpec, JobSpec]) -> None:
    first, second = spec_of_two
    told = SubmitBatch(submits=tuple(Submit(spec=replace(first, name=name)) for name in ("a", "b")))
    told = replace(told, submits=(*told.submits, Submit(spec=second), Submit(spec=first)))
    read = decode(SubmitBatch, encode(told))
    assert read == told
    one, same, other, _ = (submit.spec.roles for submit in read.submits)
    assert one is same is not other


@given(st.lists(SPECS | st.builds(Submit, spec=SPECS, key=st.sampled_from(["", "é", "a"]), count=st.integers(1, 3))))
def test_values_written_in_a_row_are_each_as_if_alone(values: list[JobSpec | Submit]) -> None:
    twice = [one for value in values for one in (value, value)]
    assert encode_each(twice) == [encode(one).decode() for one in twice]


def test_values_written_in_a_row_that_only_look_alike_are_each_as_if_alone(
    spec_of_two: tuple[JobSpec, JobSpec],
) -> None:
    first, second = spec_of_two
    plain = StepReport(step=1)
    looks_alike = [replace(plain, step=step) for step in (1, True, 1.0)]  # type: ignore[arg-type]
    values = [first, *looks_alike, replace(first, name="c"), second, replace(second, tier=Tier.CRITICAL), plain]
    assert encode_each(values) == [encode(one).decode() for one in values]


@pytest.fixture
def spec_of_two() -> tuple[JobSpec, JobSpec]:
    option = Option(chip=ChipName("gpu"), replicas=1)
    a, b = (Role(command=(word,), options=(option,)) for word in ("a", "b"))
    return JobSpec(name="a", roles=(a,)), JobSpec(name="b", roles=(b,))
