"""Values check themselves, and say what was wrong."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.domain.errors import InvalidInput, InvalidSpec, nearest
from mainspring.domain.fleet import Inventory, Node
from mainspring.domain.ids import ChipName, ClusterName, NodeName, RoleName, checked_name, draw_id
from mainspring.domain.job import JobSpec, Option, Role, Tier

CPU = ChipName("cpu")


@pytest.mark.parametrize("name", ["", "A", "-a", "a-", "a b", "a/b", "..", "x" * 64, "a\n"])
def test_names_outside_the_rule_are_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="name for job"):
        checked_name(name, "job")


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"chips": 0.0}, "chips"),
        ({"chips": 1.5}, "chips"),
        ({"chips": 0.00005}, "chips"),
        ({"chips": float("nan")}, "chips"),
        ({"replicas": 0}, "replicas"),
        ({"replicas": 4, "replicas_min": 5}, "replicas_min"),
        ({"chip_memory_gib": -1.0}, "chip_memory_gib"),
        ({"chip_memory_gib": float("nan")}, "chip_memory_gib"),
        ({"chips": 0.0, "cpus": 1.0, "chip_memory_gib": 1.0}, "chip_memory_gib"),
        ({"speed": 0.0}, "speed"),
        ({"speed": float("inf")}, "speed"),
    ],
)
def test_options_out_of_range_are_refused_naming_the_field(fields: dict[str, float], named: str) -> None:
    with pytest.raises(InvalidSpec, match=f"field '{named}'"):
        Option(chip=CPU, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("command", "environment", "named"),
    [
        (("",), {}, "command"),
        (("a\0b",), {}, "command"),
        (("true",), {"": "x"}, "environment"),
        (("true",), {"A=B": "x"}, "environment"),
        (("true",), {"A": "x\0"}, "environment"),
    ],
)
def test_roles_that_no_system_could_start_are_refused(
    command: tuple[str, ...], environment: dict[str, str], named: str
) -> None:
    with pytest.raises(InvalidSpec, match=f"field '{named}'"):
        Role(command=command, options=(Option(chip=CPU),), environment=environment)


def test_jobs_with_two_roles_of_one_name_are_refused() -> None:
    role = Role(name=RoleName("a"), command=("x",), options=(Option(chip=CPU),))
    with pytest.raises(InvalidSpec, match="names that differ"):
        JobSpec(name="j", roles=(role, role))


def test_inventories_out_of_order_are_refused() -> None:
    nodes = tuple(Node(name=NodeName(name), chip=CPU, chips=1) for name in ("b", "a"))
    with pytest.raises(InvalidInput, match="name order"):
        Inventory(cluster=ClusterName("c"), engine="local", simulated=True, nodes=nodes)


def test_errors_keep_their_parts_across_a_pickle() -> None:
    error = InvalidSpec("read a spec", on="x.yaml", got="1", wanted="2", next_step="look")
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) == "could not read a spec; on x.yaml; got 1; wanted 2; next: look"
    assert type(again) is InvalidSpec


def test_tiers_rank_from_most_urgent() -> None:
    assert [tier.rank for tier in (Tier.CRITICAL, Tier.STANDARD, Tier.OPPORTUNISTIC)] == [0, 1, 2]


def test_nearest_names_the_likely_word_or_all() -> None:
    assert nearest("replica", ["replicas", "chips"]) == "did you mean 'replicas'?"
    assert nearest("zzz", ["b", "a"]) == "one of a, b"


class _Counting:
    def __init__(self, value: int) -> None:
        self.value = value

    def bits(self, count: int) -> int:
        return self.value % (1 << count)


@given(st.integers(0, 2**60 - 1), st.integers(0, 2**60 - 1))
def test_ids_differ_when_their_bits_do_and_are_valid_names(first: int, second: int) -> None:
    one, other = draw_id("job", _Counting(first)), draw_id("job", _Counting(second))
    assert (one == other) == (first == second)
    assert checked_name(one, "job") == one
