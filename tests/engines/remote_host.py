"""A host for tests: a cluster in memory behind a line, and calls that go wrong as their reason says."""

from __future__ import annotations

import os
import signal
import sys
import threading
from dataclasses import replace

from mainspring.app.server.engine_host import main
from mainspring.domain.codec import message
from mainspring.domain.errors import InvalidSpec
from mainspring.domain.fleet import Node
from mainspring.domain.ids import ChipName, NodeName
from mainspring.domain.ports import Engine
from mainspring.engines.common.forwarding import CallResult, EngineCall
from mainspring.testing import FakeClock
from tests.engines.troubled import Troubled, small_cluster


@message("OpenTest")
class OpenTest:
    """Makes the host serve a cluster of this many nodes, and note its process number in a file."""

    nodes: int
    pids: str = ""


class Mean(Troubled):
    """Does what the reason of a cordon says."""

    def _forward(self, call: EngineCall) -> CallResult:
        if call.call == "inventory":
            sys.stdout.write("a library says what nobody asked for\n")
            sys.stdout.flush()
        match call.reason:
            case "hang":
                threading.Event().wait()
            case "die":
                sys.stderr.write("Killed by the administrator\n")
                sys.stderr.flush()
                os.kill(os.getpid(), signal.SIGKILL)
            case "fault":
                raise KeyError("a fault")
            case _:
                pass
        if call.call == "forget_ended":
            assert call.due is not None
            return len(call.due.kept) + round(call.due.time_s) + call.due.limit
        return super()._forward(call)


def many_nodes(count: int) -> tuple[Node, ...]:
    return tuple(
        Node(
            name=NodeName(f"node-{index:05}"),
            chip=ChipName("h100"),
            chips=8,
            domains=(("block", f"b{index // 64}"), ("rack", f"r{index // 8}")),
            condition_reason="checked by hand, and found to be well" if index % 2 else "",
        )
        for index in range(count)
    )


def make(opening: OpenTest) -> Engine:
    if opening.nodes < 3:
        raise InvalidSpec("serve a test", on="nodes", got=str(opening.nodes), wanted="three", next_step="count")
    if opening.pids:
        with open(opening.pids, "a") as file:
            file.write(f"{os.getpid()}\n")
    engine = small_cluster(FakeClock())
    if opening.nodes > 3:
        inventory = replace(engine.inventory(), nodes=many_nodes(opening.nodes))
        engine = type(engine)(inventory, FakeClock())
    engine.write_log("allocation-1", 3, bytes(range(256)) * 16)  # type: ignore[arg-type]
    return Mean(engine)


if __name__ == "__main__":
    main(make, OpenTest)
