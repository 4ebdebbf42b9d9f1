"""Host lists as Slurm writes them, which people who run clusters read: "r1n[01-10,12],login".

Source: hostlist.c of Slurm 22.05 to 25.11.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import groupby

_DIGITS_MAX = 9  # Of a host's number that is counted; a longer one (a serial number) is part of the name.
_LAST_NUMBER = re.compile(r"(.*?)([0-9]+)", re.DOTALL)


def compress_hosts(hosts: Iterable[str]) -> str:
    """Returns a short list for the same hosts, ordered by name and number, each once."""
    keyed: list[tuple[str, int, int]] = []
    for host in set(hosts):
        match = _LAST_NUMBER.fullmatch(host)
        counted = match and match[1] and len(match[2]) <= _DIGITS_MAX
        keyed.append((match[1], len(match[2]), int(match[2])) if match and counted else (host, 0, 0))
    words: list[str] = []
    for (prefix, width), group in groupby(sorted(keyed), key=lambda item: item[:2]):
        if not width:
            words.append(prefix)
            continue
        ranges: list[list[int]] = []
        for _, _, number in group:
            if ranges and ranges[-1][1] + 1 == number:
                ranges[-1][1] = number
            else:
                ranges.append([number, number])
        shown = [f"{a:0{width}}" if a == b else f"{a:0{width}}-{b:0{width}}" for a, b in ranges]
        single = len(shown) == 1 and ranges[0][0] == ranges[0][1]
        words.append(f"{prefix}{shown[0]}" if single else f"{prefix}[{','.join(shown)}]")
    return ",".join(words)
