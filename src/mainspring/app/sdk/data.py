"""The data verbs of the SDK, `lab.data`: the same as `ms data`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

from mainspring import data  # Loads its names when they are used, so that other verbs start fast.
from mainspring.app.sdk.annotations import AnnotationVerbs, me
from mainspring.domain.codec import from_plain
from mainspring.domain.errors import InvalidInput, NotFound
from mainspring.objects import check_clock

_NAMED_MAX = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitReport:
    """A version's episodes on two sides; the versions made of them, if any were wanted."""

    version: str
    trained: int
    held_out: int
    train: data.Version | None = None
    holdout: data.Version | None = None


@final
class DataVerbs(AnnotationVerbs):
    """What can be done with a lab's data. A NAME is a dataset, for its newest version, or one version, "pick@3".

    Args:
        lab: The lab.
    """

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
            raise NotFound(
                "find an episode",
                on=id,
                got=f"several: {', '.join(row.id[:12] for row in found[:_NAMED_MAX])}" if found else "none",
                next_step=f"ms data show {version.name}",
            )
        return found[0]

    def sheet(self, name: str, id: str, path: Path | str) -> data.EpisodeRow:
        """Draws an episode's pictures and curves into a PNG file, and returns the episode.

        Args:
            name: NAME.
            id: See `episode`.
            path: The file.
        """
        row = self.episode(name, id)
        data.contact_sheet(
            self.store, row, self.version(name).features, Path(path), cache_dir=self._lab.home.cache / "videos"
        )
        return row

    def select(self, name: str, where: str, dataset: str, *, layers: Sequence[str] = ()) -> data.Version:
        """Returns the episodes for which a condition holds, frozen into a version; nothing is copied.

        Args:
            name: NAME to choose from.
            where: SQL over what is known of an episode, over what was said of it (`annotation.success`, `.labels`), and
                over the facts of layers.
            dataset: Dataset that the result is a version of.
            layers: Ids, or their beginnings, of layers whose facts are asked for by their producer's name.
        """
        version = self.version(name)
        specs = [data.find_layer(self.store, id) for id in layers]
        joined = {spec.producer: data.facts_table(self.store, spec.id) for spec in specs}
        if self.joined in where and self.joined not in joined:
            ids = data.episode_table(self.store, version, ["id"])["id"].to_pylist()
            joined[self.joined] = data.annotation_table(self.store, ids)
        self._begin(dataset)
        return data.select(self.store, version, where, dataset=dataset, joined=joined)

    def merge(self, names: Sequence[str], dataset: str) -> data.Version:
        """Returns the version that holds the episodes of several, each once; judged as `ingest` does.

        Args:
            names: NAMEs, two or more.
            dataset: The dataset it becomes a version of.
        """
        made = data.merged(self.store, names, dataset=dataset)
        self._begin(dataset)
        return self._publish(self.store, made)

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
        sides = data.split(self.store, version, fraction, group=by, keep=bool(dataset))
        report = SplitReport(version=version.name, trained=version.episodes - sides.held_out, held_out=sides.held_out)
        if not dataset:
            return report
        joined = {"side": sides.episodes.select(["id", "held_out"])}

        def frozen(where: str, side: str) -> data.Version:
            self._begin(f"{dataset}-{side}")
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
        return data.pin(self.store, name, owner=owner or me(), reason=reason)

    def unpin(self, name: str, *, owner: str = "") -> data.Version:
        """Takes a pin off a version, which it returns.

        Args:
            name: NAME.
            owner: Whose; yours, when left out.
        """
        version = self.version(name)
        data.unpin(self.store, version.name, owner=owner or me())
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
        return data.delete(self.store, name, clock=self._clock, by=by or me(), reason=reason)

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

    def candidates(self, dataset: str) -> tuple[data.VersionCandidate, ...]:
        """Returns what waits to become a version of a dataset, because a gate keeps it back.

        Args:
            dataset: The dataset.
        """
        return tuple(data.candidate(self.store, dataset, id) for id in data.candidates(self.store, dataset))

    def findings(self, candidate: data.VersionCandidate) -> tuple[data.Finding, ...]:
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
            raise NotFound(
                "find a candidate", on=id, got=f"{len(found)} of them", next_step=f"ms data candidates {dataset}"
            )
        return data.publish_judged(
            self.store, data.candidate(self.store, dataset, found[0]), clock=self._clock, waivers=waivers
        )


def _parts(version: data.Version) -> Iterator[data.Version]:
    """Yields a version fragment by fragment, so that of a large one only as much is read as is shown."""
    yield from (replace(version, fragments=(fragment,)) for fragment in version.fragments)


def _rows_of(table: Any) -> tuple[data.EpisodeRow, ...]:
    return tuple(from_plain(data.EpisodeRow, row) for row in table.to_pylist(maps_as_pydicts="strict"))
