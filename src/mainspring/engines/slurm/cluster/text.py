"""Slurm's text forms: records of `Key=value`, lists of hosts, GRES, TRES, times. All bounded, all tolerant.

Text, not `--json`: its schema changes with every release, 22.05 has it only where a plugin was built in, and it is
several times as large. `scontrol --oneliner` has kept its form for over a decade: fields come and go, few change.
Source: slurm_sprint_node_table, slurm_sprint_partition_info, hostlist.c of Slurm 22.05 to 25.11; scontrol(1).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from itertools import product
from math import inf, prod

from mainspring.domain.errors import Unavailable
from mainspring.domain.fleet import NODES_MAX

QUOTED_MAX = 160  # Letters of what could not be read that an error shows.
_KNOWN_MAX = 16_384  # GRES and TRES texts remembered: nodes of a cluster share few.
_MIB_OF = {"": 1.0, "K": 1 / 1_024, "M": 1.0, "G": 1_024.0, "T": 1_024.0**2, "P": 1_024.0**3, "E": 1_024.0**4}
_COUNT_OF = {"": 1, "K": 1_024, "M": 1_024**2, "G": 1_024**3, "T": 1_024**4}

# Free text of a node stands behind these; whatever it says, fields before it are Slurm's own.
_FREE_TEXT = re.compile(r" (?:Reason|Comment|Extra)=")
_REASON = re.compile(r" Reason=(.*)", re.DOTALL)
_AFTER_REASON = re.compile(r" (?:Comment|Extra|InstanceId|InstanceType|ReservationName|Topology|Parameters)=")
_STAMP = re.compile(r" ?\[([^\s@\[\]]+)@([^\s\[\]]+)\]")
_FIELD = re.compile(r"(?:^|\s)([A-Za-z][\w/:.\[\]-]*)=")
_TIME = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(?:(\d+):)?(\d+)")
_MEMORY = re.compile(r"([0-9]+(?:\.[0-9]+)?)([KMGTPE]?)[cn]?")
_COUNT = re.compile(r"([0-9]{1,18})([KMGT]?)")
_PARENTHESES = re.compile(r"\([^()]*\)")
_PART = re.compile(r"\[([^\[\]]*)\]|([^\[\],]+)")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")


def unreadable(attempted: str, *, got: str, wanted: str, on: str = "") -> Unavailable:
    """Returns the error for text that is not what Slurm writes: cut short, mixed with other output, or of a new form.

    Args:
        attempted: What was being read.
        got: The text; the error quotes its beginning.
        wanted: What it should be.
    """
    quoted = repr(got[:QUOTED_MAX]) + (f" and {len(got) - QUOTED_MAX} more letters" if len(got) > QUOTED_MAX else "")
    step = "run the same command by hand; wrappers around Slurm's commands must not write to their output"
    return Unavailable(attempted, on=on, got=quoted, wanted=wanted, next_step=step)


def records(text: str, key: str, *, attempted: str, on: str) -> list[str]:
    """Returns the lines of `scontrol --oneliner`, one a record; lines that continue free text are joined to theirs.

    Args:
        text: What the command wrote; "No reservations in the system" and the like are none.
        key: What each begins with: "NodeName".
        attempted: What is being read, for the message.
        on: Which cluster, for the message.

    Raises:
        Unavailable: It begins with something else, or ends in the middle of a line.
    """
    lines: list[str] = []
    begin = key + "="
    for line in text.split("\n"):
        if line.startswith(begin):
            lines.append(line)
        elif line and not line.isspace():
            if lines and _FREE_TEXT.search(lines[-1]):
                lines[-1] += " " + line.strip()
            elif lines or not line.startswith("No "):
                raise unreadable(attempted, got=line, wanted=f"lines that begin with {begin}", on=on)
    if lines and not text.endswith("\n"):
        raise unreadable(attempted, got=lines[-1], wanted="a whole last line", on=on)
    return lines


def node_fields(line: str) -> dict[str, str]:
    """Returns the fields of a node's record that hold no spaces, without its free text."""
    free = _FREE_TEXT.search(line)
    words = (line[: free.start()] if free else line).split()
    # The last of two alike wins: OS= is free text too, and comes before what is read here.
    return dict([word.split("=", 1) for word in words if "=" in word])


def node_reason(line: str) -> tuple[str, str, float | None]:
    """Returns why a node is in its state, in its operator's words; who said so; and when, as far as it is told."""
    found = _REASON.search(line)
    if not found:
        return "", "", None
    text = _AFTER_REASON.split(found[1], maxsplit=1)[0]
    # The words may hold something like a stamp themselves: Slurm's own comes after the first line of them.
    stamps = [stamp for stamp in _STAMP.finditer(text) if time_s(stamp[2]) is not None]
    if not stamps:
        return text.strip(), "", None
    stamp = stamps[-1]
    return " ".join((text[: stamp.start()] + text[stamp.end() :]).split()), stamp[1], time_s(stamp[2])


def fields(line: str) -> dict[str, str]:
    """Returns the fields of any record; a value may hold spaces, and lasts until the next `Key=`."""
    found = list(_FIELD.finditer(line))
    ends = [match.start() for match in found[1:]] + [len(line)]
    values: dict[str, str] = {}
    for match, end in zip(found, ends, strict=False):  # One end too many where there is no field.
        values.setdefault(match[1], line[match.end() : end].strip())
    return values


