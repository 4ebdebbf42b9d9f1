from __future__ import annotations

import pytest

from mainspring.domain.errors import InvalidInput, NotFound
from mainspring.train.plan.targets import Target, parsed_target


@pytest.mark.parametrize(
    ("name", "slices", "devices"),
    [
        ("v5p:8x8x4", 1, 256),
        ("v5p:2x2x1", 1, 4),
        ("v6e:16x16", 2, 512),
        ("v4:4x4x4", 1, 64),
        ("tpu7x:2x2x2", 1, 16),  # Two devices a chip.
        ("h100:64", 1, 64),
        ("H100:8 ", 1, 8),
        ("a100-80:64", 1, 64),
    ],
)
def test_target_of_a_name_has_the_devices_that_jax_counts(name: str, slices: int, devices: int) -> None:
    assert parsed_target(name, slices=slices).devices == devices


def test_target_has_the_name_it_was_read_from() -> None:
    target = parsed_target("v5p:4x4x8")
    assert target == Target(chip="v5p", topology=(4, 4, 8))
    assert parsed_target(target.name) == target


@pytest.mark.parametrize("name", ["v9:2x2", "gpu:8", ":4", ""])
def test_chip_that_nobody_knows_is_refused_and_those_there_are_named(name: str) -> None:
    with pytest.raises(
        NotFound, match=r"plan for a chip.*name one of v4, v5e, v5p, v6e, tpu7x, a100, a100-80gb, h100, h200, b200"
    ):
        parsed_target(name)


def test_chip_of_a_near_name_is_asked_back() -> None:
    with pytest.raises(NotFound, match="did you mean 'v5p'"):
        parsed_target("v5pp:4x4x4")


@pytest.mark.parametrize("name", ["v5p", "v5p:", "v5p:4x4x", "v5p:0x2x2", "v5p:axb", "v5p:-4x4x4", "v5p:9999999x4x4"])
def test_name_that_is_no_target_is_refused_with_what_there_is(name: str) -> None:
    with pytest.raises(InvalidInput, match=r"read a target.*wanted v5p: and 2x2x1, .*multiples of 4"):
        parsed_target(name)


@pytest.mark.parametrize(
    ("name", "there_is"),
    [
        ("v5p:3x3x3", "2x2x1, 2x2x2, 2x2x4, 2x4x4, or AxBxC"),
        ("v5p:4x4", "AxBxC"),
        ("v5p:16x16x28", "at most 6144 chips"),
        ("v6e:4x4x4", "1x1, 2x2, 2x4, 4x4, 4x8, 8x8, 8x16, 16x16"),
        ("v5e:32x32", "16x16"),
        ("h100:12", "1, 2, 4 or a multiple of 8"),
        ("h100:8x8", "a multiple of 8"),
    ],
)
def test_topology_that_does_not_exist_is_refused_with_those_that_do(name: str, there_is: str) -> None:
    with pytest.raises(InvalidInput, match="plan for a topology") as refused:
        parsed_target(name)
    assert there_is in refused.value.wanted


@pytest.mark.parametrize(("name", "slices"), [("v5p:4x4x4", 0), ("v5p:4x4x4", 1025), ("h100:64", 2)])
def test_slices_that_there_cannot_be_are_refused(name: str, slices: int) -> None:
    with pytest.raises(InvalidInput, match="plan for slices"):
        parsed_target(name, slices=slices)
