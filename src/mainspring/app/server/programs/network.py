"""Looks at how a node's network is set up for collectives: `python -m mainspring probes network`, on that node.

`ms cluster check` runs it where it can; by hand it says the same. The variables of NCCL are those of this process.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from mainspring.domain import codec
from mainspring.node.probes.files import NodeFiles
from mainspring.node.probes.network import network_findings


def main(arguments: Sequence[str]) -> int:
    """Writes a line for each thing that it looked at. Returns the exit code: 1 where one of them failed."""
    parser = argparse.ArgumentParser(
        prog="python -m mainspring probes network", description="Looks at how a node's network is set up."
    )
    parser.add_argument("--root", default="/", help="where the node's /proc, /sys and /opt are")
    parser.add_argument("--json", action="store_true", help="write each finding as one line of JSON")
    words = parser.parse_args(arguments)
    found = network_findings(NodeFiles(words.root), os.environ)
    for each in found:
        if words.json:
            sys.stdout.write(codec.encode(each).decode() + "\n")
        else:
            fix = f"\n         {each.fix}" if each.fix else ""
            sys.stdout.write(f"{each.standing:<8} {each.name}: {each.found}{fix}\n")
    return int(any(each.standing == "failed" for each in found))