def told(value: str | None) -> str:
    """Returns a value, "" for each of the ways in which Slurm says that there is none.

    Args:
        value: As Slurm wrote it.
    """
    return "" if value is None or value in ("(null)", "N/A", "n/a", "NONE", "None", "Unknown") else value


def time_s(text: str) -> float | None:
    """Returns a moment in seconds since the epoch, None where there is none.

    Args:
        text: "2026-02-03T04:05:06" in UTC, the zone Slurm's commands are run in; anything else is none.
    """
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() if text[:1].isdigit() else None
    except (ValueError, OverflowError):
        return None


def duration_s(text: str) -> float | None:
    """Returns a length of time, None where there is no limit or nothing is told.

    Args:
        text: "2-00:00:00", "01:00:00", "05:00" (minutes and seconds), "30 sec"; a bare number is seconds.
    """
    words = text.split()
    if not words or not (match := _TIME.fullmatch(words[0])):
        return None
    days, first, second, last = (int(part) if part else 0 for part in match.groups())
    hours, minutes = (first, second) if match[3] else (0, first)
    return (60.0 if words[1:] == ["min"] else 1.0) * (((days * 24 + hours) * 60 + minutes) * 60 + last)


@lru_cache(maxsize=_KNOWN_MAX)
def gpus(text: str) -> Mapping[str, int]:
    """Returns the GPUs of a node by type, "" for GPUs without one; parts of GPUs (shard, mps) are not counted again.

    Args:
        text: "gpu:h100:8(S:0-1)", "gpu:8", "gpu:a100:4,gpu:1g.5gb:14,shard:32", "gpu:h100:2(IDX:0,3)", "(null)".
    """
    counts: dict[str, int] = {}
    for entry in _PARENTHESES.sub("", text).split(","):
        name, *rest = (word for word in entry.strip().split(":") if word != "no_consume")
        count = _COUNT.fullmatch(rest[-1]) if rest else None
        kind = "" if not rest or (count and len(rest) == 1) else rest[0]
        if name == "gpu":
            counts[kind] = counts.get(kind, 0) + (int(count[1]) * _COUNT_OF[count[2]] if count else 1)
    return counts


@lru_cache(maxsize=_KNOWN_MAX)
def tres(text: str) -> Mapping[str, float]:
    """Returns amounts by name, memory in MiB, without those that are not limited.

    Args:
        text: "cpu=4,mem=1000M,gres/gpu=2,gres/gpu:h100=2"; in limits "N" is none.
    """
    amounts: dict[str, float] = {}
    for entry in text.split(","):
        name, _, value = entry.strip().rpartition("=")
        number = _MEMORY.fullmatch(value)
        if name and number:
            amounts[name] = float(number[1]) * (_MIB_OF[number[2]] if name == "mem" else _COUNT_OF.get(number[2], 1))
    return amounts


def expand_hosts(text: str, *, most: int = NODES_MAX) -> list[str]:
    """Returns the hosts of a list, in its order.

    Args:
        text: "r[1-2]n[01-10,12],login", or whatever else `scontrol show hostnames` reads; "" and "(null)" are none.
        most: How many there may be.

    Raises:
        ValueError: It is not a list of hosts, or there are more.
    """
    if not told(text):
        return []
    hosts: list[str] = []
    for entry in _entries(text):
        parts = [[literal] if literal else list(_numbers(ranges, most)) for ranges, literal in _PART.findall(entry)]
        if "".join(match[0] for match in _PART.finditer(entry)) != entry:
            raise ValueError(f"unbalanced brackets in {entry[:QUOTED_MAX]!r}")
        if prod(map(len, parts)) + len(hosts) > most:
            raise ValueError(f"more than {most} hosts in {text[:QUOTED_MAX]!r}")
        hosts.extend(map("".join, product(*parts)) if len(parts) > 1 else parts[0])
    return hosts


def _entries(text: str) -> Iterator[str]:
    """Yields what commas outside of brackets divide."""
    begin, depth = 0, 0
    for at, letter in enumerate(text) if "[" in text else ():
        depth += (letter == "[") - (letter == "]")
        if letter == "," and not depth:
            yield _checked_entry(text[begin:at], text)
            begin = at + 1
    for entry in text[begin:].split(",") if "[" not in text[begin:] else [text[begin:]]:
        yield _checked_entry(entry, text)


def _checked_entry(entry: str, text: str) -> str:
    if not entry or any(letter.isspace() or letter == "=" for letter in entry):
        raise ValueError(f"{entry[:QUOTED_MAX]!r} among the hosts {text[:QUOTED_MAX]!r}")
    return entry


def _numbers(ranges: str, most: int) -> Iterator[str]:
    for entry in ranges.split(","):
        match = _RANGE.fullmatch(entry)
        first, last = (match[1], match[2] or match[1]) if match else ("1", "0")
        if not int(first) <= int(last) < int(first) + most:
            raise ValueError(f"{entry[:QUOTED_MAX]!r} is no range of at most {most} hosts")
        yield from (f"{number:0{len(first)}}" for number in range(int(first), int(last) + 1))


def whole_number(text: str | None) -> float:
    """Returns a limit, infinite where there is none.

    Args:
        text: "8", "UNLIMITED", "N", or nothing.
    """
    return float(text) if text and text.isdigit() else inf
