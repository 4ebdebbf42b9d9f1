"""The data verbs of the SDK, `lab.data`: the same as `ms data`."""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from getpass import getuser
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from mainspring import data  # Loads its names when they are used, so that other verbs start fast.
from mainspring.app import uploads
from mainspring.app.system import SystemClock
from mainspring.domain.answers import ArrivalView
from mainspring.domain.codec import from_plain
from mainspring.domain.errors import Conflict, InvalidInput, NotFound
from mainspring.domain.ids import checked_name
from mainspring.objects import ObjectStore, blob_of_file, check_clock

if TYPE_CHECKING:
    from mainspring.app.sdk import Lab

_NAMED_MAX = 5
_POLL_S_MIN = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitReport:
    """A version's episodes on two sides; the versions made of them, if any were wanted."""

    version: str
    trained: int
    held_out: int
    train: data.Version | None = None
    holdout: data.Version | None = None


@final
class DataVerbs:
    """What can be done with a lab's data. A NAME is a dataset, for its newest version, or one version, "pick@3".

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

    @property
    def scratch(self) -> Path:
        """Returns a local folder for files on their way."""
        return self._lab.home.cache / "scratch"

    def ingest(
        self,
        *sources: Path | str,
        dataset: str,
        recipe: Path | data.MappingRecipe | None = None,
        progress: Callable[[data.IngestProgress], None] | None = None,
    ) -> data.IngestReport:
        """Takes sources' sound recordings into a dataset, and returns what came of it. Repeated, it does the rest.

        Args:
            *sources: Files, or folders of any depth.
            dataset: Name of the dataset they join.
            recipe: How the topics of logs become episodes, or a YAML file that says so.
            progress: Called after each recording.

        Raises:
            Conflict: The episodes are so unlike the dataset's that a gate keeps them back; they wait as a candidate.
        """
        checked_name(dataset, "dataset")
        chosen = self._recipe(recipe)
        paths = [Path(source) for source in sources]
        if not paths:
            raise InvalidInput("take recordings in", got="no source", wanted="files or folders")
        parts = [data.survey_of(path, chosen) for path in paths]
        return data.ingest_units(
            itertools.chain.from_iterable(data.units_in(path, chosen) for path in paths),
            data.Survey(
                units=sum(part.units for part in parts),
                size_bytes=sum(part.size_bytes for part in parts),
                parse_bytes=sum(part.parse_bytes for part in parts),
            ),
            self.store,
            dataset,
            clock=self._clock,
            recipe=chosen,
            progress=progress,
            publish=self._publish,
        )

    def watch(
        self,
        folder: Path | str,
        dataset: str,
        *,
        recipe: Path | data.MappingRecipe | None = None,
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
            moved: Where recordings go once they are read; they stay where they are without it.
            settle_s: How long files must not have changed before they are read; None for the usual ten seconds.
            kept_back: Called when a gate keeps a round's episodes back: they wait as a candidate, the watch goes on.
            stop: Ends the watch when it is set.
        """

        def publish(store: ObjectStore, candidate: data.Candidate) -> data.Version:
            try:
                return self._publish(store, candidate)
            except Conflict as error:
                kept_back(error)
                return data.resolve(store, dataset)  # Only what a version is compared with can keep a gate closed.

        ended = stop or threading.Event()
        watched = partial(
            data.watch,
            Path(folder),
            self.store,
            dataset,
            clock=self._clock,
            wait=lambda seconds: not ended.wait(seconds),
            recipe=self._recipe(recipe),
            moved=None if moved is None else Path(moved),
            publish=publish,
        )
        return watched() if settle_s is None else watched(settle_s=settle_s, poll_s=max(_POLL_S_MIN, settle_s / 5))

    def inspect(self, path: Path | str) -> data.Proposal:
        """Returns what a log holds and a recipe for it.

        Args:
            path: MCAP, ROS bag or ULog.
        """
        path = Path(path)
        if (path / "meta" / "info.json").is_file():
            step = f"ms data ingest {path} --dataset NAME"
            raise InvalidInput(
                "inspect a log", on=str(path), got="a LeRobot dataset, which needs no recipe", next_step=step
            )
        return data.propose(path)

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

    def datasets(self) -> tuple[data.Version, ...]:
        """Returns the newest version of every dataset, in order of name."""
        return data.newest_versions(self.store)

    def version(self, name: str) -> data.Version:
        """Returns the version of a name.

        Args:
            name: NAME.
        """
        return data.resolve(self.store, name)

    def history(self, dataset: str) -> tuple[data.Version, ...]:
        """Returns every version of a dataset, oldest first.

        Args:
            dataset: The dataset.
        """
        self.version(dataset)  # Says which is nearest when there is none.
        return data.versions(self.store, dataset.partition("@")[0])

    def episodes(self, name: str, *, limit: int) -> tuple[data.EpisodeRow, ...]:
        """Returns a version's first episodes.

        Args:
            name: NAME.
            limit: At most so many.
        """
        rows: list[data.EpisodeRow] = []
        for part in _parts(self.version(name)):
            if len(rows) < limit:
                rows += _rows_of(data.episode_table(self.store, part).slice(0, limit - len(rows)))
        return tuple(rows)

    def episode(self, name: str, id: str) -> data.EpisodeRow:
        """Returns one episode of a version.

        Args:
            name: NAME.
            id: Its id, or the first letters of it.

        Raises:
            NotFound: There is none, or several.
        """
        version = self.version(name)
        if not re.fullmatch(r"[0-9a-f]{1,64}", id):
            raise InvalidInput("find an episode", got=repr(id[:80]), wanted="an id, or its first letters")
        found: list[data.EpisodeRow] = []
        for part in _parts(version):
            ids = data.episode_table(self.store, part, ["id"])["id"].to_pylist()
            at = [row for row, one in enumerate(ids) if one.startswith(id)][: _NAMED_MAX + 1]
            found += _rows_of(data.episode_table(self.store, part).take(at)) if at else ()
        if len(found) != 1:
            got = f"several: {', '.join(row.id[:12] for row in found[:_NAMED_MAX])}" if found else "none"
            raise NotFound("find an episode", on=id, got=got, next_step=f"ms data show {version.name}")
        return found[0]

    def sheet(self, name: str, id: str, path: Path | str) -> data.EpisodeRow:
        """Draws an episode's pictures and curves into a PNG file, and returns the episode.

        Args:
            name: NAME.
            id: See `episode`.
            path: The file.
        """
        row = self.episode(name, id)
        features = self.version(name).features
        data.contact_sheet(self.store, row, features, Path(path), cache_dir=self._lab.home.cache / "videos")
        return row

    def select(self, name: str, where: str, dataset: str, *, layers: Sequence[str] = ()) -> data.Version:
        """Returns the episodes for which a condition holds, frozen into a version; nothing is copied.

        Args:
            name: NAME to choose from.
            where: SQL over what is known of an episode, and over the facts of layers.
            dataset: Dataset that the result is a version of.
            layers: Ids, or their beginnings, of layers whose facts are asked for by their producer's name.
        """
        specs = [data.find_layer(self.store, id) for id in layers]
        joined = {spec.producer: data.facts_table(self.store, spec.id) for spec in specs}
        return data.select(self.store, self.version(name), where, dataset=dataset, joined=joined)

    def merge(self, names: Sequence[str], dataset: str) -> data.Version:
        """Returns the version that holds the episodes of several, each once; judged as `ingest` does.

        Args:
            names: NAMEs, two or more.
            dataset: The dataset it becomes a version of.
        """
        return self._publish(self.store, data.merged(self.store, names, dataset=dataset))

    def split(self, name: str, fraction: float, *, by: str = "id", dataset: str = "") -> SplitReport:
        """Returns how a version falls into episodes that train and episodes held out.

        Args:
            name: NAME.
            fraction: Share to hold out.
            by: SQL for what episodes that belong together have in common, such as "metadata['session']".
            dataset: Freezes the two sides into DATASET-train and DATASET-holdout; "" freezes nothing.

        Raises:
            InvalidInput: One recording would lie on both sides, or a side that is to be frozen is empty.
        """
        version = self.version(name)
        sides = data.split(self.store, version, fraction, group=by)
        trained = version.episodes - sides.held_out
        report = SplitReport(version=version.name, trained=trained, held_out=sides.held_out)
        if not dataset:
            return report
        joined = {"side": sides.episodes.select(["id", "held_out"])}

        def frozen(where: str, side: str) -> data.Version:
            made = data.Origin(kind="split", detail=f"{side}: {fraction:g} held out, by {by}")
            return data.select(self.store, version, where, dataset=f"{dataset}-{side}", joined=joined, origin=made)

        train, holdout = frozen("NOT side.held_out", "train"), frozen("side.held_out", "holdout")
        return replace(report, train=train, holdout=holdout)

    def mix(self, name: str, weights: Mapping[str, float]) -> data.Mixture:
        """Returns a mixture of versions, which its name means from now on.

        Args:
            name: Its name.
            weights: By NAME.
        """
        return data.freeze_mixture(self.store, name, weights)

    def mixture(self, name: str) -> data.Mixture:
        """Returns a mixture.

        Args:
            name: Its name.
        """
        return data.mixture(self.store, name)

    def mixtures(self) -> tuple[data.Mixture, ...]:
        """Returns every mixture, in order of name."""
        return tuple(data.mixture(self.store, name) for name in data.mixtures(self.store))

    def delete_mixture(self, name: str) -> None:
        """Forgets a mixture: its name is free, and its versions may be deleted.

        Args:
            name: Its name.
        """
        data.delete_mixture(self.store, name)

    def diff(self, before: str, after: str) -> data.Difference:
        """Returns what differs between two versions.

        Args:
            before: NAME.
            after: NAME.
        """
        return data.diff(self.store, self.version(before), self.version(after))

    def ancestors(self, name: str) -> tuple[data.Link, ...]:
        """Returns what a version was made of, nearest first.

        Args:
            name: NAME.
        """
        return data.ancestors(self.store, self.version(name))

    def descendants(self, name: str) -> tuple[data.Link, ...]:
        """Returns what was made of a version, nearest first: versions, mixtures, views, runs.

        Args:
            name: NAME.
        """
        return data.descendants(self.store, self.version(name))

    def pin(self, name: str, *, reason: str, owner: str = "") -> data.Pin:
        """Keeps a version from being deleted.

        Args:
            name: NAME.
            reason: Why.
            owner: Who; you, when left out.
        """
        return data.pin(self.store, name, owner=owner or _me(), reason=reason)

    def unpin(self, name: str, *, owner: str = "") -> data.Version:
        """Takes a pin off a version, which it returns.

        Args:
            name: NAME.
            owner: Whose; yours, when left out.
        """
        version = self.version(name)
        data.unpin(self.store, version.name, owner=owner or _me())
        return version

    def delete(self, name: str, *, reason: str, by: str = "") -> data.Version:
        """Deletes a version, which can be restored for two weeks, and returns it.

        Args:
            name: A version, "pick@3".
            reason: Why.
            by: Who; you, when left out.

        Raises:
            Conflict: A pin or a mixture keeps it.
        """
        return data.delete(self.store, name, clock=self._clock, by=by or _me(), reason=reason)

    def restore(self, name: str) -> data.Version:
        """Returns a deleted version to the living.

        Args:
            name: A version, "pick@3".
        """
        return data.undelete(self.store, name, clock=self._clock)

    def gc(
        self, *, grace_s: float | None = None, dry_run: bool = False, extra_roots: Sequence[str] = ()
    ) -> data.GcReport:
        """Deletes bytes that nothing names any more.

        Args:
            grace_s: Nothing younger is touched; None for the usual two weeks.
            dry_run: Whether only to tell what would go.
            extra_roots: Ids of more blobs to keep.
        """
        check_clock(self.store, self._clock)
        grace = {} if grace_s is None else {"grace_s": grace_s}
        return data.gc(self.store, clock=self._clock, dry_run=dry_run, extra_roots=extra_roots, **grace)

    def view(
        self,
        name: str,
        recipe: data.ViewRecipe,
        *,
        progress: Callable[[data.ViewProgress], None] | None = None,
    ) -> data.ViewManifest:
        """Returns the training view of a version, making it unless it was made before.

        Args:
            name: NAME.
            recipe: What it is made like.
            progress: Called after each episode.

        Raises:
            DamagedData: Its first batches are not what they were when it was made.
        """
        manifest = data.build_view(self.store, self.version(name), recipe, scratch_dir=self.scratch, progress=progress)
        data.guard_made(self.store, manifest, self._lab.home.cache / "views")
        return manifest

    def candidates(self, dataset: str) -> tuple[data.Candidate, ...]:
        """Returns what waits to become a version of a dataset, because a gate keeps it back.

        Args:
            dataset: The dataset.
        """
        return tuple(data.candidate(self.store, dataset, id) for id in data.candidates(self.store, dataset))

    def findings(self, candidate: data.Candidate) -> tuple[data.Finding, ...]:
        """Returns what keeps a candidate back.

        Args:
            candidate: The candidate.
        """
        return data.judge(self.store, candidate)

    def publish(self, dataset: str, id: str, *, waivers: Sequence[data.Waiver] = ()) -> data.Version:
        """Returns the version that a candidate has become.

        Args:
            dataset: Its dataset.
            id: Its id, or the first letters of it.
            waivers: Gates to pass all the same, by whom and why.

        Raises:
            Conflict: A gate is closed and not waived.
        """
        found = [one for one in data.candidates(self.store, dataset) if one.startswith(id)]
        if len(found) != 1:
            step = f"ms data candidates {dataset}"
            raise NotFound("find a candidate", on=id, got=f"{len(found)} of them", next_step=step)
        candidate = data.candidate(self.store, dataset, found[0])
        return data.publish_judged(self.store, candidate, clock=self._clock, waivers=waivers)

    def _publish(self, store: ObjectStore, candidate: data.Candidate) -> data.Version:
        return data.publish_judged(store, candidate, clock=self._clock)

    def _recipe(self, recipe: Path | data.MappingRecipe | None) -> data.MappingRecipe | None:
        return data.recipe_from_yaml(recipe) if isinstance(recipe, Path) else recipe


def _parts(version: data.Version) -> Iterator[data.Version]:
    """Yields a version fragment by fragment, so that of a large one only as much is read as is shown."""
    for fragment in version.fragments:
        yield replace(version, fragments=(fragment,))


def _rows_of(table: Any) -> tuple[data.EpisodeRow, ...]:
    return tuple(from_plain(data.EpisodeRow, row) for row in table.to_pylist(maps_as_pydicts="strict"))


def _me() -> str:
    """Returns the caller's name at this machine, as a name."""
    try:
        name = getuser()
    except (OSError, KeyError):
        name = ""
    return re.sub(r"[^a-z0-9._-]", "-", name.lower()).strip("._-") or "somebody"
