"""Whether words alone decide what a policy does: told each place, at starts where each place is the right one."""

from __future__ import annotations

from collections.abc import Callable

from mainspring.robots.environments.metaworld import PLACES, MetaWorldPlaces
from mainspring.robots.environments.port import EpisodeStart
from mainspring.robots.evaluation.playing import Actor, play


def cell_name(told: str, wanted: str) -> str:
    """Returns how the cell of a place that is told and one that is wanted is called among a result's facts."""
    return f"told_{told}_at_{wanted}"


def play_cells(actor: Actor, *, starts: int, seed: int, progress: Callable[[int], object]) -> dict[str, float]:
    """Returns how often the puck came to the place that is wanted, by cell: each place told at starts of each place.

    The words are those that nobody trains on.

    Args:
        starts: Of each cell.
        seed: Of the starts; the same are played whatever is told.
        progress: Called with the number of finished episodes of all cells.
    """
    own: list[EpisodeStart] = []
    words: list[str] = []
    names: list[str] = []
    for told in PLACES:
        for number, wanted in enumerate(PLACES):
            own += [EpisodeStart(seed=seed, index=index * len(PLACES) + number) for index in range(starts)]
            words += [told.unseen[index % len(told.unseen)] for index in range(starts)]
            names += [cell_name(told.name, wanted.name)] * starts
    played = play(MetaWorldPlaces, actor, own, told=words, films=0, progress=progress)
    cells: dict[str, float] = dict.fromkeys(names, 0.0)
    for name, each in zip(names, played, strict=True):
        cells[name] += each.solved / starts
    return cells
