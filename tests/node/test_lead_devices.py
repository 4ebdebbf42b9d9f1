"""Attempts of one job, one after the other, whose devices lie while all else fails too: the laws of what is told to be
wrong hold (`simulator.nodes.object_store`), and much of what is proved comes up.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from mainspring.domain.wire.events.leads import DevicesDifferEvent
from mainspring.simulator.nodes.agenda import chance, pick, within
from mainspring.simulator.nodes.object_store import JobStore
from mainspring.testing import SeededDice
from tests.node.lead_agents import orders
from tests.node.lead_cluster import Cluster

ATTEMPTS, SECONDS = 3, 60
SEEDS = 8
CHECK_EVERY, OVER_S_MAX = 30, 600.0
LIES, SLIPS, DIES, LOST, AWAY = 0.06, 0.03, 0.03, 0.01, 0.02
AWAY_S_MAX = 20
GRACE_S = 30.0


def lives(cluster: Cluster, luck: SeededDice) -> None:
    """Lets an attempt live until it is over, nobody is left, or somebody stops it, as happens in the end."""
    cluster.attempt.checks.every, cluster.store.slow = CHECK_EVERY, 0.1
    for _ in range(SECONDS):
        if cluster.run(within(luck, 0.2, 1.8), until=lambda: cluster.done) or not cluster.living:
            continue
        agent, rank = cluster.living[pick(luck, len(cluster.living))]
        device = agent.device(rank.place.rank)
        if chance(luck, LIES):
            device.lies = device.faulty = True
        device.slips |= chance(luck, SLIPS)
        if chance(luck, DIES):
            cluster.kill(rank.place.rank)
        if chance(luck, LOST):
            cluster.lose(agent)
        if cluster.store.up and chance(luck, AWAY):
            cluster.store.up = False
            cluster.after(float(pick(luck, AWAY_S_MAX)), lambda: setattr(cluster.store, "up", True))
    if cluster.attempt.living and not cluster.done:
        cluster.stop(GRACE_S)
    cluster.run(OVER_S_MAX, until=lambda: cluster.done)
    cluster.store.up = True


def job(seed: int) -> Counter[str]:
    """Returns how often what came up in all attempts of a job."""
    luck, store, came = SeededDice(seed, "mischief"), JobStore(), Counter[str]()
    for number in range(1, ATTEMPTS + 1):
        agents = 2 + pick(luck, 3)
        told = replace(orders(agents, spares=int(agents > 3), restarts_max=20), number=number)
        cluster = Cluster(seed + number, told, repeats=0.1, store=store)
        lives(cluster, luck)
        for lead in cluster.leads:
            came.update("certain" for event in lead.told if event.detail.get("certain"))
            came.update("told" for event in lead.told if event.kind == DevicesDifferEvent.kind)
    came["withdrawn"] = store.withdrawn
    return came


@pytest.mark.slow
def test_attempts_whose_devices_lie_keep_to_what_is_not_told_to_be_wrong() -> None:
    came = sum((job(seed) for seed in range(SEEDS)), Counter[str]())
    assert came["certain"] > SEEDS
    assert came["told"] > came["certain"]
    assert came["withdrawn"]
