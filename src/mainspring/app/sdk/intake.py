"""The verbs of `lab.data` by which recordings come in."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mainspring import data  # Loads its names when they are used, so that other verbs start fast.
from mainspring.app.base import uploads
from mainspring.app.base.system import SystemClock
from mainspring.domain.answers import ArrivalView
from mainspring.domain.errors import Conflict, InvalidInput
from mainspring.domain.ids import checked_name
from mainspring.objects import ObjectStore, blob_of_file

if TYPE_CHECKING:
    from mainspring.app.sdk.lab import Lab

_POLL_S_MIN = 0.1
_CREDENTIALS = (  # What S3's, Google's and Azure's own libraries look for first.
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_SERVICE_ACCOUNT",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_CLIENT_ID",
)


class IntakeVerbs:
    """How recordings get into a lab; the first part of `DataVerbs`.

    Args:
        lab: The lab.
    """

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._clock = SystemClock()

    @property
    def store(self) -> ObjectStore:
        """Returns where the lab's data lies."""
        return self._lab.objects()

    def ingest(
        self,
        *sources: Path | str,
        dataset: str,
        recipe: Path | data.Recipe | None = None,
        options: data.IngestOptions | None = None,
        progress: Callable[[data.IngestProgress], None] | None = None,
    ) -> data.IngestReport:
        """Takes sources' sound recordings into a dataset, and returns what came of it. Repeated, it does the rest.

        Args:
            *sources: Files, folders of any depth, zip and tar archives; `s3://`, `gs://` and `az://` prefixes;
                `https://` addresses of LeRobot datasets, of lists of files, or of one file.
            dataset: Name of the dataset they join.
            recipe: How the topics of logs become episodes, or a YAML file that says so.
            options: What is said of the sources: how much may be lost, other names, cameras left out.
            progress: Called after each recording.

        Raises:
            Conflict: The episodes are so unlike the dataset's that a gate keeps them back; they wait as a candidate.
        """
        checked_name(dataset, "dataset")
        chosen = self._recipe(recipe)
        if not sources:
            raise InvalidInput("take recordings in", got="no source", wanted="files, folders or addresses")
        self._begin(dataset)
        said = options or data.IngestOptions()
        with data.opened_sources(sources, self._staging(), recipe=chosen, options=said) as opened:
            return data.ingest_units(
                opened.units(),
                opened.survey(),
                self.store,
                dataset,
                clock=self._clock,
                recipe=chosen,
                options=said,
                progress=progress,
                publish=self._publish,
                staging=opened,
            )

    def watch(
        self,
        folder: Path | str,
        dataset: str,
        *,
        recipe: Path | data.Recipe | None = None,
        options: data.IngestOptions | None = None,
        moved: Path | str | None = None,
        settle_s: float | None = None,
        kept_back: Callable[[Conflict], None] = lambda _: None,
        stop: threading.Event | None = None,
    ) -> Iterator[data.IngestReport]:
        """Yields a report whenever something arrived in a folder and was taken in.

        Args:
            folder: What is watched.
            dataset: Name of the dataset that recordings join.
            recipe: See `ingest`.
            options: See `ingest`.
            moved: Where recordings go once they are read; they stay where they are without it.
            settle_s: How long files must not have changed before they are read; None for the usual ten seconds.
            kept_back: Called when a gate keeps a round's episodes back: they wait as a candidate, the watch goes on.
            stop: Ends the watch when it is set.
        """

        def publish(store: ObjectStore, candidate: data.VersionCandidate) -> data.Version:
            try:
                return self._publish(store, candidate)
            except Conflict as error:
                kept_back(error)
                return data.resolve(store, dataset)  # Only what a version is compared with can keep a gate closed.

        self._begin(dataset)
        ended = stop or threading.Event()
        watched = partial(
            data.watch,
            Path(folder),
            self.store,
            dataset,
            clock=self._clock,
            wait=lambda seconds: not ended.wait(seconds),
            recipe=self._recipe(recipe),
            options=options or data.IngestOptions(),
            moved=None if moved is None else Path(moved),
            publish=publish,
        )
        return watched() if settle_s is None else watched(settle_s=settle_s, poll_s=max(_POLL_S_MIN, settle_s / 5))

    def inspect(
        self, path: Path | str, definitions: Path | str | None = None
    ) -> data.Proposal | data.SetProposal | data.TableProposal:
        """Returns what a log holds and a recipe for it; of a LeRobot dataset, the options by which it is taken in.

        Args:
            path: MCAP, ROS bag or ULog; the folder of a LeRobot dataset; or a folder of CSV or Parquet files.
            definitions: Folder of message definitions, for a bag that holds none.
        """
        if "://" in str(path) or data.archive_suffix(str(path)):
            raise InvalidInput(
                "inspect a log",
                on=str(path),
                got="an archive or an address",
                wanted="a file or a bag",
                next_step="inspect one of its recordings, on this machine",
            )
        path = Path(path)
        if data.is_lerobot_set(path):
            return data.propose_set(path)
        if path.is_dir() and not data.is_bag(path):
            return data.propose_table(path)
        return data.propose(path, data.definitions_in(Path(definitions)) if definitions else None)

    def upload(
        self,
        path: Path | str,
        dataset: str,
        *,
        wait_s: float = 0.0,
        progress: Callable[[int], None] | None = None,
    ) -> ArrivalView:
        """Sends a recording to the lab's server, which takes it in, and returns where it stands. May be repeated.

        Args:
            path: The file.
            dataset: Name of the dataset it joins.
            wait_s: How long to wait for the server to have read it; 0 returns once it has arrived.
            progress: Called with how many of its bytes the server has.
        """
        path = Path(path)
        blob = blob_of_file(path)
        with self._lab.client() as client:
            view = uploads.upload(client, path, blob, dataset, progress=progress)
            return uploads.settled(client, path, blob, dataset, timeout_s=wait_s) if wait_s else view

    def send_recipe(self, path: Path | str, dataset: str) -> None:
        """Tells the lab's server how the topics of recordings sent to a dataset become episodes.

        Args:
            path: A YAML file.
            dataset: The dataset.
        """
        with self._lab.client() as client:
            client.set_recipe(dataset, Path(path).read_bytes())

    def _begin(self, dataset: str) -> None:
        """Tells the lab's server of a dataset that may begin here: it is its beginner's team's then.

        Only where this home shares the object store of a server elsewhere: all of its own server is its owner's.

        Raises:
            NotFound: The name is that of a dataset which whoever works here may not read.
            NotAllowed: They may not add to it.
        """
        if self._lab.elsewhere and self._lab.home.config().objects:
            self._lab.begin_dataset(checked_name(dataset, "dataset"))

    def _staging(self) -> data.StagingOptions:
        """Returns where what lies elsewhere is put while it is read; stores' settings are those of their own tools."""
        return data.StagingOptions(
            cache=self._lab.home.cache,
            wait=threading.Event().wait,
            store={},
            signed=any(name in os.environ for name in _CREDENTIALS),
        )

    def _publish(self, store: ObjectStore, candidate: data.VersionCandidate) -> data.Version:
        return data.publish_judged(store, candidate, clock=self._clock)

    def _recipe(self, recipe: Path | data.Recipe | None) -> data.Recipe | None:
        return data.recipe_from_yaml(recipe) if isinstance(recipe, Path) else recipe
