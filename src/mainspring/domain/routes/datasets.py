"""Calls about the lab's data, to look at it, and whose it is: what makes it works on the object store itself."""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

from typing import Annotated

from mainspring.domain import answers
from mainspring.domain.routes.routing import Query, route
from mainspring.domain.team import Right

_READ = Right.READ_RECORDINGS


class DatasetCalls:
    """What people ask of datasets; see `LabCalls`."""

    @route("GET", "/datasets", may=_READ, handler="datasets.every", operation="list_datasets", patient=True)
    def list_datasets(self) -> tuple[answers.DatasetView, ...]:
        """Lists every dataset with its newest version, in order of name."""

    @route("GET", "/datasets/{dataset}", may=_READ, handler="datasets.one", operation="show_dataset", patient=True)
    def show_dataset(self, dataset: str) -> answers.DatasetDetail:
        """Shows a dataset: versions, candidates and what keeps them back, lineage, freshness."""

    @route("PUT", "/datasets/{dataset}", may=Right.SEND_RECORDINGS)
    def begin_dataset(self, dataset: str) -> answers.DatasetOwner:
        """Begins a dataset, which is the caller's team's then, and tells whose it is; one that is there stays so."""

    @route("GET", "/datasets/{dataset}/team", may=_READ, handler="datasets.owners.of")
    def dataset_team(self, dataset: str) -> answers.DatasetOwner:
        """Tells whose a dataset is."""

    @route("PUT", "/datasets/{dataset}/team", may=Right.GIVE_DATASETS, handler="datasets.owners.give")
    def give_dataset(self, dataset: str, body: answers.NewDatasetTeam) -> answers.DatasetOwner:
        """Gives a dataset to a team, or to everybody: who may not read it from then on does not find it."""

    @route(
        "GET", "/datasets/{dataset}/versions/{number}/episodes", may=_READ, handler="datasets.episodes", patient=True
    )
    def list_episodes(
        self,
        dataset: str,
        number: str,
        *,
        skip: Annotated[int, Query(ge=0, le=100_000_000)] = 0,
        limit: Annotated[int, Query(ge=1, le=500)] = 100,
    ) -> tuple[answers.EpisodeView, ...]:
        """Lists episodes of a version, in order of id.

        Args:
            dataset: The dataset.
            number: The version's.
            skip: So many are left out first.
            limit: At most so many.
        """

    @route(
        "GET",
        "/datasets/{dataset}/versions/{number}/episodes/{episode}",
        may=_READ,
        handler="datasets.episode",
        patient=True,
    )
    def show_episode(
        self, dataset: str, number: str, episode: str, *, points: Annotated[int, Query(ge=2, le=2_000)] = 300
    ) -> answers.EpisodeDetail:
        """Shows an episode with the curves of its columns.

        Args:
            dataset: The dataset.
            number: The version's.
            episode: Its id.
            points: Of each curve, at most so many.
        """

    @route("GET", "/datasets/{dataset}/versions/{number}/episodes/{episode}/pictures", may=_READ, patient=True)
    def pictures(self, dataset: str, number: str, episode: str) -> bytes:
        """Returns pictures of an episode as PNG: a row a camera, a few of each from its beginning to its end."""
