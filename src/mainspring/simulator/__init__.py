"""Virtual time: replays of traces through the planner, and proofs that the real controller survives faults.

Names are loaded when they are first used: a replay needs no store, and a proof no plots.
"""

from typing import TYPE_CHECKING

from mainspring.lazy import names_of

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
    from mainspring.simulator.inputs.workload import (
        ReplayOptions,
        TraceJob,
        Workload,
    )
    from mainspring.simulator.proof.cluster import CallFaults, SimulatedCluster
    from mainspring.simulator.proof.proof import Trace, prove
    from mainspring.simulator.results.comparison import (
        Comparison,
        Difference,
        compare,
    )
    from mainspring.simulator.results.measures import Measures, measure
    from mainspring.simulator.results.plots import check_installed, draw
    from mainspring.simulator.virtual.outcome import Outcome
    from mainspring.simulator.virtual.playback import Planner, replay
else:
    __getattr__, __dir__ = names_of(__name__)
