"""Virtual time: replays of traces through the planner, and proofs that the real controller survives faults.

Names are loaded when they are first used: a replay needs no store, and a proof no plots.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mainspring.simulator.inputs.example import write_example
    from mainspring.simulator.inputs.files import read_document
    from mainspring.simulator.inputs.fleet import Fleet, Outage, PriceChange
    from mainspring.simulator.inputs.fleet_files import (
        DescribedCluster,
        DescribedFleet,
        NodeGroup,
        described,
        fleet_of,
        load_fleet,
        load_outages,
    )
    from mainspring.simulator.inputs.traces import load
    from mainspring.simulator.inputs.workload import ReplayOptions, TraceJob, Workload
    from mainspring.simulator.proof.cluster import CallFaults, SimulatedCluster
    from mainspring.simulator.proof.gang import Gang, GangFaults
    from mainspring.simulator.proof.proof import Trace, prove
    from mainspring.simulator.results.comparison import Comparison, Difference, compare
    from mainspring.simulator.results.measures import Measures, measure
    from mainspring.simulator.results.plots import check_installed, draw
    from mainspring.simulator.virtual.outcome import Outcome
    from mainspring.simulator.virtual.playback import Planner, replay

_MODULES = {
    "proof.cluster": ("CallFaults", "SimulatedCluster"),
    "results.comparison": ("Comparison", "Difference", "compare"),
    "inputs.example": ("write_example",),
    "inputs.files": ("read_document",),
    "inputs.fleet": ("Fleet", "Outage", "PriceChange"),
    "inputs.fleet_files": (
        "DescribedCluster",
        "DescribedFleet",
        "NodeGroup",
        "described",
        "fleet_of",
        "load_fleet",
        "load_outages",
    ),
    "proof.gang": ("Gang", "GangFaults"),
    "results.measures": ("Measures", "measure"),
    "virtual.outcome": ("Outcome",),
    "proof.proof": ("Trace", "prove"),
    "results.plots": ("check_installed", "draw"),
    "virtual.playback": ("Planner", "replay"),
    "inputs.traces": ("load",),
    "inputs.workload": ("ReplayOptions", "TraceJob", "Workload"),
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
