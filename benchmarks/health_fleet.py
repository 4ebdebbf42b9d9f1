"""What health of nodes is worth: 2,048 nodes through 28 days of faults, with the rules that ship, and without.

Run as `python -m benchmarks.health_fleet [--quick]`. Faults are drawn from seeds 9000 to 9009, which nothing was tuned
on: rates, kinds and repairs are those of `FaultModel`, with their sources. Both arms have the runtime's recovery and
the same faults; without health people see a fault that stays after `noticed_s` on average, which is ours and has no
source: the ratio is told for half and for twice of it too. `detect_miss`: share of faults known of later than the best
of others promise for their kind (`missed` names the kinds). `false_per_1000_node_days`: nodes closed of which nothing
was wrong. `lemon_*`: nodes that fail 20 times as often, as told by rules; one that was replaced for one of its faults
before it failed again is a lemon no more, and counts in `lemon_recall_of_all` alone. In 28 days one lemon in seven
fails once at most, which nobody can tell from a sound node: `lemon_recall_most` is the part that failed twice or more.
`badput_ratio`: node-time lost to faults, quarantine and spares, with health over without; `badput_ratio_replicated`
the same if every wrong sum were in state that other ranks have too, and `badput_ratio_unchecked` if no device computed
its neighbour's rows: the part of wrong sums that is found that way is `FaultModel.checked`, with its reason.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from dataclasses import replace

from benchmarks.control_submit import loop_s

from mainspring.simulator.health.faults import FaultModel
from mainspring.simulator.health.month import figures, month

SEEDS = range(9_000, 9_010)
QUICK = range(9_000, 9_002)
OTHERS = range(9_000, 9_004)


def noticed(model: FaultModel, part: float) -> FaultModel:
    """Returns a fleet whose people see what has failed sooner, or later."""
    return replace(model, noticed_s=part * model.noticed_s, corruption_noticed_s=part * model.corruption_noticed_s)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help=f"{len(QUICK)} months")
    seeds = QUICK if parser.parse_args().quick else SEEDS
    model, months = FaultModel(), []
    for seed in seeds:
        months.append(month(model, seed))
        print(seed, json.dumps(figures(model, months[-1:])), flush=True)
    found = {name: round(value, 4) for name, value in figures(model, months).items()}
    missed = sum((Counter(one.missed) for one in months), Counter[str]())
    for name, other in (
        ("badput_ratio_noticed_half", noticed(model, 0.5)),
        ("badput_ratio_noticed_twice", noticed(model, 2.0)),
        ("badput_ratio_replicated", replace(model, replicated=1.0)),
        ("badput_ratio_unchecked", replace(model, checked=0.0)),
    ):
        some = [month(other, seed) for seed in OTHERS[: len(seeds)]]
        found[name] = round(figures(other, some)["badput_ratio"], 4)
    print(
        json.dumps({**found, "missed": dict(missed), "faults": sum(one.faults for one in months), "loop_s": loop_s()})
    )


if __name__ == "__main__":
    main()
