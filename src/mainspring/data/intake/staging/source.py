"""Source addresses: what a source is called on a command line, and the folder it is read from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from mainspring.data.episode import Unreadable
from mainspring.data.intake.logs.recipe import Recipe
from mainspring.data.intake.sources import Survey, survey_of, units_in
from mainspring.data.intake.staging.archive import ARCHIVES, PACKED, TAR, TarRemote, ZipRemote, archive_suffix
from mainspring.data.intake.staging.port import Remote, Wait
from mainspring.data.intake.staging.prefix import PrefixRemote
from mainspring.data.intake.staging.stage import Stage, stage_folder
from mainspring.data.intake.staging.web import WebRemote
from mainspring.data.intake.units import EpisodeUnit, Unit
from mainspring.data.options import DEFAULT, IngestOptions
from mainspring.data.readers.episodes.zarr import is_zarr
from mainspring.data.readers.log import LOG_SUFFIXES
from mainspring.domain.errors import InvalidInput
from mainspring.objects.foreign import FOREIGN_SCHEMES

_SINGLE = (*LOG_SUFFIXES, *ARCHIVES, ".h5", ".hdf5", ".zarr.zip")
_HUB = "hf://datasets/"


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingOptions:
    """How sources that lie elsewhere are read.

    Args:
        cache: Folder for what is fetched.
        wait: Waits so many seconds.
        store: Settings of object stores, such as endpoint and region.
        signed: Whether there are credentials for object stores.
        budget_bytes: What each source may take of the disk, but for a single recording that is larger; None for what
            suits the disk.
    """

    cache: Path
    wait: Wait
    store: Mapping[str, str]
    signed: bool = False
    budget_bytes: int | None = None


class Sources:
    """Sources as an ingest reads them, wherever they lie; see `Staging`.

    Args:
        roots: The folders and files.
        stages: Of those that lie elsewhere, by root.
        recipe: How logs are read.
        options: What is said of the sources.
    """

    def __init__(
        self,
        roots: tuple[Path, ...],
        stages: Mapping[Path, Stage],
        recipe: Recipe | None,
        options: IngestOptions,
    ) -> None:
        self._roots, self._stages, self._recipe, self._options = roots, stages, recipe, options

    def survey(self) -> Survey:
        """Returns what they hold; see `survey_of`."""
        parts = [self._surveyed(root) for root in self._roots]
        return Survey(
            units=sum(part.units for part in parts),
            size_bytes=sum(part.size_bytes for part in parts),
            parse_bytes=sum(part.parse_bytes for part in parts),
        )

    def units(self) -> Iterator[Unit]:
        """Yields what they hold, source by source; see `units_in`."""
        for root in self._roots:
            yield from units_in(root, self._recipe, self._options, self)
            for left in self._stages[root].refused if root in self._stages else ():
                yield EpisodeUnit(
                    name=left.source, recording=Unreadable(name=left.source, reason=left.reason), files=()
                )

    def look(self, path: Path) -> str | None:
        """See `Staging.look`."""
        return next((look for stage in self._stages.values() if (look := stage.look(path)) is not None), None)

    @contextmanager
    def held(self, paths: Sequence[Path]) -> Iterator[None]:
        """See `Staging.held`."""
        with ExitStack() as held:
            for stage in self._stages.values():
                held.enter_context(stage.held(paths))
            yield

    def _surveyed(self, root: Path) -> Survey:
        refused = self._stages[root].refused if root in self._stages else ()
        try:
            found = survey_of(root, self._recipe, self._options)
        except InvalidInput as error:
            if not refused:
                raise
            raise InvalidInput(
                error.attempted,
                on=error.on,
                got=f"{error.got}; left out {refused[0].source}: {refused[0].reason}"[:400],
                wanted=error.wanted,
            ) from error
        return replace(found, units=found.units + len(refused))


@contextmanager
def opened_sources(
    sources: Iterable[Path | str],
    how: StagingOptions,
    *,
    recipe: Recipe | None = None,
    options: IngestOptions = DEFAULT,
) -> Iterator[Sources]:
    """Gives sources ready to be read: local ones as they are, the others staged while the block runs.

    Args:
        sources: Paths of folders, recordings and archives; addresses of object stores and of HTTPS servers.
        how: Where stages are.
        recipe: How logs are read.
        options: What is said of the sources.

    Raises:
        InvalidInput: An address is of a kind that is not read, or what lies there is not what it should be.
        NotFound: Nothing is there.
        NotAllowed: It may not be read.
        Unavailable: It does not answer.
        StorageFull: There is no room.
    """

    def named(root: Path) -> Iterable[Path]:
        return (file.path for unit in units_in(root, recipe, options) for file in unit.files)

    with ExitStack() as stack:
        roots: dict[Path, None] = {}  # What is named twice is read once.
        stages: dict[Path, Stage] = {}
        known: dict[str, Stage] = {}

        def staged(remote: Remote) -> Stage:
            if remote.address not in known:
                folder = stage_folder(how.cache, remote.address)
                stage = Stage(remote, folder, wait=how.wait, named=named, budget_bytes=how.budget_bytes)
                known[remote.address] = stack.enter_context(stage)
            return known[remote.address]

        for source in sources:
            remote, path = _remote(source, how)
            stage: Stage | None = None
            stamp = ""
            if remote is not None:
                stage = staged(remote)
                path = stage.root
            if archive_suffix(path.name) and path.is_file() and not is_zarr(path):
                address = remote.address if remote else ""
                if stage is not None:
                    stack.enter_context(stage.held([path]))
                    stamp = stage.look(path) or ""
                stage = staged(_archive(path, stamp, address and f"in {address}", how))
                path = stage.root
            roots.setdefault(path)
            if stage is not None:
                stages[path] = stage
        yield Sources(tuple(roots), stages, recipe, options)


def _archive(path: Path, stamp: str, address: str, how: StagingOptions) -> Remote:
    if archive_suffix(path.name) not in (*TAR, *PACKED):
        return ZipRemote(path, address)
    seen = path.stat()
    return TarRemote(
        path,
        stamp=stamp or f"{seen.st_size} {seen.st_mtime_ns}",
        work=stage_folder(how.cache, address or str(path.absolute())) / "unpacked",
        address=address,
    )


def _remote(source: Path | str, how: StagingOptions) -> tuple[Remote | None, Path]:
    text = str(source)
    if isinstance(source, Path) or "://" not in text:
        return None, Path(source)
    if text.startswith(_HUB):
        text = f"https://huggingface.co/datasets/{text.removeprefix(_HUB)}"
    parts = urlsplit(text)
    single = PurePosixPath(unquote(parts.path)).name.lower().endswith(_SINGLE)
    if parts.scheme == "file":
        return None, Path(unquote(parts.path))
    if parts.scheme in FOREIGN_SCHEMES:
        return PrefixRemote(text, how.store, signed=how.signed, single=single), Path()
    if parts.scheme in ("http", "https"):
        return WebRemote(text, single=single, wait=how.wait), Path()
    kinds = ", ".join(f"{scheme}://" for scheme in (*FOREIGN_SCHEMES, "https"))
    raise InvalidInput("read a source", on=text[:200], got=f"{parts.scheme}://", wanted=f"a path, or one of {kinds}")
