"""Reading Slurm's text: hosts both ways, GRES, TRES, times, records."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.domain.errors import Unavailable
from mainspring.engines.common.hostlist import compress_hosts
from mainspring.engines.slurm.cluster.text import (
    duration_s,
    expand_hosts,
    fields,
    gpus,
    node_fields,
    node_reason,
    records,
    time_s,
    tres,
)

from .telling import node

_WORDS = st.from_regex(r"[a-zA-Z][a-z.-]{0,3}[a-z]", fullmatch=True)
_HOSTS = st.builds(
    lambda word, number, width: f"{word}{number:0{width}}", _WORDS, st.integers(0, 40), st.integers(1, 4)
)
_HOST_SETS = st.lists(st.one_of(_HOSTS, _WORDS, st.from_regex(r"r[0-2]n0[0-9]", fullmatch=True)), max_size=60)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("", []),
        ("(null)", []),
        ("login", ["login"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("r[1-2]n[01-02,4],x,[1-2]", ["r1n01", "r1n02", "r1n4", "r2n01", "r2n02", "r2n4", "x", "1", "2"]),
        ("a,b[1],c[2-2]d[3]", ["a", "b1", "c2d3"]),
    ],
)
def test_expand_hosts_of_each_form_gives_every_host_in_order(text: str, hosts: list[str]) -> None:
    assert expand_hosts(text) == hosts


@pytest.mark.parametrize("text", ["n[1-", "n1-3]", "n[2-1]", "n[a]", "n[]", "a,,b", "a b", "n[1-9999999]", "n[[1-2]]"])
def test_expand_hosts_of_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        expand_hosts(text)


def test_expand_hosts_of_too_many_is_refused_before_they_are_made() -> None:
    with pytest.raises(ValueError, match="more than"):
        expand_hosts("a[1-9999]b[1-9999]c[1-9999]")


@pytest.mark.slow
@given(_HOST_SETS)
def test_compressed_hosts_expand_to_the_same_hosts_each_once(hosts: list[str]) -> None:
    expanded = expand_hosts(compress_hosts(hosts))
    assert len(expanded) == len(set(expanded))
    assert set(expanded) == set(hosts)


@pytest.mark.slow
@given(st.text(alphabet="n[]1-9,0 a=", max_size=30))
def test_expand_hosts_of_any_text_gives_names_or_a_value_error(text: str) -> None:
    try:
        hosts = expand_hosts(text)
    except ValueError:
        return
    assert all(host and not set(host) & set("[], =") for host in hosts)


def test_compress_hosts_of_ten_thousand_is_one_short_word() -> None:
    assert compress_hosts(f"node{number:05}" for number in range(10_000)) == "node[00000-09999]"


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("(null)", {}),
        ("gpu:h100:8(S:0-1)", {"h100": 8}),
        ("gpu:8", {"": 8}),
        ("gpu", {"": 1}),
        ("gpu:a100:4(S:0,1),gpu:v100:2", {"a100": 4, "v100": 2}),
        ("gpu:h100:2(IDX:0,3),gpu:1g.5gb:14(IDX:0-13)", {"h100": 2, "1g.5gb": 14}),
        ("shard:32,gpu:4090:8,mps:400,nvme:2K", {"4090": 8}),
        ("gpu:tesla:no_consume:2", {"tesla": 2}),
        ("gpu:h100:0(IDX:N/A)", {"h100": 0}),
    ],
)
def test_gpus_of_each_form_are_counted_by_type(text: str, counts: dict[str, int]) -> None:
    assert gpus(text) == counts


def test_tres_with_units_is_read_in_mib_and_counts() -> None:
    assert tres("cpu=4,mem=1.5G,gres/gpu=8,gres/gpu:h100=8,billing=N,mem2=") == {
        "cpu": 4.0,
        "mem": 1_536.0,
        "gres/gpu": 8.0,
        "gres/gpu:h100": 8.0,
    }


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2-00:00:00", 172_800.0),
        ("1-01:01:01", 90_061.0),
        ("01:00:00", 3_600.0),
        ("05:00", 300.0),
        ("30 sec", 30.0),
        ("5 min", 300.0),
        ("0", 0.0),
        ("UNLIMITED", None),
        ("NONE", None),
        ("", None),
    ],
)
def test_duration_of_each_form_is_read_in_seconds(text: str, seconds: float | None) -> None:
    assert duration_s(text) == seconds


@pytest.mark.parametrize("text", ["Unknown", "None", "", "2023-99-01T00:00:00", "99999999999999999999"])
def test_time_that_is_none_is_none(text: str) -> None:
    assert time_s(text) is None


def test_time_is_read_in_utc() -> None:
    assert time_s("2023-11-14T22:13:20") == 1_700_000_000.0


def test_node_fields_beside_free_text_are_slurms_own() -> None:
    line = node(
        "n1", state="IDLE+DRAIN", after=" Reason=State=DOWN Gres=gpu:9 [root@2023-11-14T22:13:20] Comment=State=UP"
    )
    found = node_fields(line)
    assert (found["State"], found["Gres"]) == ("IDLE+DRAIN", "gpu:h100:8(S:0-1)")


def test_node_reason_with_stamps_and_keys_in_it_is_whole() -> None:
    words = "bad [x@y] State=DOWN [z@2020-01-01T00:00:00]"
    after = f" Reason={words} [ops@2023-11-14T22:13:20] Comment=hi [z@2024-01-01T00:00:00]"
    assert node_reason(node("n1", after=after)) == (words, "ops", 1_700_000_000.0)


def test_node_reason_of_several_lines_is_joined() -> None:
    after = " Reason=first line [root@2023-11-14T22:13:20]        second line"
    assert node_reason(node("n1", after=after)) == ("first line second line", "root", 1_700_000_000.0)


def test_node_reason_without_a_stamp_has_no_time() -> None:
    assert node_reason(node("n1", after=" Reason=Not responding")) == ("Not responding", "", None)


def test_fields_with_spaces_last_until_the_next_key() -> None:
    assert fields("A=x y z B=(null) C= D=p=q,r=s") == {"A": "x y z", "B": "(null)", "C": "", "D": "p=q,r=s"}
    assert fields("") == {}


def test_records_of_a_line_cut_short_are_unavailable_and_quoted() -> None:
    with pytest.raises(Unavailable, match="NodeName=n2 Arch"):
        records(node("n1") + "\n" + node("n2")[:300], "NodeName", attempted="read nodes", on="ada")


def test_records_of_something_else_are_unavailable_and_quoted() -> None:
    with pytest.raises(Unavailable, match="segfault"):
        records("segfault\n", "NodeName", attempted="read nodes", on="ada")


def test_records_between_which_something_else_stands_are_unavailable_and_quoted() -> None:
    with pytest.raises(Unavailable, match="scontrol: error"):
        records(f"{node('n1')}\nscontrol: error\n{node('n2')}\n", "NodeName", attempted="read nodes", on="ada")


def test_records_with_free_text_of_several_lines_stay_one() -> None:
    first = node("n1", after=" Reason=a [root@2023-11-14T22:13:20]") + "\n second\n"
    assert len(records(f"{first}{node('n2')}\n", "NodeName", attempted="read nodes", on="ada")) == 2


def test_records_that_slurm_says_are_none_are_none() -> None:
    assert records("No reservations in the system\n", "ReservationName", attempted="read", on="ada") == []
