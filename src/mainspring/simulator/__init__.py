"""Virtual time: replays of traces through the planner, and proofs that the real controller survives faults.

Names are loaded when they are first used: a replay needs no store, and a proof no plots.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mainspring.simulator.cluster import CallFaults, SimulatedCluster
    from mainspring.simulator.comparison import Comparison, Difference, compare
    from mainspring.simulator.example import write_example
    from mainspring.simulator.files import read_document
    from mainspring.simulator.fleet import Fleet, Outage, PriceChange
    from mainspring.simulator.fleet_files import (
        DescribedCluster,
        DescribedFleet,
        NodeGroup,
        described,
        fleet_of,
        load_fleet,
        load_outages,
    )
    from mainspring.simulator.gang import Gang, GangFaults
    from mainspring.simulator.measures import Measures, measure
    from mainspring.simulator.outcome import Outcome
    from mainspring.simulator.playback import Planner, replay
    from mainspring.simulator.plots import check_installed, draw
    from mainspring.simulator.proof import Trace, prove
    from mainspring.simulator.traces import load
    from mainspring.simulator.workload import ReplayOptions, TraceJob, Workload

_MODULES = {
    "cluster": ("CallFaults", "SimulatedCluster"),
    "comparison": ("Comparison", "Difference", "compare"),
    "example": ("write_example",),
    "files": ("read_document",),
    "fleet": ("Fleet", "Outage", "PriceChange"),
    "fleet_files": (
        "DescribedCluster",
        "DescribedFleet",
        "NodeGroup",
        "described",
        "fleet_of",
        "load_fleet",
        "load_outages",
    ),
    "gang": ("Gang", "GangFaults"),
    "measures": ("Measures", "measure"),
    "outcome": ("Outcome",),
    "proof": ("Trace", "prove"),
    "plots": ("check_installed", "draw"),
    "playback": ("Planner", "replay"),
    "traces": ("load",),
    "workload": ("ReplayOptions", "TraceJob", "Workload"),
}
_WHERE = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "CallFaults",
    "Comparison",
    "DescribedCluster",
    "DescribedFleet",
    "Difference",
    "Fleet",
    "Gang",
    "GangFaults",
    "Measures",
    "NodeGroup",
    "Outage",
    "Outcome",
    "Planner",
    "PriceChange",
    "ReplayOptions",
    "SimulatedCluster",
    "Trace",
    "TraceJob",
    "Workload",
    "check_installed",
    "compare",
    "described",
    "draw",
    "fleet_of",
    "load",
    "load_fleet",
    "load_outages",
    "measure",
    "prove",
    "read_document",
    "replay",
    "write_example",
]


def __getattr__(name: str) -> Any:
    """Returns a public name from the module that holds it."""
    if name not in _WHERE:
        raise AttributeError(f"module 'mainspring.simulator' has no attribute {name!r}")
    return getattr(import_module(f"mainspring.simulator.{_WHERE[name]}"), name)
